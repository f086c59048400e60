"""The explorer, alone and under limits; EtD: what it found in one prompt, and what the model chooses or makes up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.plan import PathConstraints, PlanAsker, PlanInstruction, PlanQuestion
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import LanguageModel
from kgqa_core.run.compare import Parts
from kgqa_core.systems.etd import ETD, AnswerCost, Etd, EtdSection, ExplorerAlone, ExplorerSystem
from kgqa_core.systems.types import Answered
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath, Step
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all
from tests.systems.conftest import untrained

AskFor = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]
Edge = Callable[..., Step]


@pytest.fixture
def system(graph: KnowledgeGraph) -> ExplorerSystem:
    return untrained(graph, steps=1, evidence_paths=2, batch_size=3)


def test_every_question_gets_a_prediction_in_order(system: ExplorerSystem, ask: AskFor, ids: Ids) -> None:
    questions = [ask("who made [topic]", film, "Dan") for film in ("Elm", "Ash", "Cedar", "Birch", "Dogwood")] + [
        ask("and that", "")
    ]
    done: list[tuple[int, int]] = []
    predictions = system.answer(questions, lambda now, total: done.append((now, total)))
    assert [prediction.question_id for prediction in predictions] == [question.id for question in questions]
    assert [bool(prediction.candidates) for prediction in predictions] == [True] * 5 + [False]
    assert done[-1] == (6, 6)
    assert system.answer([]) == []
    # One step: the film, and all that is said of it.
    assert set(predictions[0].candidates) == set(ids("Elm", "Flo", "Gus", "2001", "Drama"))
    assert [prediction.covered for prediction in predictions] == [False, True, False, True, True, False]
    assert {len(prediction.paths) for prediction in predictions[:5]} == {2}


def test_each_text_is_encoded_once(system: ExplorerSystem, graph: KnowledgeGraph, ask: AskFor) -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked.append(list(texts))
        vectors = HashEncoder(31).encode(texts)
        vectors.flags.writeable = False  # as views of a memory map or of Arrow: torch would warn, were they not copied
        return vectors

    spied = ExplorerSystem(graph, system.model, system.card, encode)
    spied.answer([ask(text, "Ash") for text in ("who made [topic]", "when was [topic]", "who made [topic]")])
    assert asked == [["when was [topic]", "who made [topic]"], graph.relation_names]


def test_limits_replace_those_of_the_checkpoint_and_none_leaves_them(system: ExplorerSystem) -> None:
    assert system.limited().card == system.card
    tight = system.limited(edge_budget=3, attention_threshold=0.25).card
    assert (tight.edge_budget, tight.attention_threshold) == (3, 0.25)
    assert tight.answer_threshold == system.card.answer_threshold
    assert system.limited(edge_budget="all").card.edge_budget > 2 * system.graph.num_triples


def test_what_answering_costs_is_counted_over_the_batches(system: ExplorerSystem, ask: AskFor) -> None:
    questions = [ask("who made [topic]", film) for film in ("Elm", "Ash", "Cedar", "Birch")] + [ask("and that", "")]
    cost, narrow = AnswerCost(), AnswerCost()
    predictions = system.answer(questions, cost=cost)
    system.limited(edge_budget=1).answer(questions, cost=narrow)
    assert cost.num_questions == 4  # one has no topic: nothing is explored for it
    figures = cost.figures()
    # One step walks an edge for every candidate: those to the others, and the one that stays.
    assert figures["edges_per_question"] >= figures["candidates_per_question"]
    assert figures["candidates_per_question"] == sum(len(prediction.candidates) for prediction in predictions) / 4
    assert narrow.figures()["edges_per_question"] < figures["edges_per_question"]
    assert figures["questions_per_second"] == pytest.approx(4 / cost.cpu_seconds)
    assert AnswerCost().figures() == {}


# As a system


@pytest.fixture
def explorer(graph: KnowledgeGraph) -> ExplorerSystem:
    """Two steps and a low threshold: many answers, all of them reached."""
    return untrained(graph, steps=2, evidence_paths=1)


def test_every_answer_of_the_explorer_alone_has_its_evidence(
    explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor
) -> None:
    question = ask("who made [topic]", "Ash", "Dan")
    answered, lone = answer_all(ExplorerAlone(explorer), [question, ask("who?", "")], walk, None)
    assert lone.status == "skipped"  # there is nothing to explore without a topic
    (plain,) = explorer.answer([question])
    prediction = answered.answer.prediction
    assert (prediction.candidates, prediction.answers) == (plain.candidates, plain.answers)
    assert len(plain.paths) == 1
    assert len(prediction.answers) > 5
    reached = [entity for entity in prediction.answers if entity not in question.topics]
    path_of = dict(zip(prediction.candidates, prediction.paths, strict=True))
    assert all(is_evidence(walk.graph, path_of[entity], entity) for entity in reached)
    assert answered.calls == ()


def test_as_many_candidates_as_are_shown_have_evidence(
    explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor
) -> None:
    question = ask("who made [topic]", "Ash")
    section = EtdSection(num_candidates=5)
    parts = SimpleNamespace(
        search=walk, prompts=read_prompts(), settings=section, mask_topics=True, pool="none", explorer=lambda: explorer
    )
    parts.candidates = partial(Parts.candidates, parts)  # type: ignore[arg-type]
    system = ETD.open(parts)
    (prepared,) = system.prepare([question])
    assert len(prepared.paths) == 5
    model = ScriptedModel().on("choose", "", "A")
    (answered,) = answer_all(system, [question], walk, model)
    assert answered.answer.prediction.answers == prepared.candidates[:1]


# EtD


@dataclass
class Explored:
    """Plays an explorer: a prediction per question, made beforehand."""

    predictions: dict[str, Prediction]
    asked: list[str] = field(default_factory=list)

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        self.asked += [question.id for question in questions]
        return [self.predictions[question.id] for question in questions]


@dataclass(frozen=True)
class World:
    """A question with what was explored for it."""

    walk: SearchGraph
    explored: Explored
    question: Question

    @property
    def found(self) -> Prediction:
        return self.explored.predictions[self.question.id]

    def run(self, says: str | LanguageModel, **settings: object) -> Answered:
        """Answer the question; a text is what the model says."""
        model = ScriptedModel().on("choose", "", says) if isinstance(says, str) else says
        system = Etd(self.walk, read_prompts(), self.explored.answer, EtdSection.model_validate(settings))
        (answered,) = answer_all(system, [self.question], self.walk, model)
        return answered

    def names(self, entities: Sequence[int]) -> list[str]:
        return [self.walk.entities.name_of(entity) for entity in entities]

    def answers(self, answered: Answered) -> list[str]:
        return self.names(answered.answer.prediction.answers)

    def with_found(self, found: Prediction) -> World:
        return replace(self, explored=Explored({self.question.id: found}))


@pytest.fixture
def world(walk: SearchGraph, ask: AskFor, ids: Ids, edge: Edge) -> World:
    """When did the films appear whose director also made Birch? Its golds are two years.

    1999 by the right way, 2001 by a wrong one, then candidates that nothing is known of but their probability.
    """
    question = ask("when did the films of the director of Birch appear?", "Birch", "1999 2003")
    directed = edge("Birch", "directed_by", "Eve")
    ways: list[ReasoningPath] = [
        (directed, edge("Cedar", "directed_by", "Eve", True), edge("Cedar", "release_year", "1999")),
        (edge("Birch", "starred_actors", "Bob"), edge("Birch", "release_year", "2001")),
        (directed, edge("Dogwood", "directed_by", "Eve", True), edge("Dogwood", "release_year", "2003")),
    ]
    entities = tuple(ids(label)[0] for label in ("1999", "2001", "2003", "Drama", "Eve"))
    found = Prediction(question.id, entities, (0.6, 0.2, 0.1, 0.05, 0.05), entities[:1], tuple(ways), True)
    return World(walk, Explored({question.id: found}), question)


def test_the_prompt_holds_candidates_probabilities_and_chains_as_the_papers_print_them(world: World) -> None:
    answered = world.run("A. 1999")
    (call,) = answered.calls
    assert call.prompt.endswith(
        "Question: when did the films of the director of Birch appear?\n"
        "Possible answers:\n"
        "A. 1999 (probability 0.600) {evidence: (Birch, directed_by, Eve), (Cedar, directed_by, Eve), "
        "(Cedar, release_year, 1999)}\n"
        "B. 2001 (probability 0.200) {evidence: (Birch, starred_actors, Bob), (Birch, release_year, 2001)}\n"
        "C. 2003 (probability 0.100) {evidence: (Birch, directed_by, Eve), (Dogwood, directed_by, Eve), "
        "(Dogwood, release_year, 2003)}"
    )
    counts = {"num_shown": 3, "explorer_first": world.found.candidates[0], "num_conflicts": 0, "num_unsupported": 0}
    ways = {"by_label": 1, "by_name": 0, "by_plan": 0, "by_free": 0, "by_abstained": 0}  # their means are shares
    assert answered.answer.counts == {**counts, **ways}


def test_what_is_chosen_leads_and_the_explorers_order_follows(world: World) -> None:
    answered = world.run("C. 2003\nA. 1999")
    prediction = answered.answer.prediction
    assert world.answers(answered) == ["2003", "1999"]
    assert world.names(prediction.candidates) == ["2003", "1999", "2001", "Drama", "Eve"]
    # Two chosen at 1 and 1/2; the others keep their probabilities, scaled below a third; ties stay ties.
    assert prediction.scores == pytest.approx((1, 1 / 2, 0.2 / 3, 0.05 / 3, 0.05 / 3))
    assert [len(path) for path in prediction.paths] == [3, 3, 0, 0, 0]  # the chain of 2001 does not hang together
    assert answered.faithful == (True, True)
    figures = score_predictions([world.question], [prediction]).summary()
    assert (figures["hits1"], figures["f1"]) == (100, 100)


@pytest.mark.parametrize(
    ("text", "answers", "faithful", "count", "num_unsupported", "unmatched"),
    [
        ("B. 2001", ["2001"], (False,), "by_label", 0, ()),  # its chain jumps from Bob back to Birch
        ("A. 2003", ["1999"], (True,), "num_conflicts", 0, ()),  # the label wins over a name
        ("It must have been 2003.", ["2003"], (True,), "by_name", 0, ()),
        ("Flo", ["Flo"], (False,), "by_free", 1, ()),  # in the graph, but nobody came to it
        ("Drama", ["Drama"], (False,), "by_free", 1, ()),  # a candidate that was not shown
        ("Ernestine", [], (), "by_free", 0, ("Ernestine",)),  # nothing in the graph bears that name
    ],
)
def test_a_candidate_is_chosen_by_its_label_else_by_its_name_and_a_free_answer_has_no_support(
    world: World,
    text: str,
    answers: list[str],
    faithful: tuple[bool, ...],
    count: str,
    num_unsupported: int,
    unmatched: tuple[str, ...],
) -> None:
    answered = world.run(text)
    assert (world.answers(answered), answered.faithful, answered.answer.unmatched) == (answers, faithful, unmatched)
    assert (answered.answer.counts[count], answered.answer.counts["num_unsupported"]) == (1, num_unsupported)


def weigh(world: World, *scores: float, **settings: object) -> Answered:
    """Answer where plans determine; ``scores`` are the log-likelihoods of the distinct chains, in order."""
    model = ScriptedModel()
    if scores:
        model.on("plan", "the director of [topic] appear", scores=scores)
    asker = PlanAsker(PlanInstruction(read_prompts()), PathConstraints(world.walk.graph))
    question = replace(world.question, masked=world.question.text.replace("Birch", "[topic]"))

    def weigh_densely(asked: Sequence[PlanQuestion], plans: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        assert [one.text for one in asked] == [question.masked]
        return [[-2.0 if len(plan) == 3 else -0.5 for plan in own] for own in plans]

    section = EtdSection.model_validate({"determine": "plan", **settings})
    system = Etd(world.walk, read_prompts(), world.explored.answer, section, asker, weigh_densely)
    (answered,) = answer_all(system, [question], world.walk, model)
    model.check_done()
    first = "<PATH>directed_by<SEP>^directed_by<SEP>release_year</PATH>"
    assert model.options == ([(first, "<PATH>starred_actors<SEP>release_year</PATH>")] if scores else [])
    return answered


def test_where_plans_determine_all_candidates_of_the_most_probable_chain_are_answers(world: World) -> None:
    """Two candidates have one chain; it is weighed once, and no text is asked for."""
    answered = weigh(world, -0.5, -3.0)
    assert world.answers(answered) == ["1999", "2003"] and answered.faithful == (True, True)
    assert answered.answer.counts["by_plan"] == 1
    assert [call.instruction for call in answered.calls] == ["plan"]
    assert world.answers(weigh(world, -3.0, -0.5)) == ["2001"]
    # The explorer's probabilities of the two chains are .6 and .2: e to the power of 1.1 apart.
    assert world.answers(weigh(world, -1.5, -0.5)) == ["1999", "2003"]
    assert world.answers(weigh(world, -1.5, -0.5, probabilities=False)) == ["2001"]
    assert world.answers(weigh(world, -1.5, -0.5, explorer_weight=0.5)) == ["2001"]
    assert world.answers(weigh(world, -3.0, -0.5, explorer_weight=2.5)) == ["1999", "2003"]
    # The dense planner finds the second chain more probable, by e to the power of 1.5.
    assert world.answers(weigh(world, -0.5, -1.0, probabilities=False, dense_weight=0.3)) == ["1999", "2003"]
    assert world.answers(weigh(world, -0.5, -1.0, probabilities=False, dense_weight=0.4)) == ["2001"]
    # As sure as the chosen chain's share of both: the model alone would give 1999's .27.
    assert weigh(world, -1.5, -0.5).confidence == pytest.approx(0.6 / (0.6 + 0.2 * math.e))
    assert not weigh(world, -math.inf, -math.inf).answer.prediction.candidates  # nobody could tell


def test_where_plans_determine_what_leaves_no_choice_is_not_asked(world: World) -> None:
    alone = weigh(world, num_candidates=1)
    assert world.answers(alone) == ["1999"] and alone.calls == ()
    bare = world.with_found(replace(world.found, paths=()))
    assert not weigh(bare).answer.prediction.candidates
    assert weigh(bare).answer.counts["by_abstained"] == 1  # as where a text says so


@pytest.mark.parametrize(("text", "status"), [("I do not know", "abstained"), ("", "unreadable")])
def test_an_abstention_and_a_text_without_an_answer_rank_nothing(world: World, text: str, status: str) -> None:
    """Else a model that never answers would have the explorer's Hits@1."""
    answered = world.run(text)
    assert answered.status == status
    assert answered.answer.prediction == Prediction(world.question.id, (), (), (), covered=True)
    assert score_predictions([world.question], [answered.answer.prediction]).summary()["hits1"] == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"multiple_choice": False},
            "Names: [1999, 2001, 2003]\nProbabilities: [0.600, 0.200, 0.100]\nEvidence: [(Birch, ",
        ),
        ({"candidates": False}, "- (probability 0.200) {evidence: (Birch, starred_actors"),
        ({"probabilities": False}, "B. 2001 {evidence: (Birch, starred_actors"),
        ({"paths": False}, "B. 2001 (probability 0.200)\nC. 2003"),
        (
            {"paths": False, "renormalise": "shown"},  # the papers' printed examples sum to 1
            "A. 1999 (probability 0.667)\nB. 2001 (probability 0.222)\nC. 2003 (probability 0.111)",
        ),
    ],
)
def test_the_parts_of_the_prompt_are_settings(world: World, settings: dict[str, object], line: str) -> None:
    """Table 4 and appendix E; an answer is read by name where nothing has a label."""
    answered = world.run("2003", **settings)
    assert f"\n{line}" in answered.calls[0].prompt
    assert world.answers(answered) == ["2003"]


def test_the_model_may_be_held_to_the_labels(world: World) -> None:
    model = ScriptedModel().on("choose", "", "A. 1999")
    world.run(model, only_candidates=True)
    constraint = model.asked[0].constraint
    assert constraint is not None
    assert list(constraint.next_pieces(())) == ["A. 1999", "B. 2001", "C. 2003"]


@pytest.mark.parametrize(
    ("claim", "text", "settings", "verdict", "answers"),
    [
        ("2003", "C. 2003", {}, True, ["2003"]),
        ("2001", "C. 2003", {}, False, ["2003"]),
        ("2003", "Yes.", {}, True, ["2003"]),
        ("2003", "Yes, it was 2003, not 1999.", {}, True, ["2003"]),
        ("2003", "false", {}, False, ["1999", "2001"]),  # all else that was shown
        ("2003", "No, it was not made in 2003.", {}, False, ["1999", "2001"]),
        ("1999", "no", {"num_candidates": 1}, False, []),  # an answer though it leaves no candidate
    ],
)
def test_a_claim_is_judged_by_what_was_chosen_or_said(
    world: World, ids: Ids, claim: str, text: str, settings: dict[str, object], verdict: bool, answers: list[str]
) -> None:
    question = replace(world.question, text=f"was it made in {claim}?", claim=ids(claim)[0], verdict=True)
    answered = replace(world, question=question).run(text, **settings)
    assert (answered.status, answered.answer.prediction.verdict) == ("answered", verdict)
    assert (world.answers(answered), answered.answer.unmatched) == (answers, ())


def test_an_explorer_that_found_nothing_leaves_the_answer_to_the_model(world: World) -> None:
    nothing = world.with_found(Prediction(world.question.id, (), (), ()))
    answered = nothing.run("1999")
    assert answered.calls[0].prompt.endswith("Possible answers:\n(none)")
    assert world.answers(answered) == ["1999"]
    assert answered.answer.counts["explorer_first"] == -1


def test_questions_are_explored_together(world: World, ask: AskFor, ids: Ids) -> None:
    other, lone = ask("who made it?", "Elm", "Flo"), ask("who?", "")
    world.explored.predictions[other.id] = Prediction(other.id, ids("Flo"), (1.0,), ids("Flo"))
    model = ScriptedModel().on("choose", "", "A. 1999").on("choose", "who made it?", "A. Flo")
    system = Etd(world.walk, read_prompts(), world.explored.answer, EtdSection())
    answered = answer_all(system, [world.question, lone, other], world.walk, model)
    assert [one.status for one in answered] == ["answered", "skipped", "answered"]
    assert world.explored.asked == [world.question.id, other.id]
