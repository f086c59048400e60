"""A system that invents paths is caught every time: in its figures of faithfulness, and where a claim is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.evaluation.metrics import decides_claim, pair_outcome
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.systems.types import Answered, Steps, SystemAnswer
from kgqa_core.types import Prediction, Question, ReasoningPath, Step
from tests.systems.asking import answer_all

AskFor = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]
Edge = Callable[..., Step]


@dataclass(frozen=True)
class Inventor:
    """Answers with the paths that it is given, whatever they are."""

    answers: Sequence[tuple[int, ReasoningPath]]
    verdict: bool | None = None
    needs_topic: bool = False
    on_rows: bool = False

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        entities = tuple(entity for entity, _ in self.answers)
        scores = tuple(1 / (n + 1) for n in range(len(entities)))
        paths = tuple(path for _, path in self.answers)
        return SystemAnswer(Prediction(question.id, entities, scores, entities, paths, verdict=self.verdict))
        yield


def run(walk: SearchGraph, question: Question, system: Inventor) -> Answered:
    (answered,) = answer_all(system, [question], walk, None)
    return answered


def test_only_a_path_of_the_graph_that_ends_in_the_answer_is_evidence(
    walk: SearchGraph, ask: AskFor, ids: Ids, edge: Edge
) -> None:
    by_eve, of_cedar = edge("Birch", "directed_by", "Eve"), edge("Cedar", "directed_by", "Eve", True)
    year = edge("Cedar", "release_year", "1999")
    (in_1999,), (in_2001,), (eve,), (dan,) = ids("1999"), ids("2001"), ids("Eve"), ids("Dan")
    backward = Step(by_eve.head, by_eve.relation, by_eve.tail, reverse=True)
    cases: list[tuple[str, int, ReasoningPath, bool]] = [
        ("right", in_1999, (by_eve, of_cedar, year), True),
        ("right, one step", eve, (by_eve,), True),
        ("none at all", eve, (), False),
        ("a triple that is not there", eve, (edge("Ash", "directed_by", "Eve"),), False),
        ("right triples, another end", in_2001, (by_eve, of_cedar, year), False),
        ("right triples, walked the wrong way", eve, (backward,), False),
        ("steps that do not hang together", in_1999, (by_eve, year), False),
        ("another relation between the same two", eve, (edge("Birch", "starred_actors", "Eve"),), False),
        ("no entity of the graph", eve, (Step(by_eve.head, by_eve.relation, 999),), False),
        ("no entity of the graph, counted from the end", eve, (Step(-1, by_eve.relation, eve),), False),
        ("no relation of the graph", eve, (Step(by_eve.head, 999, eve),), False),
        ("a reverse relation's id", eve, (Step(by_eve.head, walk.graph.num_relations, eve),), False),
        ("the identity", dan, (Step(dan, 2 * walk.graph.num_relations, dan),), False),
    ]
    question = ask("q", "Birch", "1999")
    for what, answer, path, supported in cases:
        answered = run(walk, question, Inventor([(answer, path)]))
        assert answered.faithful == (supported,), what
        assert answered.answer.prediction.paths == ((path if supported else ()),), what
        assert answered.num_invented == (bool(path) and not supported), what


def test_an_invented_path_decides_no_claim(walk: SearchGraph, ask: AskFor, ids: Ids, edge: Edge) -> None:
    (eve,) = ids("Eve")
    claim = ask("did Eve direct Birch?", "Birch", "Eve", claim="Eve", verdict=True)
    for path, right in ((edge("Birch", "directed_by", "Eve"), True), (edge("Birch", "starred_actors", "Eve"), False)):
        answered = run(walk, claim, Inventor([(eve, (path,))], verdict=True))
        assert decides_claim(pair_outcome(claim, answered.answer.prediction)) == right


STEPS = st.builds(Step, st.integers(-1, 17), st.integers(-1, 9), st.integers(-1, 17), st.booleans())


def stands(triples: set[tuple[int, int, int]], path: ReasoningPath, answer: int) -> bool:
    """Say by walking the list of triples whether a path is one, and ends in ``answer``."""
    ends = [(step.tail, step.head) if step.reverse else (step.head, step.tail) for step in path]
    return (
        bool(path)
        and all((step.head, step.relation, step.tail) in triples for step in path)
        and all(one[1] == other[0] for one, other in pairwise(ends))
        and ends[-1][1] == answer
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_invented_the_figures_say_what_stands_in_the_graph(
    data: st.DataObject, walk: SearchGraph, ask: AskFor
) -> None:
    table = pq.read_table(walk.graph.folder / "triples-0000.parquet", columns=["head", "relation", "tail"])
    triples = {tuple(row.values()) for row in table.to_pylist()}
    answers: dict[int, ReasoningPath] = {}
    for _ in range(data.draw(st.integers(0, 3))):
        path: list[Step] = []
        for _ in range(data.draw(st.integers(0, 3))):
            here = path and (path[-1].head if path[-1].reverse else path[-1].tail)
            going_on = sorted(triple for triple in triples if path and here in (triple[0], triple[2]))
            triple = data.draw(st.sampled_from(going_on or sorted(triples)))
            real = Step(*triple, reverse=bool(path) and here == triple[2])
            path.append(data.draw(st.one_of(st.just(real), st.just(real), STEPS)))
        end = (path[-1].head if path[-1].reverse else path[-1].tail) if path else 0
        answers[data.draw(st.sampled_from([end, end, 7])) % 16] = tuple(path)
    expected = [stands(triples, path, entity) for entity, path in answers.items()]
    answered = run(walk, ask("q", "Birch"), Inventor(list(answers.items())))
    assert answered.faithful == tuple(expected)
    assert answered.num_invented == sum(map(bool, answers.values())) - sum(expected)
