"""Metrics of predictions: strict ones by entity id, and the published evaluator's own under its own names."""
