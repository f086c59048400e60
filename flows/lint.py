"""The lint report of a run, read from the artifacts of its graph and questions."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.data import DUMP


def read_lint(pipeline: Pipeline) -> dict[str, Any]:
    """Return findings and coverage (see ``questions.lint.LintReport``), what the graph holds, and rejected lines.

    Of the graph (see ``graph.diff.GraphLint``) it also says how many topics of questions have no triple in it.
    Rejected lines are counted by reason. Raises ``ArtifactError`` where graph or questions are not built.
    """
    from kgqa_core.graph.diff import lint_graph

    graph, questions = (pipeline.artifact(key).folder for key in ("graph", "questions"))
    report = json.loads((questions / "lint.json").read_text(encoding="utf-8"))
    rejects = {"graph": count_rejects(graph), "questions": count_rejects(questions)}
    dumps = {key: artifact for key in pipeline.specs if key.startswith(DUMP) and (artifact := pipeline.find(key))}
    rejects |= {key: count_rejects(artifact.folder) for key, artifact in dumps.items()}
    return {**report, "graph": {**asdict(lint_graph(graph)), **count_topics(pipeline)}, "rejects": rejects}


def count_rejects(folder: Path) -> dict[str, int]:
    """Return reason -> rejected lines of a stage's folder; there may be millions."""
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    for batch in pq.ParquetFile(folder / "rejects.parquet").iter_batches(columns=["reason"]):
        for found in batch.column(0).value_counts().to_pylist():
            counts[found["values"]] = counts.get(found["values"], 0) + found["counts"]
    return dict(sorted(counts.items()))


def count_topics(pipeline: Pipeline) -> dict[str, int]:
    """Return how many topics the linked questions have, and how many of these are in no triple."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from kgqa_core.graph.csr import sorted_distinct
    from kgqa_core.run.open import graph_of

    column = pq.read_table(pipeline.artifact("questions").folder / "questions.parquet", columns=["topics"])["topics"]
    topics = sorted_distinct(pc.list_flatten(column).to_numpy())
    has_triple = np.diff(graph_of(pipeline).group_ptr) > 0
    return {"num_topics": len(topics), "num_topics_isolated": int((~has_triple[topics]).sum())}
