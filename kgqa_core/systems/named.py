"""Which entities of what a system walks on bear a name."""

from __future__ import annotations

import numpy as np

from kgqa_core.graph.csr import Ints
from kgqa_core.systems.walk import Walk


def entities_named(walk: Walk, question_id: str, name: str, *, any_case: bool = False) -> Ints:
    """Return the entities of ``walk.graph`` with this name, ascending.

    With ``any_case`` its case does not count, and an alias will do where it is nobody's name.
    Where each question has its own subgraph these are rows of the question's own, and what is outside is not found.
    """
    graph = walk.entities
    found = graph.ids_of_folded_name(name) or graph.ids_of_alias(name) if any_case else graph.ids_of_name(name)
    if walk.subgraphs is None:
        return np.array(found, dtype=np.int64)
    return walk.subgraphs.rows_of(question_id, found)
