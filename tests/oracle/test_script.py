"""A scripted model says its lines and nothing else."""

from __future__ import annotations

import pytest

from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.types import GREEDY, Decoding, Prompt
from tests.scripted import ScriptedModel, ScriptError

WHO = Prompt("who directed Salt Road?", question_id="q1", instruction="direct")
WHERE = Prompt("where was Ida Moon born?", question_id="q2", instruction="direct")


def texts(model: ScriptedModel, *prompts: Prompt, decoding: Decoding = GREEDY) -> list[list[str]]:
    return [[one.text for one in own] for own in model.generate(prompts, decoding)]


def test_the_first_line_that_fits_is_said_once() -> None:
    model = ScriptedModel()
    model.on("direct", "Salt", "Ida Moon").on("direct", lambda text: text.endswith("born?"), "Port Amber")
    assert texts(model, WHERE, WHO) == [["Port Amber"], ["Ida Moon"]]
    assert model.asked == [WHERE, WHO] and model.prompts_of("direct") == [WHERE.text, WHO.text]
    model.check_done()
    with pytest.raises(ScriptError, match=r"call 3, direct of question 'q1'; 0 lines are left(.|\n)*Salt Road"):
        model.generate([WHO])


def test_lines_in_order_tell_the_order_of_the_calls() -> None:
    model = ScriptedModel(in_order=True).on("", "", "first").on("direct", "Salt", "second")
    assert texts(model, WHERE, WHO) == [["first"], ["second"]]
    model = ScriptedModel(in_order=True).on("direct", "Salt", "first").on("direct", "", "second")
    with pytest.raises(ScriptError, match="2 lines are left"):
        model.generate([WHERE])


def test_a_line_may_be_said_often_and_must_be_said() -> None:
    model = ScriptedModel().on("direct", "", "again", times=None).on("plan", "", "never")
    assert texts(model, WHO, WHERE, WHO) == [["again"]] * 3
    with pytest.raises(ScriptError, match="1 of 2 lines were never asked for: plan"):
        model.check_done()


def test_beams_have_scores_and_are_filled_up() -> None:
    model = ScriptedModel().on("direct", "", "best", "good", scores=(-0.1, -0.7))
    beam = Decoding(method="beam", num_returns=3, num_beams=3)
    (given,) = model.generate([WHO], beam)
    assert [(one.text, one.log_prob) for one in given] == [("best", -0.1), ("good", -0.7), ("", None)]


def test_options_are_scored_as_the_line_says() -> None:
    model = ScriptedModel().on("direct", "Salt", scores=(-0.1, -2.0))
    assert model.score([WHO], [["Ida Moon", "Oto Brandt"]]) == [[-0.1, -2.0]]
    assert model.options == [("Ida Moon", "Oto Brandt")]
    with pytest.raises(ScriptError, match="no score for each option"):
        ScriptedModel().on("", "", "text").score([WHO], [["a"]])


def test_it_passes_through_the_meter_as_any_model_does() -> None:
    metered = Metered(ScriptedModel().on("direct", "", "yes", times=None), meter=Meter(), system="direct")
    assert [own[0].text for own in metered.generate([WHO, WHERE])] == ["yes", "yes"]
    assert metered.meter.usage(system="direct").num_calls == 2
