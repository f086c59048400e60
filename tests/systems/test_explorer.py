"""The explorer: alone, as EtD and DualR use it, and under limits of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from kgqa_core.explorer.model import Card, Explorer, texts_of
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.render import read_prompts
from kgqa_core.systems.etd import AnswerCost, DualrSection, Etd, EtdSection, ExplorerAlone, ExplorerSystem
from kgqa_core.systems.runner import answer_all
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.types import Question, Step
from tests.explorer.plain_walk import PLAIN
from tests.scripted import ScriptedModel

Ask = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]


def untrained(graph: KnowledgeGraph, steps: int, **settings: int) -> ExplorerSystem:
    """What it answers is accidental, where it looks is not."""
    torch.manual_seed(0)
    model = Explorer(encoding_dim=31, width=5, steps=steps)
    card = Card("hash-v1-d31", 31, 5, steps, edge_budget=97, reenter_topic=False, answer_threshold=0.01)
    return ExplorerSystem(graph, model, card, HashEncoder(31).encode, **settings)


@pytest.fixture
def system(graph: KnowledgeGraph) -> ExplorerSystem:
    return untrained(graph, steps=1, evidence_paths=2, batch_size=3)


def test_every_question_gets_a_prediction_in_order(system: ExplorerSystem, ask: Ask, ids: Ids) -> None:
    questions = [ask("who made [topic]", film, "Dan") for film in ("Elm", "Ash", "Cedar", "Birch", "Dogwood")] + [
        ask("and that", "")
    ]
    done: list[tuple[int, int]] = []
    predictions = system.answer(questions, lambda now, total: done.append((now, total)))
    assert [prediction.question_id for prediction in predictions] == [question.id for question in questions]
    assert [prediction.abstained for prediction in predictions] == [False] * 5 + [True]
    assert done[-1] == (6, 6)
    assert system.answer([]) == []
    # One step: the film, and all that is said of it.
    assert set(predictions[0].candidates) == set(ids("Elm", "Flo", "Gus", "2001", "Drama"))
    assert [prediction.covered for prediction in predictions] == [False, True, False, True, True, False]
    assert {len(prediction.paths) for prediction in predictions[:5]} == {2}


def test_the_threshold_and_the_budget_are_those_of_the_card(system: ExplorerSystem, ask: Ask) -> None:
    (prediction,) = system.answer([ask("who made [topic]", "Ash")])
    best = prediction.scores[0]
    assert len(prediction.answers) == sum(score >= 0.01 * best for score in prediction.scores)


def test_merging_changes_nothing(system: ExplorerSystem, graph: KnowledgeGraph, ask: Ask) -> None:
    plain = ExplorerSystem(graph, system.model, system.card, system.encode, evidence_paths=2, walk=PLAIN)
    questions = [ask("who made [topic]", film) for film in ("Elm", "Ash", "Drama")]
    for one, other in zip(system.answer(questions), plain.answer(questions), strict=True):
        assert one.scores == pytest.approx(other.scores, rel=1e-4)
        assert (one.candidates, one.answers, one.paths) == (other.candidates, other.answers, other.paths)


def test_evidence_reads_as_the_stored_triples(system: ExplorerSystem, graph: KnowledgeGraph, ids: Ids) -> None:
    (ash,), (dan,), (year,) = ids("Ash"), ids("Dan"), ids("1999")
    directed, released = (graph.relation_labels.index(label) for label in ("directed_by", "release_year"))
    path = (Step(ash, directed, dan, reverse=True), Step(ash, released, year))
    assert system.render(path) == "(Ash, directed_by, Dan) → (Ash, release_year, 1999)"


def test_each_text_is_encoded_once(system: ExplorerSystem, graph: KnowledgeGraph, ask: Ask) -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked.append(list(texts))
        return HashEncoder(31).encode(texts)

    spied = ExplorerSystem(graph, system.model, system.card, encode)
    spied.answer([ask(text, "Ash") for text in ("who made [topic]", "when was [topic]", "who made [topic]")])
    assert asked == [["when was [topic]", "who made [topic]"], graph.relation_labels]


def test_encodings_that_may_not_be_written_to_are_copied(graph: KnowledgeGraph) -> None:
    """As views of a memory map or of Arrow are; torch would warn of them."""

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = HashEncoder(31).encode(texts)
        vectors.flags.writeable = False
        return vectors

    texts = texts_of(["one", "two"], graph, encode)
    assert texts.questions.shape == (2, 31)
    assert texts.relations.shape == (graph.num_relations, 31)


def test_limits_replace_those_of_the_checkpoint_and_none_leaves_them(system: ExplorerSystem) -> None:
    assert system.limited().card == system.card
    tight = system.limited(edge_budget=3, attention_threshold=0.25).card
    assert (tight.edge_budget, tight.attention_threshold) == (3, 0.25)
    assert tight.answer_threshold == system.card.answer_threshold
    assert system.limited(edge_budget="all").card.edge_budget > 2 * system.graph.num_triples


def test_what_answering_costs_is_counted_over_the_batches(system: ExplorerSystem, ask: Ask) -> None:
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
    explorer: ExplorerSystem, walk: SearchGraph, ask: Ask
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


def test_as_many_candidates_as_are_shown_have_evidence(explorer: ExplorerSystem, walk: SearchGraph, ask: Ask) -> None:
    question = ask("who made [topic]", "Ash")
    system = Etd(walk, read_prompts(), explorer, EtdSection(num_candidates=5))
    (prepared,) = system.prepare([question])
    assert len(prepared.paths) == 5
    (prepared,) = Etd(walk, read_prompts(), explorer, EtdSection(answer_set="tied")).prepare([question])
    assert len(prepared.paths) == len(prepared.candidates) > 5
    model = ScriptedModel().on("choose", "", "A")
    (answered,) = answer_all(system, [question], walk, model)
    assert answered.answer.prediction.answers == prepared.candidates[:1]


def test_dualr_is_etd_with_an_explorer_of_its_own(explorer: ExplorerSystem, walk: SearchGraph, ask: Ask) -> None:
    """The prompts that both papers print are the same, so with one explorer the rows are one method."""
    question = ask("who made [topic]", "Ash")
    prompts = read_prompts()
    asked = []
    for system in (
        Etd(walk, prompts, explorer, EtdSection()),
        Etd(walk, prompts, explorer, DualrSection(), name="dualr"),
    ):
        model = ScriptedModel().on("choose", "", "B")
        (answered,) = answer_all(system, [question], walk, model)
        asked.append((model.prompts_of("choose"), answered.answer))
    assert asked[0] == asked[1]
