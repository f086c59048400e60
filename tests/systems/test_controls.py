"""The controls: what a dataset gives away without any learning."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kgqa_core.errors import ArtifactError
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.systems.controls import (
    TemplateControl,
    answer_by_path,
    fit_template_control,
    gold_chain_ceiling,
    load_template_control,
)
from kgqa_core.types import Question, Step

Ask = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]


@pytest.fixture
def control(graph: KnowledgeGraph, ask: Ask) -> TemplateControl:
    """Return a control fitted on two kinds of questions, and one kind whose gold is out of reach."""
    questions = [
        ask("who directed [topic]", "Ash", "Dan"),
        ask("who directed [topic]", "Cedar", "Eve"),
        ask("films of [topic]", "Eve", "Birch Cedar Dogwood"),
        ask("nonsense [topic]", "Elm", "Cat"),
    ]
    return fit_template_control(graph, questions, max_hops=2)


def test_one_path_per_masked_text_is_kept(control: TemplateControl, path_of: Ids) -> None:
    assert control.paths == {
        "who directed [topic]": path_of("directed_by"),
        "films of [topic]": path_of("~directed_by"),
    }
    assert control.by_frequency == (path_of("directed_by"), path_of("~directed_by"))


def test_all_that_the_path_reaches_is_the_answer_at_equal_scores(
    control: TemplateControl, ask: Ask, ids: Ids, graph: KnowledgeGraph
) -> None:
    (prediction,) = control.answer([ask("films of [topic]", "Dan", "Ash")])
    assert prediction.candidates == prediction.answers == ids("Ash", "Birch")
    assert prediction.scores == (0.5, 0.5)
    assert (prediction.covered, prediction.verdict, prediction.abstained) == (True, None, False)
    (ash, dan), relation = ids("Ash", "Dan"), graph.relation_labels.index("directed_by")
    assert prediction.paths[0] == (Step(head=ash, relation=relation, tail=dan, reverse=True),)
    assert len(prediction.paths) == 2


def test_an_unseen_wording_gets_the_most_frequent_path_that_leads_anywhere(
    control: TemplateControl, ask: Ask, path_of: Ids
) -> None:
    assert control.pick_path(ask("never seen [topic]", "Ash")) == path_of("directed_by")
    assert control.pick_path(ask("never seen [topic]", "Flo")) == path_of("~directed_by")
    assert control.pick_path(ask("never seen [topic]", "Gus")) is None


def test_a_known_wording_whose_path_leads_nowhere_abstains(control: TemplateControl, ask: Ask) -> None:
    (prediction,) = control.answer([ask("who directed [topic]", "Gus", "Dan", claim="Dan", verdict=True)])
    assert (prediction.candidates, prediction.abstained, prediction.verdict) == ((), True, None)


@pytest.mark.parametrize(("claim", "verdict"), [("Cedar", True), ("Elm", False)])
def test_true_false_questions_are_answered_with_deciding_evidence(
    graph: KnowledgeGraph, ask: Ask, path_of: Ids, claim: str, verdict: bool
) -> None:
    question = ask("did [topic] direct [claim]", "Eve", "Birch Cedar Dogwood", claim=claim, verdict=verdict)
    prediction = answer_by_path(graph, question, path_of("~directed_by"), num_paths=1)
    assert prediction.verdict is verdict
    assert [bool(path) for path in prediction.paths] == ([True, True] if verdict else [True])
    assert score_predictions([question], [prediction]).summary()["hits1"] == 100


def test_evidence_between_the_first_candidates_and_the_claim_stays_empty(
    graph: KnowledgeGraph, ask: Ask, path_of: Ids
) -> None:
    question = ask("is [claim] a [topic]", "Drama", claim="Elm", verdict=True)
    prediction = answer_by_path(graph, question, path_of("~has_genre"), num_paths=2)
    assert [bool(path) for path in prediction.paths] == [True, True, False, False, True]
    assert prediction.covered


def test_a_saved_control_answers_the_same(
    control: TemplateControl, ask: Ask, graph: KnowledgeGraph, tmp_path: Path
) -> None:
    questions = [ask("films of [topic]", "Dan"), ask("never seen [topic]", "Elm")]
    control.save(tmp_path / "one.json")
    loaded = load_template_control(tmp_path / "one.json", graph)
    assert loaded == control
    assert loaded.answer(questions) == control.answer(questions)
    loaded.save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: json.dumps(json.loads(text) | {"relations": ["other"]}), "other relations"),
        (lambda text: json.dumps(json.loads(text) | {"format": 0}), "other relations"),
        (lambda text: json.dumps(json.loads(text) | {"paths": [1]}), "no template control"),
        (lambda text: json.dumps(json.loads(text) | {"paths": {"x": 1}}), "no template control"),
        (lambda text: text[:9], "fit the control again"),
    ],
)
def test_a_saved_control_of_another_graph_or_shape_a_cut_one_and_none_are_refused(
    control: TemplateControl, graph: KnowledgeGraph, tmp_path: Path, spoil: Callable[[str], str], words: str
) -> None:
    path = tmp_path / "control.json"
    with pytest.raises(ArtifactError, match="No such file"):
        load_template_control(path, graph)
    control.save(path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ArtifactError, match=words):
        load_template_control(path, graph)


def test_progress_is_told_per_masked_text(graph: KnowledgeGraph, ask: Ask) -> None:
    told: list[tuple[int, int]] = []
    questions = [ask("a", "Ash", "Dan"), ask("b", "Elm", "Flo"), ask("a", "Elm", "Flo")]
    fit_template_control(graph, questions, max_hops=1, progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]


def test_gold_chains_are_never_looked_at_while_fitting(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    misled = ask("who directed [topic]", "Ash", "Dan", chain=path_of("release_year"))
    assert fit_template_control(graph, [misled], max_hops=1).paths == {misled.masked: path_of("directed_by")}


def test_the_ceiling_follows_gold_chains_else_the_best_path_of_each_question_and_says_so(
    graph: KnowledgeGraph, ask: Ask, ids: Ids, path_of: Ids
) -> None:
    chained = ask("films of [topic]", "Dan", "Ash", chain=path_of("~directed_by"))
    ceiling = gold_chain_ceiling(graph, [chained], max_hops=1)
    assert (ceiling.name, ceiling.num_chains) == ("gold-chain ceiling", 1)
    assert ceiling.predictions[0].answers == ids("Ash", "Birch")
    unreachable = ask("nonsense", "Elm", "Cat")
    questions = [replace(chained, id="own", chain=None), chained, unreachable]
    ceiling = gold_chain_ceiling(graph, questions, max_hops=2)
    assert (ceiling.name, ceiling.num_chains) == ("best-path ceiling", 1)
    assert [prediction.question_id for prediction in ceiling.predictions] == [question.id for question in questions]
    best, _, missed = ceiling.predictions
    assert best.answers == ids("Ash", "Birch")
    assert missed.abstained
