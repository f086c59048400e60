"""A name that stays: the code inside registered models imports this from here, whatever moves in the library."""

from kgqa_core.run.ask import open_served

__all__ = ["open_served"]
