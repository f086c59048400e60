"""Dumps in small, scanned and parsed in each of the ways that there are."""

from __future__ import annotations

import pytest

from kgqa_core.graph.dump.filters import DumpOptions

SMALL = DumpOptions(block_bytes=512, blocks_per_part=12, max_reject_ratio=1.0)  # many blocks and parts in a few lines


@pytest.fixture
def small() -> DumpOptions:
    return SMALL
