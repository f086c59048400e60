"""Small worlds in labels, the parts that a dump of them would give, and their closure, computed slowly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from kgqa_core import schemas

Triple = tuple[str, str, str]

MIDS = ("g.1", "g.1b", "m.0", "m.00", "m.0_", "m.0_z", "m.0b", "m.0c", "m.0d", "m.0zz", "m.zzzzzzzzzzz")
OTHERS = (
    '""',
    '"1954"',
    '"1954"^^<http://www.w3.org/2001/XMLSchema#gYear>',
    '"Émile"@fr',
    '"m.0b"',
    '"a "quoted" one"',
    "_:b",
    "g.",
    "g.1B",
    "g.é",
    "h",
    "m.",
    "m.0 b",
    "m.0B",
    "m.zzzzzzzzzzzz",
    '"n\0"',
    "people.person",
)
RELATIONS = ("a.b", "a.b.c", "é", "film.film.genre")
NAMES = ("Anna", "anna", "Straße", "x", "x\0", "Émile Zola the elder", "Émile Zola the younger")


@dataclass(frozen=True)
class World:
    """What dumps say, in labels."""

    dumps: tuple[tuple[Triple, ...], ...]
    names: tuple[tuple[str, int, str | None], ...]  # entity, DUMP_NAMES.kind, name
    types: tuple[tuple[str, str], ...]
    topics: tuple[str, ...]


def is_mid(label: str) -> bool:
    """Is this label a MID?"""
    letters = set("0123456789_bcdfghjklmnpqrstvwxyz")
    return label[:2] in ("m.", "g.") and 1 <= len(label) - 2 <= 11 and set(label[2:]) <= letters


nodes = st.sampled_from(MIDS + OTHERS)
triples = st.tuples(st.sampled_from(MIDS), st.sampled_from(RELATIONS), nodes)
names = st.one_of(
    st.tuples(nodes, st.sampled_from([0, 1]), st.sampled_from(NAMES)), st.tuples(nodes, st.just(2), st.none())
)
worlds = st.builds(
    World,
    dumps=st.lists(st.lists(triples, max_size=30).map(tuple), min_size=1, max_size=3).map(tuple),
    names=st.lists(names, max_size=20).map(tuple),
    types=st.lists(st.tuples(nodes, st.sampled_from(["people.person", "film.film", "m.0b"])), max_size=8).map(tuple),
    topics=st.lists(nodes, min_size=1, max_size=3).map(tuple),
)


def write_parts(world: World, folder: Path, *, part_rows: int = 7) -> list[Path]:
    """Write the parts of each dump; the first has the names and types."""
    dumps = []
    for number, rows in enumerate(world.dumps):
        dump = folder / f"dump-{number}"
        dump.mkdir(parents=True)
        write_rows(dump, "triples", schemas.DUMP_TRIPLES, rows, part_rows)
        write_rows(dump, "names", schemas.DUMP_NAMES, world.names if number == 0 else [], part_rows)
        write_rows(dump, "types", schemas.DUMP_TYPES, world.types if number == 0 else [], part_rows)
        listed = [(label, "triple", 1) for label in sorted({relation for _, relation, _ in rows}, key=str.encode)]
        write_rows(dump, "relations", schemas.DUMP_RELATIONS, [*listed, ("noise.noise", "noise", 9)], None)
        dumps.append(dump)
    return dumps


def write_rows(
    dump: Path, stem: str, schema: pa.Schema, rows: Sequence[tuple[object, ...]], part_rows: int | None
) -> None:
    """Write rows to numbered parts, or to one file without a number."""
    for number, start in enumerate(range(0, max(len(rows), 1), part_rows or 10**9)):
        some = rows[start : start + (part_rows or 10**9)]
        table = pa.table([list(column) for column in zip(*some, strict=True)] or [[]] * len(schema), schema=schema)
        pq.write_table(table, dump / (f"{stem}.parquet" if part_rows is None else f"{stem}-{number:05d}.parquet"))


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
    """Return the other end and triple of each (node, relation, direction), lowest labels first."""
    groups = defaultdict(list)
    for triple in triples:
        head, relation, tail = triple
        groups[head, relation, "forward"].append((tail, triple))
        groups[tail, relation, "backward"].append((head, triple))
    return {group: sorted(ends, key=lambda end: key(end[0])) for group, ends in groups.items()}


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


def described(world: World, label: str) -> tuple[str, str, str | None, str | None]:
    """Return the name, the kind, the datatype and the language of an entity."""
    if label.startswith('"'):
        text, _, end = label[1:].rpartition('"')
        return text, "literal", end[3:-1] if end.startswith("^^") else None, end[1:] if end.startswith("@") else None
    rows = [(kind, name) for entity, kind, name in world.names if entity == label]
    names = sorted((name for kind, name in rows if kind == 0 and name is not None), key=key)
    kinds = {kind for kind, _ in rows}
    kind = "entity" if kinds & {0, 1} else "foreign" if kinds else "cvt" if is_mid(label) else "iri"
    kind = "blank" if kind == "iri" and label.startswith("_:") else kind
    return names[0] if names else f"{label} (no name)" if is_mid(label) else label, kind, None, None
