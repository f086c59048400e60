"""Small graphs to test with: built from files, or straight from triples without touching the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.kg import KnowledgeGraph
from tests.loading import graph_of_text

FILMS = """\
Rear Window|directed_by|Alfred Hitchcock
Rear Window|release_year|1954
Rear Window|starred_actors|Grace Kelly
Vertigo|directed_by|Alfred Hitchcock
Vertigo|release_year|1958
Alfred Hitchcock|born_in|London
Alfred Hitchcock|lived_in|London
"""


@pytest.fixture
def films(tmp_path: Path) -> KnowledgeGraph:
    """7 triples, 7 entities, 5 relations; two parallel edges from a director to a city."""
    return graph_of_text(tmp_path / "films", FILMS, format="wikimovies")


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Everything in a folder, by file name."""
    return lambda folder: {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="session")
def graph_of() -> Callable[..., KnowledgeGraph]:
    """Make a graph in memory from distinct (head, relation, tail) ids; ids that do not occur have no triple.

    ``more``: entities without a triple after the last one that has one.
    """

    def make(triples: Iterable[tuple[int, int, int]], more: int = 0) -> KnowledgeGraph:
        heads, relations, tails = np.array(sorted(set(triples)), dtype=np.int32).T
        num_entities, num_relations = int(max(heads.max(), tails.max())) + 1 + more, int(relations.max()) + 1
        csr = build_csr(heads, relations, tails, num_entities=num_entities, num_relations=num_relations)
        return KnowledgeGraph(Path(), num_entities, num_relations, len(heads), *csr)

    return make
