"""Looking around from a set of entities: which relations go on, and what leads to given entities.

All look-ups are array operations over the CSR, so a hub costs no Python loop over its tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph


def relations_around(graph: KnowledgeGraph, frontier: Ints, avoided: Ints) -> list[int]:
    """Return the relation ids, ascending, that lead from any of ``frontier`` to an entity that is not ``avoided``."""
    groups = _groups(graph, frontier)
    open_groups = groups[_leads_on(graph, groups, avoided)]
    return [int(one) for one in sorted_distinct(graph.group_relation[open_groups])]


def links_to(graph: KnowledgeGraph, frontier: Ints, targets: Ints) -> dict[int, list[int]]:
    """Return the targets, ascending, that are one step from ``frontier``, by relation id, ascending.

    It is looked up from whichever side has fewer edges; ``targets`` are distinct and ascending, as ``frontier`` is.
    """
    here, there = _groups(graph, frontier), _groups(graph, targets)
    if _num_edges(graph, here) <= _num_edges(graph, there):
        tails = graph.edge_tail[expand_ranges(graph.edge_ptr[here], graph.edge_ptr[here + 1])]
        inside = np.isin(tails, targets)
        relations, found = _relation_of_edges(graph, here)[inside], tails[inside]
    else:
        tails = graph.edge_tail[expand_ranges(graph.edge_ptr[there], graph.edge_ptr[there + 1])]
        inside = np.isin(tails, frontier)
        owners = np.repeat(targets, graph.group_ptr[targets + 1] - graph.group_ptr[targets])
        found = np.repeat(owners, graph.edge_ptr[there + 1] - graph.edge_ptr[there])[inside]
        relations = (_relation_of_edges(graph, there)[inside] + graph.num_relations) % graph.identity
    keys = sorted_distinct(relations.astype(np.int64) * graph.num_entities + found)
    links: dict[int, list[int]] = {}
    for key in keys.tolist():
        links.setdefault(key // graph.num_entities, []).append(key % graph.num_entities)
    return links


def _groups(graph: KnowledgeGraph, entities: Ints) -> Ints:
    return expand_ranges(graph.group_ptr[entities], graph.group_ptr[entities + 1])


def _leads_on(graph: KnowledgeGraph, groups: Ints, avoided: Ints) -> NDArray[np.bool_]:
    """Say of each group of edges whether it reaches an entity that is not ``avoided``."""
    sizes = graph.edge_ptr[groups + 1] - graph.edge_ptr[groups]
    leads = sizes > len(avoided)  # more than could all be avoided
    few = np.flatnonzero(~leads)
    edges = expand_ranges(graph.edge_ptr[groups[few]], graph.edge_ptr[groups[few] + 1])
    allowed = ~np.isin(graph.edge_tail[edges], avoided)
    leads[few] = np.bincount(np.repeat(np.arange(len(few)), sizes[few])[allowed], minlength=len(few)) > 0
    return leads


def _num_edges(graph: KnowledgeGraph, groups: Ints) -> int:
    return int((graph.edge_ptr[groups + 1] - graph.edge_ptr[groups]).sum())


def _relation_of_edges(graph: KnowledgeGraph, groups: Ints) -> Ints:
    return np.repeat(graph.group_relation[groups], graph.edge_ptr[groups + 1] - graph.edge_ptr[groups])
