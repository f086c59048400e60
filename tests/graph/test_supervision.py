"""The table of supervision: every shortest path with what following it reaches, and why a question has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.supervision import NO_ANSWER, NO_TOPIC, UNREACHABLE, Mode, read_supervision, write_supervision
from kgqa_core.schemas import SUPERVISION
from kgqa_core.types import LabelPath, Question
from tests.loading import searched

Ask = Callable[..., Question]


@pytest.fixture
def ask(films: KnowledgeGraph) -> Ask:
    """Make a question about films from names."""

    def make(question_id: str, topics: list[str], answers: list[str]) -> Question:
        ids = [tuple(sorted(films.ids_of_name(name)[0] for name in names)) for names in (topics, answers)]
        return Question(question_id, "?", "?", topics=ids[0], answers=ids[1], split="train")

    return make


def paths(folder: Path, mode: Mode = "all_shortest", threshold: float = 0.0) -> dict[str, tuple[LabelPath, ...]]:
    found = read_supervision(folder / "s.parquet", mode, threshold)
    return {question_id: tuple(one.path for one in own) for question_id, own in found.items()}


def test_each_path_comes_with_what_following_it_reaches(films: KnowledgeGraph, ask: Ask, tmp_path: Path):
    question = ask("q", ["Alfred Hitchcock"], ["1954"])
    report = write_supervision(searched(films, 3), [question], tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.schema.equals(SUPERVISION)
    assert table.to_pylist() == [
        {
            "question_id": "q",
            "split": "train",
            "path": ["^directed_by", "release_year"],
            "num_reached": 2,  # 1958 too
            "num_right": 1,
            "f1": 2 / 3,
            "best": True,
        }
    ]
    assert (report.num_questions, report.num_paths, report.num_best, report.num_capped) == (1, 1, 1, 0)


def test_modes_are_filters(films: KnowledgeGraph, ask: Ask, tmp_path: Path):
    # one answer is a hop away, the other two
    question = ask("q", ["Alfred Hitchcock"], ["Rear Window", "1954"])
    write_supervision(searched(films, 3), [question], tmp_path / "s.parquet")
    one, two = ("^directed_by",), ("^directed_by", "release_year")
    assert paths(tmp_path) == {"q": (one, two)}
    assert paths(tmp_path, "best") == {"q": (one, two)}  # a tie
    assert paths(tmp_path, "precise", 0.5) == {"q": (one, two)}
    assert paths(tmp_path, "precise", 0.51) == {}


def test_questions_without_a_path_are_counted_by_reason(films: KnowledgeGraph, ask: Ask, tmp_path: Path):
    questions = [
        ask("no topic", [], ["London"]),
        ask("no answer", ["London"], []),
        ask("itself", ["London"], ["London"]),
        ask("far", ["Grace Kelly"], ["London"]),
        ask("near", ["Alfred Hitchcock"], ["London"]),
    ]
    done: list[int] = []
    report = write_supervision(searched(films, 2), questions, tmp_path / "s.parquet", progress=done.append)
    assert report.without_path == {NO_TOPIC: 1, NO_ANSWER: 2, UNREACHABLE: 1}
    assert (report.num_questions, done) == (5, [5])
    assert list(paths(tmp_path)) == ["near"]


def test_parallel_edges_are_paths_of_their_own_and_may_tie_and_too_many_are_counted(
    films: KnowledgeGraph, ask: Ask, tmp_path: Path
):
    asked = [ask("q", ["Alfred Hitchcock"], ["London"])]
    write_supervision(searched(films, 1), asked, tmp_path / "s.parquet")
    assert paths(tmp_path, "best") == {"q": (("born_in",), ("lived_in",))}
    report = write_supervision(searched(films, 1), asked, tmp_path / "s.parquet", max_paths=1)
    assert (report.num_paths, report.num_capped) == (1, 1)


def test_a_table_is_whole_or_not_there(films: KnowledgeGraph, ask: Ask, tmp_path: Path):
    def broken():
        yield ask("q", ["Alfred Hitchcock"], ["London"])
        raise RuntimeError("stopped")

    (tmp_path / "out").mkdir()
    with pytest.raises(RuntimeError, match="stopped"):
        write_supervision(searched(films, 1), broken(), tmp_path / "out" / "s.parquet")
    assert list((tmp_path / "out").iterdir()) == []
