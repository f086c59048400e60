"""EtD: what the explorer found in one multiple-choice prompt; what the model chooses, names, or makes up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.calls import Budget, Meter, Metered
from kgqa_core.systems.etd import Etd, EtdSection
from kgqa_core.systems.runner import answer_all
from kgqa_core.systems.types import Answered
from kgqa_core.types import Prediction, Question, ReasoningPath, Step
from tests.scripted import ScriptedModel

AskFor = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]
Edge = Callable[..., Step]


@dataclass
class Explored:
    """Plays an explorer: a prediction per question, made beforehand."""

    predictions: dict[str, Prediction]
    asked: list[str] = field(default_factory=list)

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        self.asked += [question.id for question in questions]
        return [self.predictions[question.id] for question in questions]


@pytest.fixture
def walk(graph: KnowledgeGraph) -> SearchGraph:
    return SearchGraph(graph, graph, None, max_hops=3, reenter_topic=False)


@pytest.fixture
def edge(graph: KnowledgeGraph, ids: Ids) -> Edge:
    """Return a function that makes a step of labels."""

    def make(head: str, relation: str, tail: str, reverse: bool = False) -> Step:
        (here,), (there,) = ids(head), ids(tail)
        return Step(here, graph.relation_labels.index(relation), there, reverse)

    return make


@pytest.fixture
def question(ask: AskFor) -> Question:
    """When did the films appear whose director also made Birch? Its golds are two years."""
    return ask("when did the films of the director of Birch appear?", "Birch", "1999 2003")


@pytest.fixture
def explored(question: Question, ids: Ids, edge: Edge) -> Explored:
    """1999 by the right way, 2001 by a wrong one, then candidates that nothing is known of but their probability."""
    directed = edge("Birch", "directed_by", "Eve")
    ways: list[ReasoningPath] = [
        (directed, edge("Cedar", "directed_by", "Eve", True), edge("Cedar", "release_year", "1999")),
        (edge("Birch", "starred_actors", "Bob"), edge("Birch", "release_year", "2001")),
        (directed, edge("Dogwood", "directed_by", "Eve", True), edge("Dogwood", "release_year", "2003")),
    ]
    entities = [ids(label)[0] for label in ("1999", "2001", "2003", "Drama", "Eve")]
    scores = (0.6, 0.2, 0.1, 0.05, 0.05)
    return Explored({question.id: Prediction(question.id, tuple(entities), scores, (entities[0],), tuple(ways), True)})


def run(
    walk: SearchGraph, explored: Explored, question: Question, model: ScriptedModel, **settings: object
) -> tuple[Answered, ScriptedModel]:
    system = Etd(walk, read_prompts(), explored, EtdSection.model_validate(settings))
    (answered,) = answer_all(system, [question], walk, model)
    return answered, model


def says(*texts: str) -> ScriptedModel:
    return ScriptedModel().on("choose", "", *texts)


def names(walk: SearchGraph, entities: Sequence[int]) -> list[str]:
    return [walk.entities.name_of(entity) for entity in entities]


def test_the_prompt_holds_candidates_probabilities_and_chains_as_the_papers_print_them(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    answered, model = run(walk, explored, question, says("A. 1999"))
    (prompt,) = model.prompts_of("choose")
    assert prompt.endswith(
        "Question: when did the films of the director of Birch appear?\n"
        "Possible answers:\n"
        "A. 1999 (probability 0.600) {evidence: (Birch, directed_by, Eve), (Cedar, directed_by, Eve), "
        "(Cedar, release_year, 1999)}\n"
        "B. 2001 (probability 0.200) {evidence: (Birch, starred_actors, Bob), (Birch, release_year, 2001)}\n"
        "C. 2003 (probability 0.100) {evidence: (Birch, directed_by, Eve), (Dogwood, directed_by, Eve), "
        "(Dogwood, release_year, 2003)}"
    )
    assert len(answered.calls) == 1
    assert answered.answer.counts == {
        "num_shown": 3,
        "explorer_first": explored.predictions[question.id].candidates[0],
        "by_label": 1,
        "num_conflicts": 0,
        "num_unsupported": 0,
    }


def test_what_is_chosen_leads_and_the_explorers_order_follows(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    answered, _ = run(walk, explored, question, says("C. 2003\nA. 1999"))
    prediction = answered.answer.prediction
    assert names(walk, prediction.answers) == ["2003", "1999"]
    assert names(walk, prediction.candidates) == ["2003", "1999", "2001", "Drama", "Eve"]
    # Two chosen at 1 and 1/2; the others keep their probabilities, scaled below a third; ties stay ties.
    assert prediction.scores == pytest.approx((1, 1 / 2, 0.2 / 3, 0.05 / 3, 0.05 / 3))
    assert [len(path) for path in prediction.paths] == [3, 3, 0, 0, 0]  # the chain of 2001 does not hang together
    assert answered.faithful == (True, True)
    figures = score_predictions([question], [prediction]).summary()
    assert (figures["hits1"], figures["f1"]) == (100, 100)


def test_a_path_that_does_not_hang_together_is_no_evidence(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    """The second candidate's chain jumps from Bob back to Birch."""
    answered, _ = run(walk, explored, question, says("B. 2001"))
    assert answered.faithful == (False,)


def test_the_label_wins_over_a_name_and_the_conflict_is_counted(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    answered, _ = run(walk, explored, question, says("A. 2003"))
    assert names(walk, answered.answer.prediction.answers) == ["1999"]
    assert answered.answer.counts["num_conflicts"] == 1


def test_a_candidates_name_counts_where_no_label_is_given(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    answered, _ = run(walk, explored, question, says("It must have been 2003."))
    assert names(walk, answered.answer.prediction.answers) == ["2003"]
    assert answered.answer.counts["by_name"] == 1


@pytest.mark.parametrize(
    ("text", "answers", "unmatched", "num_unsupported"),
    [
        ("Flo", ["Flo"], (), 1),  # in the graph, but nobody came to it
        ("Drama", ["Drama"], (), 1),  # a candidate that was not shown
        ("Ernestine", [], ("Ernestine",), 0),  # nothing in the graph bears that name
    ],
)
def test_a_free_answer_is_kept_and_has_no_support(
    walk: SearchGraph,
    explored: Explored,
    question: Question,
    text: str,
    answers: list[str],
    unmatched: tuple[str, ...],
    num_unsupported: int,
) -> None:
    answered, _ = run(walk, explored, question, says(text))
    assert names(walk, answered.answer.prediction.answers) == answers
    assert answered.answer.unmatched == unmatched
    assert answered.answer.counts["num_unsupported"] == num_unsupported
    assert answered.answer.counts["by_free"] == 1
    assert answered.faithful == (False,) * len(answers)


@pytest.mark.parametrize("text", ["I do not know", ""])
def test_an_abstention_and_a_text_without_an_answer_rank_nothing(
    walk: SearchGraph, explored: Explored, question: Question, text: str
) -> None:
    """Else a model that never answers would have the explorer's Hits@1."""
    answered, _ = run(walk, explored, question, says(text))
    assert answered.status == "abstained"
    assert answered.answer.prediction == Prediction(question.id, (), (), (), covered=True, abstained=True)
    assert score_predictions([question], [answered.answer.prediction]).summary()["hits1"] == 0


def test_a_call_over_the_budget_is_an_abstention(walk: SearchGraph, explored: Explored, question: Question) -> None:
    system = Etd(walk, read_prompts(), explored, EtdSection())
    model = Metered(ScriptedModel(), meter=Meter(), budget=Budget(calls=0))
    (answered,) = answer_all(system, [question], walk, model)
    assert (answered.status, answered.calls[0].problem) == ("abstained", "budget")


def test_probabilities_may_be_shares_of_those_shown(walk: SearchGraph, explored: Explored, question: Question) -> None:
    """The papers' printed examples sum to 1."""
    _, model = run(walk, explored, question, says("A"), renormalise="shown")
    (prompt,) = model.prompts_of("choose")
    assert [f"(probability {share})" in prompt for share in ("0.667", "0.222", "0.111")] == [True] * 3


@pytest.mark.parametrize(
    ("off", "line"),
    [
        ("multiple_choice", "- 2001 (probability 0.200) {evidence: (Birch, starred_actors"),
        ("candidates", "- (probability 0.200) {evidence: (Birch, starred_actors"),
        ("probabilities", "B. 2001 {evidence: (Birch, starred_actors"),
        ("paths", "B. 2001 (probability 0.200)\nC. 2003"),
    ],
)
def test_each_part_of_the_prompt_can_be_left_out(
    walk: SearchGraph, explored: Explored, question: Question, off: str, line: str
) -> None:
    """Table 4 and appendix E; an answer is read by name where nothing has a label."""
    answered, model = run(walk, explored, question, says("2003"), **{off: False})
    assert f"\n{line}" in model.prompts_of("choose")[0]
    assert names(walk, answered.answer.prediction.answers) == ["2003"]


def test_the_number_of_candidates_is_a_setting(walk: SearchGraph, explored: Explored, question: Question) -> None:
    answered, model = run(walk, explored, question, says("B"), num_candidates=2)
    assert "C." not in model.prompts_of("choose")[0]
    assert answered.answer.counts["num_shown"] == 2


def test_the_model_may_be_held_to_the_labels(walk: SearchGraph, explored: Explored, question: Question) -> None:
    _, model = run(walk, explored, question, says("A. 1999"), only_candidates=True)
    constraint = model.asked[0].constraint
    assert constraint is not None
    assert list(constraint.next_pieces(())) == ["A. 1999", "B. 2001", "C. 2003"]


@pytest.mark.parametrize(
    ("labelled", "options"), [(True, ("A. 1999", "B. 2001", "C. 2003")), (False, ("1999", "2001", "2003"))]
)
def test_options_may_be_weighed_instead_of_a_text_read(
    walk: SearchGraph, explored: Explored, question: Question, labelled: bool, options: tuple[str, ...]
) -> None:
    model = ScriptedModel().on("choose", scores=(-2.0, -3.0, -1.5))
    answered, _ = run(walk, explored, question, model, determine="likelihood", multiple_choice=labelled)
    assert model.options == [options]
    assert names(walk, answered.answer.prediction.answers) == ["2003"]
    assert len(answered.calls) == 1


def test_options_that_nobody_could_weigh_are_an_abstention(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    system = Etd(walk, read_prompts(), explored, EtdSection(determine="likelihood"))
    model = Metered(ScriptedModel(), meter=Meter(), budget=Budget(calls=0))
    (answered,) = answer_all(system, [question], walk, model)
    assert answered.status == "abstained"


def test_unseen_candidates_that_tie_with_one_chosen_may_be_answers_too(
    walk: SearchGraph, explored: Explored, question: Question, ids: Ids
) -> None:
    """N caps the recall of questions with many answers; to the explorer Drama and Eve are as good as the third."""
    known = explored.predictions[question.id]
    tied = Explored({question.id: replace(known, scores=(0.6, 0.2, 0.05, 0.05, 0.05))})
    answered, _ = run(walk, tied, question, says("C"), answer_set="tied")
    assert names(walk, answered.answer.prediction.answers) == ["2003", "Drama", "Eve"]
    answered, _ = run(walk, tied, question, says("A"), answer_set="tied")
    assert names(walk, answered.answer.prediction.answers) == ["1999"]


def test_candidates_that_do_not_fit_the_context_are_not_chosen_by_likelihood(
    walk: SearchGraph, explored: Explored, question: Question
) -> None:
    model = ScriptedModel(context=420).on("choose", scores=(-2.0, -3.0, -1.0))
    answered, _ = run(walk, explored, question, model, determine="likelihood")
    assert "C." not in model.prompts_of("choose")[0]
    assert names(walk, answered.answer.prediction.answers) == ["1999"]


def test_a_claim_is_judged_by_what_was_chosen(
    walk: SearchGraph, explored: Explored, question: Question, ids: Ids
) -> None:
    for label, verdict in (("2003", True), ("2001", False)):
        claimed = replace(question, claim=ids(label)[0], verdict=True)
        answered, _ = run(walk, explored, claimed, says("C. 2003"))
        assert answered.answer.prediction.verdict is verdict


def test_an_explorer_that_found_nothing_leaves_the_answer_to_the_model(walk: SearchGraph, question: Question) -> None:
    nothing = Explored({question.id: Prediction(question.id, (), (), (), abstained=True)})
    answered, model = run(walk, nothing, question, says("1999"))
    assert model.prompts_of("choose")[0].endswith("Possible answers:\n(none)")
    assert names(walk, answered.answer.prediction.answers) == ["1999"]
    assert answered.answer.counts["explorer_first"] == -1
    answered, _ = run(walk, nothing, question, ScriptedModel(), determine="likelihood")
    assert (answered.status, answered.calls) == ("abstained", ())


def test_questions_are_explored_together(
    walk: SearchGraph, explored: Explored, question: Question, ask: AskFor
) -> None:
    other = ask("who made it?", "Elm", "Flo")
    lone = ask("who?", "")
    (flo,) = walk.entities.ids_of_name("Flo")
    explored.predictions[other.id] = Prediction(other.id, (flo,), (1.0,), (flo,))
    model = says("A. 1999").on("choose", "who made it?", "A. Flo")
    answered = answer_all(Etd(walk, read_prompts(), explored, EtdSection()), [question, lone, other], walk, model)
    assert [one.status for one in answered] == ["answered", "skipped", "answered"]
    assert explored.asked == [question.id, other.id]
