"""The two systems that see the question alone: what they ask, and what becomes of the names they get."""

from __future__ import annotations

import pytest

from kgqa_core.instructions.render import read_prompts
from kgqa_core.systems.baselines import Direct
from kgqa_core.systems.types import Answered
from tests.forty_triples import Forty
from tests.scripted import script
from tests.systems.following import answer_one

THOUGHT = "Salt Road was shot by Lev Sand? No.\nAnswers:\n"
pytestmark = pytest.mark.parametrize("name", ["direct", "cot"])


def run(forty: Forty, name: str, text: str, id: str = "directed", thought: str = THOUGHT) -> Answered:
    """Ask one question; the thinker thinks before it says the text."""
    system = Direct(forty.search, read_prompts(), thinks=name == "cot")
    assert system.name == name
    instruction, said = ("direct", text) if name == "direct" else ("chain_of_thought", thought + text)
    question = forty.question(id)
    model = script((instruction, f"Question: {question.text}", said))
    return answer_one(forty, system, question, model)


def test_one_call_names_entities_of_the_graph_without_any_evidence(forty: Forty, name: str) -> None:
    answered = run(forty, name, "Oto Brandt\nIda Moon")
    prediction = answered.answer.prediction
    assert forty.labels(prediction.answers) == ["Oto Brandt", "Ida Moon"]
    assert prediction.scores == (1.0, 0.5)
    assert (prediction.paths, answered.faithful) == (((), ()), (False, False))
    assert prediction.covered
    assert answered.answer.counts == {"num_unsupported": 2}
    (call,) = answered.calls
    assert not any(word in call.prompt for word in ("Ida Moon", "directed_by", "→"))  # no fact and no candidate


def test_a_name_is_found_whatever_its_case_and_an_unknown_one_is_told(forty: Forty, name: str) -> None:
    answered = run(forty, name, "port amber\nAtlantis", "born")
    assert forty.labels(answered.answer.prediction.answers) == ["Port Amber"]
    assert answered.answer.unmatched == ("Atlantis",)


@pytest.mark.parametrize(
    ("text", "thought"),
    [("I do not know", THOUGHT), ("Atlantis", THOUGHT), ("It was someone called Ida Moon, if I am right.", "")],
)
def test_whoever_does_not_know_has_no_answer(forty: Forty, name: str, text: str, thought: str) -> None:
    answered = run(forty, name, text, thought=thought)
    assert answered.status == "abstained"
    assert answered.answer.prediction.abstained


def test_no_topic_is_needed(forty: Forty, name: str) -> None:
    assert run(forty, name, "Ida Moon", "no topic").status == "answered"


@pytest.mark.parametrize(("said", "verdict"), [("Ida Moon", True), ("Oto Brandt", False), ("I do not know", None)])
def test_a_claim_is_judged_by_the_answers(forty: Forty, name: str, said: str, verdict: bool | None) -> None:
    assert run(forty, name, said, "right").answer.prediction.verdict is verdict
