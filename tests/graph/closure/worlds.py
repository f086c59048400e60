"""Small worlds in labels, and the coded parts that a dump of them would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.graph.dump.codes import code_of

Triple = tuple[str, str, str]

MIDS = ("g.1", "g.1b", "m.0", "m.00", "m.0_", "m.0_z", "m.0b", "m.0c", "m.0d", "m.0zz", "m.zzzzzzzzzzz")
OTHERS = (
    "",
    "1954",
    "Émile",
    "g.",
    "g.1B",
    "g.é",
    "h",
    "m.",
    "m.0 b",
    "m.0B",
    "m.zzzzzzzzzzzz",
    "n\0",
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
    return code_of(label) > 0


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
    """Write the coded parts of each dump, each with relation numbers of its own; the first has the names and types."""
    dumps = []
    for number, rows in enumerate(world.dumps):
        dump = folder / f"dump-{number}"
        dump.mkdir(parents=True)
        relations = sorted({relation for _, relation, _ in rows}, key=lambda label: (hash_of(label, number), label))
        coded = [(code_of(head), relations.index(relation), code_of(tail)) for head, relation, tail in rows]
        given = number == 0
        named = [(code_of(entity), kind, name) for entity, kind, name in world.names] if given else []
        typed = [(code_of(entity), code_of(type)) for entity, type in world.types] if given else []
        labels = {label for head, _, tail in rows for label in (head, tail)}
        labels |= {label for pair in world.types for label in pair} if given else set()
        texts = sorted((code_of(label), label) for label in labels if not is_mid(label))
        write_rows(dump, "triples", schemas.DUMP_TRIPLES, coded, part_rows)
        write_rows(dump, "names", schemas.DUMP_NAMES, named, part_rows)
        write_rows(dump, "types", schemas.DUMP_TYPES, typed, part_rows)
        write_rows(dump, "texts", schemas.DUMP_TEXTS, texts + texts[:2], part_rows)  # parts repeat texts of others
        listed = [(place, label, "triple", 1) for place, label in enumerate(relations)]
        write_rows(dump, "relations", schemas.DUMP_RELATIONS, [*listed, (len(listed), "noise.noise", "noise", 9)], None)
        dumps.append(dump)
    return dumps


def hash_of(label: str, number: int) -> int:
    """Some order of labels that differs from dump to dump."""
    return code_of(f"{label}{number}")


def write_rows(
    dump: Path, stem: str, schema: pa.Schema, rows: Sequence[tuple[object, ...]], part_rows: int | None
) -> None:
    """Write rows to numbered parts, or to one file without a number."""
    if part_rows is None:
        pq.write_table(table_of(rows, schema), dump / f"{stem}.parquet")
        return
    for number, start in enumerate(range(0, max(len(rows), 1), part_rows)):
        pq.write_table(table_of(rows[start : start + part_rows], schema), dump / f"{stem}-{number:05d}.parquet")


def table_of(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows as a table."""
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * len(schema), schema=schema)
