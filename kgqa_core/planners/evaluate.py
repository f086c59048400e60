"""What planners learn from and are scored on, at rest; and how their plans are scored.

A hit is a proposed path that equals one of the question's paths. hit@k, in percent, over the questions that have a
path: is one of the first k plans right? ``valid``, in percent of all plans proposed, also for questions without paths:
can the plan be followed (around the topic where there is a graph; else: is it made of known relations)?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation.metrics import named_bounds
from kgqa_core.graph.csr import I64, shared_sorted
from kgqa_core.graph.follow import NOTHING, follow_layers
from kgqa_core.graph.input_files import MAX_REJECT_TEXT
from kgqa_core.graph.kg import golds_of, to_relations, unsigned, write_step
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import Mode, read_supervision
from kgqa_core.instructions.plan import Plan, Planner, PlanQuestion
from kgqa_core.questions.formats import Fault, parse_lines, read_object
from kgqa_core.schemas import ASKED, PLANS, SUPERVISION
from kgqa_core.types import LabelPath, Question, Reject, Split

ASKED_FILE, PATHS_FILE = "asked.parquet", "paths.parquet"
NO_TEXT = "no question text"
DUPLICATE = "id given twice"  # the first line counts
NO_LIST = "relation_paths is no list"
BAD_PATH = "a path that is no list of labels"  # that path is left out; the rest of the line is used
CUTOFFS = (1, 3)
BATCH = 256  # questions that a planner gets at once
ALL = "all"
ROUNDING = 1e-6  # percent

LINE = TypeAdapter(dict[str, Any])
IsValid = Callable[[PlanQuestion, LabelPath], bool]


def write_asked(questions: Iterable[Question], out: Path, *, mask_topics: bool) -> None:
    """Write the questions as planners read them: schemas.ASKED."""
    rows = [(one.id, one.split, one.asked(mask_topics), list(one.topics), one.hops) for one in questions]
    _write(rows, ASKED, out / ASKED_FILE)


def write_given(questions: Sequence[tuple[Split, PlanQuestion]], out: Path) -> None:
    """Write questions whose paths a file gives, with both: schemas.ASKED and schemas.SUPERVISION."""
    _write([(one.id, split, one.text, [], None) for split, one in questions], ASKED, out / ASKED_FILE)
    given = [(one.id, split, list(path), None, None, None, True) for split, one in questions for path in one.paths]
    _write(given, SUPERVISION, out / PATHS_FILE)


def _write(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, path: Path) -> None:
    with written_whole(path) as partial:
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
        pq.write_table(table, partial)


def read_cases(folder: Path, split: Split, mode: Mode = "best", threshold: float = 0.5) -> list[PlanQuestion]:
    """Return the questions of a split, in their order, each with the paths that count as right; some have none."""
    taught = read_supervision(folder / PATHS_FILE, mode, threshold, split=split)
    found = []
    for row in pq.read_table(folder / ASKED_FILE, filters=[("split", "=", split)]).to_pylist():
        paths = tuple(one.path for one in taught.get(row["question_id"], ()))
        found.append(PlanQuestion(row["question_id"], row["text"], tuple(row["topics"]), paths))
    return found


def read_hops(folder: Path) -> dict[str, int | None]:
    """Return the number of hops of each question, where the dataset says it."""
    table = pq.read_table(folder / ASKED_FILE, columns=["question_id", "hops"])
    return dict(zip(table["question_id"].to_pylist(), table["hops"].to_pylist(), strict=True))


def read_best_f1(folder: Path) -> dict[str, float]:
    """Return the F1, in percent, of each question's best shortest path; questions without one are not in it."""
    table = pq.read_table(folder / PATHS_FILE, columns=["question_id", "f1"], filters=[("best", "=", True)])
    return {row["question_id"]: 100.0 * row["f1"] for row in table.to_pylist() if row["f1"] is not None}


# ------ Plan files: JSON lines of ``id``, ``question`` and ``relation_paths``, as the question sets of RoG give them.


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan file: the lines that are used, and those that are not."""

    questions: tuple[PlanQuestion, ...]
    lines: tuple[int, ...]  # of the questions
    rejects: tuple[Reject, ...]  # lines that are not used, and lines of which a path is not


def read_plan_file(path: Path, *, signed: bool = False) -> PlanFile:
    """Read a plan file; InputError where it is missing, or no line of it can be used. ``signed``: paths hold steps."""
    questions: dict[str, PlanQuestion] = {}
    lines: list[int] = []
    rejects: list[Reject] = []
    for number, line, parsed in parse_lines(path, partial(_parse, name=path.stem, signed=signed)):
        if isinstance(parsed, Fault):
            fault = parsed.reason
        else:
            question, num_bad = parsed
            fault = DUPLICATE if question.id in questions else BAD_PATH if num_bad else ""
            if question.id not in questions:
                questions[question.id] = question
                lines.append(number)
        if fault:
            rejects.append(Reject(str(path), number, fault, line[:MAX_REJECT_TEXT]))
    if not questions:
        reasons = dict(Counter(reject.reason for reject in rejects)) or "it is empty"
        raise InputError(
            f"{shorten(str(path))} holds no question with plans ({shorten(reasons)}); expected JSON lines such as "
            '{"id": "q1", "question": "who directed it", "relation_paths": [["directed_by"]]}'
        )
    return PlanFile(tuple(questions.values()), tuple(lines), tuple(rejects))


def _parse(line: str, number: int, *, name: str, signed: bool) -> tuple[PlanQuestion, int] | Fault:
    """Return the question of a line with the number of its paths that are none, or why the line cannot be used."""
    row = read_object(LINE, line)
    if isinstance(row, Fault):
        return row
    text, values, given = row.get("question"), row.get("relation_paths") or [], row.get("id")
    if not isinstance(text, str) or not text.strip():
        return Fault(NO_TEXT)
    if not isinstance(values, list):
        return Fault(NO_LIST)
    good = [
        tuple(label if signed else write_step(label) for label in value)
        for value in values
        if isinstance(value, list) and all(isinstance(label, str) and label.strip() for label in value)
    ]
    id = str(given) if isinstance(given, str | int) and str(given) else f"{name}-{number}"
    return PlanQuestion(id, text, paths=tuple(dict.fromkeys(good))), len(values) - len(good)


# ------ Scores: plans beside the paths that count as right.


def are_right(question: PlanQuestion, plans: Sequence[Plan], *, signed: bool) -> list[bool]:
    """Return which plans are among the question's paths; directions count where ``signed``."""
    right = {path if signed else unsigned(path) for path in question.paths}
    return [(plan.path if signed else unsigned(plan.path)) in right for plan in plans]


def score_plans(
    questions: Sequence[PlanQuestion],
    plans: Sequence[Sequence[Plan]],
    *,
    signed: bool = False,
    is_valid: IsValid | None = None,
    bounds: bool = False,
) -> dict[str, float]:
    """Return n, n_without_paths (which cannot be scored), hit@1, hit@3 and valid of each question's plans, best first.

    Figures are 0 where there is nothing to count. ``signed``: directions count; they do not where the questions' file
    has none. ``is_valid`` None: every plan is. ``bounds`` adds those of the hits (``hit@1.low``), by bootstrap over the
    questions that have a path. Raises ValueError where there are not as many lists of plans as questions.
    """
    found, num_valid = list[int](), 0
    for question, proposed in zip(questions, plans, strict=True):
        num_valid += sum(is_valid is None or is_valid(question, plan.path) for plan in proposed)
        if question.paths:
            right = are_right(question, proposed, signed=signed)
            found.append(right.index(True) + 1 if True in right else 0)
    ranks, num_plans = np.array(found, dtype=np.int64), sum(map(len, plans))
    hits = {f"hit@{k}": (ranks >= 1) & (ranks <= k) for k in CUTOFFS}
    figures: dict[str, float] = {"n": len(ranks), "n_without_paths": len(questions) - len(ranks)}
    figures |= {name: 100 * float(own.mean()) if len(ranks) else 0.0 for name, own in hits.items()}
    figures["valid"] = 100 * num_valid / num_plans if num_plans else 0.0
    if bounds and len(ranks):
        figures |= named_bounds(list(hits), np.stack([100.0 * own for own in hits.values()], axis=1))
    return figures


def made_of(relations: Collection[str]) -> IsValid:
    """Return what makes a plan valid where there is no graph: all its labels are in ``relations``."""
    return lambda _, path: all(label in relations for label in unsigned(path))


def leads_somewhere(search: SearchGraph) -> IsValid:
    """Return the test whether a plan leads from its question's topics to anything."""

    @cache
    def leads(topics: tuple[int, ...], path: LabelPath) -> bool:
        return len(_reach(search, topics, path)) > 0

    return lambda question, path: leads(question.topics, path)


def f1_of_first(search: SearchGraph, questions: Sequence[Question], plans: Sequence[Sequence[Plan]]) -> list[float]:
    """Return the F1, in percent, of answering each question with all that its first plan reaches."""
    found = list[float]()
    for question, proposed in zip(questions, plans, strict=True):
        golds = np.array(sorted(golds_of(question, reenter_topic=search.reenter_topic)), dtype=np.int64)
        reached = _reach(search, question.topics, proposed[0].path) if proposed else NOTHING
        right = len(shared_sorted(reached, golds))
        found.append(200.0 * right / (len(reached) + len(golds)) if right else 0.0)
    return found


def _reach(search: SearchGraph, topics: Sequence[int], path: LabelPath) -> I64:
    """Return the entities that a path leads to; none where it is too long, empty or unknown."""
    relations = to_relations(search.graph, path)
    if relations is None or not 0 < len(relations) <= search.max_hops:
        return NOTHING
    return follow_layers(search.graph, topics, relations, reenter_topic=search.reenter_topic)[-1]


def ask_planner(
    planner: Planner,
    questions: Sequence[PlanQuestion],
    *,
    num_plans: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Plan]]:
    """Return the plans of all questions, best first. A planner never sees a question's own paths."""
    plans: list[list[Plan]] = []
    for start in range(0, len(questions), BATCH):
        batch = [PlanQuestion(one.id, one.text, one.topics) for one in questions[start : start + BATCH]]
        plans += planner.plan(batch, num_plans=num_plans)
        progress(len(plans), len(questions))
    return plans


def planner_figures(
    questions: Sequence[PlanQuestion],
    plans: Sequence[Sequence[Plan]],
    *,
    signed: bool,
    is_valid: IsValid,
    f1: Sequence[float] | None = None,
    hops: Mapping[str, int | None] | None = None,
    best_f1: Mapping[str, float] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the figures (percent) by number of ``hops`` and, with intervals, over ``all``.

    ``f1`` is that of answering with the first plan, where there is a graph; then ``best_f1`` makes the figure
    "as_good": first plans that do as well as the question's best shortest path. Both mappings go by question id.
    """
    groups: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        if hops and hops.get(question.id) is not None:
            groups.setdefault(str(hops[question.id]), []).append(row)
    groups = dict(sorted(groups.items())) if len(groups) > 1 else {}
    found = {}
    for name, rows in {**groups, ALL: list(range(len(questions)))}.items():
        chosen, proposed = [questions[row] for row in rows], [plans[row] for row in rows]
        figures = score_plans(chosen, proposed, signed=signed, is_valid=is_valid, bounds=name == ALL)
        if f1 is not None and rows:
            figures["f1"] = sum(f1[row] for row in rows) / len(rows)
            known = [row for row in rows if best_f1 and questions[row].id in best_f1]
            if known and best_f1:
                good = [f1[row] >= best_f1[questions[row].id] - ROUNDING for row in known]
                figures["as_good"] = 100.0 * sum(good) / len(good)
        found[name] = figures
    return found


def write_plans(
    path: Path, planner: str, questions: Sequence[PlanQuestion], plans: Sequence[Sequence[Plan]], *, signed: bool
) -> None:
    """Write schemas.PLANS."""
    rows = []
    for question, proposed in zip(questions, plans, strict=True):
        right = are_right(question, proposed, signed=signed)
        for rank, plan in enumerate(proposed, 1):
            rows.append((planner, question.id, rank, list(plan.path), plan.log_prob, right[rank - 1]))
    _write(rows, PLANS, path)
