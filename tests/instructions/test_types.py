"""What holds for every instruction: any text is read, and what is taught is read back, however odd the names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.instructions import choose, plan, reason, scores
from kgqa_core.instructions.answers import Answers, distinct_names
from kgqa_core.instructions.render import PLACEHOLDERS, ScoredPath, read_prompts
from kgqa_core.instructions.types import Instruction, ParseFailure, fit_prompt
from kgqa_core.lm.types import Prompt

PROMPTS = read_prompts()
PATHS = (
    ScoredPath("Nightfall → made_by → Ida Moon", 0.71, ("made_by",), "Ida Moon", "Nightfall"),
    ScoredPath("Nightfall → about → cats", 0.05, ("about",), "cats", "Nightfall"),
)
ODD = ("{question}", "two\nlines", "1. FC Köln", " edge ", "[REC]", "None", "<SEP>", "a = 0.5", "-> b", "")
NAME = st.sampled_from(ODD[:-1]) | st.text(min_size=1, max_size=12)
NAMES = st.lists(NAME, min_size=1, max_size=4, unique=True).map(tuple)

WITHOUT_TARGET: list[tuple[Instruction[Any, Any], Any]] = [
    (reason.ExtractCluesInstruction(PROMPTS), reason.ReasonCase("who?")),
    (scores.MapRelationsInstruction(PROMPTS), scores.MapCase("who?", ODD, ODD, entity="a\nb")),
    (scores.MapEntitiesInstruction(PROMPTS), scores.MapCase("who?", ODD, ODD, entity="a\nb", relation="^r")),
    (reason.ChainOfThoughtInstruction(PROMPTS), reason.ReasonCase("who?")),
    (reason.ExplainInstruction(PROMPTS), reason.ReasonCase("who?", paths=PATHS)),
]


def taught(names: Sequence[str]) -> list[tuple[Instruction[Any, Any], Any, Any]]:
    """Every instruction that the graph can give a target, with a case and what its target must be read as."""
    names = tuple(names)
    answers = Answers(distinct_names(names), abstained=not distinct_names(names))
    worth = tuple((len(names) - place) / 4 for place in range(len(names)))
    entities = tuple(scores.EntityCandidate(name, ("(a, r, b)",)) for name in names)
    candidates = tuple(choose.Candidate(name, 0.25) for name in names)
    return [
        (plan.PlanInstruction(PROMPTS), plan.PlanCase("who?", path=names), (names,)),
        (reason.ReasonInstruction(PROMPTS), reason.ReasonCase("who?", paths=PATHS, answers=names), answers),
        (
            reason.ReasonInstruction(PROMPTS, scored=True),
            reason.ReasonCase("who?", shown=names, answers=names),
            answers,
        ),
        (reason.DirectInstruction(PROMPTS), reason.ReasonCase("who?", answers=names), answers),
        (
            choose.ChooseInstruction(PROMPTS),
            choose.ChooseCase("who?", candidates=candidates, right=(0,)),
            choose.Choice((0,), "label"),
        ),
        (
            scores.ScoreRelationsInstruction(PROMPTS),
            scores.RelationsCase("who?", names, scores=worth, budget=4),
            scores.Scores(tuple(enumerate(worth))),
        ),
        (
            scores.ScoreEntitiesInstruction(PROMPTS),
            scores.EntitiesCase("who?", entities, scores=worth),
            scores.Scores(tuple(enumerate(worth))),
        ),
        (choose.EnoughInstruction(PROMPTS), choose.EnoughCase("who?", paths=PATHS, enough=False), False),
    ]


@given(NAMES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_taught_is_read_back(names: tuple[str, ...]) -> None:
    for instruction, case, result in taught(names):
        target = instruction.target(case)
        assert target is not None
        assert instruction.parse(target, case) == result, instruction.name


EVERY = [(instruction, case) for instruction, case, _ in taught(ODD)] + WITHOUT_TARGET


@given(st.text() | st.sampled_from(["\x00", "=" * 5000, "(" * 5000, "\ud800", "9" * 5000, "A" * 5000]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_gives_a_result_or_a_failure(text: str) -> None:
    for instruction, case in EVERY:
        result = instruction.parse(text, case)
        if isinstance(result, ParseFailure):
            assert result.reason


@pytest.mark.parametrize(("instruction", "case"), EVERY, ids=lambda value: getattr(value, "name", ""))
def test_prompts_hold_the_question_and_are_accounted_for(instruction: Instruction[Any, Any], case: Any) -> None:
    prompt = instruction.render(case)
    assert isinstance(prompt, Prompt)
    assert "who?" in prompt.text
    assert prompt.instruction == instruction.name
    assert prompt.constraint is None or prompt.constraint.key


def test_what_a_user_asks_is_never_interpreted() -> None:
    for instruction, case in EVERY:
        asked = type(case)(**{**{name: getattr(case, name) for name in case.__slots__}, "question": "{paths} {x} {{"})
        assert "{paths} {x} {{" in instruction.render(asked).text


def test_names_that_a_prompt_shows_are_written_and_taught_as_it_shows_them() -> None:
    names = ("1. FC Köln", "[REC]", "Unknown", "None of the Above", '"Heroes"', "- x", "A:", "two\nlines")
    for reader in (reason.ReasonInstruction(PROMPTS), reason.ReasonInstruction(PROMPTS, scored=True)):
        case = reason.ReasonCase("which?", shown=names, answers=names, bound=True)
        lines = [*names[:-1], "two\\u{a}lines"]
        constraint, target = reader.constraint(case), reader.target(case)
        assert constraint is not None and target == "\n".join(lines)
        for name, line in zip(names, lines, strict=True):
            assert constraint.may_end((line,)) and reader.parse(line, case) == Answers((name,))
        assert reader.parse(target, case) == Answers(names)


def test_instructions_without_a_target_say_so() -> None:
    assert [instruction.target(case) for instruction, case in WITHOUT_TARGET] == [None] * 5


def test_each_of_the_twelve_has_a_prompt() -> None:
    names = {instruction.name for instruction, _ in EVERY}
    assert len(names) == 12
    assert names == set(PLACEHOLDERS) - {"reason_scored", "choose_unlabelled"}  # wordings of two of them


def test_weak_paths_show_their_score_to_the_predictor_of_eperm() -> None:
    prompt = reason.ReasonInstruction(PROMPTS, scored=True).render(reason.ReasonCase("who made it?", paths=PATHS)).text
    assert "Nightfall → made_by:\nIda Moon (score 0.71)\n\nNightfall → about:\ncats (score 0.05)\n" in prompt
    assert "(score" not in reason.ReasonInstruction(PROMPTS).render(reason.ReasonCase("who made it?", paths=PATHS)).text


def test_a_block_shows_its_first_ten_names_and_whoever_gives_them_all_means_the_others_too() -> None:
    names = tuple(f"film {number:02}" for number in range(13))
    paths = (*(ScoredPath(f"Ida → ^made_by → {name}", 1.0, ("^made_by",), name, "Ida") for name in names), PATHS[0])
    reader = reason.ReasonInstruction(PROMPTS)
    case = reason.ReasonCase("which films?", paths=paths, shown=(*names, "Ida Moon"), answers=names)
    shown = "\n".join(names[:10])
    assert f"Ida → ^made_by:\n{shown}\nand 3 more\n\nNightfall → made_by:\nIda Moon\n" in reader.render(case).text
    assert reader.target(case) == shown
    assert reader.parse(shown, case) == reader.parse(f"{shown}\nand 3 more", case) == Answers(names)
    assert reader.parse("\n".join(names[1:10]), case) == Answers(names[1:10])  # not all that is shown: those alone


def test_an_empty_plan_set_still_makes_a_prompt() -> None:
    assert "Paths:\n(none)" in reason.ReasonInstruction(PROMPTS).render(reason.ReasonCase("who?")).text


def test_a_single_candidate_is_scored_by_a_bare_number() -> None:
    instruction = scores.ScoreEntitiesInstruction(PROMPTS)
    case = scores.EntitiesCase("who?", (scores.EntityCandidate("Ida Moon"),), scores=(0.5,))
    assert instruction.target(case) == "0.50"
    assert instruction.parse("I would say 0.93.", case) == scores.Scores(((0, 0.93),))
    constraint = instruction.constraint(case)
    assert constraint is not None
    assert not constraint.may_end(("0",))


def test_more_relations_than_the_budget_are_not_read() -> None:
    instruction = scores.ScoreRelationsInstruction(PROMPTS)
    case = scores.RelationsCase("who?", ("a", "b", "c"), budget=2, scores=(0.0, 0.5, 1.0))
    assert instruction.target(case) == "2: c = 1.00\n1: b = 0.50"
    assert instruction.parse("a = 0.9\nb = 0.8\nc = 0.7", case) == scores.Scores(((0, 0.9), (1, 0.8)))
    assert instruction.target(scores.RelationsCase("who?", ("a", "b"), scores=(0.0, 0.0))) == "3: a = 0.00"
    assert instruction.target(scores.RelationsCase("who?", ("a",))) is None


@pytest.mark.parametrize(
    ("text", "clues"),
    [
        ("people live\ncity\nNightfall", ("people live", "city", "Nightfall")),
        ("Clues: people live, city, Nightfall", ("people live", "city", "Nightfall")),
        ("['people live', 'city']", ("people live", "city")),
        ("Keywords:\n- city\n- City", ("city",)),
        ("Here are the clues:\ncity\nNightfall", ("city", "Nightfall")),
        ("**Clues:**\n- city", ("city",)),
        ("**Clues:** city, Nightfall", ("city", "Nightfall")),
        ("1. Clue: city\n2. Clue: Nightfall", ("city", "Nightfall")),
        ('{"clues": ["city", "Nightfall"]}', ("city", "Nightfall")),
        ("the clue: a novel", ("a novel",)),
    ],
)
def test_clues_are_found_in_what_models_really_write(text: str, clues: tuple[str, ...]) -> None:
    assert reason.ExtractCluesInstruction(PROMPTS).parse(text, reason.ReasonCase("how many?")) == clues


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("Yes.", True),
        ("no", False),
        ("**No**: nobody says yes.", False),
        ("There is no doubt: yes", True),
        ("Is it known?\nYes, as no-one but her made it.", True),
        ("That is not enough.", False),
    ],
)
def test_a_verdict_is_found_in_what_models_really_write(text: str, enough: bool) -> None:
    assert choose.EnoughInstruction(PROMPTS).parse(text, choose.EnoughCase("who?")) is enough


def test_an_explanation_ends_with_its_answers() -> None:
    text = "Lake Ode lies in Freedonia.\nSo the answer is Glory City."
    explained = reason.ExplainInstruction(PROMPTS).parse(text, reason.ReasonCase("where?"))
    assert explained == Answers(("Glory City",))
    rambling = reason.ChainOfThoughtInstruction(PROMPTS).parse("Well, who knows.", reason.ReasonCase("where?"))
    assert rambling == Answers(())


# ------ Prompts that would be too long: the weakest paths or candidates go first.


REASON, CHOOSE = reason.ReasonInstruction(PROMPTS), choose.ChooseInstruction(PROMPTS)
FRAME = len(REASON.render(reason.ReasonCase("who?")).text.split()) - 1  # words of the prompt but for "(none)"


def count_words(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.text.split()) for prompt in prompts]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), max_size=9), st.integers(0, 30))
def test_as_many_as_dropping_one_by_one(sizes: list[tuple[int, float]], room: int) -> None:
    paths = tuple(
        ScoredPath("", score, (f"r{place}",), " ".join(["w"] * size)) for place, (size, score) in enumerate(sizes)
    )
    prompt, case = fit_prompt(REASON, reason.ReasonCase("who?", paths=paths), count_words, limit=FRAME + room)
    assert prompt == REASON.render(case)
    left = sorted(range(len(paths)), key=lambda index: (-paths[index].score, index))
    while left and sum(sizes[index][0] + 2 for index in left) > room:  # an arrow and a relation above each end
        left.pop()
    assert case.paths == tuple(paths[index] for index in sorted(left))


def test_candidates_that_do_not_fit_go_least_probable_first() -> None:
    evidence = (" ".join(["fact"] * 40),)
    given = choose.ChooseCase(
        "who?", candidates=(choose.Candidate("X", 0.2, evidence), choose.Candidate("Y", 0.8, evidence))
    )
    _, case = fit_prompt(CHOOSE, given, count_words, limit=160)
    assert [candidate.name for candidate in case.candidates] == ["Y"]


def test_where_nothing_can_be_left_out_the_prompt_is_as_it_is() -> None:
    direct, case = reason.DirectInstruction(PROMPTS), reason.ReasonCase("who?")
    assert fit_prompt(direct, case, count_words, limit=1) == (direct.render(case), case)


def test_a_prompt_that_fits_is_counted_once() -> None:
    counted: list[int] = []

    def count(prompts: Sequence[Prompt]) -> list[int]:
        counted.append(len(prompts))
        return count_words(prompts)

    fit_prompt(REASON, reason.ReasonCase("who?", paths=PATHS), count, limit=FRAME + 20)
    assert counted == [1]
