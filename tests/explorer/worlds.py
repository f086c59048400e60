"""Small graphs, questions and weights to explore with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from kgqa_core.explorer.batch import Batch, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, explore
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question
from tests.explorer.oracle import Triple, Walk, explore_one

Way = Callable[[], AbstractContextManager[None]]
DIM, WIDTH = 7, 5  # of encodings and states


def make_graph(triples: Iterable[Triple], *, num_entities: int, num_relations: int) -> KnowledgeGraph:
    """A graph in memory; entities without edges are fine."""
    distinct = np.array(sorted(set(triples)), dtype=np.int32).reshape(-1, 3)
    csr = build_csr(*distinct.T, num_entities=num_entities, num_relations=num_relations)
    for array in csr:  # as a file's: for arrays that may be written numba compiles all walks once more
        array.flags.writeable = False
    return KnowledgeGraph(Path("nowhere"), num_entities, num_relations, len(distinct), *csr)


def unit_vectors(count: int, *, dim: int = DIM, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    vectors = np.random.default_rng(seed).normal(size=(count, dim))
    return torch.tensor(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=dtype)


def make_model(*, steps: int, seed: int = 0, dim: int = DIM, width: int = WIDTH) -> Explorer:
    """An explorer in double precision, so that a comparison shows mistakes and not rounding."""
    torch.manual_seed(seed)
    return Explorer(encoding_dim=dim, width=width, steps=steps).double()


def make_question(
    topics: Iterable[int],
    answers: Iterable[int] = (),
    *,
    masked: str = "what of [topic]",
    claim: int | None = None,
    verdict: bool | None = None,
    id: str = "",
) -> Question:
    topics, answers = tuple(topics), tuple(answers)
    return Question(
        id=id or f"{masked} {topics} {claim}",
        text=masked,
        masked=masked,
        topics=topics,
        answers=answers,
        split="train",
        claim=claim,
        verdict=verdict,
    )


def make_batch(questions: Sequence[Question], text_row: dict[str, int]) -> Batch:
    return question_arrays(questions, text_row).batch(np.arange(len(questions)))


@dataclass(frozen=True)
class World:
    """Everything that an exploration depends on."""

    triples: list[Triple]
    num_entities: int
    relation_vectors: Tensor
    question_vectors: Tensor
    questions: list[Question]  # the masked text is the row in question_vectors
    edge_budget: int
    reenter_topic: bool
    steps: int
    seed: int

    @property
    def graph(self) -> KnowledgeGraph:
        return make_graph(self.triples, num_entities=self.num_entities, num_relations=len(self.relation_vectors))

    @property
    def batch(self) -> Batch:
        return make_batch(self.questions, {str(row): row for row in range(len(self.question_vectors))})

    def on(self, device: str) -> World:
        """The same with its encodings on a device."""
        return replace(
            self, relation_vectors=self.relation_vectors.to(device), question_vectors=self.question_vectors.to(device)
        )

    @property
    def options(self) -> ExploreOptions:
        return ExploreOptions(self.edge_budget, self.reenter_topic)

    def explore(self, model: Explorer, *, way: Way = nullcontext, **options: bool | float) -> Exploration:
        """Explore in a context, such as ``plainly`` of the plain walk."""
        with way():
            return explore(
                model,
                self.graph,
                self.batch,
                texts=Texts(self.question_vectors, self.relation_vectors),
                options=replace(self.options, **options),  # type: ignore[arg-type]
            )


def walks_of(world: World, model: Explorer, attention_threshold: float = 0.0) -> list[Walk]:
    return [
        explore_one(
            model,
            world.triples,
            topics=question.topics,
            question_vector=world.question_vectors[int(question.masked)],
            relation_vectors=world.relation_vectors,
            edge_budget=world.edge_budget,
            reenter_topic=world.reenter_topic,
            attention_threshold=attention_threshold,
        )
        for question in world.questions
    ]


def star(num_leaves: int) -> World:
    """A topic 0, a hub 1, and films that all hang on both by the same relations."""
    triples = [(leaf, 0, 1) for leaf in range(2, num_leaves + 2)] + [(2, 1, 0), (3, 1, 0)]
    return World(
        triples=triples,
        num_entities=num_leaves + 2,
        relation_vectors=unit_vectors(2),
        question_vectors=unit_vectors(1, seed=1),
        questions=[make_question([0], [5], masked="0")],
        edge_budget=1000,
        reenter_topic=False,
        steps=3,
        seed=0,
    )


@st.composite
def worlds(draw: st.DrawFn, *, equal_texts: bool = True, num_questions: int = 3) -> World:
    """Draw multigraphs with parallel edges, self loops, isolated entities and a hub; equal texts give exact ties."""
    num_entities, num_relations = draw(st.integers(2, 11)), draw(st.integers(1, 5))
    entities, relations = st.integers(0, num_entities - 1), st.integers(0, num_relations - 1)
    triples = draw(st.lists(st.tuples(entities, relations, entities), min_size=1, max_size=29))
    if draw(st.booleans()):
        hub, relation = draw(entities), draw(relations)
        triples += [(spoke, relation, hub) for spoke in range(num_entities)]
    texts = [draw(relations) if equal_texts else relation for relation in range(num_relations)]
    some = st.sets(entities, min_size=1, max_size=3)
    questions = [
        make_question(
            draw(some), draw(st.sets(entities, max_size=3)), masked=str(draw(st.integers(0, 1))), id=str(index)
        )
        for index in range(draw(st.integers(1, num_questions)))
    ]
    seed = draw(st.integers(0, 10_000))
    return World(
        triples=sorted(set(triples)),
        num_entities=num_entities,
        relation_vectors=unit_vectors(num_relations, seed=seed)[texts],
        question_vectors=unit_vectors(2, seed=seed + 1),
        questions=questions,
        edge_budget=draw(st.sampled_from([1, 2, 3, 5, 1000])),
        reenter_topic=draw(st.booleans()),
        steps=draw(st.integers(1, 4)),
        seed=seed,
    )
