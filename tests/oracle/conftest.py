"""What tests of stand-ins share with those of the systems that ask them."""

from tests.systems.conftest import forty, rows

__all__ = ["forty", "rows"]
