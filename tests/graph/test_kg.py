"""Opening a graph: look-ups by label and name, neighbours, readable relations, and relation paths by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import ArtifactError
from kgqa_core.graph.build import connect
from kgqa_core.graph.csr import SHARED_NAMES, SortedIndex, write_string_indexes
from kgqa_core.graph.kg import KnowledgeGraph, open_graph, read_step, to_labels, to_relations, unsigned, write_step
from tests.conftest import Start
from tests.loading import graph_of_text


def test_labels_and_names_are_found_without_reading_them_all(films: KnowledgeGraph) -> None:
    for entity_id, label in enumerate(films.entity_labels):
        fresh = open_graph(films.folder)
        assert fresh.ids_of_label(label) == entity_id
        assert fresh.ids_of_name(label) == (entity_id,)
        assert fresh.name_of(entity_id) == fresh.label_of(entity_id) == label
        assert "entity_labels" not in vars(fresh)
        assert "entity_names" not in vars(fresh)


@pytest.mark.parametrize("unknown", ["", "A", "Rear", "Rear Window ", "rear window", "~", "\ud800"])
def test_what_is_not_in_the_graph_is_not_found(films: KnowledgeGraph, unknown: str) -> None:
    assert films.ids_of_label(unknown) is None
    assert films.ids_of_name(unknown) == ()


def test_a_shared_name_gives_all_its_entities(tmp_path: Path) -> None:
    names = "m.1\tÉmile\nm.3\tÉmile\nm.4\témile\nm.5\tStraße\n"
    graph = graph_of_text(tmp_path, "m.1\tr\tm.2\nm.3\tr\tm.2\nm.5\tr\tm.4\n", names)
    assert graph.ids_of_name("Émile") == (0, 2)
    assert graph.ids_of_folded_name("ÉMILE") == (0, 2, 3)
    assert graph.ids_of_folded_name("STRASSE") == (4,)
    assert graph.ids_of_name("m.1") == ()
    assert graph.ids_of_label("m.1") == 0


@given(st.lists(st.text(st.sampled_from("aAbé É\0ßs"), max_size=3), min_size=1, max_size=17))
def test_names_of_any_text_are_found_as_a_scan_finds_them(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    labels = [f"{number:03d}" for number in range(len(names))]
    pq.write_table(pa.table({"label": labels, "name": names}), folder / "entities.parquet", row_group_size=5)
    write_string_indexes(folder / "entities.parquet", folder)
    with connect("1GB", folder, {"entity": [folder / "entities.parquet"]}) as connection:
        assert connection.sql(SHARED_NAMES).fetchall() == [(sum(names.count(name) > 1 for name in set(names)),)]
    nothing = np.zeros(0, dtype=np.int32)
    graph = KnowledgeGraph(folder, len(names), 0, 0, nothing, nothing, nothing, nothing)
    for name in names:
        assert graph.ids_of_name(name) == tuple(at for at, other in enumerate(names) if other == name)
        alike = tuple(at for at, other in enumerate(names) if other.casefold() == name.casefold())
        assert graph.ids_of_folded_name(name) == alike


@given(st.lists(st.text(max_size=3), max_size=23), st.text(max_size=3))
def test_binary_search_agrees_with_a_scan(texts: list[str], text: str) -> None:
    keys, wanted = sorted(text.encode() for text in texts), text.encode()
    index = SortedIndex(keys.__getitem__, range(len(keys)))
    assert list(index.ids_of(text)) == [row for row, key in enumerate(keys) if key == wanted]
    assert index.starts_with(index.first(wanted), wanted) == any(key.startswith(wanted) for key in keys)


def test_the_arrays_have_the_types_of_the_contract(films: KnowledgeGraph) -> None:
    assert (films.num_entities, films.num_relations, films.num_triples, films.identity) == (7, 5, 7, 10)
    assert films.group_ptr.dtype == films.edge_ptr.dtype == "int64"
    assert films.group_relation.dtype == films.edge_tail.dtype == "int32"
    assert (len(films.group_ptr), len(films.edge_tail)) == (8, 14)
    assert len(films.edge_ptr) == len(films.group_relation) + 1
    assert not films.edge_tail.flags.writeable


def test_relations_read_as_words(tmp_path: Path, films: KnowledgeGraph) -> None:
    directed_by = films.relation_names.index("directed_by")
    assert films.relation_text(directed_by) == "directed by"
    assert films.relation_text(directed_by + films.num_relations) == "directed by (reversed)"
    assert films.relation_text(films.identity) == "same entity"
    dotted = graph_of_text(tmp_path, "a\tpeople.person.place_of_birth\tb\na\t...\tb\n")
    assert [dotted.relation_text(relation) for relation in (0, 1)] == ["...", "people person place of birth"]


# ------ Relation paths by label.


AWKWARD = st.text(st.sampled_from("^\\ab .|é"), max_size=5)


@pytest.mark.parametrize(
    ("label", "forward", "backward"),
    [("born in", "born in", "^born in"), ("^odd", "\\^odd", "^\\^odd"), ("\\odd", "\\\\odd", "^\\\\odd")],
)
def test_a_step_is_a_label_with_its_direction(label: str, forward: str, backward: str) -> None:
    assert (write_step(label), write_step(label, backward=True)) == (forward, backward)


@given(text=AWKWARD, backward=st.booleans())
def test_what_is_written_is_read_again_and_any_text_is_some_step(text: str, backward: bool) -> None:
    for label, way in ((text, backward), read_step(text)):
        assert read_step(write_step(label, way)) == (label, way)
    assert unsigned((write_step(text, backward),)) == (text,)  # files without directions hold plain labels


def test_a_relation_path_of_a_graph_is_written_by_label(films: KnowledgeGraph) -> None:
    path = ("directed_by", "^directed_by", "release_year")
    relations = to_relations(films, path)
    directed_by, release_year = films.step_ids["directed_by"], films.step_ids["release_year"]
    assert relations == (directed_by, directed_by + films.num_relations, release_year)
    assert to_labels(films, relations) == path
    assert to_labels(films, (films.identity,)) == ()  # staying is no step
    assert to_relations(films, ("directed_by", "^composed_by")) is None


@pytest.mark.slow
def test_numba_obeys_no_file_of_the_current_folder_and_keeps_code_where_only_we_can_write(
    start: Start, tmp_path: Path, own_home: Path
) -> None:
    """Its cache is unpickled: who chooses that folder runs code here. A read-only installation has a cache, too."""
    code = """
import os, pathlib, stat
access = os.access
os.access = lambda path, mode: pathlib.Path(path).name != "explorer" and access(path, mode)
from kgqa_core.graph import follow
folder = pathlib.Path(os.environ["NUMBA_CACHE_DIR"])
print(folder, oct(folder.stat().st_mode & 0o777))
"""
    environment = {"NUMBA_CACHE_DIR": ""}
    said, _ = start(code, cwd=tmp_path, env=environment).communicate(timeout=120)
    assert said.split() == [str(own_home / "cache" / "numba"), "0o700"]
    (own_home / "cache" / "numba").chmod(0o777)  # somebody else may have put code there
    said, _ = start(code, cwd=tmp_path, env=environment).communicate(timeout=120)
    folder, mode = said.split()
    assert Path(folder).name.startswith("kgqa-numba-") and mode == "0o700" and not Path(folder).exists()
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: /tmp/poisoned")
    _, problem = start(code, cwd=tmp_path, env=environment).communicate(timeout=120)
    assert f"{tmp_path / '.numba_config.yaml'} tells numba what to run" in problem


@pytest.mark.parametrize("name", ["group_ptr", "group_relation", "edge_ptr", "edge_tail"])
@pytest.mark.parametrize("value", [-1, 2**30])
def test_a_wild_value_in_an_array_is_an_error_that_names_the_file(tmp_path: Path, name: str, value: int) -> None:
    """Compiled code would walk out of the arrays, and end the process or make something up."""
    graph_of_text(tmp_path, "a|r|b\na|s|c\nb|r|c\nc|s|d\n", format="wikimovies")
    array = np.load(tmp_path / "graph" / f"{name}.npy")
    array[len(array) // 2] = value
    np.save(tmp_path / "graph" / f"{name}.npy", array)
    with pytest.raises(ArtifactError, match=f"{name}.npy is no index of this graph"):
        open_graph(tmp_path / "graph")
