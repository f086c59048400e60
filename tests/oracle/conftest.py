"""What tests of stand-ins share."""

from __future__ import annotations

import pytest

from tests.forty_triples import Forty, make_forty


@pytest.fixture(scope="session")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Forty:
    """Forty triples, with questions."""
    return make_forty(tmp_path_factory.mktemp("forty"))
