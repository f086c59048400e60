"""The embedded dataset: a small movie-like graph with questions, made from a seed. Everything in it is invented."""

from kgqa_core.embedded.dataset import generate

__all__ = ["generate"]
