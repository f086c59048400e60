"""A prompt is read back into the case that it was rendered from, whatever the names in it look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.errors import ConfigError
from kgqa_core.graph.kg import write_step
from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction, EnoughCase, EnoughInstruction, Shown
from kgqa_core.instructions.mappings import (
    CluesCase,
    ExtractCluesInstruction,
    MapEntitiesCase,
    MapEntitiesInstruction,
    MapRelationsCase,
    MapRelationsInstruction,
)
from kgqa_core.instructions.plan import PlanCase, PlanInstruction
from kgqa_core.instructions.reason import (
    ChainOfThoughtCase,
    ChainOfThoughtInstruction,
    DirectCase,
    DirectInstruction,
    ExplainCase,
    ExplainInstruction,
    ReasonCase,
    ReasonInstruction,
)
from kgqa_core.instructions.render import ScoredPath, read_prompts, render_reasoning_path, render_triples
from kgqa_core.instructions.scores import (
    EntitiesCase,
    EntityCandidate,
    RelationsCase,
    ScoreEntitiesInstruction,
    ScoreRelationsInstruction,
)
from kgqa_core.lm.types import Prompt
from kgqa_core.oracle.reading import PromptReader, ReadPrompt
from kgqa_core.types import ReasoningPath, Step

PROMPTS = read_prompts()
LABELS = ("made_by", "^odd", "\\slash", "a → b", "two\nlines", "x, y", " edge ", "plain")
STEPS = [write_step(label, backward) for label in LABELS for backward in (False, True)]
READER = PromptReader(PROMPTS, steps=STEPS)

ODD = ("{question}", "two\nlines", "1: a", "A. b", "   (a, r, b)", " edge ", "- a", "a → c", "(x)", "a, b", "\\u{41}")
ODD += ("(probability 0.500)", "{evidence: a}", "x (score 0.50)", "a = 0.50", "a -> b", "\u2028", "Köln", "no")
# "(none)" alone is what stands for no item at all; a name that is itself a step cannot be told from one
NAME = (st.sampled_from(ODD) | st.text(min_size=1, max_size=8)).filter(lambda text: text != "(none)")
NAMES = st.lists(NAME, max_size=4, unique=True).map(tuple)
SOME_STEPS = st.lists(st.sampled_from(STEPS), max_size=3).map(tuple)
QUESTION = st.sampled_from(["who?", "{paths}", "a\nb", "\nQuestion: x", "Clues:", ""]) | st.text(max_size=20)


@dataclass(frozen=True)
class Called:
    """Names of a graph that is not there."""

    names: Sequence[str]

    @property
    def relation_labels(self) -> list[str]:
        return list(LABELS)

    def name_of(self, entity_id: int) -> str:
        return self.names[entity_id]

    def relation_text(self, relation: int) -> str:
        return LABELS[relation]


@st.composite
def walks(draw: st.DrawFn) -> tuple[Called, ReasoningPath]:
    """A path of one to three steps in any direction, between entities of any name that is no step or arrow itself."""
    names = draw(st.lists(NAME.filter(lambda text: "→" not in text and text not in STEPS), min_size=2, max_size=4))
    path = []
    for place in range(len(names) - 1):
        relation, reverse = draw(st.sampled_from(range(len(LABELS)))), draw(st.booleans())
        ends = (place + 1, place) if reverse else (place, place + 1)
        path.append(Step(ends[0], relation, ends[1], reverse=reverse))
    return Called(names), tuple(path)


def read(prompt: Prompt) -> ReadPrompt:
    return READER.read(prompt)


@settings(max_examples=40)
@given(QUESTION, NAMES)
def test_questions_alone(question: str, labels: tuple[str, ...]) -> None:
    prompts = [
        DirectInstruction(PROMPTS).render(DirectCase(question)),
        ChainOfThoughtInstruction(PROMPTS).render(ChainOfThoughtCase(question)),
        ExtractCluesInstruction(PROMPTS).render(CluesCase(question)),
        PlanInstruction(PROMPTS).render(PlanCase(question, relations=labels)),
    ]
    assert [read(prompt).question for prompt in prompts] == [question] * 4


@settings(max_examples=40)
@given(QUESTION, NAMES, SOME_STEPS, SOME_STEPS.filter(bool), st.integers(1, 12))
def test_relations_to_score(
    question: str, topics: tuple[str, ...], path: tuple[str, ...], relations: tuple[str, ...], budget: int
) -> None:
    case = RelationsCase(question, relations, topics=topics, path=path, budget=budget)
    found = read(ScoreRelationsInstruction(PROMPTS).render(case))
    assert (found.relations, found.topics, found.path, found.budget) == (relations, topics, path, budget)
    assert found.question == question


@settings(max_examples=40)
@given(QUESTION, st.lists(st.tuples(NAME, st.lists(walks(), max_size=2)), max_size=4), SOME_STEPS)
def test_entities_to_score(question: str, around: list[tuple[str, list[tuple[Called, ReasoningPath]]]], plan) -> None:  # type: ignore[no-untyped-def]
    candidates = tuple(
        EntityCandidate(name, tuple(render_triples(names, path) for names, path in triples)) for name, triples in around
    )
    found = read(ScoreEntitiesInstruction(PROMPTS).render(EntitiesCase(question, candidates, plan=plan)))
    assert [(one.name, one.triples) for one in found.scored] == [(one.name, one.triples) for one in candidates]
    assert found.plan == plan and found.question == question


@settings(max_examples=40)
@given(QUESTION, st.lists(st.tuples(walks(), st.integers(0, 100)), max_size=5), NAMES)
def test_paths(question: str, scored: list[tuple[tuple[Called, ReasoningPath], int]], topics: tuple[str, ...]) -> None:
    paths = tuple(ScoredPath(render_reasoning_path(names, path), cents / 100) for (names, path), cents in scored)
    prompts = [
        ReasonInstruction(PROMPTS).render(ReasonCase(question, paths=paths)),
        ExplainInstruction(PROMPTS).render(ExplainCase(question, paths=paths)),
        EnoughInstruction(PROMPTS).render(EnoughCase(question, topics=topics, paths=paths)),
        ReasonInstruction(PROMPTS, scored=True).render(ReasonCase(question, paths=paths)),
    ]
    found = [read(prompt) for prompt in prompts]
    for one in found:
        assert one.question == question
        assert [path.names for path in one.paths] == [tuple(names.names) for (names, _), _ in scored]
        assert [path.ends for path in one.paths] == [(names.names[-1],) for (names, _), _ in scored]
        labels = [tuple(write_step(LABELS[one.relation], one.reverse) for one in path) for (_, path), _ in scored]
        assert [path.steps for path in one.paths] == labels
    assert [path.score for path in found[3].paths] == [path.score for path in paths]
    assert found[2].topics == topics


def test_known_steps_tell_arrows_in_names_from_ways() -> None:
    names = Called(("Salt → Road", "Ida, Moon", "a → b"))
    path = (Step(0, 0, 1), Step(2, 3, 1, reverse=True))
    way = ScoredPath(render_reasoning_path(names, path))
    triples = ScoredPath(render_triples(names, path))
    prompt = ReasonInstruction(PROMPTS).render(ReasonCase("who?", paths=(way, triples)))
    first, second = read(prompt).paths
    assert (first.names, first.steps) == (tuple(names.names), ("made_by", "^a → b"))
    assert second.names == ("Salt → Road", "Ida, Moon", "a → b") and second.ends == ("Ida, Moon", "a → b")
    without = PromptReader(PROMPTS).read(prompt).paths[0]
    assert without.names != first.names  # who does not know the steps cannot tell


@settings(max_examples=40)
@given(QUESTION, st.lists(st.tuples(NAME, st.integers(0, 1000), st.none() | walks()), max_size=5), st.booleans())
def test_candidates(question: str, given_: list[tuple[str, int, tuple[Called, ReasoningPath] | None]], labels) -> None:  # type: ignore[no-untyped-def]
    candidates = tuple(
        Candidate(name, share / 1000, render_triples(*walk) if walk else "") for name, share, walk in given_
    )
    case = ChooseCase(question, candidates=candidates)
    found = read(ChooseInstruction(PROMPTS, Shown(labels=labels)).render(case))
    assert found.question == question
    assert [one.name for one in found.candidates] == [one.name for one in candidates]
    assert [one.probability for one in found.candidates] == [one.probability for one in candidates]
    assert [one.evidence for one in found.candidates] == [one.evidence for one in candidates]
    assert [one.label for one in found.candidates] == (list("ABCDE") if labels else [""] * 5)[: len(candidates)]


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("probabilities", [True, False])
@pytest.mark.parametrize("evidence", [True, False])
def test_candidates_of_every_variant(labels: bool, names: bool, probabilities: bool, evidence: bool) -> None:
    shown = Shown(labels, names, probabilities, evidence)
    candidates = (Candidate("Ida Moon", 0.75, "(Salt Road, made_by, Ida Moon)"), Candidate("Oto Brandt", 0.25))
    prompt = ChooseInstruction(PROMPTS, shown).render(ChooseCase("who?", candidates=candidates))
    first, second = read(prompt).candidates
    assert (first.label, second.label) == (("A", "B") if labels else ("", ""))
    assert (first.name, second.name) == (("Ida Moon", "Oto Brandt") if names else ("", ""))
    assert (first.probability, second.probability) == ((0.75, 0.25) if probabilities else (None, None))
    assert first.ends == (("Ida Moon", "Salt Road") if evidence else ()) and second.ends == ()


@settings(max_examples=40)
@given(QUESTION, NAMES, SOME_STEPS, NAMES, NAME, st.sampled_from(STEPS))
def test_mappings(question: str, clues: tuple[str, ...], relations, entities, entity: str, step: str) -> None:  # type: ignore[no-untyped-def]
    case = MapRelationsCase(question, clues, relations, entity=entity)
    found = read(MapRelationsInstruction(PROMPTS).render(case))
    assert (found.question, found.clues, found.relations, found.entity) == (question, clues, relations, entity)
    asked = MapEntitiesCase(question, clues, entities, entity=entity, relation=step)
    found = read(MapEntitiesInstruction(PROMPTS).render(asked))
    assert (found.question, found.clues, found.entities) == (question, clues, entities)
    assert (found.entity, found.relation) == (entity, step)


def test_any_wording_is_read(tmp_path: Path) -> None:
    wording = "[[{paths}]] { x } (.*) {paths}\n{question}"
    (tmp_path / "reason.txt").write_text(f"# version 7\n{wording}\n", encoding="utf-8")
    (tmp_path / "enough_information.system.txt").write_text("About {topics}.\n", encoding="utf-8")
    (tmp_path / "enough_information.txt").write_text("{paths}\n{question}\n", encoding="utf-8")
    own = read_prompts(tmp_path)
    reader = PromptReader(PROMPTS, own, steps=STEPS)
    paths = (ScoredPath("a → made_by → b"), ScoredPath("c → made_by → d"))
    for prompts in (PROMPTS, own):
        found = reader.read(ReasonInstruction(prompts).render(ReasonCase("who?", paths=paths)))
        assert found.question == "who?" and [path.ends for path in found.paths] == [("b",), ("d",)]
    found = reader.read(EnoughInstruction(own).render(EnoughCase("who?", topics=("a", "c"), paths=paths)))
    assert found.topics == ("a", "c") and len(found.paths) == 2


def test_what_no_file_makes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'direct' was made of none of them: 'who directed it\?'"):
        READER.read(Prompt("who directed it?", instruction="direct"))
    with pytest.raises(ConfigError, match="'dance'"):
        READER.read(Prompt("dance", instruction="dance"))
