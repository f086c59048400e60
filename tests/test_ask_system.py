"""Asking one system one question on the embedded dataset, its model played by the oracle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.one_question import ask_system
from kgqa_core.config import RunConfig
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import ConfigError, InputError, LinkError
from kgqa_core.questions.build import read_questions
from kgqa_core.run import compare as module
from kgqa_core.run.compare import cached_bench, close_bench
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


def test_rog_plans_and_reasons_and_every_answer_has_its_path(compare: Compare, question: Question) -> None:
    pipeline = compare("rog")
    reply = ask_system(pipeline, question.text)
    assert (reply.system, reply.answered_by, reply.status, reply.error) == ("rog", "oracle", "answered", "")
    assert [(call.round, call.instruction) for call in reply.calls] == [(1, "plan"), (2, "reason")]
    assert set(reply.topics) == names(pipeline, question.topics)
    assert {line.name for line in reply.candidates if line.is_answer} == names(pipeline, question.answers)
    for line in reply.candidates:
        assert line.supported
        assert next(iter(reply.topics)) in line.path
    assert question.text in reply.calls[1].prompt
    assert reply.tokens > 0
    assert (reply.unmatched, reply.verdict) == ((), None)


def test_other_systems_of_a_run_answer_too_within_their_budget(compare: Compare, question: Question) -> None:
    assert ask_system(compare("cot", "rog", seeds=[3]), question.text).system == "cot"  # the first of the run
    variant = {"one plan": {"system": "rog", "settings": {"num_plans": 1}, "answered_by": ["oracle"]}}
    reply = ask_system(compare(answered_by="lm", variants=variant), question.text)
    assert (len(reply.calls[0].texts), reply.answered_by) == (1, "oracle")
    reply = ask_system(compare("explorer"), question.text)  # it asks nobody
    assert (reply.system, reply.answered_by, reply.calls, reply.tokens) == ("explorer", "", (), 0)
    assert reply.candidates
    reply = ask_system(compare("rog", max_calls=1), question.text)
    assert [call.problem for call in reply.calls] == ["", "budget"]
    assert reply.status == "unreadable"


def test_a_topic_may_be_named_is_told_if_unknown_and_is_needed_by_some_systems_alone(
    compare: Compare, question: Question, tiny_config: RunConfig
) -> None:
    (topic,) = names(compare("rog"), question.topics)
    assert ask_system(compare("rog"), question.text, topic).topics == (topic,)
    for system in ("rog", "direct"):  # whoever needs it
        with pytest.raises(LinkError, match=r"Nobody At All"):
            ask_system(compare(system), question.text, "Nobody At All")
    with pytest.raises(InputError, match="the question is empty"):
        ask_system(compare("direct"), "  ")
    with pytest.raises(ConfigError, match="compares no systems: give its configuration a section 'systems'"):
        ask_system(Pipeline(tiny_config), "who is it?")
    reply = ask_system(compare("direct"), "who is it?")
    assert (reply.topics, reply.status, len(reply.calls)) == ((), "abstained", 1)
    with pytest.raises(LinkError):
        ask_system(compare("rog"), "who is it?")


# What a process keeps between two chunks of questions: one system, of the data that the chunk is about


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Open nothing; tell what is opened and closed."""
    told: list[str] = []

    @contextmanager
    def open_nothing(pipeline: Any, key: str) -> Iterator[object]:
        told.append(f"open {key}")
        yield object()
        told.append(f"close {key}")

    monkeypatch.setattr(module, "open_bench", open_nothing)
    monkeypatch.setattr(module, "read_asked", lambda pipeline: [])
    yield told
    close_bench()


def test_a_system_is_opened_once_per_data_and_closed_before_the_next(
    tiny_config: RunConfig, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config.model_dump_json()
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(module, "read_asked", None)
        cached_bench(config, "tog", "f1")  # what cannot be opened is not kept
    told.clear()
    first = cached_bench(config, "tog", "f1")
    assert cached_bench(config, "tog", "f1") == first
    cached_bench(config, "cot", "f2")
    assert told == ["open tog", "close tog", "open cot"]
    old, _ = cached_bench(config, "tog", "of the old graph")
    new, _ = cached_bench(config, "tog", "of the new graph")  # in a worker that outlives the run
    assert old is not new
    close_bench()
    close_bench()
    assert told[3:] == ["close cot", *["open tog", "close tog"] * 2]
