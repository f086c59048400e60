"""The lint report of a run, read from the artifacts of its graph and questions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kgqa_core.pipeline import Pipeline


def read_lint(pipeline: Pipeline) -> dict[str, Any]:
    """Return findings and coverage (see ``questions.lint.LintReport``), and rejected lines counted by reason.

    Raises ``ArtifactError`` where graph or questions are not built.
    """
    import pyarrow.parquet as pq

    report: dict[str, Any] = {}
    rejects = {}
    for key in ("graph", "questions"):
        folder = pipeline.artifact(key).folder
        reasons = pq.read_table(folder / "rejects.parquet", columns=["reason"])["reason"].to_pylist()
        rejects[key] = dict(sorted(Counter(reasons).items()))
        if key == "questions":
            report = json.loads((folder / "lint.json").read_text(encoding="utf-8"))
    return {**report, "rejects": rejects}
