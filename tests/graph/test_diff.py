"""Two builds of one graph: what differs, by label, held against sets and against DuckDB; what lint says of one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.cli_lint import graph_rows, lint_graph
from kgqa_core import schemas
from kgqa_core.graph.build import BuildLimits
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.diff import Change, GraphComparison, compare_graphs
from tests.loading import graph_of_text

Triple = tuple[str, str, str]

OLD = [
    ("Aar", "flows_through", "Bern"),
    ("Aar", "flows_into", "Rhine"),
    ("Bern", "capital_of", "Switzerland"),
    ("Reuss", "flows_through", "Luzern"),
    ("Luzern", "twin_of", "Bournemouth"),
]
NEW = [
    ("Aar", "flows_through", "Bern"),
    ("Aar", "flows_through", "Thun"),
    ("Aar", "flows_into", "Rhine"),
    ("Abbot", "lives_in", "Luzern"),
    ("Bern", "capital_of", "Switzerland"),
    ("Luzern", "flows_through", "Luzern"),
]


def build(folder: Path, triples: list[Triple], names: dict[str, str] | None = None, **limits: int) -> KnowledgeGraph:
    named = "".join(f"{label}\t{name}\n" for label, name in (names or {}).items())
    text = "".join("\t".join(triple) + "\n" for triple in triples)
    return graph_of_text(folder, text, named, limits=BuildLimits(**limits))


@pytest.fixture
def compared(tmp_path: Path) -> GraphComparison:
    return compare_graphs(build(tmp_path / "old", OLD), build(tmp_path / "new", NEW))


def labels_where(graph: KnowledgeGraph, marks: np.ndarray) -> set[str]:
    return {graph.label_of(int(entity)) for entity in np.flatnonzero(marks)}


def test_what_came_and_went_is_counted_by_label(compared: GraphComparison) -> None:
    diff = compared.diff
    assert diff.triples == Change(before=5, after=6, came=3, gone=2)
    assert diff.entities == Change(before=7, after=7, came=2, gone=2)  # Thun and Abbot; Reuss and Bournemouth
    assert diff.relations == Change(before=4, after=4, came=1, gone=1)
    assert diff.new_relations == ("lives_in",)
    assert diff.gone_relations == ("twin_of",)
    assert diff.per_relation == {
        "flows_through": Change(2, 3, came=2, gone=1),
        "lives_in": Change(0, 1, came=1, gone=0),
        "twin_of": Change(1, 0, came=0, gone=1),
    }
    assert list(diff.per_relation) == ["flows_through", "lives_in", "twin_of"]  # most changed first


def test_entities_and_neighbourhoods_that_changed_are_known_in_both(compared: GraphComparison) -> None:
    old, new = compared.old, compared.new
    moved = {old.label_of(entity): int(place) for entity, place in enumerate(compared.new_ids)}
    assert {label for label, place in moved.items() if place == -1} == {"Bournemouth", "Reuss"}
    assert all(new.label_of(place) == label for label, place in moved.items() if place >= 0)
    gone, came = {"Reuss", "Luzern", "Bournemouth"}, {"Aar", "Thun", "Abbot", "Luzern"}
    assert (labels_where(old, compared.old_ends), labels_where(new, compared.new_ends)) == (gone, came)
    assert labels_where(new, compared.near_change(1)[1]) == came
    assert labels_where(new, compared.near_change(2)[1]) == came | {"Bern", "Rhine"}
    assert len(labels_where(new, compared.near_change(3)[1])) == 7
    assert labels_where(old, compared.near_change(3)[0]) == gone


def test_equal_graphs_do_not_differ_whatever_the_order_of_lines_and_size_of_shards(tmp_path: Path) -> None:
    old, new = build(tmp_path / "old", OLD), build(tmp_path / "new", OLD[::-1] + OLD[:2], shard_rows=2)
    assert len(list(new.folder.glob("triples-*.parquet"))) > 1
    diff = compare_graphs(old, new).diff
    assert not diff.num_renamed and not diff.per_relation and diff.entities == Change(7, 7, 0, 0)


def test_a_new_name_is_a_difference_although_no_triple_moved(tmp_path: Path) -> None:
    before = {"Aar": "the Aare", "Bern": "Berne"}
    old = build(tmp_path / "old", OLD, before)
    new = build(tmp_path / "new", OLD, {**before, "Aar": "the river Aare", "Rhine": "the Rhine"})
    diff = compare_graphs(old, new).diff
    assert diff.num_renamed == 2
    assert diff.triples == Change(5, 5, 0, 0)
    assert (diff.named_before, diff.named_after) == (pytest.approx(100 * 2 / 7), pytest.approx(100 * 3 / 7))


# An oracle that knows no ids

TRIPLES = st.lists(
    st.tuples(
        st.sampled_from(["a", "ab", "b", "é", "z", "雪", "a b"]), st.sampled_from("rst"), st.sampled_from("abcz")
    ),
    min_size=1,
    max_size=23,
)


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TRIPLES, after=TRIPLES)
def test_any_two_graphs_differ_as_their_sets_of_labels_do(
    tmp_path_factory: pytest.TempPathFactory, before: list[Triple], after: list[Triple]
) -> None:
    assert_differ_as_sets(tmp_path_factory.mktemp("graphs"), before, after)


def assert_differ_as_sets(folder: Path, before: list[Triple], after: list[Triple]) -> None:
    compared = compare_graphs(build(folder / "old", before, shard_rows=3), build(folder / "new", after, shard_rows=5))
    diff, old, new = compared.diff, set(before), set(after)
    assert diff.triples == Change(len(old), len(new), len(new - old), len(old - new))
    entities = [{label for head, _, tail in triples for label in (head, tail)} for triples in (old, new)]
    assert diff.entities == change_of(*entities)
    assert diff.relations == change_of({r for _, r, _ in old}, {r for _, r, _ in new})
    came, gone = Counter(r for _, r, _ in new - old), Counter(r for _, r, _ in old - new)
    assert {r: (change.came, change.gone) for r, change in diff.per_relation.items()} == {
        r: (came[r], gone[r]) for r in came | gone
    }
    assert labels_where(compared.old, compared.old_ends) == {end for h, _, t in old - new for end in (h, t)}
    assert labels_where(compared.new, compared.new_ends) == {end for h, _, t in new - old for end in (h, t)}


@pytest.mark.slow
def test_many_triples_over_many_pieces_differ_as_sets_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.questions.diff.RANGE_EDGES", 257)
    drawn = np.random.default_rng(7).integers(0, [[311], [11], [211]], (2, 3, 2503)).transpose(0, 2, 1).tolist()
    first, second = ([(f"m.{h}", f"r{r}", f"m.{t}") for h, r, t in rows] for rows in drawn)
    assert_differ_as_sets(tmp_path, first, first[:2207] + second[:503])


def change_of(old: set[str], new: set[str]) -> Change:
    return Change(len(old), len(new), len(new - old), len(old - new))


# Lint

HUBS = [
    {"label": "m.0a", "relation": "r", "direction": "forward", "hop": 1, "degree": 7, "kept": 5},
    {"label": "m.0b", "relation": "r", "direction": "backward", "hop": 2, "degree": 11, "kept": 5},
]


def test_a_graph_from_a_file_has_sizes_and_relations_but_no_kinds_and_no_hubs(films: KnowledgeGraph) -> None:
    found = lint_graph(films.folder)
    assert [found[f"num_{name}"] for name in ("entities", "relations", "triples")] == [7, 5, 7]
    assert next(iter(found["largest_relations"].items())) == ("directed_by", 2)
    assert [found[name] for name in ("kinds", "named", "num_hubs", "largest_hubs")] == [{}, None, 0, []]
    assert found["num_topics_missing"] is None


def test_a_graph_from_a_dump_tells_kinds_names_capped_hubs_and_topics_missing(films: KnowledgeGraph) -> None:
    path = films.folder / "graph.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps(facts | {"kinds": {"entity": 3, "cvt": 2, "foreign": 1, "literal": 1}}), encoding="utf-8"
    )
    (films.folder / "closure.json").write_text(json.dumps({"num_topics_missing": 3}), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(HUBS, schema=schemas.HUBS), films.folder / "hubs.parquet")
    found = lint_graph(films.folder)
    assert [found[name] for name in ("named", "num_hubs", "num_topics_missing")] == [50.0, 2, 3]
    assert found["largest_hubs"] == HUBS[::-1]
    rows = {row[0]: row[1:] for row in graph_rows({**found, "num_topics": 0, "num_topics_isolated": 0})}
    assert rows["nodes without a name in any language"] == ("2", "28.57")
    assert rows["entities with a name (literals left out)"] == ("", "50.00")
    assert rows["triples of directed_by"] == ("2", "28.57")
    assert rows["topics asked for that the dump has not"] == ("3", "")
    assert rows["  of them in no triple"] == ("0", "")
