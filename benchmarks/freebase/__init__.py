"""Freebase-shaped graphs of any size from a seed: as the dump's text, or as the parts that parsing it gives."""
