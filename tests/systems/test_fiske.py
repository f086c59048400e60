"""FiSKE step by step on forty triples: every call in its order, as worked out by hand, as published and merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgqa_core.evaluation.metrics import decides_claim, pair_outcome
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.systems.fiske import Fiske, FiskeSection
from kgqa_core.systems.types import Answered
from kgqa_core.types import Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel, script
from tests.systems.asking import answer_all
from tests.systems.following import LINES, answer_one, answers, lines_under

RowWorld = tuple[SearchGraph, list[Question]]

PUBLISHED = {"merge_branches": False, "entity_mapping": "always", "starts": "all", "branches_meet": False}
BORN = "Salt Road → directed_by → Ida Moon → born_in → Port Amber"


def run(
    forty: Forty, model: ScriptedModel, question: Question | str, *, max_calls: int | None = None, **settings: object
) -> Answered:
    """Answer one question, by its id or its text; the script must have been said to its end, in order."""
    if isinstance(question, str):
        own = Question("own", question, question, (), (), "test")  # without topics: FiSKE is given none
        question = next((one for one in forty.questions if one.id == question), own)
    system = Fiske(forty.search, LINES, FiskeSection.model_validate(settings), max_calls)
    return answer_one(forty, system, question, model)


def paths_of(answered: Answered) -> list[str]:
    """Return the paths of the last prompt."""
    return lines_under(answered.calls[-1].prompt, "Paths:", "\nQuestion")


def test_a_whole_run_as_published(forty: Forty) -> None:
    """Two rounds: the director takes its relation's clue; the last clue is mapped to no entity, so all tails stay."""
    model = script(
        ("extract_clues", "which place was the director of Salt Road born?", "Salt Road\ndirector\nborn"),
        ("map_relations", "Entity: Salt Road\n", "director -> directed_by = 9\nborn -> year = 4"),
        ("map_entities", "From: Salt Road\nRelation: directed_by\n", "director -> Ida Moon"),
        ("map_relations", "Entity: Ida Moon\n", "born -> born_in = 8"),
        ("map_entities", "From: Ida Moon\nRelation: born_in\n", "none"),
        ("reason", BORN, "Port Amber"),
    )
    answered = run(forty, model, "born", **PUBLISHED)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (True,)
    assert [call.round for call in answered.calls] == [1, 2, 3, 4, 5, 6]
    first, second = model.prompts_of("map_relations")
    assert lines_under(first, "Clues:", "Entity") == ["director", "born"]
    assert lines_under(first, "Relations:", "none") == ["directed_by", "genre", "starred", "year"]
    assert lines_under(second, "Clues:", "Entity") == ["born"]
    assert lines_under(second, "Relations:", "none") == ["born_in", "^directed_by", "^starred"]
    counts = answered.answer.counts
    assert (counts["num_clues"], counts["num_starts"], counts["num_rounds"], counts["num_complete"]) == (3, 1, 2, 1)


CLUES, RELATIONS, ENTITIES = "extract_clues", "map_relations", "map_entities"
FILM_OF_1989 = "which film of 1989 starred Mara Quill?"
TO_1989 = [
    (CLUES, "", "Mara Quill\nstarred\n1989"),
    (RELATIONS, "Entity: Mara Quill\n", "starred -> ^starred = 9"),
    (RELATIONS, "Entity: 1989\n", "none"),
]
IN_1989 = "Mara Quill → ^starred → Salt Road → year → 1989"
BOTH = "which film starred both Lev Sand and Oto Brandt?"
TO_BOTH = [
    (CLUES, "", "starred\nLev Sand\nOto Brandt"),
    (RELATIONS, "Entity: Lev Sand\n", "starred -> ^starred = 9"),
    (RELATIONS, "Entity: Oto Brandt\n", "starred -> ^starred = 9"),
]
Calls = list[tuple[str, str, str]]
FOLLOWED: dict[
    str, tuple[str, dict[str, object], Calls, str, list[str]]
] = {  # question, settings, calls, answer, paths
    "no entity is asked about while relations take the clues": (
        "born",
        {},
        [
            (CLUES, "", "Salt Road\ndirector\nborn"),
            (RELATIONS, "Entity: Salt Road\n", "director -> directed_by = 9"),
            (RELATIONS, "Entity: Ida Moon\n", "born -> born_in = 8"),
        ],
        "Port Amber",
        [BORN],
    ),
    "a clue that no relation takes is looked for among the entities before": (
        "which films starred Mara Quill?",
        {},
        [
            (CLUES, "", "films\nstarred\nMara Quill"),
            (RELATIONS, "Entity: Mara Quill\n", "starred -> ^starred = 9"),
            (RELATIONS, "Entity: Mara Quill → ^starred\n", "none"),
            (
                ENTITIES,
                "Clues:\nfilms\nFrom: Mara Quill\nRelation: ^starred\n",
                "films -> The Ninth Kite\nfilms -> Salt Road",
            ),
        ],
        "Salt Road",
        ["Mara Quill → ^starred → Salt Road", "Mara Quill → ^starred → The Ninth Kite"],
    ),
    "as published each film is a branch of its own, and the one next to the year is complete": (
        FILM_OF_1989,
        PUBLISHED,
        [
            *TO_1989,
            (ENTITIES, "From: Mara Quill\n", "starred -> Salt Road\nstarred -> The Ninth Kite"),
            (RELATIONS, "Entity: The Ninth Kite\n", "none"),
        ],
        "Salt Road",
        [IN_1989],
    ),
    "merged branches are asked about together: three calls less": (FILM_OF_1989, {}, TO_1989, "Salt Road", [IN_1989]),
    "branches of two people meet in the film of both": (
        BOTH,
        {},
        TO_BOTH,
        "Nightjar",
        ["Lev Sand → ^starred → Nightjar", "Oto Brandt → ^starred → Nightjar"],
    ),
    "as published each ends at the other, and the answer lies between": (
        BOTH,
        {"branches_meet": False},
        TO_BOTH,
        "Nightjar",
        [
            "Lev Sand → ^starred → Nightjar → starred → Oto Brandt",
            "Oto Brandt → ^starred → Nightjar → starred → Lev Sand",
        ],
    ),
    "branches meet after different numbers of steps": (
        "which birthplace of those who starred in Nightjar lies in Veria?",
        {},
        [
            (CLUES, "", "Nightjar\nstarred\nborn\nVeria\nlies"),
            (RELATIONS, "Entity: Nightjar\n", "starred -> starred = 9"),
            (RELATIONS, "Entity: Veria\n", "lies -> ^located_in = 9"),
            (RELATIONS, "Entity: Nightjar → starred\n", "born -> born_in = 9"),
            (RELATIONS, "Entity: Low Ferry\n", "none"),
            (ENTITIES, "From: Veria\n", "none"),
        ],
        "Low Ferry",
        ["Veria → ^located_in → Low Ferry", "Nightjar → starred → Lev Sand → born_in → Low Ferry"],
    ),
    "a last clue that is a relation's label is not asked about": (
        "born",
        {},
        [(CLUES, "", "Salt Road\nmade\nBorn in"), (RELATIONS, "Entity: Salt Road\n", "made -> directed_by = 7")],
        "Port Amber",
        [BORN],
    ),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_branches_are_followed_call_by_call(forty: Forty, case: str) -> None:
    question, settings, calls, answer, paths = FOLLOWED[case]
    answered = run(forty, script(*calls, ("reason", "", answer)), question, **settings)
    assert (answers(forty, answered), paths_of(answered)) == ([answer], paths)
    assert answered.faithful == (True,)


@pytest.mark.parametrize(
    ("settings", "cut"), [({}, (0, 0)), ({"max_entities": 1}, (1, 0)), ({"answer_triples": 1}, (0, 1))]
)
def test_what_the_caps_leave_out_is_counted(forty: Forty, settings: dict[str, object], cut: tuple[int, int]) -> None:
    question, _, calls, answer, _ = FOLLOWED["a clue that no relation takes is looked for among the entities before"]
    counts = run(forty, script(*calls, ("reason", "", answer)), question, **settings).answer.counts
    assert (counts["num_unseen"], counts["num_ends_cut"], counts["num_clues_cut"]) == (*cut, 0)
    many = script((CLUES, "", "\n".join(f"clue {place}" for place in range(19))), ("direct", "", answer))
    assert run(forty, many, question, **settings).answer.counts["num_clues_cut"] == 3


@pytest.mark.parametrize(("merge", "times"), [(False, 2), (True, 1)])
def test_two_ways_to_one_entity_are_two_branches_unless_merged(forty: Forty, merge: bool, times: int) -> None:
    model = ScriptedModel().on(CLUES, "", "comedy\nfilms\nyear\nmayor").on("direct", "", "I do not know")
    model.on(RELATIONS, "Entity: comedy\n", "films -> ^genre = 9")
    model.on(ENTITIES, "Relation: ^genre\n", "films -> Glass Harbour\nfilms -> The Ninth Kite")
    model.on(RELATIONS, "Clues:\nyear\nmayor\n", "year -> year = 9", times=times)
    model.on(ENTITIES, "Relation: year\n", "year -> 1992", times=times)
    model.on(RELATIONS, "Clues:\nmayor\nEntity: 1992\n", "none", times=times)
    run(forty, model, "who was mayor when comedies were made?", **PUBLISHED | {"merge_branches": merge})


@pytest.mark.parametrize(
    ("meet", "around"), [(True, ["directed_by", "genre", "starred", "year"]), (False, ["directed_by"])]
)
def test_as_published_a_name_nearby_is_the_only_way(forty: Forty, meet: bool, around: list[str]) -> None:
    model = ScriptedModel().on(CLUES, "", "Glass Harbour\nmade\nshoe size\nIda Moon").on("direct", "", "no")
    model.on(RELATIONS, "Entity: Glass Harbour\n", "made -> directed_by = 9").on(RELATIONS, "", "none", times=None)
    model.on(ENTITIES, "", "none", times=None)
    question = forty.question("right")
    answer_all(Fiske(forty.search, LINES, FiskeSection(branches_meet=meet)), [question], forty.search, model)
    assert lines_under(model.prompts_of(RELATIONS)[0], "Relations:", "none") == around


def test_without_state_and_end_flag_rounds_go_on_after_a_complete_branch(forty: Forty) -> None:
    """As many rounds as there are clues: here three, where the first would have been enough."""
    model = ScriptedModel().on(CLUES, "", "Port Amber\nplace\ncountry").on("reason", "", "Osmania")
    model.on(RELATIONS, "", "country -> located_in = 9\nplace -> capital = 9", times=None)
    model.on(ENTITIES, "", "country -> Osmania\nplace -> Osmania\nplace -> Westerby", times=None)
    answered = run(forty, model, "in which country is Port Amber?", state=False, end_flag=False, **PUBLISHED)
    assert (answered.answer.counts["num_rounds"], answered.answer.counts["num_complete"]) == (3, 0)
    assert paths_of(answered)[0] == "Port Amber → located_in → Osmania → capital → Westerby → located_in → Osmania"


MISSING = [
    ("extract_clues", "", "Salt Road\ndirector\nshoe size"),
    ("map_relations", "Entity: Salt Road\n", "director -> directed_by = 9"),
    ("map_relations", "Entity: Ida Moon\n", "none"),
    ("map_entities", "From: Salt Road\nRelation: directed_by\n", "none"),
]


@pytest.mark.parametrize(("lines", "max_calls"), [(MISSING, None), ([], 1)])
def test_what_is_missing_in_the_end_or_has_one_call_is_answered_directly(
    forty: Forty, lines: list[tuple[str, str, str]], max_calls: int | None
) -> None:
    model = script(*lines, ("direct", "which place was the director", "Port Amber"))
    answered = run(forty, model, "born", max_calls=max_calls)
    assert answers(forty, answered) == ["Port Amber"]
    assert answered.faithful == (False,)  # known by heart
    assert answered.answer.counts["num_complete"] == 0


@pytest.mark.parametrize("clues", ["shoe size\nof whom", "I do not know", "Salt Road"])
def test_without_a_start_or_a_second_clue_nothing_is_explored(forty: Forty, clues: str) -> None:
    model = script(("extract_clues", "", clues), ("direct", "", "I do not know"))
    answered = run(forty, model, "born")
    assert answered.status == "abstained"


def test_the_cap_stops_in_the_midst_of_a_round(forty: Forty) -> None:
    """Of two starts only one can be asked about if a call is to be left for the answer."""
    model = script(*TO_1989[:2], ("direct", "", "Salt Road"))
    answered = run(forty, model, FILM_OF_1989, max_calls=3, **PUBLISHED)
    assert answered.answer.counts["num_refused_calls"] == 2  # the other start, and the entities of the first
    assert answered.answer.prediction.paths == ((),)


@pytest.mark.parametrize(
    ("relations", "entities"), [("well, that depends", None), ("director -> directed_by = 9", "hard to say")]
)
def test_a_branch_ends_where_a_reply_cannot_be_read(forty: Forty, relations: str, entities: str | None) -> None:
    """Even the last clue's tails are only kept where the reply says that no entity fits."""
    lines = [("extract_clues", "", "Salt Road\ndirector"), ("map_relations", "", relations)]
    lines += [] if entities is None else [("map_entities", "", entities)]
    answered = run(forty, script(*lines, ("direct", "", "I do not know")), "directed", **PUBLISHED)
    assert answered.status == "abstained"
    assert answered.calls[-2].problem == "no mapping"


@pytest.mark.parametrize("said", ["Yes", "true.", "Ida Moon"])
def test_a_claim_that_holds_is_found_from_both_sides(forty: Forty, said: str) -> None:
    """Whoever is called Ida Moon and whatever is called Glass Harbour; one relation leads from one to the other."""
    model = script(
        ("extract_clues", "", "Glass Harbour\ndirected\nIda Moon"),
        ("map_relations", "Entity: Glass Harbour\n", "directed -> directed_by = 9"),
        ("map_relations", "Entity: Ida Moon\n", "directed -> ^directed_by = 9"),
        ("reason", "", said),
    )
    answered = run(forty, model, "right")
    assert answered.answer.prediction.verdict is True
    assert decides_claim(pair_outcome(forty.question("right"), answered.answer.prediction))
    for prompt in model.prompts_of("map_relations"):
        assert lines_under(prompt, "Clues:", "Entity") == ["directed"]


@pytest.mark.parametrize("said", ["no", "Ida Moon"])
@pytest.mark.parametrize("mode", [{}, PUBLISHED])
def test_a_claim_is_refuted_by_what_stands_in_its_place(forty: Forty, said: str, mode: dict[str, object]) -> None:
    question = replace(forty.question("wrong"), claim=forty.id_of("Mara Quill"))
    model = ScriptedModel()
    model.on("extract_clues", "", "Glass Harbour\ndirected\nMara Quill")
    model.on("map_relations", "Entity: Glass Harbour\n", "directed -> directed_by = 9")
    model.on("map_relations", "Entity: Mara Quill\n", "directed -> ^directed_by = 9")
    model.on("map_entities", "From: Glass Harbour\n", "none")
    model.on("map_entities", "From: Mara Quill\n", "none")
    if not mode:
        model.on("map_relations", "Entity: Ida Moon\n", "none")
        model.on("map_relations", "Entity: Nightjar\n", "none")
    model.on("reason", "Glass Harbour → directed_by → Ida Moon\nMara Quill → ^directed_by → Nightjar", said)
    answered = run(forty, model, question, **mode)
    assert answered.answer.prediction.verdict is False
    assert decides_claim(pair_outcome(question, answered.answer.prediction))


def test_a_verdict_without_evidence_decides_nothing(forty: Forty) -> None:
    model = script(("extract_clues", "", "nothing of it"), ("direct", "", "yes"))
    answered = run(forty, model, "right")
    assert answered.answer.prediction.verdict is True
    assert not decides_claim(pair_outcome(forty.question("right"), answered.answer.prediction))


def test_without_state_all_clues_are_asked_about_in_every_round(forty: Forty) -> None:
    model = script(
        ("extract_clues", "", "Salt Road\ndirector\nborn"),
        ("map_relations", "Entity: Salt Road\n", "director -> directed_by = 9"),
        ("map_entities", "From: Salt Road\n", "director -> Ida Moon"),
        ("map_relations", "Entity: Ida Moon\n", "director -> ^directed_by = 6\nborn -> born_in = 8"),
        ("map_entities", "From: Ida Moon\nRelation: born_in\n", "born -> Port Amber"),
        ("map_entities", "From: Ida Moon\nRelation: ^directed_by\n", "none"),
        ("reason", BORN, "Port Amber"),
    )
    answered = run(forty, model, "born", state=False, **PUBLISHED)
    assert answers(forty, answered) == ["Port Amber"]
    for prompt in model.prompts_of("map_relations"):
        assert lines_under(prompt, "Clues:", "Entity") == ["Salt Road", "director", "born"]


def test_without_the_end_flag_evidence_is_always_given(forty: Forty) -> None:
    """The branch that stays behind is shown, too, and nothing is asked directly."""
    model = script(
        ("extract_clues", "", "Salt Road\ndirector\nshoe size"),
        ("map_relations", "Entity: Salt Road\n", "director -> directed_by = 9\nshoe size -> genre = 5"),
        ("map_entities", "Relation: directed_by\n", "director -> Ida Moon"),
        ("map_entities", "Relation: genre\n", "none"),
        ("map_relations", "Entity: Ida Moon\n", "none"),
        ("reason", "Salt Road → directed_by → Ida Moon", "I do not know"),
    )
    answered = run(forty, model, "born", end_flag=False, **PUBLISHED)
    assert answered.status == "abstained"
    assert paths_of(answered) == ["Salt Road → directed_by → Ida Moon"]
    nothing = script(("extract_clues", "", "shoe size"), ("reason", "Paths:\n(none)", "I do not know"))
    run(forty, nothing, "born", end_flag=False, **PUBLISHED)


def test_each_question_is_explored_in_its_own_rows(rows: RowWorld) -> None:
    """What a clue names outside a question's subgraph is no start, and no answer."""
    walk, questions = rows
    graph = walk.entities
    model = ScriptedModel()
    model.on("extract_clues", "brother of ann", "m.ann\nbrother\nsister")
    model.on("extract_clues", "what does ann like", "m.zoe\nlike")
    model.on("extract_clues", "which person is meant", "m.rock\nlikes")
    model.on("map_relations", "Entity: m.ann\nRelations:\nlikes\nsibling", "brother -> sibling = 9")
    model.on("map_relations", "Entity: m.s1\nRelations:\nsibling", "sister -> sibling = 5")
    model.on("reason", "m.ann → sibling → m.s1 → sibling → Bob", "Bob")
    model.on("direct", "what does ann like", "M.ROCK\nm.s1")
    model.on("reason", "m.rock → ^likes → Bob", "Bob")
    asked = [one for one in questions if one.id in ("q1", "q2", "q6")]
    first, second, third = answer_all(Fiske(walk, LINES, FiskeSection()), asked, walk, model)
    model.check_done()
    bob = graph.ids_of_name("Bob")
    assert first.answer.prediction.answers == third.answer.prediction.answers == bob
    assert first.faithful == third.faithful == (True,)  # the third is given without a topic
    assert second.answer.prediction.answers == graph.ids_of_name("m.rock")
    assert second.answer.unmatched == ("m.s1",)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("Who made Ash?", "which person made Ash?"),
        ("where is it", "which place is it"),
        ("when", "what time"),
        ("whose film is it?", "whose film is it?"),
        ("", ""),
    ],
)
def test_questions_say_what_they_ask_for(forty: Forty, asked: str, shown: str) -> None:
    answered = run(forty, script(("extract_clues", "", "nobody"), ("direct", "", "I do not know")), asked)
    assert answered.calls[0].prompt.endswith(f"Question: {shown}")
