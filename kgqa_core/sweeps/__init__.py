"""Sweeps: one run configuration with some settings varied, and the curves side by side."""
