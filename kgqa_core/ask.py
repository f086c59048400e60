"""A name that stays: the code inside registered models imports these from here, whatever moves in the library."""

from kgqa_core.run.ask import Answer, Answerer, Asked

__all__ = ["Answer", "Answerer", "Asked"]
