"""The explorer without a language model, and as EtD and DualR use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kgqa_core.explorer.checkpoint import Card
from kgqa_core.explorer.model import Explorer
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.render import read_prompts
from kgqa_core.systems.etd import DualrSection, Etd, EtdSection
from kgqa_core.systems.explorer import ExplorerAlone, ExplorerSystem
from kgqa_core.systems.runner import answer_all
from kgqa_core.text.encoder import HashEncoder
from kgqa_core.types import Question
from tests.scripted import ScriptedModel

AskFor = Callable[..., Question]


@pytest.fixture
def explorer(graph: KnowledgeGraph) -> ExplorerSystem:
    """An untrained explorer of two steps with a low threshold: many answers, all of them reached."""
    torch.manual_seed(0)
    return ExplorerSystem(
        graph=graph,
        model=Explorer(encoding_dim=31, width=5, steps=2),
        card=Card("hash-v1-d31", 31, 5, 2, edge_budget=97, reenter_topic=False, answer_threshold=0.01),
        encode=HashEncoder(31).encode,
        evidence_paths=1,
    )


@pytest.fixture
def walk(graph: KnowledgeGraph) -> SearchGraph:
    return SearchGraph(graph, graph, None, max_hops=2, reenter_topic=False)


def test_every_answer_of_the_explorer_alone_has_its_evidence(
    explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor
) -> None:
    question = ask("who made [topic]", "Ash", "Dan")
    (answered,) = answer_all(ExplorerAlone(explorer), [question], walk, None)
    (plain,) = explorer.answer([question])
    prediction = answered.answer.prediction
    assert (prediction.candidates, prediction.answers) == (plain.candidates, plain.answers)
    assert len(plain.paths) == 1
    assert len(prediction.answers) > 5
    reached = [entity for entity in prediction.answers if entity not in question.topics]
    path_of = dict(zip(prediction.candidates, prediction.paths, strict=True))
    assert all(is_evidence(walk.graph, path_of[entity], entity) for entity in reached)
    assert answered.calls == ()


def test_without_a_topic_there_is_nothing_to_explore(explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor) -> None:
    (answered,) = answer_all(ExplorerAlone(explorer), [ask("who?", "")], walk, None)
    assert answered.status == "skipped"


def test_as_many_candidates_as_are_shown_have_evidence(
    explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor
) -> None:
    question = ask("who made [topic]", "Ash")
    system = Etd(walk, read_prompts(), explorer, EtdSection(num_candidates=5))
    (prepared,) = system.prepare([question])
    assert len(prepared.paths) == 5
    (prepared,) = Etd(walk, read_prompts(), explorer, EtdSection(answer_set="tied")).prepare([question])
    assert len(prepared.paths) == len(prepared.candidates) > 5
    model = ScriptedModel().on("choose", "", "A")
    (answered,) = answer_all(system, [question], walk, model)
    assert answered.answer.prediction.answers == prepared.candidates[:1]


def test_dualr_is_etd_with_an_explorer_of_its_own(explorer: ExplorerSystem, walk: SearchGraph, ask: AskFor) -> None:
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
