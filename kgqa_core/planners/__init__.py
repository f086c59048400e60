"""Planners: questions in, ranked relation paths out; and how such plans are scored."""
