"""Asking one system one question on the embedded dataset, its model played by the oracle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import ConfigError, InputError, LinkError
from kgqa_core.questions.build import read_questions
from kgqa_core.run.ask import SystemReply, ask_system
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import graph_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Question
from tests.conftest import with_home

Compare = Callable[..., Pipeline]


@pytest.fixture(scope="module")
def compare(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Return a function that opens the small built run with systems, and what an oracle knows."""
    home: Path = tmp_path_factory.mktemp("asked") / "home"
    shutil.copytree(tiny_config.runtime.home, home)
    config = with_home(tiny_config, home)

    def with_systems(*run: str, answered_by: str = "oracle", **more: Any) -> Pipeline:
        systems = SystemsSection.model_validate({"run": run, "answered_by": [answered_by], **more})
        return Pipeline(config.model_copy(update={"systems": systems}))

    ensure(with_systems("rog"), ["supervision"])
    return with_systems


@pytest.fixture(scope="module")
def question(compare: Compare) -> Question:
    """A test question of one topic and two hops."""
    pipeline = compare("rog")
    asked = read_questions(pipeline.artifact("questions").folder, "test")
    return next(one for one in asked if one.hops == 2 and len(one.topics) == 1 and one.claim is None)


def names(pipeline: Pipeline, entities: tuple[int, ...]) -> set[str]:
    return {graph_of(pipeline).name_of(entity) for entity in entities}


def answers(reply: SystemReply) -> set[str]:
    return {line.name for line in reply.candidates if line.is_answer}


def test_rog_plans_and_reasons_and_every_answer_has_its_path(compare: Compare, question: Question) -> None:
    pipeline = compare("rog")
    reply = ask_system(pipeline, question.text)
    assert (reply.system, reply.answered_by, reply.status, reply.error) == ("rog", "oracle", "answered", "")
    assert [(call.round, call.instruction) for call in reply.calls] == [(1, "plan"), (2, "reason")]
    assert set(reply.topics) == names(pipeline, question.topics)
    assert answers(reply) == names(pipeline, question.answers)
    for line in reply.candidates:
        assert line.supported
        assert next(iter(reply.topics)) in line.path
    assert question.text in reply.calls[1].prompt
    assert reply.tokens > 0
    assert (reply.unmatched, reply.verdict) == ((), None)


def test_the_first_system_of_the_run_answers(compare: Compare, question: Question) -> None:
    assert ask_system(compare("cot", "rog", seeds=[3]), question.text).system == "cot"
    variant = {"one plan": {"system": "rog", "settings": {"num_plans": 1}, "answered_by": ["oracle"]}}
    reply = ask_system(compare(answered_by="lm", variants=variant), question.text)
    assert (len(reply.calls[0].texts), reply.answered_by) == (1, "oracle")
    reply = ask_system(compare("explorer"), question.text)  # it asks nobody
    assert (reply.system, reply.answered_by, reply.calls, reply.tokens) == ("explorer", "", (), 0)
    assert reply.candidates


def test_a_topic_may_be_named_and_an_unknown_one_is_told(compare: Compare, question: Question) -> None:
    pipeline = compare("rog")
    (topic,) = names(pipeline, question.topics)
    assert ask_system(pipeline, question.text, topic).topics == (topic,)
    for system in ("rog", "direct"):  # whoever needs it
        with pytest.raises(LinkError, match=r"Nobody At All"):
            ask_system(compare(system), question.text, "Nobody At All")


def test_a_question_without_a_topic_is_for_systems_that_need_none(compare: Compare, tiny_config: RunConfig) -> None:
    with pytest.raises(InputError, match="the question is empty"):
        ask_system(compare("direct"), "  ")
    with pytest.raises(ConfigError, match="compares no systems: give its configuration a section 'systems'"):
        ask_system(Pipeline(tiny_config), "who is it?")
    reply = ask_system(compare("direct"), "who is it?")
    assert (reply.topics, reply.status, len(reply.calls)) == ((), "abstained", 1)
    with pytest.raises(LinkError):
        ask_system(compare("rog"), "who is it?")


def test_calls_are_limited_for_one_question_too(compare: Compare, question: Question) -> None:
    reply = ask_system(compare("rog", max_calls=1), question.text)
    assert [call.problem for call in reply.calls] == ["", "budget"]
    assert reply.status == "abstained"
