"""From a parsed dump to a graph, against the slow closure of the same world."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph import closure, closure_walk
from kgqa_core.graph.build import BuildLimits
from kgqa_core.graph.closure import build_from_dump
from kgqa_core.graph.closure_walk import labels_named
from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.kg import open_graph
from kgqa_core.questions.diff import triples_per_relation
from tests.graph.closure_worlds import World, close, described, key, worlds, write_parts, write_rows

FILMS = World(
    dumps=(
        (
            ("m.0flm", "directed_by", "m.0htch"),
            ("m.0flm", "starring", "m.0cvt"),
            ("m.0cvt", "actor", "m.0klly"),
            ("m.0cvt", "role", '"Lisa"@en'),
            ("m.0flm", "directed_by", "m.0htch"),
        ),
        (("m.0htch", "born_in", "m.0lndn"), ("m.0flm", "directed_by", "m.0htch"), ("m.0flm", "year", '"1954"')),
    ),
    names=(
        ("m.0flm", 0, "Rear Window"),
        ("m.0htch", 0, "Sir Alfred"),
        ("m.0htch", 0, "Alfred Hitchcock"),
        ("m.0htch", 1, "Hitch"),
        ("m.0htch", 1, "Hitch"),
        ("m.0lndn", 2, None),
        ("m.0klly", 1, "Grace"),
    ),
    types=(("m.0flm", "film.film"), ("m.0flm", "film.film"), ("m.0nbdy", "film.film")),
    topics=("m.0flm", "m.0nknwn"),
)


def build(world: World, folder: Path, *, part_rows: int = 13, **options: Any) -> Path:
    dumps = write_parts(world, folder / "dumps", part_rows=part_rows)
    build_from_dump(dumps, world.topics, folder / "graph", **options)
    return folder / "graph"


def rows_of(folder: Path, name: str) -> list[tuple[Any, ...]]:
    files = sorted(folder.glob(name))
    tables = [pq.read_table(file).to_pylist() for file in files]
    return [tuple(row.values()) for table in tables for row in table]


@pytest.mark.slow
@given(
    worlds,
    st.sampled_from([None, 1, 2, 3]),
    st.booleans(),
    st.sampled_from([None, None, 1, 2]),
    st.sampled_from([1, 5, 1000]),
)
@settings(max_examples=15)  # each builds a graph
def test_the_graph_is_that_of_the_slow_closure(
    world: World, hops: int | None, cvt_is_hop: bool, hub_cap: int | None, shard_rows: int
) -> None:
    hub_cap = hub_cap if hops is not None else None
    expected = close(world, hops, cvt_is_hop=cvt_is_hop, hub_cap=hub_cap)
    assume(expected.hop_of)
    with tempfile.TemporaryDirectory() as place:
        options = {"hops": hops, "cvt_is_hop": cvt_is_hop, "hub_cap": hub_cap}
        folder = build(world, Path(place), limits=BuildLimits(shard_rows=shard_rows), **options)
        graph, report = open_graph(folder), json.loads((folder / "closure.json").read_text("utf-8"))
        labels = sorted({end for head, _, tail in expected.hop_of for end in (head, tail)}, key=key)
        relations = sorted({relation for _, relation, _ in expected.hop_of}, key=key)
        assert graph.entity_labels == labels
        assert graph.relation_names == relations
        assert rows_of(folder, "entities.parquet") == [
            (number, label, *described(world, label)) for number, label in enumerate(labels)
        ]
        triples = sorted((labels.index(h), relations.index(r), labels.index(t)) for h, r, t in expected.hop_of)
        assert rows_of(folder, "triples-*.parquet") == triples
        columns = np.array(triples, np.int32).T
        csr = build_csr(*columns, num_entities=len(labels), num_relations=len(relations))
        for name in ("group_ptr", "group_relation", "edge_ptr", "edge_tail"):
            assert np.array_equal(getattr(graph, name), getattr(csr, name))
            assert getattr(graph, name).dtype == getattr(csr, name).dtype
        counts = Counter(relation for _, relation, _ in expected.hop_of)
        assert triples_per_relation(folder) == {relation: counts[relation] for relation in relations}
        if hops is not None:
            for hop, found in enumerate(report["hops"]):
                assert found["num_triples"] == list(expected.hop_of.values()).count(hop)
                assert found["num_entities"] == list(expected.level.values()).count(hop)
        directions = {"forward": 0, "backward": 1}
        in_order = sorted(expected.hubs, key=lambda hub: (key(hub[0]), key(hub[1]), directions[hub[2]]))
        assert rows_of(folder, "hubs.parquet") == [(*hub, *expected.hubs[hub]) for hub in in_order]
        check_names(world, folder, labels)


def check_names(world: World, folder: Path, labels: list[str]) -> None:
    """Aliases, types, topics, and the orders in which names are looked up."""
    ids = {label: number for number, label in enumerate(labels)}
    aliases = {(ids[entity], name) for entity, kind, name in world.names if kind == 1 and name and entity in ids}
    assert rows_of(folder, "aliases.parquet") == sorted(aliases, key=lambda row: (row[0], key(row[1])))
    types = {(ids[entity], label) for entity, label in world.types if entity in ids}
    assert rows_of(folder, "types.parquet") == sorted(types, key=lambda row: (row[0], key(row[1])))
    topics = sorted(set(world.topics), key=key)
    assert rows_of(folder, "topics.parquet") == [(topic, ids.get(topic)) for topic in topics]
    names = [described(world, label)[0] for label in labels]
    order = sorted(range(len(names)), key=lambda number: key(names[number]))
    assert np.load(folder / "name_order.npy").tolist() == order
    order = sorted(range(len(names)), key=lambda number: key(names[number].casefold()))
    assert np.load(folder / "folded_order.npy").tolist() == order


def test_a_film_its_director_and_behind_the_cvt_its_cast(tmp_path: Path) -> None:
    folder = build(FILMS, tmp_path, hops=1, cvt_is_hop=False)
    graph = open_graph(folder)
    film, cvt = graph.ids_of_label("m.0flm"), graph.ids_of_label("m.0cvt")
    assert film is not None
    assert cvt is not None
    named = ["1954", "Lisa", "m.0cvt (no name)", "Rear Window", "Alfred Hitchcock", "m.0klly (no name)"]
    assert graph.entity_names == named
    assert graph.ids_of_folded_name("REAR WINDOW") == (film,)
    starring = graph.relation_names.index("starring")
    assert graph.neighbors(film, starring).tolist() == [cvt]
    report = json.loads((folder / "closure.json").read_text("utf-8"))
    assert report["hops"][1] == {"hop": 1, "num_entities": 5, "num_triples": 5, "num_passes": 2}
    wanted = {"num_duplicates": 2, "num_topics": 2, "num_topics_missing": 1, "num_several_names": 1, "num_aliases": 2}
    assert {name: report[name] for name in wanted} == wanted
    assert report["kinds"] == {"entity": 3, "cvt": 1, "foreign": 0, "iri": 0, "blank": 0, "literal": 2}
    assert json.loads((folder / "graph.json").read_text("utf-8"))["kinds"] == report["kinds"]
    assert not list(tmp_path.rglob("*.work"))
    one_hop_less = build(FILMS, tmp_path / "other", hops=1, cvt_is_hop=True)
    assert open_graph(one_hop_less).entity_labels == ['"1954"', "m.0cvt", "m.0flm", "m.0htch"]


def test_a_topic_given_by_name_is_in_the_dump_where_who_bears_it_is(tmp_path: Path) -> None:
    dumps = write_parts(FILMS, tmp_path)
    named = {"Rear Window": ["m.0flm"], "Ghost": ["m.0gst"]}
    report = build_from_dump(dumps, ["Ghost", "Nobody", "Rear Window"], tmp_path / "graph", named=named)
    assert (report.num_topics, report.num_topics_missing) == (3, 2)
    assert [label for label, entity in rows_of(tmp_path / "graph", "topics.parquet") if entity is None] == [
        "Nobody",
        "m.0gst",
    ]


def in_reverse_and_twice(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """A worker that is thought to be dead ends its work after another has done it."""
    first = [function(item) for item in reversed(list(items))][::-1]
    assert repr([function(item) for item in items]) == repr(first)
    return first


def in_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(function, items))


@pytest.mark.slow
@given(worlds, st.sampled_from([None, 2]), st.sampled_from([None, 1]))
@settings(max_examples=3)  # each builds three graphs
def test_parts_groups_workers_and_memory_change_no_byte(world: World, hops: int | None, hub_cap: int | None) -> None:
    hub_cap = hub_cap if hops is not None else None
    assume(close(world, hops, cvt_is_hop=False, hub_cap=hub_cap).hop_of)
    found = []
    for part_rows, map_tasks, memory, rows in (
        (11, map, "1GB", 9),
        (13, in_reverse_and_twice, "200MB", 30),
        (1000, in_threads, "100MB", 10**9),
    ):
        with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
            patched.setattr(closure_walk, "GROUP_ROWS", rows)
            patched.setattr(closure, "RUN_ROWS", rows)
            limits = BuildLimits(map_tasks, memory_limit=memory, shard_rows=4)
            options = {"hops": hops, "cvt_is_hop": False, "hub_cap": hub_cap}
            folder = build(world, Path(place), part_rows=part_rows, limits=limits, **options)
            found.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert found[0] == found[1] == found[2]


def test_damage_and_topics_or_dumps_that_leave_nothing_stop_the_build(tmp_path: Path) -> None:
    out, dumps = tmp_path / "graph", write_parts(FILMS, tmp_path / "films")
    nothing = write_parts(World(((),), (), (), ()), tmp_path / "nothing")
    with pytest.raises(InputError, match=r"none of 1 \(m\.0nbdy\) is in a triple"):
        build_from_dump(dumps, ["m.0nbdy"], out)
    with pytest.raises(InputError, match="the questions name none"):
        build_from_dump(dumps, [], out)
    with pytest.raises(InputError, match=r"no triple was kept"):
        build_from_dump(nothing, ["m.0b"], out, hops=None)
    with pytest.raises(ArtifactError, match="holds no parsed dump"):
        build_from_dump([tmp_path], ["m.0b"], out)
    write_rows(dumps[1], "relations", schemas.DUMP_RELATIONS, [("year", "triple", 1)], None)
    with pytest.raises(ArtifactError, match=r"a relation is not in relations.parquet beside it"):
        build_from_dump(dumps, FILMS.topics, out)


def test_the_files_have_the_schemas_of_the_contract(tmp_path: Path) -> None:
    folder = build(FILMS, tmp_path, hops=2, hub_cap=1)
    files = {"triples-0000": "triples", "topics": "reached_topics"}
    for name in ("entities", "relations", "triples-0000", "hubs", "topics", "aliases", "types", "rejects"):
        schema = getattr(schemas, files.get(name, name).upper())
        assert pq.read_schema(folder / f"{name}.parquet").remove_metadata().equals(schema)


def test_all_who_bear_a_name_or_an_alias_are_found_in_all_files_and_mids_are_no_names(tmp_path: Path) -> None:
    named = [
        [("m.0c1", 0, "Ann"), ("m.0d2", 1, "Ann"), ("m.0f7", 2, None)],
        [("m.0b1", 0, "Ann"), ("m.0b1", 1, "Annie"), ("m.0g9", 0, "m.0c1")],
    ]
    dumps = [tmp_path / str(number) for number in range(len(named))]
    for dump, rows in zip(dumps, named, strict=True):
        dump.mkdir()
        write_rows(dump, "names", schemas.DUMP_NAMES, rows, 2)
        write_rows(
            dump, "triples", schemas.DUMP_TRIPLES, [("m.0b1", "a.b", f'"{text}"@en') for text in ("Ann", "blue")], 2
        )
    asked = ["Ann", "Annie", "Nobody", "m.0c1", "blue"]
    found = labels_named(asked, dumps, memory_limit="100MB", temp_directory=tmp_path)
    # as a topic, a text means what is called so before it means itself: ``link.ids_of``
    assert found == {"Ann": ["m.0b1", "m.0c1", "m.0d2"], "Annie": ["m.0b1"], "blue": ['"blue"@en']}
    for dump in dumps:
        (dump / "triples-00000.parquet").write_text("would fail if it were read")
    keys = ["/en/annie", "/en/an", "Ann"]  # a key of Freebase is spelled as a name
    found = labels_named(keys, dumps, memory_limit="100MB", temp_directory=tmp_path)
    assert found == {"/en/annie": ["m.0b1"], "Ann": ["m.0b1", "m.0c1", "m.0d2"]}
    (tmp_path / "names-00000.parquet").write_text("would fail if it were read")
    assert labels_named(["m.0c1"], [tmp_path], memory_limit="100MB", temp_directory=tmp_path) == {}
