"""From candidates to predictions: ranking, answer sets, and evidence along the strongest edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.explorer import explore as bounded
from kgqa_core.explorer.batch import Batch, question_arrays
from kgqa_core.explorer.explore import Exploration, Nodes, StepTrace, barred_topics, explore
from kgqa_core.explorer.fit import ANSWER_THRESHOLDS, measure
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.explorer.predict import backtrack, explore_all, predict
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, ReasoningPath, Step
from tests.explorer import films
from tests.explorer.oracle import backtrack_one
from tests.explorer.plain_walk import list_messages
from tests.explorer.worlds import World, make_graph, make_model, make_question, walks_of, worlds


@pytest.fixture(scope="module")
def trained() -> Explorer:
    return films.trained(epochs=30)


def ask(model: Explorer, questions: Sequence[Question], **options: object) -> list[Prediction]:
    settings = {"answer_threshold": 0.5, "texts": films.TEXTS, "text_row": films.TEXT_ROW, "options": films.OPTIONS}
    return predict(model, films.GRAPH, questions, **(settings | options))  # type: ignore[arg-type]


def test_a_trained_explorer_answers_with_the_answer_set_and_its_evidence(trained: Explorer) -> None:
    two_films = [film for film in films.FILMS if film % films.NUM_DIRECTORS == 3]  # 3, 10, 17
    (prediction,) = ask(trained, [make_question([3], [10, 17], masked=films.SAME)])
    assert set(prediction.answers) == set(two_films) - {3}
    assert prediction.candidates[:2] == (10, 17)
    assert prediction.covered
    assert prediction.candidates
    assert prediction.verdict is None
    assert prediction.paths[:2] == tuple(
        (Step(3, films.DIRECTED, films.director(3)), Step(film, films.DIRECTED, films.director(3), reverse=True))
        for film in (10, 17)
    )
    assert len(prediction.paths) == 3
    (prediction,) = ask(trained, [make_question([2, 4], masked=films.WHO)])  # of several topics each is walked from
    assert prediction.answers == (films.director(2), films.director(4))
    assert {path[0].head for path in prediction.paths[:2]} == {2, 4}


def ranking_of(world: World, model: Explorer, threshold: float) -> list[tuple[list[tuple[int, float]], set[int]]]:
    """Per question: every candidate with its log probability, best first, and the answer set; without arrays."""
    found = world.explore(model)
    log_p = found.log_probability(len(world.questions)).detach().numpy()
    results = []
    for index in range(len(world.questions)):
        mine = {
            int(entity): round(float(value), 5)
            for question, entity, value in zip(found.question, found.entity, log_p, strict=True)
            if question == index
        }
        ranked = sorted(mine.items(), key=lambda item: (-item[1], item[0]))
        best = ranked[0][1]
        results.append((ranked, {e for e, value in ranked if np.exp(value - best) >= threshold * (1 - 1e-4)}))
    return results


@settings(deadline=None, derandomize=True, max_examples=60)
@given(world=worlds(), threshold=st.sampled_from(ANSWER_THRESHOLDS), batch_size=st.integers(1, 3))
def test_predictions_are_the_ranking_cut_after_answers_ties_and_the_tenth(
    world: World, threshold: float, batch_size: int
) -> None:
    model = make_model(steps=world.steps, seed=world.seed)
    predictions = predict(
        model,
        world.graph,
        world.questions,
        texts=Texts(world.question_vectors, world.relation_vectors),
        text_row={str(row): row for row in range(len(world.question_vectors))},
        options=world.options,
        answer_threshold=threshold,
        batch_size=batch_size,
    )
    for prediction, question, (ranked, answers) in zip(
        predictions, world.questions, ranking_of(world, model, threshold), strict=True
    ):
        kept = len(prediction.candidates)
        assert prediction.question_id == question.id
        assert list(prediction.candidates) == [entity for entity, _ in ranked[:kept]]
        assert list(prediction.scores) == pytest.approx([np.exp(value) for _, value in ranked[:kept]])
        assert set(prediction.answers) == answers
        assert prediction.candidates[: len(answers)] == prediction.answers
        assert kept >= min(10, len(ranked))
        if kept < len(ranked):  # no tie group is cut
            assert ranked[kept][1] < ranked[kept - 1][1] - 0.9e-4
        assert prediction.covered == bool(set(question.answers) & {entity for entity, _ in ranked})
        assert len(prediction.paths) == min(3, kept)


def test_candidates_whose_probability_vanishes_are_not_all_kept_as_one_tie() -> None:
    model = films.fresh_model()
    with torch.no_grad():
        model.score_out.weight.mul_(1e6)  # all but the best have a probability of 0 in floating point
    (prediction,) = ask(model, [make_question([5], masked=films.WHO)])
    within_two_steps = films.NUM_FILMS + 3  # the genre's films, and this one's director, year and genre
    assert prediction.scores[9] == 0.0
    assert 10 <= len(prediction.candidates) < within_two_steps


def log_p_of(model: Explorer, question: Question) -> list[float]:
    """The log probabilities of all candidates of one question, best first."""
    found = explore(
        model,
        films.GRAPH,
        question_arrays([question], films.TEXT_ROW).batch(np.array([0])),
        texts=Texts(films.TEXTS.questions, films.TEXTS.relations),
        options=films.OPTIONS,
    )
    return sorted(found.log_probability(1).tolist(), reverse=True)


def with_gap(question: Question, place: int, gap: float) -> Explorer:
    """An untrained explorer, its scores scaled until the next worse tie group lies ``gap`` below that of ``place``."""
    model = films.fresh_model()
    log_p = log_p_of(model, question)
    following = next(value for value in log_p if value < log_p[place] - 1e-5)
    with torch.no_grad():
        model.score_out.weight.mul_(gap / (log_p[place] - following))
    return model


@pytest.mark.parametrize(("gap", "tied"), [(0.6e-4, True), (1.5e-4, False)])
def test_what_the_evaluator_takes_for_a_tie_with_the_tenth_is_kept_with_it(gap: float, tied: bool) -> None:
    question = make_question([films.DRAMA], masked=films.WHO)
    model = with_gap(question, 9, gap)
    log_p = log_p_of(model, question)
    num_with_tenth = sum(value > log_p[9] - gap / 2 for value in log_p)
    (prediction,) = ask(model, [question], answer_threshold=1.0)
    assert (len(prediction.candidates) > num_with_tenth) is tied


@pytest.mark.parametrize(("offset", "taken"), [(0.6e-4, True), (1.5e-4, False)])
def test_a_candidate_at_the_threshold_is_an_answer_when_choosing_as_when_answering(offset: float, taken: bool) -> None:
    question = make_question([5], films.FILMS, masked=films.WHO)
    model = with_gap(question, 0, offset - np.log(0.9))  # the second best group has 0.9 of the best, and a bit less
    f1 = measure(model, films.lessons([question])).f1
    predictions = ask(model, [question], answer_threshold=0.9)
    assert f1[0.9] == pytest.approx(score_predictions([question], predictions).summary()["f1"])
    log_p = log_p_of(model, question)
    num_best = sum(value > log_p[0] - 1e-5 for value in log_p)
    assert (len(predictions[0].answers) > num_best) is taken


def test_a_question_without_topics_is_abstained_from(trained: Explorer) -> None:
    linked = make_question([5], [films.director(5)], masked=films.WHO)
    unlinked = make_question([], [films.director(5)], masked="who did that", id="unlinked")
    done: list[tuple[int, int]] = []
    first, second, third = ask(
        trained, [unlinked, linked, unlinked], progress=lambda now, total: done.append((now, total))
    )
    assert first == third == Prediction("unlinked", (), (), ())
    assert second.answers == (films.director(5),)
    assert done[-1] == (3, 3)
    assert ask(trained, []) == []
    assert not ask(trained, [unlinked])[0].candidates


def test_predictions_come_in_the_order_of_the_questions_whatever_the_batches(trained: Explorer) -> None:
    questions = films.questions()
    together = ask(trained, questions, batch_size=97)
    assert [prediction.question_id for prediction in together] == [question.id for question in questions]
    for batch_size in (1, 7):
        for one, other in zip(ask(trained, questions, batch_size=batch_size), together, strict=True):
            assert one.scores == pytest.approx(other.scores, rel=1e-4)
            assert replace(one, scores=other.scores) == other


def test_a_batch_that_was_too_large_is_halved_and_that_size_is_not_tried_again(
    trained: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def noted(model: Explorer, graph: KnowledgeGraph, batch: Batch, **options: object) -> Exploration:
        tried.append(len(batch))
        return explore(model, graph, batch, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bounded, "explore", noted)
    expected = ask(trained, films.questions(), batch_size=16)
    assert tried == [16, 16, 16, 16, 5]
    tried.clear()
    found = ask(trained, films.questions(), batch_size=16, options=replace(films.OPTIONS, max_edges=300))
    assert tried[0] == 16
    assert max(tried[1:]) < 16
    assert [prediction.answers for prediction in found] == [prediction.answers for prediction in expected]


def test_where_memory_is_full_a_batch_is_halved_and_that_is_logged(
    trained: Explorer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, most = ask(trained, films.questions(), batch_size=16), 5

    def tight(model: Explorer, graph: KnowledgeGraph, batch: Batch, **options: object) -> Exploration:
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return explore(model, graph, batch, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bounded, "explore", tight)
    found = ask(trained, films.questions(), batch_size=16)
    assert [one.answers for one in found] == [one.answers for one in expected]
    said = [record.message for record in caplog.records if "out of memory" in record.message]
    assert said == [f"out of memory with {size} questions at once: going on with half" for size in (16, 8, 8)]
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        ask(trained, films.questions(), batch_size=16)


def test_a_claim_gets_a_verdict_and_its_evidence(trained: Explorer) -> None:
    right = make_question([5], masked=films.WHO, claim=films.director(5), verdict=True)
    wrong = make_question([5], masked=films.WHO, claim=films.year(5), verdict=False)
    unexplored = make_question([5], masked=films.WHO, claim=films.director(6), verdict=False)
    for evidence_paths in (0, 3):
        first, second, third = ask(trained, [right, wrong, unexplored], evidence_paths=evidence_paths)
        assert (first.verdict, second.verdict, third.verdict) == (True, False, False)
        assert first.paths[first.candidates.index(films.director(5))] == (Step(5, films.DIRECTED, films.director(5)),)
        assert second.paths[second.candidates.index(films.year(5))] == (Step(5, films.YEAR, films.year(5)),)
        assert len(third.paths) == evidence_paths
        assert (first.covered, second.covered) == (True, False)
        (plain,) = ask(trained, [make_question([5], masked=films.WHO)], evidence_paths=evidence_paths)
        assert len(plain.paths) == evidence_paths


def test_questions_of_equal_text_are_explored_side_by_side(trained: Explorer) -> None:
    asked = films.lessons(films.questions()[:7])  # three texts by turns
    batches = [rows.tolist() for rows, _, _ in explore_all(trained, asked, batch_size=4)]
    assert batches == [[0, 3, 6, 1], [4, 2, 5]]
    assert list(explore_all(trained, films.lessons([]))) == []


def test_predicting_leaves_the_model_as_it_was(trained: Explorer) -> None:
    ask(trained, films.questions()[:3])
    assert all(weight.grad is None for weight in films.fresh_model().parameters())
    assert torch.is_grad_enabled()


R = 3  # relations; 3..5 walk them backwards, 6 is identity
STAY = 2 * R
Weights = dict[tuple[int, int], float]


def trace(graph: KnowledgeGraph, heads: list[int], weights: Weights) -> StepTrace:
    """One step from some entities, each by the relations that have an attention here."""
    each = np.arange(len(heads))
    nodes = Nodes(each * 0, np.array(heads), each, each * 0)
    messages = list_messages(graph, nodes)
    pairs = zip(messages.message_class.tolist(), messages.message_relation.tolist(), strict=True)
    given_weights = [weights.get((heads[node], relation)) for node, relation in pairs]
    entered = np.array([weight is not None for weight in given_weights[: len(messages.group_message)]], dtype=bool)
    return StepTrace(
        nodes, messages, entered, np.array([-9 if one is None else one for one in given_weights], np.float32)
    )


def found(*traces: StepTrace) -> Exploration:
    none = np.zeros(0, dtype=np.int64)
    return Exploration(none, none, none, torch.zeros(0), traces=list(traces))


def paths_to(graph: KnowledgeGraph, exploration: Exploration, entities: list[int]) -> list[ReasoningPath]:
    barred = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return backtrack(exploration, np.zeros(len(entities), np.int64), np.array(entities, np.int64), graph, barred)


def test_the_path_runs_from_the_topic_along_the_strongest_edges() -> None:
    # 11 -> {13, 17} -> 19; the edge from 17 is the stronger one of the two into 19.
    graph = make_graph([(11, 0, 13), (11, 1, 17), (13, 2, 19), (17, 0, 19)], num_entities=20, num_relations=R)
    first = trace(graph, [11], {(11, STAY): 0.0, (11, 0): 0.5, (11, 1): -0.5})
    second = trace(graph, [11, 13, 17], {(11, STAY): 0.0, (13, 2): 0.1, (17, 0): 0.2})
    assert paths_to(graph, found(first, second), [19]) == [(Step(11, 1, 17), Step(17, 0, 19))]


def test_a_step_walked_backwards_is_shown_as_the_stored_triple_and_identity_not_at_all() -> None:
    graph = make_graph([(13, 2, 11)], num_entities=14, num_relations=R)
    only = trace(graph, [11], {(11, STAY): 0.0, (11, R + 2): 0.5})
    assert paths_to(graph, found(only), [13]) == [(Step(13, 2, 11, reverse=True),)]
    assert graph.step(5, 2, 7) == Step(5, 2, 7)
    graph = make_graph([(11, 0, 13), (11, 1, 13)], num_entities=14, num_relations=R)
    first = trace(graph, [11], {(11, STAY): 0.0, (11, 0): 0.5})
    second = trace(graph, [11, 13], {(11, STAY): 0.0, (13, STAY): 0.9, (11, 1): 0.8})
    paths = paths_to(graph, found(first, second), [11, 13, 11])
    assert paths == [(), (Step(11, 0, 13),), ()]  # a topic has the empty path
    assert paths_to(graph, found(first), []) == []


def test_ties_go_to_the_smaller_head_then_the_smaller_relation() -> None:
    # Nodes 0 and 1 are entities 17 and 13: the tie is between entities, not between node numbers.
    triples = [(17, 0, 19), (13, 2, 19), (13, 1, 19), (13, 0, 19)]
    graph = make_graph(triples, num_entities=20, num_relations=R)
    start = trace(graph, [17, 13], {(17, STAY): 0.0, (13, STAY): 0.0})
    tied = trace(graph, [17, 13], {(17, 0): 0.5, (13, 2): 0.5, (13, 1): 0.5, (13, 0): 0.4})
    assert paths_to(graph, found(start, tied), [19]) == [(Step(13, 1, 19),)]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(world=worlds())
def test_every_path_is_stored_triples_that_lead_from_a_topic_to_the_candidate(world: World) -> None:
    exploration = world.explore(make_model(steps=world.steps, seed=world.seed), trace=True)
    barred = barred_topics(world.batch, world.options)
    paths = backtrack(exploration, exploration.question, exploration.entity, world.graph, barred)
    for question, candidate, path in zip(exploration.question, exploration.entity, paths, strict=True):
        here = (path[0].tail if path[0].reverse else path[0].head) if path else candidate
        assert here in world.questions[question].topics
        for step in path:
            assert (step.head, step.relation, step.tail) in world.triples
            assert here == (step.tail if step.reverse else step.head)
            here = step.head if step.reverse else step.tail
        assert here == candidate
        assert len(path) <= world.steps


@settings(deadline=None, derandomize=True, max_examples=60)
@given(world=worlds(equal_texts=False, num_questions=1))
def test_paths_are_those_of_the_oracle(world: World) -> None:
    model, num_relations = make_model(steps=world.steps, seed=world.seed), len(world.relation_vectors)
    (walk,) = walks_of(world, model)
    exploration = world.explore(model, trace=True)
    barred = barred_topics(world.batch, world.options)
    paths = backtrack(exploration, exploration.question, exploration.entity, world.graph, barred)
    for candidate, path in zip(exploration.entity.tolist(), paths, strict=True):
        edges = backtrack_one(walk, candidate, 2 * num_relations)
        assert path == tuple(world.graph.step(*edge) for edge in edges)
