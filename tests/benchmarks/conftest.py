"""What the tests of the benchmarks share: as the benchmarks do, they let torch have one thread."""

from tests.explorer.conftest import one_thread

__all__ = ["one_thread"]
