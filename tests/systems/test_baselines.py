"""The baselines: the question alone, in one call; and Think-on-Graph step by step, as worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgqa_core.evaluation.metrics import decides_claim, pair_outcome
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import Answers
from kgqa_core.systems.answering import answer_by_name
from kgqa_core.systems.baselines import Direct, Tog, TogSection
from kgqa_core.systems.types import Answered
from kgqa_core.types import Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.asking import answer_all
from tests.systems.following import LINES, answer_one, answers, lines_under

RowWorld = tuple[SearchGraph, list[Question]]

# direct and cot


THOUGHT = "Salt Road was shot by Lev Sand? No.\nAnswers:\n"
both = pytest.mark.parametrize("name", ["direct", "cot"])


def ask_alone(forty: Forty, name: str, text: str, id: str = "directed", thought: str = THOUGHT) -> Answered:
    """Ask one question; the thinker thinks before it says the text."""
    system = Direct(forty.search, LINES, thinks=name == "cot")
    instruction, said = ("direct", text) if name == "direct" else ("chain_of_thought", thought + text)
    question = forty.question(id)
    model = script((instruction, f"Question: {question.text}", said))
    return answer_one(forty, system, question, model)


@both
def test_one_call_names_entities_of_the_graph_without_any_evidence(forty: Forty, name: str) -> None:
    answered = ask_alone(forty, name, "Oto Brandt\nIda Moon")
    prediction = answered.answer.prediction
    assert forty.labels(prediction.answers) == ["Oto Brandt", "Ida Moon"]
    assert prediction.scores == (1.0, 0.5)
    assert (prediction.paths, answered.faithful) == (((), ()), (False, False))
    assert prediction.covered
    assert answered.answer.counts == {"num_unsupported": 2}
    (call,) = answered.calls
    assert not any(word in call.prompt for word in ("Ida Moon", "directed_by", "→"))  # no fact and no candidate


@both
@pytest.mark.parametrize(
    ("id", "text", "thought", "found", "unmatched"),
    [
        ("born", "port amber\nAtlantis", THOUGHT, ["Port Amber"], ("Atlantis",)),  # whatever its case
        ("directed", "I do not know", THOUGHT, [], ()),
        ("directed", "Atlantis", THOUGHT, [], ("Atlantis",)),
        ("directed", "It was someone called Ida Moon, if I am right.", "", [], None),
        ("no topic", "Ida Moon", THOUGHT, ["Ida Moon"], ()),  # none is needed
    ],
)
def test_what_is_no_name_is_no_answer(
    forty: Forty, name: str, id: str, text: str, thought: str, found: list[str], unmatched: tuple[str, ...] | None
) -> None:
    answered = ask_alone(forty, name, text, id, thought)
    assert forty.labels(answered.answer.prediction.answers) == found
    assert bool(answered.answer.prediction.candidates) == bool(found)
    told = "unmatched" if answered.answer.unmatched else "unreadable" if answered.calls[-1].problem else "abstained"
    assert answered.status == ("answered" if found else told)
    assert unmatched is None or answered.answer.unmatched == unmatched


@both
@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("Ida Moon", True),
        ("Oto Brandt", False),
        ("I do not know", None),
        ("yes", True),
        ("No.", False),
        ("Yes, Ida Moon did.", True),
        ("No, that was another film.", False),
    ],
)
def test_a_claim_is_judged_by_the_answers(forty: Forty, name: str, said: str, verdict: bool | None) -> None:
    assert ask_alone(forty, name, said, "right").answer.prediction.verdict is verdict


# Think-on-Graph


TWO = {"width": 2, "depth": 2}


def run(
    forty: Forty, model: ScriptedModel, question: Question | str, *, max_calls: int | None = None, **settings: object
) -> Answered:
    system = Tog(forty.search, LINES, TogSection.model_validate(settings), max_calls)
    return answer_one(forty, system, question, model)


FIRST_STEP = [
    ("score_relations", "Path so far: (none)", "2: directed_by = 0.90\n1: starred = 0.40"),
    ("score_entities", "Plan: starred\n", "1: Mara Quill = 0.10\n2: Oto Brandt = 0.90"),  # one director: no call
]
"""From Salt Road: Ida Moon .9, Oto Brandt .4 x .9, and Mara Quill .4 x .1, for whom the beam has no place."""

SECOND_STEP = [
    ("score_relations", "Path so far: directed_by\n", "2: born_in = 1.00"),
    ("score_relations", "Path so far: starred\n", "2: born_in = 0.50\n1: ^holder = 0.40"),
]
"""Both were born in Port Amber: it has one place, on the way of Ida Moon, which is the better."""


def test_a_whole_run(forty: Forty) -> None:
    paths = "Salt Road → directed_by → Ida Moon → born_in → Port Amber\nSalt Road → starred → Oto Brandt"
    model = script(
        *FIRST_STEP,
        ("enough_information", "Salt Road → directed_by → Ida Moon\nSalt Road → starred → Oto Brandt", "no"),
        *SECOND_STEP,
        ("enough_information", paths, "yes"),
        ("reason", paths, "Port Amber"),
    )
    answered = run(forty, model, "born", **TWO)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (True,)
    assert [call.round for call in answered.calls] == [1, 2, 3, 4, 4, 5, 6]
    first, second, third = model.prompts_of("score_relations")
    assert lines_under(first, "Relations:") == ["directed_by", "genre", "starred", "year"]
    assert lines_under(second, "Relations:") == ["born_in", "^directed_by", "^starred"]  # others of hers than Salt Road
    assert lines_under(third, "Relations:") == ["born_in", "^directed_by", "^holder", "^starred"]
    assert "Starts at: Salt Road\n" in first and "at most 2 of them" in first
    assert answered.answer.counts["num_steps"] == 2


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"unsure": "alone"}, [("enough_information", "Port Amber", "no"), ("chain_of_thought", "", "Answer: Veria")]),
        ({"unsure": "reason"}, [("reason", "Port Amber", "Veria")]),
    ],
)
def test_paths_that_do_not_suffice_in_the_end(
    forty: Forty, settings: dict[str, object], lines: list[tuple[str, str, str]]
) -> None:
    """As published the model then thinks for itself; else it reasons on them, and is not asked whether they suffice."""
    model = script(*FIRST_STEP, ("enough_information", "", "no"), *SECOND_STEP, *lines)
    answered = run(forty, model, "born", **TWO, **settings)
    assert answers(forty, answered) == ["Veria"]
    assert answered.faithful == (False,)


@pytest.mark.parametrize("said", ["4: genre = 0.00", "none of these helps", ""])
def test_without_any_path_the_model_thinks_for_itself(forty: Forty, said: str) -> None:
    model = script(("score_relations", "", said), ("chain_of_thought", "", "Well.\nAnswers:\nIda Moon"))
    answered = run(forty, model, "directed")
    assert answers(forty, answered) == ["Ida Moon"]
    assert answered.answer.counts["num_paths"] == 0


UNREAD = "Salt Road → directed_by → Ida Moon\nSalt Road → starred → Mara Quill"
TOLD: dict[str, tuple[dict[str, object], list[tuple[str, str, str]]]] = {  # settings, calls; the answer is Ida Moon
    "all entities are alike where a reply cannot be read, and a branch ends with unread relations": (
        TWO,
        [
            FIRST_STEP[0],
            ("score_entities", "Plan: starred\n", "who knows"),
            ("enough_information", f"Facts:\n{UNREAD}", "hard to say"),  # so: no
            ("score_relations", "Path so far: directed_by\n", "who knows"),
            ("score_relations", "Path so far: starred\n", "who knows"),
            ("reason", f"Paths:\n{UNREAD}\n", "Ida Moon"),
        ],
    ),
    "earlier paths stay in evidence unless they go on": (
        TWO,
        [
            *FIRST_STEP,
            ("enough_information", "", "no"),
            ("score_relations", "Path so far: directed_by\n", "2: born_in = 0.00"),
            ("score_relations", "Path so far: starred\n", "2: born_in = 0.50"),
            ("enough_information", "", "yes"),
            (
                "reason",
                "Paths:\nSalt Road → starred → Oto Brandt → born_in → Port Amber\nSalt Road → directed_by → Ida Moon\n",
                "Ida Moon",
            ),
        ],
    ),
    "entities may be kept without a call, in order of id and within the width": (
        {"width": 1, "entity_prune": "none"},
        [
            ("score_relations", "", "1: starred = 1.00"),
            ("enough_information", "", "yes"),
            ("reason", "Paths:\nSalt Road → starred → Mara Quill\n\n", "Ida Moon"),
        ],
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_the_beam_call_by_call(forty: Forty, case: str) -> None:
    settings, calls = TOLD[case]
    answered = run(forty, script(*calls), "directed", **settings)
    assert answers(forty, answered) == ["Ida Moon"]
    assert answered.answer.counts["num_unread"] == any(said == "who knows" for _, _, said in calls)


def test_the_model_sees_so_many_candidates(forty: Forty) -> None:
    question = replace(forty.question("directed"), topics=forty.ids("comedy"))
    model = script(
        ("score_relations", "", "3: ^genre = 1.00"),
        (
            "score_entities",
            "Candidates, each with facts about it:\n1: Capital\n2: Glass Harbour",
            "2: Glass Harbour = 1",
        ),
        ("enough_information", "", "yes"),
        ("reason", "", "Ida Moon"),
    )
    answered = run(forty, model, question, max_entities=2)
    assert answered.answer.counts["num_unseen"] == 1  # The Ninth Kite
    assert "The Ninth Kite" not in model.prompts_of("score_entities")[0]


def test_every_topic_is_in_the_first_beam_and_none_is_entered(forty: Forty) -> None:
    question = replace(forty.question("directed"), topics=forty.ids("Nightjar", "Lev Sand"))
    model = script(
        ("score_relations", "Relations:\ndirected_by\nstarred\nyear", "3: starred = 0.80"),
        ("score_relations", "Relations:\nborn_in\nspouse\n^directed_by\n^starred", "3: ^starred = 0.50"),
        ("enough_information", "", "yes"),
        ("reason", "Nightjar → starred → Oto Brandt\nLev Sand → ^starred → Glass Harbour\n", "Oto Brandt"),
    )
    answered = run(forty, model, question)
    assert answers(forty, answered) == ["Oto Brandt"]
    for prompt in model.prompts_of("score_relations"):
        assert "Starts at: Nightjar\nLev Sand\n" in prompt


@pytest.mark.parametrize(
    ("max_calls", "lines"),
    [
        (1, [("chain_of_thought", "", "Answer: Ida Moon")]),
        (2, [FIRST_STEP[0], ("reason", "Paths:\nSalt Road → directed_by → Ida Moon\n", "Ida Moon")]),
        (3, [*FIRST_STEP, ("reason", "", "Ida Moon")]),
        (5, [*FIRST_STEP, ("enough_information", "", "no"), SECOND_STEP[0], ("reason", "Port Amber", "Ida Moon")]),
    ],
)
def test_the_cap_leaves_a_call_for_the_answer(forty: Forty, max_calls: int, lines: list[tuple[str, str, str]]) -> None:
    answered = run(forty, script(*lines), "directed", max_calls=max_calls, **TWO)
    assert answers(forty, answered) == ["Ida Moon"]
    assert len(answered.calls) == max_calls
    assert answered.answer.counts["num_refused_calls"] > 0


@pytest.mark.parametrize(("id", "said", "verdict"), [("right", "yes", True), ("wrong", "Ida Moon", False)])
def test_true_false_questions(forty: Forty, id: str, said: str, verdict: bool) -> None:
    lines = [("score_relations", "", "1: directed_by = 1"), ("enough_information", "", "yes"), ("reason", "", said)]
    answered = run(forty, script(*lines), id)
    assert answered.answer.prediction.verdict is verdict
    assert decides_claim(pair_outcome(forty.question(id), answered.answer.prediction))


def test_never_more_calls_than_the_paper_says(forty: Forty) -> None:
    """2ND + D + 1 for a beam of N and D steps, where everything is always worth something."""
    steps = [f"{sign}{label}" for label in forty.graph.relation_names for sign in ("", "^")]
    model = ScriptedModel()
    model.on("score_relations", "", "\n".join(f"9: {step} = 1.00" for step in steps), times=None)
    model.on("score_entities", "", "\n".join(f"{name} = 0.50" for name in forty.graph.entity_names), times=None)
    model.on("enough_information", "", "no", times=None)
    model.on("chain_of_thought", "", "I do not know", times=None)
    width, depth = 3, 3
    for question in forty.questions[:9]:
        answered = run(forty, model, question, width=width, depth=depth)
        assert answered.answer.counts["num_steps"] == depth
        assert 2 * depth < len(answered.calls) <= 2 * width * depth + depth + 1


def test_each_question_walks_its_own_rows(rows: RowWorld) -> None:
    walk, questions = rows
    graph = walk.entities
    model = ScriptedModel()
    model.on("score_relations", "brother of ann\nStarts at: m.ann\nPath so far: (none)", "1: sibling = 1")
    model.on("score_relations", "brother of ann\nStarts at: m.ann\nPath so far: sibling", "1: sibling = 1")
    model.on("score_relations", "what does ann like\nStarts at: m.ann\nPath so far: (none)\nRelations:\nlikes", "no")
    model.on("enough_information", "m.s1 → sibling → Bob", "yes").on("enough_information", "", "no")
    model.on("reason", "m.ann → sibling → m.s1 → sibling → Bob", "Bob")
    model.on("chain_of_thought", "", "Answers:\nm.rock\nm.s1")  # m.s1 is in no triple of this question
    asked = [one for one in questions if one.id in ("q1", "q2", "q6")]
    first, second, third = answer_all(Tog(walk, LINES, TogSection()), asked, walk, model)
    model.check_done()
    assert first.answer.prediction.answers == graph.ids_of_name("Bob")
    assert first.faithful == (True,)
    assert second.answer.prediction.answers == graph.ids_of_name("m.rock")
    assert second.answer.unmatched == ("m.s1",)
    assert second.answer.counts["num_unsupported"] == 1
    assert third.status == "skipped"


def test_several_names_on_a_line_are_several_answers_whatever_is_searched(forty: Forty, rows: RowWorld) -> None:
    walk, questions = rows
    (asked,) = walk.place([one for one in questions if one.id == "q2"])
    found = answer_by_name(walk, asked, Answers(("m.rock, Jazz and m.s1",)), (), on_rows=True)
    assert [walk.name_of(row) for row in found.prediction.answers] == ["m.rock", "Jazz"]
    assert found.unmatched == ("m.s1",)
    whole = answer_by_name(forty.search, forty.question("directed"), Answers(("Ida Moon, Lev Sand and Nobody",)), ())
    assert (forty.labels(whole.prediction.answers), whole.unmatched) == (["Ida Moon", "Lev Sand"], ("Nobody",))
