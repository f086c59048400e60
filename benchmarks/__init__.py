"""One script per claim. ``make bench`` runs all and writes their sections of docs/results.md."""
