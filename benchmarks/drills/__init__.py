"""Failure drills: ``python -m benchmarks.drills [NAME ...]``."""
