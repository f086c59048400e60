"""What the benchmarks of plans share: MetaQA, and a subgraph per question, as data sets ship them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.measure import open_run
from kgqa_core.graph.csr import build_csr
from kgqa_core.graph.expand import Expander
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question

CONF = "conf/metaqa-joint.yaml"
CAP = 200  # tails of one (entity, relation, direction) in a question's subgraph
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A subgraph per question: as lists of triples, and side by side in one graph of rows."""

    triples: list[list[Triple]]  # of rows
    graph: KnowledgeGraph
    questions: list[Question]  # of rows; answers outside the subgraph are left out


def build_folders(home: Path, conf: str = CONF) -> tuple[Path, Path]:
    """Build a run's data (MetaQA) where it is not built; return the folders of the graph and of the questions."""
    pipeline = open_run("build", conf, home)
    return pipeline.artifact("graph").folder, pipeline.artifact("questions").folder


def sample(questions: Sequence[Question], hops: int, count: int) -> list[Question]:
    """Return random questions of so many hops."""
    of_hops = [question for question in questions if question.hops == hops]
    return random.Random(hops).sample(of_hops, min(count, len(of_hops)))


def triples_of(graph: KnowledgeGraph) -> list[Triple]:
    """Return all triples."""
    owner = np.repeat(np.arange(graph.num_entities), np.diff(graph.edge_ptr[graph.group_ptr]))
    relation = np.repeat(graph.group_relation, np.diff(graph.edge_ptr))
    forward = relation < graph.num_relations
    columns = owner[forward], relation[forward], graph.edge_tail[forward]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def cut_subgraphs(graph: KnowledgeGraph, questions: Sequence[Question], hops: int) -> Cut:
    """Cut what lies within ``hops`` of each question's topics."""
    expander = Expander(graph, hops=hops, cap=CAP)
    all_triples, placed, num_rows = [], [], 0
    for question in questions:
        found = expander.expand(question.topics)
        heads, relations, tails = expander.walked_triples(found)
        entities = np.sort(found.entity)
        rows = {int(entity): num_rows + at for at, entity in enumerate(entities)}
        num_rows += len(entities)
        columns = ([rows[one] for one in ids.tolist()] for ids in (heads, tails))
        all_triples.append(sorted(zip(next(columns), relations.tolist(), next(columns), strict=True)))
        topics, answers = (
            tuple(rows[one] for one in ids if one in rows) for ids in (question.topics, question.answers)
        )
        placed.append(replace(question, topics=topics, answers=answers))
    heads, relations, tails = np.array([one for triples in all_triples for one in triples], dtype=np.int32).T
    csr = build_csr(heads, relations, tails, num_entities=num_rows, num_relations=graph.num_relations)
    arrays = (csr.group_ptr, csr.group_relation, csr.edge_ptr, csr.edge_tail)
    return Cut(all_triples, KnowledgeGraph(graph.folder, num_rows, graph.num_relations, len(heads), *arrays), placed)
