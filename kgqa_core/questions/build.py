"""Build a questions artifact: load every file, link to the graph, lint, write."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.rejects import NUM_SHOWN, rejects_table, too_many_rejects
from kgqa_core.questions.jsonl import jsonl_files
from kgqa_core.questions.linking import nearest_names
from kgqa_core.questions.lint import LintReport, lint_questions
from kgqa_core.questions.loaders import QuestionFormat, fill_splits, load_into, questions_table
from kgqa_core.questions.metaqa import metaqa_files
from kgqa_core.questions.records import Loaded
from kgqa_core.questions.resolve import Resolver
from kgqa_core.types import SPLITS, Split


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """What a build found."""

    num_questions: int
    num_rejects: int
    rejects: dict[str, int]  # reason -> lines
    per_split: dict[str, int]  # split -> questions
    lint: LintReport


def build_questions(
    *,
    graph: KnowledgeGraph,
    format: QuestionFormat,
    path: Path | None,
    max_steps: int,
    reenter_topic: bool,
    out_dir: Path,
    hops: tuple[int, ...] | None = None,
    files: dict[Split, Path] | None = None,
    max_reject_ratio: float = 0.001,
    split_seed: int = 0,
) -> QuestionReport:
    """Build questions.parquet, rejects.parquet and lint.json in ``out_dir``.

    ``path``: a MetaQA folder (``hops``: which of its hops, None for all), or for JSONL a folder with train, dev and
    test.jsonl or one file, then split by hash (``split_seed``); ``files`` names the files one by one instead, and then
    ``path`` is not looked at.
    ``max_steps`` and ``reenter_topic`` are the explorer's, for coverage. Raises InputError where a file is missing,
    holds no usable question, or has a larger share of rejected lines than ``max_reject_ratio``.
    """
    loaded, resolver = Loaded(), Resolver(graph)
    sources = _sources(format, path, hops, files)
    for file, split, hop in sources:
        load_into(loaded, file, format=format, resolver=resolver, split=split, hops=hop, split_seed=split_seed)
    _check(loaded, graph, max_reject_ratio)
    if [split for _, split, _ in sources] == [None]:
        loaded.questions = fill_splits(loaded.questions, graph, seed=split_seed)
    lint = lint_questions(loaded.questions, graph, max_steps=max_steps, reenter_topic=reenter_topic, notes=loaded.notes)
    out_dir.mkdir(parents=True, exist_ok=True)
    pq.write_table(questions_table(loaded.questions), out_dir / "questions.parquet", compression="zstd")
    pq.write_table(rejects_table(loaded.rejects), out_dir / "rejects.parquet", compression="zstd")
    (out_dir / "lint.json").write_text(json.dumps(asdict(lint), indent=2, ensure_ascii=False) + "\n", "utf-8")
    return QuestionReport(
        num_questions=len(loaded.questions),
        num_rejects=len(loaded.rejects),
        rejects=dict(sorted(Counter(reject.reason for reject in loaded.rejects).items())),
        per_split=dict(Counter(question.split for question in loaded.questions)),
        lint=lint,
    )


def _sources(
    format: QuestionFormat, path: Path | None, hops: tuple[int, ...] | None, files: dict[Split, Path] | None
) -> list[tuple[Path, Split | None, int | None]]:
    """Return (file, split or None: by hash, hops or None) of all files to load."""
    if files:
        hop = hops[0] if hops and len(hops) == 1 else None
        return [(file, split, hop) for split, file in sorted(files.items(), key=_by_split)]
    if path is None:
        raise InputError("questions: neither a path nor files are given. Set dataset.questions.path or .files.")
    if format == "metaqa":
        return list(metaqa_files(path, hops))
    return [(file, split, None) for file, split in jsonl_files(path)]


def _by_split(item: tuple[Split, Path]) -> int:
    return SPLITS.index(item[0])


def _check(loaded: Loaded, graph: KnowledgeGraph, max_ratio: float) -> None:
    num_rows = len(loaded.questions) + len(loaded.rejects)
    if len(loaded.rejects) > max_ratio * num_rows:
        error = too_many_rejects(
            loaded.rejects,
            num_rejects=len(loaded.rejects),
            num_rows=num_rows,
            max_ratio=max_ratio,
            key="dataset.questions.max_reject_ratio",
        )
        raise InputError(f"{error}{_nearest(loaded, graph)}")
    if not loaded.questions:
        raise InputError("questions: the files hold no question. docs/own-data.md shows what a line looks like.")


def _nearest(loaded: Loaded, graph: KnowledgeGraph) -> str:
    """Return, for the unknown names among the rejects shown, what the graph has that is like them."""
    shown = [(reject.file, reject.line) for reject in loaded.rejects[:NUM_SHOWN]]
    unknown = list(dict.fromkeys(loaded.unknown[place] for place in shown if place in loaded.unknown))
    lines = [f"\n  nearest to {shorten(name)}: {', '.join(map(repr, nearest_names(name, graph)))}" for name in unknown]
    return f"\nNot in the graph:{''.join(lines)}" if lines else ""
