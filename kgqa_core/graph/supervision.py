"""Plans that the graph itself teaches: every question's shortest relation paths, and how well each does when followed.

One table (schemas.SUPERVISION) serves all modes: all shortest paths (RoG's Z*), those whose precision
``num_right / num_reached`` reaches a threshold t (EPERM Eq. 5), and the best-executing ones (``best``). Many shortest
paths reach a gold by chance and a thousand other entities with it: a planner trained on them all learns to guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.graph.follow import Follower
from kgqa_core.graph.kg import KnowledgeGraph, golds_of, to_labels
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.shortest import PathFinder
from kgqa_core.schemas import SUPERVISION
from kgqa_core.types import LabelPath, Question, Split

Mode = Literal["best", "all_shortest", "precise"]
BATCH = 2000  # questions of one row group: what is held in memory
NO_TOPIC, NO_ANSWER, UNREACHABLE = "no topic", "no answer", "no answer within max_hops of a topic"


@dataclass(frozen=True, slots=True)
class SupervisionReport:
    """What a table of supervision holds, and what it could not."""

    num_questions: int
    num_paths: int
    num_best: int  # of them the best-executing
    without_path: dict[str, int]  # reason -> questions; every reason is there
    num_capped: int  # questions with more than max_paths


def write_supervision(
    search: SearchGraph,
    placed: Iterable[Question],
    out: Path,
    *,
    max_paths: int = 1000,
    progress: Callable[[int], None] = lambda num_done: None,
) -> SupervisionReport:
    """Write the shortest relation paths of every question, in the order given; memory does not grow with their number.

    ``placed``: questions of entities of ``search.graph``. Paths of a question (schemas.SUPERVISION) go by length, then
    relation ids; questions without one are counted by reason. ``progress`` is told how many questions are done, now
    and then.
    """
    graph, max_hops, reenter_topic = search.graph, search.max_hops, search.reenter_topic
    finder = PathFinder(graph, max_hops=max_hops, reenter_topic=reenter_topic, max_paths=max_paths)
    follower = Follower(graph, max_steps=max_hops, reenter_topic=reenter_topic)
    totals: Counter[str] = Counter()
    waiting = iter(placed)
    with written_whole(out) as partial, pq.ParquetWriter(partial, SUPERVISION) as writer:
        while batch := list(islice(waiting, BATCH)):
            rows = [row for question in batch for row in _rows(graph, question, finder, follower, totals)]
            totals.update(questions=len(batch), paths=len(rows), best=sum(row["best"] for row in rows))
            writer.write_table(pa.Table.from_pylist(rows, schema=SUPERVISION))
            progress(totals["questions"])
    without = {reason: totals[reason] for reason in (NO_TOPIC, NO_ANSWER, UNREACHABLE)}
    return SupervisionReport(totals["questions"], totals["paths"], totals["best"], without, totals["capped"])


def _rows(
    graph: KnowledgeGraph, question: Question, finder: PathFinder, follower: Follower, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield a question's rows, and count it where it has none or too many."""
    golds = golds_of(question, reenter_topic=finder.reenter_topic)
    if not question.topics or not golds:
        counts[NO_ANSWER if question.topics else NO_TOPIC] += 1
        return
    found = finder.find(question.topics, golds)
    counts[UNREACHABLE] += not found.paths
    counts["capped"] += found.capped
    reached, right = follower.count(question.topics, found.paths, golds)
    f1 = [2 * hits / (size + len(golds)) for size, hits in zip(reached, right, strict=True)]
    for path, size, hits, score in zip(found.paths, reached, right, f1, strict=True):
        yield {
            "question_id": question.id,
            "split": question.split,
            "path": to_labels(graph, path),
            "num_reached": size,
            "num_right": hits,
            "f1": score,
            "best": score == max(f1),
        }


@dataclass(frozen=True, slots=True)
class TaughtPath:
    """One shortest relation path of a question: a row of schemas.SUPERVISION."""

    path: LabelPath
    num_reached: int | None  # by following it from the topics; None: no graph
    num_right: int | None  # of them golds
    best: bool

    @property
    def precision(self) -> float:
        """Return the share of right entities among those reached; 1 where nothing is known."""
        return 1.0 if not self.num_reached or self.num_right is None else self.num_right / self.num_reached


def takes(row: TaughtPath, mode: Mode, threshold: float) -> bool:
    """Say whether a path counts as right; those of files without a graph all do.

    ``best``: of the highest F1 when followed. ``all_shortest``: all (RoG's Z*). ``precise``: those of which at least
    ``threshold`` (0..1) of what they reach is right (EPERM Eq. 5).
    """
    if mode == "all_shortest" or row.num_reached is None:
        return True
    return row.best if mode == "best" else row.precision >= threshold


def read_supervision(
    path: Path, mode: Mode = "all_shortest", threshold: float = 0.0, *, split: Split | None = None
) -> dict[str, tuple[TaughtPath, ...]]:
    """Return question id -> its paths that count as right (``takes``), in the table's order; no id without one."""
    found: dict[str, list[TaughtPath]] = {}
    columns = ["question_id", "split", "path", "num_reached", "num_right", "best"]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                one = TaughtPath(tuple(row["path"]), row["num_reached"], row["num_right"], row["best"])
                if split in (None, row["split"]) and takes(one, mode, threshold):
                    found.setdefault(row["question_id"], []).append(one)
    return {question_id: tuple(paths) for question_id, paths in found.items()}
