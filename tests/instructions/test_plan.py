"""Plans as text: what a model is trained to write, and whatever it writes instead."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgqa_core.artifacts import ArtifactStore, Recipe
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.follow import follow_layers
from kgqa_core.graph.kg import KnowledgeGraph, open_graph, to_relations
from kgqa_core.instructions.plan import (
    END,
    START,
    PathConstraints,
    PlanAsker,
    PlanInstruction,
    PlanQuestion,
    RelationConstraint,
    parse_plans,
    render_plan,
    score_paths,
    weigh_plans,
)
from kgqa_core.instructions.render import read_prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Generation, Searches

STEPS = st.text(min_size=1)


def test_a_plan_is_its_steps_between_markers() -> None:
    assert render_plan(("directed_by", "^starred_actors")) == "<PATH>directed_by<SEP>^starred_actors</PATH>"


@given(st.lists(STEPS, min_size=1, max_size=4).map(tuple))
@example(("<SEP>", "</PATH>", "a<PATH>b"))
@example((" edge ", "two\nlines", "\\u{3c}", "\\u{ffffff}"))
@example(("^", "\\^label", "\\\\label"))
def test_any_labels_come_back(path: tuple[str, ...]) -> None:
    text = render_plan(path)
    assert "\n" not in text
    assert parse_plans(text)[0] == path


@given(st.text() | st.text(alphabet="<>/PATHSEPpath\\u{}0 \n"))
@example("\\u{110000}<SEP>")
def test_parsing_never_raises(text: str) -> None:
    plans = parse_plans(text)
    assert isinstance(plans, ParseFailure) or all(plan and all(plan) for plan in plans)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("<PATH> capital_of <SEP> ^spoken_in </PATH>", ("capital_of", "^spoken_in")),  # blanks, as some decoders leave
        ("The plan is <PATH>a</PATH>, I think.", ("a",)),
        ("<PATH>a<SEP>b", ("a", "b")),  # the end marker was the stop string
        ("a<SEP>b</PATH>", ("a", "b")),  # the prompt ended with the start marker
        ("<path>a<sep>b</path>", ("a", "b")),
    ],
)
def test_a_plan_is_found_in_what_models_really_write(text: str, plan: tuple[str, ...]) -> None:
    assert parse_plans(text)[0] == plan


def test_a_text_without_a_plan_says_why() -> None:
    for text in ("", "I do not know."):
        assert parse_plans(text) == ParseFailure("no plan")
    for text in ("<PATH></PATH>", "<PATH>a<SEP></PATH>"):
        assert parse_plans(text) == ParseFailure("empty plan")


def test_several_plans_come_in_their_order_and_once() -> None:
    text = "\n".join(map(render_plan, [("a",), ("b", "^c")])) + "\n<PATH>a</PATH>\n<PATH></PATH>"
    assert parse_plans(text) == (("a",), ("b", "^c"))


def test_a_plan_without_steps_is_not_written() -> None:
    for path in ((), ("a", "")):
        with pytest.raises(ValueError, match="non-empty steps"):
            render_plan(path)


# ------ A plan can be written exactly if following it in the graph ends somewhere.


LABELS = ["film", "film.film<SEP>"]  # one begins another; one holds what plans are written with
triples = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 6)), min_size=1, max_size=14)


def make_graph(triples: Iterable[tuple[int, int, int]]) -> KnowledgeGraph:
    """A graph of 7 entities and 2 relations in memory."""
    heads, relations, tails = np.array(sorted(triples), dtype=np.int32).T
    csr = build_csr(heads, relations, tails, num_entities=7, num_relations=2)
    arrays = (csr.group_ptr, csr.group_relation, csr.edge_ptr, csr.edge_tail)
    graph = KnowledgeGraph(Path(), 7, 2, len(heads), *arrays)
    vars(graph)["relation_names"] = LABELS
    return graph


def all_texts(constraint: Constraint, pieces: tuple[str, ...] = ()) -> list[str]:
    options = constraint.next_pieces(pieces)
    assert not any(a != b and a.startswith(b) for a in options for b in options)
    ended = ["".join(pieces)] if constraint.may_end(pieces) else []
    return ended + [text for piece in options for text in all_texts(constraint, (*pieces, piece))]


@settings(max_examples=50)
@given(triples=triples, topics=st.sets(st.integers(0, 6), min_size=1, max_size=2), reenter=st.booleans())
def test_the_plans_that_can_be_written_are_those_that_lead_somewhere(
    triples: set[tuple[int, int, int]], topics: set[int], reenter: bool
) -> None:
    graph = make_graph(triples)
    space = PathConstraints(graph, max_hops=3, reenter_topic=reenter)
    texts = all_texts(space.around(list(topics)))
    written = [to_relations(graph, plan) for plan in (parse_plans(text)[0] for text in texts)]
    every = [path for hops in (1, 2, 3) for path in product(range(4), repeat=hops)]
    exist = {path for path in every if len(follow_layers(graph, sorted(topics), path, reenter_topic=reenter)[-1])}
    assert len(written) == len(set(written)) == len(texts)
    assert set(written) == exist


def test_no_step_is_offered_after_which_the_plan_could_not_end_in_time() -> None:
    """From 0 one step leads to 1, whose only edges lead back: the plan ends there."""
    around = PathConstraints(make_graph([(0, 0, 1), (1, 1, 0)]), max_hops=3).around([0])
    assert all_texts(around) == ["<PATH>film</PATH>", "<PATH>^film.film\\u{3c}SEP></PATH>"]


def test_around_a_topic_without_triples_nothing_can_be_written() -> None:
    around = PathConstraints(make_graph([(0, 0, 1)])).around([5])
    assert around.next_pieces(()) == () and not around.may_end(())
    assert PathConstraints(make_graph([(0, 0, 1)])).around([]).next_pieces(()) == ()


def test_questions_that_share_topics_share_what_was_worked_out() -> None:
    space = PathConstraints(make_graph([(0, 0, 1), (1, 1, 2)]))
    assert space.around([1, 0]) is space.around([0, 1, 1])


def test_keys_tell_topics_settings_and_graphs_apart(tmp_path: Path) -> None:
    graph, other = make_graph([(0, 0, 1)]), make_graph([(0, 1, 1)])
    spaces = [PathConstraints(graph), PathConstraints(graph, max_hops=2), PathConstraints(other)]
    spaces.append(PathConstraints(graph, reenter_topic=True))
    keys = {space.around([topic]).key for space in spaces for topic in (0, 1)}
    assert len(keys) == 8
    assert PathConstraints(make_graph([(0, 0, 1)])).around([0]).key in keys


def test_a_graph_that_is_built_again_keeps_its_key_whatever_the_build_took(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("Ash\tdirected_by\tDan Oak\n", encoding="utf-8")

    def build(home: str, seconds: float) -> str:
        def write(folder: Path) -> None:
            build_graph(tmp_path / "triples.tsv", format="tsv", out_dir=folder)
            (folder / "tracking.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")

        made, _ = ArtifactStore(tmp_path / home).build(Recipe("graph", 1, {}, {}), write)
        return PathConstraints(open_graph(made.folder)).key

    assert build("one", 0.5) == build("two", 0.7)


@pytest.mark.parametrize("max_hops", [1, 2])
def test_without_a_graph_known_relations_are_all_that_is_asked(max_hops: int) -> None:
    texts = all_texts(RelationConstraint(["film", "^film", "film.film"], max_hops=max_hops))
    plans = [parse_plans(text)[0] for text in texts]
    steps = ("film", "^film", "film.film")
    assert sorted(map(str, plans)) == sorted(str(p) for n in range(1, max_hops + 1) for p in product(steps, repeat=n))
    assert RelationConstraint([]).next_pieces(()) == ()


# ------ Weights of plans and scores of paths sum to 1 over a question.


def test_a_servers_plans_end_at_their_mark_and_samples_are_as_probable_as_frequent() -> None:
    instruction, space = PlanInstruction(read_prompts()), RelationConstraint(["a", "b", "c"])
    ways: tuple[Searches, ...] = ("bound", "beams", "samples")
    asked = {how: PlanAsker(instruction, space, searches=how).decoding(3) for how in ways}
    assert {how: one.stop for how, one in asked.items()} == {"bound": (), "beams": (END,), "samples": (END,)}
    assert {how: one.method for how, one in asked.items()} == {"bound": "beam", "beams": "beam", "samples": "sample"}
    assert asked["samples"].num_returns > 3 and asked["samples"].temperature > 0
    asker = PlanAsker(instruction, space, searches="samples")
    said = [("a", -3.0), ("b<SEP>c", -2.0), ("b<SEP>c", -2.0), ("nothing", -1.0), ("c", -1.0), ("a", -3.0)]
    texts = [Generation(f"{START}{text}", log_prob) for text, log_prob in said]
    texts.append(Generation("", problem="timeout"))
    plans = asker.read(asker.case(PlanQuestion("q", "?")), texts)
    assert [plan.path for plan in plans] == [("b", "c"), ("a",), ("c",)]  # of equals the likelier one first
    assert [math.exp(plan.log_prob) for plan in plans] == pytest.approx([2 / 5, 2 / 5, 1 / 5])


def test_plans_weigh_what_the_beam_gave_them_tiny_or_nothing_at_all():
    assert weigh_plans([math.log(0.3), math.log(0.1)]) == pytest.approx([0.75, 0.25])
    assert weigh_plans([-2000.0, -2000.0 + math.log(3)]) == pytest.approx([0.25, 0.75])
    assert weigh_plans([-math.inf, -math.inf]) == [0.5, 0.5]
    assert weigh_plans([]) == []


def test_a_path_scores_its_plan_times_its_entities():
    assert score_paths([0.6, 0.4], [[0.5, 0.5], []]) == pytest.approx([0.15 / 0.55, 0.4 / 0.55])


def test_entities_that_all_score_nothing_leave_the_weights_of_the_plans():
    assert score_paths([0.6, 0.2], [[0.0], [1.0, 0.0]]) == pytest.approx([0.75, 0.25])
    assert score_paths([], []) == []


@given(st.lists(st.tuples(st.floats(-50, 0), st.lists(st.floats(0, 1), max_size=3)), min_size=1, max_size=7))
def test_both_sum_to_one(paths: list[tuple[float, list[float]]]):
    weights = weigh_plans([log_prob for log_prob, _ in paths])
    scores = score_paths(weights, [entities for _, entities in paths])
    assert sum(weights) == pytest.approx(1) and sum(scores) == pytest.approx(1)
