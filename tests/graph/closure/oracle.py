"""The closure, computed slowly from labels: what the fast one is held against."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from kgqa_core.graph.dump.codes import code_of
from tests.graph.closure.worlds import Triple, World, is_mid

Group = tuple[str, str, str]  # node, relation, direction


@dataclass(frozen=True)
class Closure:
    """What the graph should hold."""

    hop_of: dict[Triple, int]  # by the hop that first walks it
    level: dict[str, int]  # of each entity
    hubs: dict[Group, tuple[int, int, int]]  # hop, degree, kept


def key(label: str) -> bytes:
    """Labels sort by their bytes."""
    return label.encode()


def groups_of(triples: set[Triple]) -> dict[Group, list[tuple[str, Triple]]]:
    """Return the other end and triple of each (node, relation, direction), lowest codes first."""
    groups = defaultdict(list)
    for triple in triples:
        head, relation, tail = triple
        groups[head, relation, "forward"].append((tail, triple))
        groups[tail, relation, "backward"].append((head, triple))
    return {group: sorted(ends, key=lambda end: code_of(end[0])) for group, ends in groups.items()}


def close(world: World, hops: int | None, *, cvt_is_hop: bool, hub_cap: int | None) -> Closure:
    """Relax the hops that reach each node until nothing changes, then list what is walked."""
    triples = {triple for dump in world.dumps for triple in dump}
    if hops is None:
        return Closure(dict.fromkeys(triples, 1), {end: 0 for head, _, tail in triples for end in (head, tail)}, {})
    named = {entity for entity, _, _ in world.names}
    level = {end: 0 for head, _, tail in triples for end in (head, tail) if end in world.topics}

    def leave(node: str) -> int:
        free = not cvt_is_hop and level[node] > 0 and is_mid(node) and node not in named
        return level[node] if free else level[node] + 1

    groups = groups_of(triples)
    changed = True
    while changed:
        changed = False
        for (node, _, _), ends in groups.items():
            if node in level and leave(node) <= hops:
                for other, _ in ends[:hub_cap]:
                    if level.get(other, hops + 1) > leave(node):
                        level[other], changed = leave(node), True
    hop_of: dict[Triple, int] = {}
    hubs = {}
    for group, ends in groups.items():
        node = group[0]
        if node in level and leave(node) <= hops:
            for _, triple in ends[:hub_cap]:
                hop_of[triple] = min(hop_of.get(triple, hops), leave(node))
            if hub_cap is not None and len(ends) > hub_cap:
                hubs[group] = leave(node), len(ends), hub_cap
    return Closure(hop_of, level, hubs)


def described(world: World, label: str) -> tuple[str, str]:
    """Return the name and the kind of an entity."""
    rows = [(kind, name) for entity, kind, name in world.names if entity == label]
    names = sorted((name for kind, name in rows if kind == 0 and name is not None), key=key)
    kinds = {kind for kind, _ in rows}
    kind = "entity" if kinds & {0, 1} else "foreign" if kinds else "cvt" if is_mid(label) else "literal"
    return names[0] if names else f"{label} (no name)" if is_mid(label) else label, kind
