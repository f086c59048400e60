"""What a flow returns: its stages and, where it got that far, the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.facts import Fact, read_facts
from kgqa_core.artifacts import written_whole
from kgqa_core.evaluation.figures import ReportRow, mean_row
from kgqa_core.evaluation.tables import render_report, show_figure
from kgqa_core.planners.evaluate import render_planners
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages.explorer import EXPLORER
from kgqa_core.run.stages.systems import COMPARISON

RESULTS = ("system", "answered by", "Hits@1", "F1", "calls", "supported")
_log = logging.getLogger(__name__)
NONE = "–"  # where a control has no such figure


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The outcome of a flow run."""

    name: str
    outcomes: tuple[StageOutcome, ...]
    rows: tuple[ReportRow, ...] = field(default=())  # one per seed, their mean, the controls
    facts: tuple[Fact, ...] = field(default=())  # what the data stages hold
    changes: dict[str, Any] | None = None  # a BuildDiff: what differs from the last build, where it is another
    planners: tuple[dict[str, Any], ...] = field(default=())  # scores of each planner and seed
    comparison: dict[str, Any] | None = None  # of systems side by side: its tables, sentences and rows
    report: Path | None = None  # file with ``markdown``

    @property
    def markdown(self) -> str:
        """The report as tables; empty where nothing was evaluated."""
        tables = [render_report(self.rows) if self.rows else "", render_planners(self.planners)]
        tables += [(self.comparison or {}).get("markdown", "")]
        return "\n".join(table for table in tables if table)

    @property
    def results(self) -> list[tuple[str, ...]]:
        """The main figures of every system, seed and control: cells as ``RESULTS`` names them."""
        table = self.comparison["tables"][0] if self.comparison else {"header": RESULTS, "rows": []}
        places = [table["header"].index(name) for name in RESULTS]
        compared = [tuple(row[place] for place in places) for row in table["rows"]]
        own = [row for row in self.rows if not compared or row.role not in ("learned", "seed")]
        return compared + [
            (row.system, NONE, show_figure(row.overall, "hits1"), show_figure(row.overall, "f1"), NONE, NONE)
            for row in own
        ]

    @property
    def built(self) -> list[str]:
        """Keys of the stages that ran."""
        return [outcome.key for outcome in self.outcomes if outcome.built]


def summarise(pipeline: Pipeline, outcomes: Sequence[StageOutcome]) -> RunSummary:
    """Collect the scores of the evaluated seeds."""
    learned: list[ReportRow] = []
    controls: list[ReportRow] = []
    planners: list[dict[str, Any]] = []
    changes = comparison = None
    for outcome in outcomes:
        if outcome.artifact.recipe.stage == "changes":
            changes = json.loads((outcome.artifact.folder / "changes.json").read_text(encoding="utf-8"))
        if outcome.artifact.recipe.stage == "evaluation":
            content = json.loads((outcome.artifact.folder / "scores.json").read_text(encoding="utf-8"))
            row, *controls = (ReportRow(**row) for row in content)
            learned.append(row)
        if outcome.artifact.recipe.stage == COMPARISON:
            comparison = json.loads((outcome.artifact.folder / "comparison.json").read_text(encoding="utf-8"))
            comparison["markdown"] = (outcome.artifact.folder / "comparison.md").read_text(encoding="utf-8")
        if outcome.artifact.recipe.stage == "plans":
            planners.append(json.loads((outcome.artifact.folder / "scores.json").read_text(encoding="utf-8")))
    if len(learned) > 1:
        mean = mean_row(f"{EXPLORER} (mean of {len(learned)} seeds)", learned)
        learned = [*(replace(row, role="seed") for row in learned), mean]
    rows = (*learned, *controls)
    facts = tuple(read_facts(outcomes))
    return RunSummary(pipeline.config.name, tuple(outcomes), rows, facts, changes, tuple(planners), comparison)


def write_report(pipeline: Pipeline, summary: RunSummary) -> RunSummary:
    """Write all tables of a run into its home, beside the note of what was built; a full disk is a warning."""
    if not summary.markdown:
        return summary
    path = pipeline.home / "runs" / f"{pipeline.config.name}.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as unfinished:
            unfinished.write_text(f"# {summary.name}\n\n{summary.markdown}", encoding="utf-8")
    except OSError as problem:  # the figures themselves are safe in the artifacts
        _log.warning("the report is not written: %s", problem)
        return summary
    return replace(summary, report=path)
