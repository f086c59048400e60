"""The compiled scanner (placeholder of the same name and results: the regular expression)."""

from __future__ import annotations

from kgqa_core.graph.dump.rows import RegexScanner as CompiledScanner

__all__ = ["CompiledScanner"]
