"""The runner: rounds of all questions at a time, what it does to prompts and answers, and failures that stay alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kgqa_core.errors import ArtifactError, EndpointError, UnableError
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.choose import ChooseInstruction
from kgqa_core.instructions.plan import PlanCase, PlanInstruction
from kgqa_core.instructions.reason import DirectInstruction, ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.calls import Meter, Metered, is_allowed
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt
from kgqa_core.systems.answering import answer_with
from kgqa_core.systems.runner import keep_back
from kgqa_core.systems.types import Answered, Ask, Reply, Steps, SystemAnswer
from kgqa_core.types import Prediction, Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all
from tests.systems.steered import ONE, PROMPTS, THREE, TWO, Batches, Steered, asks_in_turns, direct


def run(forty: Forty, plot: Callable[[Question], Steps], model: Any, *ids: str, **more: Any) -> list[Answered]:
    asked = [forty.question(id) for id in ids or (ONE, TWO, THREE)]
    return answer_all(Steered(plot), asked, forty.search, model, **more)


def hear(forty: Forty, model: Any, *asks: Ask[Any], **more: Any) -> tuple[Answered, Sequence[Reply[Any]]]:
    """Ask calls in one round of one question; return what was kept, and the replies that the system got."""
    got: list[Reply[Any]] = []

    def plot(question: Question) -> Steps:
        got.extend((yield asks))
        return answer_with(question)

    (answered,) = run(forty, plot, model, ONE, **more)
    assert answered.status in ("abstained", "unreadable")
    return answered, got


def statuses(answered: Sequence[Answered]) -> list[str]:
    return [one.status for one in answered]


# Rounds


def test_all_questions_go_one_round_at_a_time_so_that_a_model_gets_large_batches(forty: Forty) -> None:
    model = Batches()
    call = run(forty, asks_in_turns(1, 2, 1), model)[0].calls[0]
    assert (call.round, call.instruction, call.texts) == (1, "direct", ("Ida Moon",))
    assert (call.problem, call.num_tokens) == ("", 2)
    assert call.prompt.endswith("Question: 0.0 who directed Salt Road?")
    assert model.asked() == [[ONE, TWO, THREE], [ONE, ONE, TWO, TWO, THREE, THREE], [ONE, TWO, THREE]]


def test_calls_of_one_round_go_together_where_they_are_decoded_alike(forty: Forty) -> None:
    """The first question plans by beam search, the second weighs options: a batch each beside that of the texts."""
    beam = Decoding(method="beam", num_beams=2, num_returns=2)

    def plot(question: Question) -> Steps:
        replies = yield [
            direct("first"),
            direct("second", decoding=beam) if question.id == ONE else direct("second", options=("a", "b")),
            direct("third"),
        ]
        assert [reply.case.question for reply in replies] == ["first", "second", "third"]  # in the order asked
        assert [len(reply.texts) for reply in replies] == [1, 2 if question.id == ONE else 0, 1]
        return answer_with(question)

    model = Batches()
    assert statuses(run(forty, plot, model, ONE, TWO)) == ["abstained"] * 2
    assert model.decodings == [GREEDY, beam, None]
    assert model.asked() == [[ONE, ONE, TWO, TWO], [ONE], [TWO]]


def test_a_round_without_calls_is_skipped(forty: Forty) -> None:
    def plot(question: Question) -> Steps:
        assert (yield []) == ()
        assert len((yield [direct()])) == 1
        assert (yield ()) == ()
        return answer_with(question, forty.ids("Ida Moon"), ())

    model = Batches()
    (answered,) = run(forty, plot, model, ONE)
    assert (answered.status, len(model.together), answered.calls[0].round) == ("answered", 1, 1)


def test_a_system_that_never_asks_needs_no_model(forty: Forty) -> None:
    assert statuses(run(forty, asks_in_turns(), None)) == ["abstained"] * 3
    assert answer_all(Steered(asks_in_turns(1)), [], forty.search, None) == []
    with pytest.raises(ValueError, match="needs one"):
        run(forty, asks_in_turns(1), None)


def test_what_is_prepared_for_many_reaches_each_its_own(forty: Forty) -> None:
    system = Steered(asks_in_turns(), lambda questions: [question.text for question in questions])
    answer_all(system, [forty.question(id) for id in ("no topic", TWO, ONE)], forty.search, None)
    assert system.got == {id: forty.question(id).text for id in (TWO, ONE)}


# Failures


class Picky(DirectInstruction):
    def parse(self, text: str, case: ReasonCase) -> Any:
        raise ZeroDivisionError


def fails_at(bad: str, place: str) -> Callable[[Question], Steps]:
    """Return a plot that goes wrong on one question."""

    def plot(question: Question) -> Steps:
        here = place if question.id == bad else ""
        if here == "first step":
            raise KeyError("no such thing")
        yield [direct(question.text)]
        if here == "second step":
            raise KeyError("no such thing")
        if here == "prompt":
            yield [Ask(ChooseInstruction(PROMPTS), ReasonCase("of another instruction"))]  # type: ignore[arg-type]
        if here == "reply":
            yield [Ask(Picky(PROMPTS), ReasonCase("cannot be read"))]
        if here == "no calls":
            yield [42]  # type: ignore[list-item]
        return answer_with(question, (0,), ()) if here != "no answer" else None  # type: ignore[return-value]

    return plot


@pytest.mark.parametrize(
    ("place", "told", "num_calls"),
    [
        ("first step", "KeyError: 'no such thing'", 0),
        ("second step", "KeyError: 'no such thing'", 1),
        ("prompt", "'ReasonCase' object has no attribute", 1),
        ("reply", "ZeroDivisionError", 1),
        ("no calls", "'int' object has no attribute", 1),
        ("no answer", "asked answered None to 'starred', which is no SystemAnswer", 1),
    ],
)
def test_a_question_that_goes_wrong_is_lost_alone_with_its_traceback(
    forty: Forty, place: str, told: str, num_calls: int
) -> None:
    answered = run(forty, fails_at(TWO, place), Batches())
    assert statuses(answered) == ["answered", "failed", "answered"]
    lost = answered[1]
    assert told in lost.error
    assert "Traceback" in lost.error
    assert lost.answer.prediction == Prediction(TWO, (), (), ())
    assert len(lost.calls) == num_calls  # those that were made are kept


@pytest.mark.parametrize(
    "spoil",
    [
        lambda right: Prediction(right.question_id, (0, 0), (1.0, 0.5), (0,)),  # a candidate twice
        lambda right: Prediction(right.question_id, (0, 1), (0.5, 1.0), (0,)),  # scores that increase
        lambda right: Prediction(right.question_id, (0,), (), (0,)),  # a candidate without a score
        lambda right: Prediction(right.question_id, (0,), (0.1, 0.1), (0,)),  # a score without a candidate
        lambda right: Prediction(right.question_id, (0,), (float("nan"),), (0,)),
        lambda right: Prediction(right.question_id, (10_000,), (1.0,), (10_000,)),  # no entity
        lambda right: Prediction(right.question_id, (0,), (1.0,), (-1,)),
        lambda right: Prediction("another question", (0,), (1.0,), (0,)),
    ],
)
def test_an_answer_that_is_no_ranking_of_entities_is_lost_alone(
    forty: Forty, spoil: Callable[[Prediction], Prediction]
) -> None:
    def plot(question: Question) -> Steps:
        answer = answer_with(question, (0,), ())
        return SystemAnswer(spoil(answer.prediction)) if question.id == TWO else answer
        yield

    answered = run(forty, plot, None)
    assert statuses(answered) == ["answered", "failed", "answered"]
    assert "InputError" in answered[1].error
    assert answered[1].answer.prediction.candidates == ()


def test_what_cannot_be_prepared_for_all_is_prepared_one_by_one(forty: Forty) -> None:
    def prepared(questions: Sequence[Question]) -> Sequence[None]:
        if any(question.id == TWO for question in questions):
            raise MemoryError("this one is too large")
        return [None] * len(questions)

    asked = [forty.question(id) for id in (ONE, TWO, THREE)]
    answered = answer_all(Steered(asks_in_turns(), prepared), asked, forty.search, None)
    assert statuses(answered) == ["abstained", "failed", "abstained"]
    assert "this one is too large" in answered[1].error
    few = Steered(asks_in_turns(), lambda questions: [None])  # fewer than there are questions
    assert statuses(answer_all(few, asked, forty.search, None)) == ["abstained"] * 3


def test_a_question_without_a_topic_runs_where_none_is_needed(forty: Forty) -> None:
    asked = [forty.question(id) for id in ("no topic", ONE)]
    needs = Steered(asks_in_turns(1))
    assert statuses(answer_all(needs, asked, forty.search, Batches())) == ["skipped", "abstained"]
    free = Steered(asks_in_turns(1), needs_topic=False)
    assert statuses(answer_all(free, asked, forty.search, Batches())) == ["abstained", "abstained"]


def test_what_stops_the_model_stops_the_run(forty: Forty) -> None:
    class Gone(Batches):
        def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
            raise EndpointError("nobody listens there")

    with pytest.raises(EndpointError, match="nobody listens there"):
        run(forty, asks_in_turns(1), Gone())


@pytest.mark.parametrize("stop", [EndpointError("the planner's server is gone"), ArtifactError("the disk is full")])
def test_what_stops_a_planner_stops_the_run_and_fails_no_question(forty: Forty, stop: Exception) -> None:
    """A question that is written as failed would not be asked again."""

    def prepare(questions: Sequence[Question]) -> Sequence[None]:
        raise stop

    with pytest.raises(type(stop), match=str(stop)):
        answer_all(Steered(asks_in_turns(), prepare), [forty.question(ONE)], forty.search, None)


# Calls


def test_a_budget_of_calls_stops_each_question_by_itself(forty: Forty) -> None:
    inner = Batches()
    model = Metered(inner, meter=Meter(), max_calls=2)
    got: dict[str, list[str]] = {}

    def plot(question: Question) -> Steps:
        for number in range(3 if question.id == ONE else 1):
            (reply,) = yield [direct(f"{number} {question.text}")]
            failed = isinstance(reply.result, ParseFailure)
            got.setdefault(question.id, []).append(reply.result.reason if failed else "read")
        return answer_with(question)

    answered = run(forty, plot, model, ONE, TWO)
    assert got == {ONE: ["read", "read", "budget"], TWO: ["read"]}
    assert [call.problem for call in answered[0].calls] == ["", "", "budget"]
    assert sum(map(len, inner.together)) == 3
    assert [one.error for one in answered] == ["", ""]


def test_options_are_weighed_and_shown_with_their_logs(forty: Forty) -> None:
    weighed = direct("who?", options=("yes", "no"))
    answered, (reply,) = hear(forty, ScriptedModel().on("direct", scores=(-0.5, -2.25)), weighed)
    assert (reply.result, reply.log_probs, reply.texts) == (None, (-0.5, -2.25), ())
    assert answered.calls[0].texts == ("yes\t-0.5000", "no\t-2.2500")
    assert answered.calls[0].confidence == pytest.approx(math.exp(-0.5) / (math.exp(-0.5) + math.exp(-2.25)))
    _, (lost,) = hear(forty, Metered(Batches(), meter=Meter(), max_calls=0), weighed)
    assert lost.result == ParseFailure("no likelihood")


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        (Generation("Ida Moon", -1.0, 2), math.exp(-0.5)),  # of a token, on average
        (Generation("Ida Moon", None, 2), None),  # a server that tells no log-probabilities
        (Generation("", problem="timeout"), None),
    ],
)
def test_a_text_is_as_sure_as_its_tokens_are(forty: Forty, text: Generation, confidence: float | None) -> None:
    class Said(Batches):
        def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
            return [[text] for _ in prompts]

    (call,) = hear(forty, Said(), direct())[0].calls
    assert call.confidence == (None if confidence is None else pytest.approx(confidence))


def test_an_answer_less_certain_than_it_should_be_is_kept_back_as_an_abstention(forty: Forty) -> None:
    def plot(question: Question) -> Steps:
        yield [direct()]
        return answer_with(question, (1,)) if question.id != TWO else answer_with(question)

    answered = run(forty, plot, Batches())
    assert [one.confidence for one in answered] == [pytest.approx(math.exp(-0.5)), None, pytest.approx(math.exp(-0.5))]
    kept = [keep_back(one, 0.7) for one in answered]
    assert statuses(kept) == ["abstained"] * 3
    assert [one.answer.counts["num_kept_back"] for one in kept] == [1.0, 0.0, 1.0]  # their mean is a share
    assert all(one.answer.prediction.answers == one.answer.prediction.candidates == () for one in kept)
    assert [one.answer.prediction.covered for one in kept] == [one.answer.prediction.covered for one in answered]
    assert [one.calls for one in kept] == [one.calls for one in answered]
    none = [replace(one, answer=replace(one.answer, counts={"num_kept_back": 0.0})) for one in answered]
    assert [keep_back(one, 0.6) for one in answered] == none


def test_the_place_of_an_answer_is_no_confidence(forty: Forty) -> None:
    def plot(question: Question) -> Steps:
        return answer_with(question, (1, 2))  # scored 1 and 1/2
        yield

    assert [one.confidence for one in run(forty, plot, None, ONE)] == [None]


def test_what_a_model_can_never_do_fails_the_questions_that_need_it(forty: Forty) -> None:
    class Chat(Batches):
        def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
            raise UnableError("the chat API cannot tell")

    def plot(question: Question) -> Steps:
        yield [direct(options=("a", "b"))] if question.id == ONE else [direct()]
        return answer_with(question, (1,))

    answered = run(forty, plot, Chat())
    assert statuses(answered) == ["failed", "answered", "answered"]
    assert "the chat API cannot tell" in answered[0].error


def test_answers_on_paths_may_be_held_to_the_names_that_these_show(forty: Forty) -> None:
    model = Batches()
    paths = Ask(ReasonInstruction(PROMPTS), ReasonCase("who?", shown=("Ida Moon", "- Ida")))
    hear(forty, model, paths, direct())
    hear(forty, model, paths, direct(), bound=True)
    (free, alone), (held, still_free) = model.together
    assert free.constraint is alone.constraint is still_free.constraint is None
    assert held.constraint is not None and (held.text, alone.text) == (free.text, still_free.text)
    for text, may in (("Ida Moon", True), ("I do not know", True), ("Ida", False), ("Ida Moon\nIda Moon", False)):
        assert is_allowed(held.constraint, text) == may
    assert is_allowed(held.constraint, "- Ida\nIda Moon")  # as the prompt shows it


def test_texts_may_be_limited_but_plans_end_by_themselves(forty: Forty) -> None:
    asks = (
        direct(decoding=Decoding(max_new_tokens=200)),
        direct(decoding=Decoding(max_new_tokens=7)),
        Ask(PlanInstruction(PROMPTS), PlanCase("who?"), Decoding(max_new_tokens=160)),
    )
    for limit, wanted in ((None, {200, 7, 160}), (50, {50, 7, 160})):
        model = Batches()
        hear(forty, model, *asks, max_new_tokens=limit)
        assert {decoding.max_new_tokens for decoding in model.decodings if decoding} == wanted


PATHS = tuple(ScoredPath("", score, (f"way {place}",), "far " * 20) for place, score in enumerate((3, 1, 2)))
SHORT = Decoding(max_new_tokens=16)


@pytest.mark.parametrize("kept", [(0, 1, 2), (0, 2), (0,), ()])
def test_of_a_prompt_that_is_too_long_the_paths_of_the_lowest_scores_are_left_out(
    forty: Forty, kept: tuple[int, ...]
) -> None:
    instruction, case = ReasonInstruction(PROMPTS), ReasonCase("who?", PATHS)
    shown = tuple(PATHS[place] for place in kept)
    num_tokens = Batches().count_tokens([instruction.render(replace(case, paths=shown))])[0]
    model = Batches(context=num_tokens + SHORT.max_new_tokens)
    answered, (reply,) = hear(forty, model, Ask(instruction, case, SHORT))
    assert reply.case.paths == shown
    assert answered.answer.counts == ({"num_dropped": 3 - len(kept)} if len(kept) < 3 else {})
    assert [f"way {place}" in model.together[0][0].text for place in range(3)] == [at in kept for at in range(3)]


# Where each question has a subgraph of its own


def test_a_system_on_rows_gets_rows_and_its_answers_are_entities(rows: tuple[SearchGraph, list[Question]]) -> None:
    walk, questions = rows
    assert walk.subgraphs is not None
    asked = {question.id: question for question in questions}
    first, second = asked["q1"], asked["q2"]  # of one topic, in two subgraphs
    seen: dict[str, tuple[int, ...]] = {}

    def plot(question: Question) -> Steps:
        seen[question.id] = question.topics
        (topic,) = question.topics
        relation = int(walk.graph.group_relation[walk.graph.group_ptr[topic]])
        end = int(walk.graph.neighbors(topic, relation)[0])
        return answer_with(question, [end], [(walk.graph.step(topic, relation, end),)])
        yield

    answered = answer_all(Steered(plot, on_rows=True), [first, second], walk, None)
    assert first.topics == second.topics
    assert seen["q1"] != seen["q2"]
    for one in answered:
        assert one.question.topics == first.topics  # as it was asked
        assert one.faithful == (True,)
        assert 0 <= one.answer.prediction.answers[0] < walk.entities.num_entities
    stray = Question("stray", "who?", "who?", first.topics, (), "test")
    lost, found = answer_all(Steered(plot, on_rows=True), [stray, first], walk, None)
    assert (lost.status, found.status) == ("failed", "answered")
    assert "stray" in lost.error
