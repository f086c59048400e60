"""What a flow returns: its stages and, where it got that far, the report as tables of text.

A learned model is worth its training only where it beats its *template control* (per masked text, the relation path
that served the training questions best). Where it does not, the report says so in words.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import counted
from kgqa_core.evaluation.figures import ANSWERABLE, OVERALL, Figures, ReportRow, mean_row
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS
from kgqa_core.evaluation.tables import markdown_table, report_scopes, show_figure
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages.explorer import EXPLORER
from kgqa_core.run.stages.systems import CHOICE, CHOICE_FILE, COMPARISON

if TYPE_CHECKING:
    from tasks.tracking import Published

COLUMNS = {"n": "n", "hits1": "Hits@1", "f1": "F1", "em": "EM", "coverage": "coverage"}
HEADER = ("hops", "system", *COLUMNS.values(), "remark")
ANSWER_HEADER = ("answers", "system", *COLUMNS.values())
WHERE = {OVERALL: "over all questions", ANSWERABLE: "over the answerable questions"}
NOT_BEATEN = "does not beat its template control"
NO_CONTROL = "has no template control beside it"
PLANNER_HEADER = ("hops", "planner", "n", "hit@1", "hit@3", "as good", "valid", "F1 of first plan")
PLANNER_FIGURES = ("hit@1", "hit@3", "as_good", "valid", "f1")

Scores = Mapping[str, Any]  # what stage plans writes as scores.json: planner, seed, figures by hops
Fact = tuple[str, str]
"""What it is of, and what is said."""

KINDS = {
    "entity": "named",
    "cvt": "CVT nodes",
    "foreign": "named in another language only",
    "iri": "IRIs without a name",
    "blank": "blank nodes",
    "literal": "literals",
}
RESULTS = ("system", "answered by", "questions", "Hits@1", "F1", "calls", "supported")
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
    choices: tuple[dict[str, Any], ...] = field(default=())  # what was chosen on dev: a line, and all points
    comparison: dict[str, Any] | None = None  # of systems side by side: its tables, sentences and rows
    gate: dict[str, Any] | None = None  # promoted, reason, challenger, champion, markdown; None: the run has no gate
    report: Path | None = None  # file with ``markdown``
    mlflow: Published | None = None  # where MLflow shows it

    @property
    def markdown(self) -> str:
        """The report as tables; empty where nothing was evaluated."""
        tables = [render_report(self.rows) if self.rows else "", render_planners(self.planners)]
        tables += ["".join(f"- {one['told']}\n" for one in self.choices)]
        tables += [(self.comparison or {}).get("markdown", ""), (self.gate or {}).get("markdown", "")]
        return "\n".join(table for table in tables if table)

    @property
    def results(self) -> list[tuple[str, ...]]:
        """The main figures of every system, seed and control: cells as ``RESULTS`` names them."""
        compared, asked, is_there = list[tuple[str, ...]](), 0, False
        if self.comparison:
            is_there = any(row["about"]["system"] == EXPLORER for row in self.comparison["rows"])
            table, asked = self.comparison["tables"][0], self.comparison["num_questions"]
            for row in table["rows"]:
                cells = {**dict(zip(table["header"], row, strict=True)), "questions": f"{asked:,}"}
                compared.append(tuple(cells[name] for name in RESULTS))
        for own in self.rows:
            # The explorer may stand among the systems, asked as many questions.
            if own.role not in ("learned", "seed") or not is_there or own.overall["n"] != asked:
                hits1, f1 = (show_figure(own.overall, name) for name in ("hits1", "f1"))
                compared.append((own.system, NONE, f"{own.overall['n']:,.0f}", hits1, f1, NONE, NONE))
        return compared

    @property
    def built(self) -> list[str]:
        """Keys of the stages that ran."""
        return [outcome.key for outcome in self.outcomes if outcome.built]


def summarise(pipeline: Pipeline, outcomes: Sequence[StageOutcome]) -> RunSummary:
    """Collect the scores of the evaluated seeds, of planners and systems, and what the data stages hold."""
    learned: list[ReportRow] = []
    controls: list[ReportRow] = []
    planners: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    changes = comparison = None
    for outcome in outcomes:
        stage, folder = outcome.artifact.recipe.stage, outcome.artifact.folder
        if stage == "changes":
            changes = _read(folder / "changes.json")
        elif stage == "evaluation":
            row, *controls = (ReportRow(**row) for row in _read(folder / "scores.json"))
            learned.append(row)
        elif stage == CHOICE:
            choices.append(_read(folder / CHOICE_FILE))
        elif stage == COMPARISON:
            comparison = _read(folder / "comparison.json")
            comparison["markdown"] = (folder / "comparison.md").read_text(encoding="utf-8")
        elif stage == "plans":
            planners.append(_read(folder / "scores.json"))
    if len(learned) > 1:
        mean = mean_row(f"{EXPLORER} (mean of {len(learned)} seeds)", learned)
        learned = [*(replace(row, role="seed") for row in learned), mean]
    rows, facts = (*learned, *controls), tuple(read_facts(outcomes))
    found = {"planners": tuple(planners), "choices": tuple(choices), "comparison": comparison}
    return RunSummary(pipeline.config.name, tuple(outcomes), rows, facts, changes, **found)


def _read(path: Path) -> Any:
    """Return a report of a stage; empty where it writes none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


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


# ------ The tables: the explorer beside its controls, and planners.


def render_report(rows: Sequence[ReportRow]) -> str:
    """Return the report as Markdown: the table, then a sentence for every figure that does not beat its control.

    After them the table by the number of answers.
    """
    remarks = [f"- {sentence}" for sentence in remark_sentences(rows)]
    lines = [*_report_table(HEADER, report_cells(rows)), *([""] if remarks else []), *remarks]
    if by_answers := answer_cells(rows):
        lines += ["", *_report_table(ANSWER_HEADER, by_answers)]
    return "\n".join(lines) + "\n"


def _report_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table(header, rows, [name in COLUMNS.values() for name in header])


def report_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the table's cells as text under ``HEADER``, by ``report_scopes``; systems in the order given."""
    return [
        (hops, row.system, *figure_cells(figures), "; ".join(remark for remark, _ in _remarks(row, rows, hops)))
        for hops in report_scopes(rows)
        for row in rows
        if (figures := row.figures(hops)) is not None
    ]


def figure_cells(figures: Figures) -> list[str]:
    """Return the cells of ``COLUMNS``, a figure's interval beside it where it has one."""
    return [f"{figures[key]:.0f}" if key == "n" else show_figure(figures, key) for key in COLUMNS]


def remark_sentences(rows: Sequence[ReportRow]) -> list[str]:
    """Return a sentence for every figure of a learned model that does not beat its control."""
    return [told for row in rows for hops in report_scopes(rows) for _, told in _remarks(row, rows, hops)]


def answer_cells(rows: Sequence[ReportRow]) -> list[tuple[str, ...]]:
    """Return the cells, under ``ANSWER_HEADER``, of the table by the number of answers; single seeds are left out.

    Empty where all questions have one number of answers: there is nothing to tell apart.
    """
    shown = [row for row in rows if row.role != "seed"]
    buckets = [bucket for bucket in ANSWER_BUCKETS if any(bucket in row.by_answers for row in shown)]
    return [
        (bucket, row.system, *figure_cells(row.by_answers[bucket]))
        for bucket in (buckets if len(buckets) > 1 else [])
        for row in shown
        if bucket in row.by_answers
    ]


def _remarks(row: ReportRow, rows: Sequence[ReportRow], hops: str) -> list[tuple[str, str]]:
    """Return what has to be said of a learned model that does not beat its best control: (remark, sentence)."""
    own = row.figures(hops)
    if row.role != "learned" or own is None:
        return []
    where = WHERE.get(hops, f"on {hops}-hop questions")
    controls = [found for one in rows if one.role == "template control" and (found := one.figures(hops)) is not None]
    if not controls:
        return [(NO_CONTROL, f"{row.system} {NO_CONTROL} {where}: its figures show nothing of what was learned.")]
    best = {metric: max(figures[metric] for figures in controls) for metric in ("hits1", "f1")}
    failed = [(f"{NOT_BEATEN} in {COLUMNS[metric]}", own[metric], limit) for metric, limit in best.items()]
    return [(told, f"{row.system} {told} {where}: {a:.2f} against {b:.2f}.") for told, a, b in failed if a <= b]


def planner_cells(scores: Sequence[Scores]) -> list[tuple[str, ...]]:
    """Return the cells under ``PLANNER_HEADER``: one row per number of hops and planner, its seeds averaged."""
    by_planner: dict[str, list[Mapping[str, Mapping[str, float]]]] = {}
    for one in scores:
        by_planner.setdefault(one["planner"], []).append(one["figures"])
    cells = []
    for hops in dict.fromkeys(hops for seeds in by_planner.values() for hops in seeds[0]):
        for name, seeds in by_planner.items():
            if hops not in seeds[0]:
                continue
            mean = {figure: sum(one[hops][figure] for one in seeds) / len(seeds) for figure in seeds[0][hops]}
            shown = name if len(seeds) == 1 else f"{name} (mean of {len(seeds)} seeds)"
            figures = (f"{mean[figure]:.2f}" if figure in mean else "" for figure in PLANNER_FIGURES)
            cells.append((hops, shown, f"{mean['n']:.0f}", *figures))
    return cells


def render_planners(scores: Sequence[Scores]) -> str:
    """Return the table as Markdown; empty without scores."""
    if not scores:
        return ""
    figures = [place > 1 for place in range(len(PLANNER_HEADER))]
    return "\n".join(markdown_table(PLANNER_HEADER, planner_cells(scores), figures)) + "\n"


# ------ What the data stages hold, in a few lines for people.


def read_facts(outcomes: Sequence[StageOutcome]) -> Iterator[Fact]:
    """Yield (what, how much) of dumps, graph, subgraphs and questions, in the order of the stages."""
    for outcome in outcomes:
        folder, stage = outcome.artifact.folder, outcome.artifact.recipe.stage
        report = _read(folder / f"{stage}.json") if stage in ("dump", "graph", "subgraphs") else {}
        if stage == "dump":
            lines = ", ".join(f"{count:,} {use.replace('_', ' ')}" for use, count in report["lines"].items() if count)
            yield outcome.key, f"{counted(report['num_lines'], 'line')}: {lines}"
        elif stage == "graph":
            yield from graph_facts(report, _read(folder / "closure.json"))
        elif stage == "subgraphs":
            sizes = f"{counted(report['num_triples'], 'triple')} in all, {report['largest']:,} in the largest"
            yield stage, f"{report['num_subgraphs']:,}, {report['num_with_answer']:,} of them with an answer; {sizes}"
        elif stage == "questions":
            yield from question_facts(_read(folder / "lint.json"))


def graph_facts(graph: dict[str, Any], closure: dict[str, Any]) -> Iterator[Fact]:
    """Yield what a graph holds and, where it is a closure, what each step added."""
    kinds = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in (graph.get("kinds") or {}).items() if count)
    sizes = f"{counted(graph['num_relations'], 'relation')}, {counted(graph['num_triples'], 'triple')}"
    yield "graph", f"{counted(graph['num_entities'], 'entity')}{f' ({kinds})' if kinds else ''}, {sizes}"
    for hop in closure.get("hops", ()):
        if hop["hop"]:
            yield f"  step {hop['hop']}", f"{hop['num_entities']:,} new entities, {hop['num_triples']:,} new triples"
    if closure.get("num_topics_missing"):
        yield "  topics", f"{closure['num_topics_missing']:,} of {closure['num_topics']:,} are not in the dump"
    if closure.get("num_hubs"):
        yield "  hubs", f"{closure['num_hubs']:,} groups of triples were capped"


def question_facts(lint: dict[str, Any]) -> Iterator[Fact]:
    """Yield how many questions a split has, and for how many an answer is within reach."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for row in lint["coverage"]:
        splits.setdefault(row["split"], []).append(row)
    for split, rows in splits.items():
        total = sum(row["num_questions"] for row in rows)
        reached = sum(row["num_questions"] * row["any_gold"] for row in rows) / total if total else 0.0
        yield (
            f"questions, {split}",
            f"{total:,}; an answer within {counted(lint['max_steps'], 'step')} for {reached:.1f} %",
        )
