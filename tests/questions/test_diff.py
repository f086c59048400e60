"""Questions of two builds, where each has a subgraph of its own; the flow's tests have the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core import schemas
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.input_files import records_table
from kgqa_core.questions.diff import BuildDiff, Change, compare_builds
from kgqa_core.types import Question


def make_build(folder: Path, triples: str, questions: list[Question], digests: dict[str, str]) -> dict[str, Path]:
    """A build as its stages write it, of triples such as "a r b, a r c" and questions with ids of sorted labels."""
    built = {name: folder / name for name in ("graph", "questions", "subgraphs")}
    for path in (built["graph"], built["questions"], folder / "subgraphs"):
        path.mkdir(parents=True)
    text = "".join("\t".join(triple.split()) + "\n" for triple in triples.split(","))
    (folder / "triples.tsv").write_text(text, encoding="utf-8")
    build_graph(folder / "triples.tsv", format="tsv", out_dir=built["graph"])
    pq.write_table(records_table(questions, schemas.QUESTIONS), built["questions"] / "questions.parquet")
    (built["questions"] / "lint.json").write_text(json.dumps({"coverage": []}), encoding="utf-8")
    blocks = {"question_id": list(digests), "digest": list(digests.values())}
    pq.write_table(pa.table(blocks), folder / "subgraphs" / "blocks.parquet")
    return built


def ask(name: str, topics: tuple[int, ...], answers: tuple[int, ...], text: str = "which?") -> Question:
    return Question(name, text, text, topics, answers, "test")


@pytest.fixture
def compared(tmp_path: Path) -> tuple[BuildDiff, pa.Table]:
    """The entity "aa" comes between "a" and "b": every id after it moves."""
    before = [ask("q1", (0,), (1, 2)), ask("q2", (1,), (2,)), ask("q3", (2,), ()), ask("q5", (0, 1), (2,))]
    after = [ask("q4", (1,), (0,)), ask("q3", (3,), ()), ask("q1", (0,), (2, 3)), ask("q5", (0, 1, 2), (3,))]
    old = make_build(tmp_path / "old", "a r b,b r c", before, {"q1": "x", "q2": "x", "q5": "x"})
    new = make_build(tmp_path / "new", "a r b,b r c,aa r c", after, {"q1": "y", "q4": "x", "q5": "x"})
    return compare_builds(old, new, hops=1)


def test_questions_are_told_apart_by_id_and_subgraphs_by_digest(compared: tuple[BuildDiff, pa.Table]) -> None:
    diff, questions = compared
    assert (diff.questions.before, diff.questions.after, diff.questions.came, diff.questions.gone) == (4, 4, 1, 1)
    assert diff.num_reworded == 1  # q5 has a topic more; q1 and q3 are about what they were about
    assert (diff.num_subgraphs_changed, diff.subgraphs_by) == (1, "digest")  # q3 had none, and has none
    told = {row["question_id"]: row["change"] for row in questions.to_pylist()}
    assert told == {"q2": "gone", "q4": "new", "q5": "reworded", "q1": "subgraph"}


def test_another_claim_or_verdict_is_another_question(tmp_path: Path) -> None:
    """The entity "aa" comes, so that the claim "b" has another id."""
    before = [replace(ask(name, (0,), ()), claim=1, verdict=False) for name in ("claim", "verdict", "same")]
    after = [replace(one, claim=2) for one in before]
    after[0], after[1] = replace(after[0], claim=3), replace(after[1], verdict=True)
    old = make_build(tmp_path / "old", "a r b,b r c", before, {})
    new = make_build(tmp_path / "new", "a r b,b r c,aa r c", after, {})
    diff, questions = compare_builds(old, new, hops=1)
    assert diff.num_reworded == 2
    assert questions["question_id"].to_pylist() == ["claim", "verdict"]


def test_without_digests_in_both_the_neighbourhoods_tell(tmp_path: Path) -> None:
    asked = [ask("q1", (0,), (1,)), ask("q2", (2,), (1,))]
    old = make_build(tmp_path / "old", "a r b,c r d", asked, {})
    new = make_build(tmp_path / "new", "a r b,c r d,d r e", asked, {})
    bare = [{name: build[name] for name in ("graph", "questions")} for build in (old, new)]
    assert [compare_builds(*bare, hops=hops)[0].num_subgraphs_changed for hops in (1, 2)] == [0, 1]
    assert compare_builds(*bare, hops=2)[0].subgraphs_by == "walk"


def test_equal_builds_differ_in_nothing(tmp_path: Path) -> None:
    asked = [ask("q1", (0,), (1,))]
    builds = [make_build(tmp_path / name, "a r b", asked, {"q1": "x"}) for name in ("old", "new")]
    diff, questions = compare_builds(*builds, hops=2)
    assert not diff.graph.per_relation and diff.questions == Change(1, 1, 0, 0)
    assert not any((diff.num_reworded, diff.num_moved, diff.num_subgraphs_changed))
    assert questions.num_rows == 0
