"""Instruction data, question by question: the shapes of the papers, with entities of our own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from kgqa_core.config_base import CONF
from kgqa_core.config_lm import TAUGHT, ReasonerSection
from kgqa_core.errors import InputError
from kgqa_core.graph.search_graph import Subgraphs
from kgqa_core.graph.supervision import Mode, TaughtPath
from kgqa_core.instructions.alignment import learn_wordings
from kgqa_core.instructions.examples import CASES, Source, draw_probabilities, fold_of, make_examples, write_examples
from kgqa_core.instructions.plan import PathConstraints
from kgqa_core.instructions.render import read_prompts
from kgqa_core.instructions.types import Example
from kgqa_core.schemas import INSTRUCTIONS
from kgqa_core.types import Prediction, Question, Step

LINES = read_prompts(CONF / "papers" / "prompts")  # each path on a line of its own
BEST = ("made_by", "^made_by", "year")
OTHER = ("about", "^about", "year")


def source(world: Any, **reasoner: Any) -> Source:
    """Examples of right plans alone, where no wrong ones are asked for."""
    space = PathConstraints(world.search.graph, max_hops=3)
    return Source(world.search, world.prompts, ReasonerSection(**{"wrong_plans": 0, **reasoner}), space=space)


def make(world: Any, name: str, *, mode: Mode = "best", predictions: Any = None, **reasoner: Any) -> list[Example]:
    made_of = source(world, instructions={name: 1.0}, **reasoner)
    made_of = replace(made_of, mode=mode, predictions=predictions or {})
    return list(make_examples(made_of, world.questions, world.rows))


def of(examples: list[Example], question_id: str) -> list[Example]:
    return [example for example in examples if example.question_id == question_id]


def body(example: Example, heading: str = "Paths:\n") -> str:
    """The paths of a prompt, without what stands around them."""
    return example.prompt.rsplit(heading, 1)[1].split("\n\nQuestion:")[0]


def test_plan_teaches_the_path_that_executes_best(world: Any) -> None:
    (example,) = of(make(world, "plan"), "q1")
    assert example.target == "<PATH>made_by<SEP>^made_by<SEP>year</PATH>"
    assert example.prompt.endswith("Question: when did the films appear that the maker of [topic] also made?")
    assert (example.weight, example.split) == (1.0, "train")


def test_all_shortest_paths_share_the_weight_of_a_question_in_rog_and_weigh_one_each_in_eperm(world: Any) -> None:
    rog = of(make(world, "plan", mode="all_shortest"), "q1")
    eperm = of(make(world, "plan", mode="all_shortest", objective="eperm"), "q1")
    assert [example.weight for example in rog] == [0.5, 0.5]  # 1/|Z*|, Eq. 4
    assert [example.weight for example in eperm] == [1.0, 1.0]  # Eq. 6
    assert {example.target for example in rog} == {example.target for example in eperm}


def test_the_mixture_scales_weights(world: Any) -> None:
    scaled = replace(source(world, instructions={"plan": 3.0}), mode="all_shortest")
    examples = list(make_examples(scaled, world.questions, world.rows))
    assert {(example.instruction, example.weight) for example in of(examples, "q1")} == {("plan", 1.5)}


def test_with_meant_only_one_path_teaches_the_one_that_the_words_mean(world: Any) -> None:
    known = learn_wordings([(world.questions[0].masked, [BEST])])
    made_of = source(world, instructions={"plan": 1.0}, meant_only=True)
    made = make_examples(replace(made_of, mode="all_shortest", known=known), world.questions[:1], world.rows)
    assert [(one.target, one.weight) for one in made] == [("<PATH>made_by<SEP>^made_by<SEP>year</PATH>", 1.0)]


def test_reason_shows_where_the_plan_led_and_teaches_the_answers_among_it(world: Any) -> None:
    (example,) = of(make(world, "reason"), "q1")
    assert body(example).splitlines() == ["Nightfall → made_by → ^made_by → year:", "1989", "1992"]
    assert example.target == "1989\n1992"


def test_a_cap_on_paths_leaves_answers_out_of_sight_and_out_of_the_target(world: Any) -> None:
    def target(**reasoner: Any) -> str:
        listed = replace(source(world, instructions={"reason": 1.0}, max_paths=1, **reasoner), prompts=LINES)
        return of(list(make_examples(listed, world.questions, world.rows)), "q1")[0].target

    assert target() == "1989"
    assert target(answers="all") == "1989\n1992"  # RoG teaches all
    assert of(make(world, "reason", max_paths=1), "q1")[0].target == "1989\n1992"  # a block has a cap of its own


def test_a_pool_shows_wrong_plans_that_exist_among_the_right_ones(world: Any) -> None:
    (example,) = of(make(world, "reason", wrong_plans=1), "q1")
    right = {line for line in body(of(make(world, "reason"), "q1")[0]).splitlines()}
    wrong = set(body(example).splitlines()) - right
    assert right < set(body(example).splitlines()) and wrong
    assert not any(line.endswith(("1989", "1992")) for line in wrong)  # no wrong plan reaches a gold
    assert example.target == "1989\n1992"


def test_a_share_of_the_pools_shows_wrong_plans_alone_and_teaches_to_abstain(world: Any) -> None:
    (example,) = of(make(world, "reason", wrong_plans=2, abstain=1.0), "q1")
    assert example.target == "I do not know"
    assert "1989" not in body(example)


def test_a_pool_of_proposed_plans_holds_the_first_of_them_and_the_one_that_teaches(world: Any) -> None:
    plans = [("about",), ("made_by",), BEST, OTHER, BEST[:2]]
    steps_of = {" → ".join(steps): steps for steps in plans}
    ordered, sizes = set[bool](), set[int]()
    for seed in range(40):
        question = replace(world.questions[0], id=f"q{seed}")
        made_of = replace(source(world, instructions={"reason": 1.0}), proposed={question.id: plans})
        (example,) = make_examples(made_of, [question], {question.id: world.rows["q1"]})
        lines = [line.removeprefix("Nightfall → ") for line in body(example).splitlines() if " → " in line]
        chains = [line.rstrip(":") if line.endswith(":") else line.rsplit(" → ", 1)[0] for line in lines]
        shown = [steps_of[chain] for chain in chains]
        assert set(shown) == set(plans[: len(shown)])  # two proposed, and the third teaches
        assert {*example.target.splitlines()} == {"1989", "1992"}
        ordered.add(shown == plans[: len(shown)])
        sizes.add(len(shown))
    assert ordered == {True, False} and sizes == {3, 4, 5}


def test_the_probabilities_of_candidates_are_calibrated_and_the_best_comes_first(world: Any) -> None:
    """Of what is said to be right with probability p a share of p is: as an explorer of any skill, calibrated, says."""
    draw, said, right = Random(0), 0.0, 0
    low, num_low = 0, 0
    for _ in range(2000):
        place = draw.randrange(3)
        probabilities = draw_probabilities([one == place for one in range(3)], draw)
        assert sum(probabilities) == pytest.approx(1.0)
        best = max(range(3), key=probabilities.__getitem__)
        said, right = said + probabilities[best], right + (best == place)
        if probabilities[best] < 0.6:
            low, num_low = low + (best == place), num_low + 1
    assert right / 2000 == pytest.approx(said / 2000, abs=0.03)
    assert 0.33 < low / num_low < 0.6 < right / 2000
    made_of = source(world, instructions={"choose": 1.0}, candidates="pool", wrong_plans=2, num_candidates=3)
    for seed in range(20):
        question = replace(world.questions[1], id=f"q{seed}")
        for example in make_examples(made_of, [question], {question.id: world.rows["q2"]}):
            shown = [float(number) for number in re.findall(r"probability ([0-9.]+)\)", example.prompt)]
            assert shown == sorted(shown, reverse=True)


def test_scores_tell_what_the_finder_would_know_and_only_supported_answers_are_taught(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgqa_core.instructions.examples.SUPPORTED", 0.8)  # this small world drops some by that
    right, wrong, dropped = list[float](), list[float](), 0
    for seed in range(200):
        question = replace(world.questions[0], id=f"q{seed}")
        made_of = replace(source(world, instructions={"reason_scored": 1.0}, wrong_plans=2), prompts=LINES)
        (example,) = make_examples(made_of, [question], {question.id: world.rows["q1"]})
        paths = [line.rsplit(" (score ", 1) for line in body(example).splitlines()]
        scored = [(path.rsplit(" → ", 1)[1], float(score.rstrip(")"))) for path, score in paths]
        golds = {name: score for name, score in reversed(scored) if name in ("1989", "1992")}
        right += golds.values()
        wrong += [score for name, score in scored if name not in golds]
        taught = set(example.target.splitlines())
        low = {name for name, score in golds.items() if score < 0.8 * scored[0][1] - 0.01}  # shown with two digits
        assert taught >= {name for name, score in golds.items() if score > 0.8 * scored[0][1] + 0.01}
        best = {name for name, score in golds.items() if score == max(golds.values())}  # of equal digits either one
        assert not low & taught or (taught <= best and len(taught) == 1)
        dropped += bool(low)
    assert sum(right) / len(right) > 2 * sum(wrong) / len(wrong)
    assert dropped


def test_scores_are_plan_times_entities_sum_to_one_and_the_best_stand_first(world: Any) -> None:
    for seed in range(20):
        question = replace(world.questions[0], id=f"q{seed}")
        rows = {question.id: world.rows["q1"]}
        made_of = replace(source(world, instructions={"reason_scored": 1.0}, wrong_plans=2), prompts=LINES)
        (example,) = make_examples(made_of, [question], rows)
        lines = body(example).splitlines()
        shown = [float(line.rsplit("(score ", 1)[1].rstrip(")")) for line in lines]
        assert shown == sorted(shown, reverse=True)
        assert sum(shown) == pytest.approx(1, abs=0.01 * len(shown))
        supported = {line.split(" (score")[0].rsplit(" → ", 1)[1] for line in lines}
        assert set(example.target.splitlines()) <= {"1989", "1992"} & supported


def test_choose_from_a_pool_shuffles_right_and_wrong_ends_with_their_paths(world: Any) -> None:
    (example,) = of(make(world, "choose", candidates="pool", wrong_plans=2, num_candidates=4), "q1")
    lines = example.prompt.split("Possible answers:\n")[1].splitlines()
    assert [line[0] for line in lines] == list("ABCD"[: len(lines)])
    taught = {line.split(". ", 1)[1] for line in example.target.splitlines()}
    assert taught <= {"1989", "1992"}
    assert all("{evidence: (Nightfall, " in line or ", Nightfall)" in line for line in lines)
    named = {line.split(". ", 1)[1].split(" (prob")[0].split(" {")[0] for line in lines}
    assert taught < named


def test_reason_on_paths_that_miss_every_answer_teaches_to_abstain(world: Any) -> None:
    ids = [world.id_of(name) for name in ("Pact", "Freedonia", "Osterlich")]
    question = Question("q", "?", "?", (ids[0],), (ids[2],), "train")
    rows = {"q": (TaughtPath(("member",), 2, 1, True),)}
    listed = replace(source(world, instructions={"reason": 1.0}, max_paths=1), prompts=LINES)
    (example,) = make_examples(listed, [question], rows)
    assert (body(example), example.target) == ("Pact → member → Freedonia", "I do not know")


def test_a_question_without_paths_makes_no_example_and_is_counted(world: Any) -> None:
    skipped: Counter[str] = Counter()
    made = make_examples(source(world, instructions={"reason": 1.0}), world.questions, world.rows, skipped=skipped)
    assert [example.question_id for example in made] == ["q1", "q2", "q3"]
    assert skipped == {"reason: nothing to teach": 1}


def test_choose_shows_candidates_of_an_explorer_and_teaches_every_right_one(world: Any) -> None:
    ids = [world.id_of(name) for name in ("1992", "Snake", "1989")]
    path = (Step(world.id_of("Nightfall"), 0, world.id_of("cats")),)
    given = {"q1": Prediction("q1", tuple(ids), (0.5, 0.3, 0.2), (ids[0],), paths=(path,))}
    (example,) = make(world, "choose", predictions=given)
    assert example.prompt.split("Possible answers:\n")[1].splitlines() == [
        "A. 1992 (probability 0.500) {evidence: (Nightfall, about, cats)}",
        "B. Snake (probability 0.300)",
        "C. 1989 (probability 0.200)",
    ]
    assert example.target == "A. 1992\nC. 1989"
    assert make(world, "choose", predictions=given, num_candidates=1)[0].target == "A. 1992"


def test_choose_without_a_right_candidate_teaches_nothing(world: Any) -> None:
    prediction = Prediction("q1", (world.id_of("Snake"),), (1.0,), ())
    assert make(world, "choose", predictions={"q1": prediction}) == []


def test_direct_teaches_the_answers_without_the_graph(world: Any) -> None:
    targets = {example.question_id: example.target for example in make(world, "direct")}
    assert targets == {"q1": "1989\n1992", "q2": "Port Amber", "q3": "Glory City"}


def test_draws_depend_on_the_question_alone(world: Any) -> None:
    made_of = replace(source(world, instructions=dict.fromkeys(CASES, 1.0), wrong_plans=1), mode="all_shortest")
    everything = list(make_examples(made_of, world.questions, world.rows))
    assert list(make_examples(made_of, world.questions, world.rows)) == everything
    assert list(make_examples(made_of, world.questions[1:2], world.rows)) == of(everything, "q2")


def test_a_graph_of_rows_says_the_same_under_the_names_of_its_entities(world: Any, tmp_path: Path) -> None:
    made_of = source(world, instructions=dict.fromkeys(CASES, 1.0))
    rows = replace(world.search.graph, folder=tmp_path)  # where no names are
    rows.__dict__["relation_names"] = world.search.graph.relation_names
    subgraphs = Subgraphs(rows, np.array([0, rows.num_entities]), np.arange(rows.num_entities), {})
    of_rows = replace(made_of, search=replace(world.search, graph=rows, subgraphs=subgraphs))
    found = make_examples(of_rows, world.questions, world.rows)
    assert list(found) == list(make_examples(made_of, world.questions, world.rows))


def test_a_file_of_paths_suffices_for_planning_alone(world: Any) -> None:
    question, skipped = Question("w1", "who?", "who?", (), (), "train"), Counter[str]()
    rows: Mapping[str, tuple[...]] = {"w1": (TaughtPath(("a.b", "c<SEP>d"), None, None, True),)}
    plan = Source(None, world.prompts, ReasonerSection(objective="plan"), mode="precise")
    (example,) = make_examples(plan, [question], rows)
    assert example.target == "<PATH>a.b<SEP>c\\u{3c}SEP>d</PATH>"
    with pytest.raises(InputError, match="examples of reason need a graph"):
        list(make_examples(replace(plan, reasoner=ReasonerSection()), [question], rows))
    empty = {"w1": (TaughtPath((), None, None, True),)}  # which no text can tell
    assert not list(make_examples(plan, [question], empty, skipped=skipped))
    assert skipped == {"plan: nothing to teach": 1}


def test_what_a_configuration_may_teach_has_cases() -> None:
    assert sorted(CASES) == TAUGHT


def test_only_a_share_of_the_questions_may_teach_an_instruction(world: Any) -> None:
    assert make(world, "direct", shares={"direct": 0.0}) == []
    kept = {example.question_id for example in make(world, "direct", shares={"direct": 0.5})}
    more = {example.question_id for example in make(world, "direct", shares={"direct": 0.9})}
    assert kept <= more


def test_examples_at_rest(world: Any, tmp_path: Path) -> None:
    examples = make(world, "plan", mode="all_shortest") + make(world, "direct")
    assert write_examples(iter(examples), tmp_path / "i.parquet") == {"direct": 3, "plan": 4}
    table = pq.read_table(tmp_path / "i.parquet")
    assert table.schema.equals(INSTRUCTIONS)
    assert [Example(**row) for row in table.to_pylist()] == examples


def test_folds_are_even_and_do_not_move() -> None:
    folds = Counter(fold_of(f"question {number}", 5) for number in range(5000))
    assert set(folds) == set(range(5))
    assert min(folds.values()) > 900
    assert fold_of("question 1", 5) == fold_of("question 1", 5)
