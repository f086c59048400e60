"""What a report says of a configuration's run beside its answers: the data, the training curves, what was explored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from flows.cli_lint import lint_tables, read_lint

if TYPE_CHECKING:
    from kgqa_core.explorer.explore import Exploration
    from kgqa_core.graph.kg import KnowledgeGraph
    from kgqa_core.run.pipeline import Pipeline
    from kgqa_core.types import Question

MOST_REJECTS = 200  # lines shown of those that were not used
MOST_POINTS = 200  # of one curve
MOST_EDGES = 200  # drawn of what was explored for one question


def read_about(pipeline: Pipeline) -> dict[str, Any]:
    """Return the tables about the data, and the curves of every stage that was trained."""
    return {"tables": list(data_tables(pipeline)), "curves": list(curves(pipeline))}


def data_tables(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """Yield what the last rebuild moved, what lint finds, and the lines that were not used."""
    if (changes := pipeline.find("changes") if "changes" in pipeline.specs else None) is not None:
        found = json.loads((changes.folder / "changes.json").read_text(encoding="utf-8"))
        counts = {name: found["graph"][name] for name in ("triples", "entities")} | {"questions": found["questions"]}
        rows = [
            (name, *(f"{count[part]:,}" for part in ("before", "after", "came", "gone")))
            for name, count in counts.items()
        ]
        yield _table("Since the build before", ("of", "before", "now", "came", "gone"), rows, 1)
    for title, header, rows, figures_from in lint_tables(read_lint(pipeline)):
        if rows:
            yield _table(title, header, rows, figures_from)
    lines = [row for key in ("graph", "questions") for row in rejected(pipeline.artifact(key).folder, key)]
    if lines:
        yield _table(f"The first {len(lines)} lines that were not used", ("of", "file", "line", "reason"), lines, 4)


def rejected(folder: Path, key: str) -> Iterator[tuple[str, ...]]:
    """Yield of a stage's rejected lines the first: stage, file, line number and reason."""
    with pq.ParquetFile(folder / "rejects.parquet") as file:
        batch = next(file.iter_batches(batch_size=MOST_REJECTS), None)
    for row in batch.to_pylist() if batch is not None else ():
        yield key, Path(row["file"]).name, str(row["line"]), row["reason"]


def curves(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """Yield the curves of the run's stages: stage, figure, and points of step and value, thinned out."""
    for key in pipeline.specs:
        artifact = pipeline.find(key)
        note = artifact.folder / "tracking.json" if artifact is not None else None
        found = json.loads(note.read_text(encoding="utf-8"))["curves"] if note is not None and note.is_file() else {}
        for name, points in sorted(found.items()):
            every = -(-len(points) // MOST_POINTS)
            kept = points[: len(points) - 1 : every] + points[-1:]  # the last one always: it is where training ended
            yield {"stage": key, "figure": name, "points": [[step, value] for step, value, _ in kept]}


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], figures_from: int) -> dict[str, Any]:
    return {"title": title, "header": list(header), "rows": [list(row) for row in rows], "figures_from": figures_from}


# ------ What the explorer walked.


def explored(pipeline: Pipeline, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the run's explorer of the first seed walks for some questions; nothing where there is none.

    ``edges``: head, relation, tail, step from 1, and attention (Eq. 1) in percent, the strongest first at each step,
    from nodes that are drawn themselves; ``nodes``: probability in percent of what is drawn; ``num_edges`` of all.
    """
    if pipeline.config.explorer is None or "subgraphs" in pipeline.specs or not ids:
        return {}
    from kgqa_core.explorer.batch import question_arrays
    from kgqa_core.explorer.explore import ExploreOptions
    from kgqa_core.explorer.model import texts_of
    from kgqa_core.explorer.predict import explore_all
    from kgqa_core.questions.build import read_questions
    from kgqa_core.run.open import open_system

    wanted, found = set(ids), dict[str, dict[str, Any]]()
    questions = [
        question
        for question in read_questions(pipeline.artifact("questions").folder, pipeline.config.evaluation.split)
        if question.id in wanted and question.topics
    ]
    system = open_system(pipeline)
    card, graph = system.card, system.graph
    asked = sorted({question.asked(card.mask_topics) for question in questions})
    texts = texts_of(asked, graph, system.encode).to(system.model.identity.device)
    options = ExploreOptions(
        card.edge_budget, card.reenter_topic, attention_threshold=card.attention_threshold, trace=True
    )
    rows_of = {text: row for row, text in enumerate(asked)}
    arrays = question_arrays(questions, rows_of, mask_topics=card.mask_topics)
    for rows, batch, one in explore_all(system.model, graph, arrays, texts=texts, options=options):
        probability = np.exp(one.log_probability(len(batch)).cpu().numpy())
        for place, row in enumerate(rows.tolist()):
            barred = set() if card.reenter_topic else set(questions[row].topics)
            found[questions[row].id] = walked(one, place, questions[row], graph, probability, barred)
    return found


def walked(
    found: Exploration,
    place: int,
    question: Question,
    graph: KnowledgeGraph,
    probability: np.ndarray,
    barred: Set[int],
) -> dict[str, Any]:
    """Return the edges and nodes of one question of a batch, as ``explored`` does; none arrives at ``barred``."""
    shown, edges, total = set(question.topics), dict[tuple[int, int, int], tuple[int, float]](), 0
    most = MOST_EDGES // max(len(found.traces), 1)
    for step, trace in enumerate(found.traces, 1):
        begin, end = np.searchsorted(trace.nodes.question, [place, place + 1])
        groups: list[tuple[float, int, int, int]] = []
        for node in range(begin, end):
            head, low = int(trace.nodes.entity[node]), int(trace.messages.first_group[node])
            high, start = int(trace.messages.first_group[node + 1]), int(graph.group_ptr[head]) - low
            for at in (low + np.flatnonzero(trace.entered[low:high])).tolist():
                tails = graph.edge_tail[int(graph.edge_ptr[start + at]) : int(graph.edge_ptr[start + at + 1])]
                total += len(tails) - int(np.isin(tails, [*barred]).sum())
                if head in shown:
                    logit = float(trace.attention[trace.messages.group_message[at]])
                    groups.append((-logit, head, int(graph.group_relation[start + at]), start + at))
        left = most
        for minus, head, relation, group in sorted(groups):
            if left <= 0:
                break
            tails = graph.edge_tail[int(graph.edge_ptr[group]) : int(graph.edge_ptr[group + 1])]
            taken = [tail for tail in tails[: left + len(barred)].tolist() if tail not in barred][:left]
            for tail in taken:
                inverse = relation >= graph.num_relations
                key = (tail, relation - graph.num_relations, head) if inverse else (head, relation, tail)
                edges.setdefault(key, (step, round(100 / (1 + float(np.exp(minus))), 1)))
            left -= len(taken)
        shown |= {end for head, _, tail in edges for end in (head, tail)}
    own = found.question == place
    scored = zip(found.entity[own].tolist(), probability[own].tolist(), strict=True)
    return {
        "edges": [
            [graph.name_of(head), graph.relation_text(relation), graph.name_of(tail), *edge]
            for (head, relation, tail), edge in edges.items()
        ],
        "nodes": {
            graph.name_of(entity): round(100 * share, 1)
            for entity, share in scored
            if entity in shown and share >= 0.0005
        },
        "num_edges": total,
    }
