"""What commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from flows.cli_session import make_console
from kgqa_core.errors import counted

if TYPE_CHECKING:
    from pathlib import Path

    from flows.one_question import SystemReply
    from flows.summary import RunSummary
    from kgqa_core.run.ask import Answer
    from kgqa_core.types import Reject
    from tasks.tracking import Published

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and what turns the direction
STATE_STYLES = {"done": "green", "stale": "yellow", "missing": "red", "better": "green", "worse": "red"}
PERCENT = "all figures in percent"
NUM_REJECTS = 5  # shown
NUM_CANDIDATES = 10  # shown
MAX_ROWS = 15  # of results
CELL_CHARACTERS = 500  # of a value that is printed in a table
NUM_RELATIONS = 10  # shown of those whose triples changed
CHANGES_TITLE, CHANGES_HEADER = "Changes since the last build", ("of", "before", "now", "in", "out")


def plain(text: str) -> str:
    """Return a text with its control characters written out: names are other people's, and a terminal obeys."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str, *, err: bool = False) -> None:
    """Print a line of text."""
    typer.echo(plain(text), err=err)


def print_json(value: object) -> None:
    """Print one JSON document; JSON knows no NaN and no infinity: null stands there."""
    known = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    say(json.dumps(known, indent=2, ensure_ascii=False))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, figures_from: int = 99) -> None:
    """Print a table; columns from ``figures_from`` on are figures, to the right. Cells are text, never markup."""
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number >= figures_from else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell), style=STATE_STYLES.get(cell, "")) for cell in row))
    console.print(Text(plain(title if table.rows else f"{title}: none"), style="bold"))
    if table.rows:
        console.print(table)


def show_cell(value: object) -> str:
    """Return a value as text of bounded length; nothing for null."""
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}… ({len(text)} characters)"


def print_scores(figures: Mapping[str, Any]) -> None:
    """Print what ``score_file`` found: strict metrics beside the published evaluator's."""
    from kgqa_core.evaluation.tables import show_figure

    strict, published = figures["strict"], figures["rog"]
    names = [name for name in dict.fromkeys([*strict, *published]) if "." not in name]  # bounds stand beside theirs
    rows = [
        (name, show_figure(strict, name) if name in strict else "", show_percent(published.get(name))) for name in names
    ]
    title = f"{counted(figures['n'], 'question')}, {PERCENT}, [95 % interval]"
    print_table(title, ("metric", "strict", "published RoG"), rows, figures_from=1)
    if unknown := figures["no_ground_truth"]:
        say(f"! {unknown:,} of {figures['n']:,} questions have no ground truth: they count as wrong in all figures")


def print_summary(summary: RunSummary, conf: str, mlflow_ui: str | None) -> None:
    """Print the main results of a run, or what it made of the data, and up to four things to do next.

    ``conf``: the configuration with its settings, as a command takes them.
    """
    from flows.summary import RESULTS

    if summary.changes:
        print_changes(summary.changes)
    if results := summary.results:
        more = "" if len(results) <= MAX_ROWS else f"; the first {MAX_ROWS} of {len(results)} rows"
        title = f"Results of {summary.name}, {PERCENT}, [95 % interval]{more}"
        print_table(title, RESULTS, results[:MAX_ROWS], figures_from=2)
    elif summary.planners:
        from flows.summary import PLANNER_HEADER, planner_cells

        cells = planner_cells(summary.planners)
        print_table(f"Planners of {summary.name}, {PERCENT}", PLANNER_HEADER, cells, figures_from=2)
    else:
        print_table("What there is", ("of", "what"), summary.facts)
    for choice in summary.choices:
        say(choice["told"])
    if summary.gate:
        verdict = "promoted" if summary.gate["promoted"] else "not promoted"
        challenger = f"Release {summary.gate['challenger']}" if summary.gate["challenger"] else "What was begun"
        say(f"{challenger} is {verdict}: {summary.gate['reason']}")
    steps = [f"All tables:  {summary.report}"] if summary.report else []
    shown = [mlflow_ui, *where_in_mlflow(summary.mlflow)] if mlflow_ui else []
    steps += ["In MLflow:   " + f"\n{' ' * 13}".join(shown)] if shown else []
    able = [""] if summary.results else []  # the explorer, if there is one
    if summary.comparison and not summary.rows:  # an oracle knows nothing of a new question
        systems = [row["about"] for row in summary.comparison["rows"]]
        answering = [about["system"] for about in systems if about.get("answered_by", "") in ("", "lm")]
        able = [f" --system {shlex.quote(system)}" for system in answering]
    steps += [f'Ask it:      kgqa ask {conf}{able[0]} "QUESTION"'] if able else []
    look = [f"Look at it:  kgqa view {conf}"] if summary.comparison else []
    for line in [*[*steps, f"Stages:      kgqa status {conf}"][: 4 - len(look)], *look]:
        say(line)


def where_in_mlflow(shown: Published | None) -> list[str]:
    """Return what to open there, and where the files are: with a database as the store, that is said nowhere else."""
    if shown is None:
        return []
    report = [f"its report at {shown.report}"] if shown.report else []
    return [f"this run at {shown.page}", *report, f"all runs at {shown.table}", f"files in {shown.artifacts}"]


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print systems side by side: the main table with what it says of the models, then the others."""
    for place, table in enumerate(comparison["tables"]):
        print_table(table["title"], table["header"], table["rows"], figures_from=table["figures_from"])
        for sentence in comparison["sentences"] if place == 0 else ():
            say(f"! {sentence}")


def summary_document(summary: RunSummary, mlflow_ui: str | None) -> dict[str, Any]:
    """Return what ``print_summary`` prints as one document."""
    made = [(one.key, one.built, one.artifact.fingerprint, str(one.artifact.folder)) for one in summary.outcomes]
    stages = [dict(zip(("key", "built", "fingerprint", "folder"), one, strict=True)) for one in made]
    return {
        "run": summary.name,
        "results": [asdict(row) for row in summary.rows],
        "planners": list(summary.planners),
        "choices": list(summary.choices),
        "systems": summary.comparison["rows"] if summary.comparison else [],
        "facts": dict(summary.facts),
        "changes": summary.changes,
        **({key: value for key, value in summary.gate.items() if key != "markdown"} if summary.gate else {}),
        "stages": stages,
        "report": str(summary.report) if summary.report else None,
        "mlflow_ui": mlflow_ui,
        "mlflow": asdict(summary.mlflow) if summary.mlflow else None,
    }


def print_answer(answer: Answer) -> None:
    """Print the ranked candidates of one question with the evidence they rest on."""
    topics = ", ".join(answer.topics)
    if not answer.candidates:
        say(f"Nothing was found from {topics}.")
        return
    rows = [
        ("*" if one.is_answer else "", show_cell(one.name), f"{one.score:.2f}", show_cell(one.path))
        for one in answer.candidates[:NUM_CANDIDATES]
    ]
    print_table(f"From {topics} (* an answer; scores in percent)", ("", "candidate", "score", "evidence"), rows)


def print_reply(reply: SystemReply, trace: bool) -> None:
    """Print what one system answered and on what evidence; with ``trace``, every prompt and text before it."""
    if trace:
        for number, call in enumerate(reply.calls, start=1):
            say(f"--- call {number} (round {call.round}): {call.instruction}")
            problem = [f"!!! {call.problem}"] if call.problem else []
            for line in (call.system_prompt, call.prompt, *(f">>> {text}" for text in call.texts), *problem):
                if line:
                    say(line)
        say("---")
    topics = ", ".join(reply.topics) or "no topic"
    spent = f"{counted(len(reply.calls), 'call')}, {counted(reply.tokens, 'token')}, {reply.seconds:.2f} s"
    sure = "" if reply.confidence is None else f" (confidence {reply.confidence:.2f})"
    legend = " (* an answer)" if reply.candidates else ""
    by = "" if reply.answered_by in ("", "lm") else f" ({reply.answered_by})"  # no language model answered
    title = f"{reply.system}{by} from {topics}: {reply.status}{sure}; {spent}{legend}"
    shown = reply.candidates[:NUM_CANDIDATES]
    rows = [
        ("*" if one.is_answer else "", show_cell(one.name), f"{one.score:.3f}", show_cell(one.path)) for one in shown
    ]
    print_table(title, ("", "candidate", "score", "evidence"), rows)
    if reply.verdict is not None:
        say(f"verdict: {'true' if reply.verdict else 'false'}")
    for fact in reply.missing:
        say(f"not found: {fact}")
    if reply.unmatched:
        say(f"answered, and not in the graph: {', '.join(reply.unmatched)}")
    if reply.error:
        say(reply.error)


def print_evaluation(figures: Mapping[str, Any], system: str) -> None:
    """Print the figures of who answered a file of questions, and of the controls where they were asked for."""
    from flows.summary import COLUMNS, figure_cells

    systems = {system: figures, **figures.get("controls", {})}
    rows = [(system, *figure_cells(values)) for system, values in systems.items()]
    title = f"{counted(figures['n'], 'question')} in {figures['seconds']:.1f} s, {PERCENT}, [95 % interval]"
    print_table(title, ("system", *COLUMNS.values()), rows, figures_from=1)


def print_rejects(rejects: Sequence[Reject], num: int | None = None, kept_in: Path | None = None) -> None:
    """Say on standard error which lines of a file were not used: the first of ``num``, and where all are."""
    num = len(rejects) if num is None else num
    for reject in rejects[:NUM_REJECTS]:
        say(f"not used: {reject.file}, line {reject.line}: {reject.reason}", err=True)
    if num > NUM_REJECTS or (num and kept_in):
        say(f"not used: {counted(num, 'line')} in all{f', kept in {kept_in}' if kept_in else ''}", err=True)


def show_percent(value: float | None) -> str:
    """Return a percentage as a cell; nothing where there is none."""
    return "" if value is None else f"{value:.2f}"


def print_changes(changes: Mapping[str, Any]) -> None:
    """Print a BuildDiff; one line where nothing changed."""
    if rows := list(change_rows(changes)):
        print_table(CHANGES_TITLE, CHANGES_HEADER, rows, figures_from=1)
    else:
        say("Nothing changed since the last build.")


def change_rows(changes: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for everything that changed: what, how many before and now, how many came and went."""
    graph = changes["graph"]
    for name in ("triples", "entities", "relations"):
        yield from _set_row(name, graph[name])
    for name in ("new_relations", "gone_relations"):
        if labels := graph[name]:
            shown = ", ".join(labels[:NUM_RELATIONS]) + (", ..." if len(labels) > NUM_RELATIONS else "")
            came, gone = (f"+{len(labels)}", "") if name == "new_relations" else ("", f"-{len(labels)}")
            yield (f"{name.replace('_', ' ')}: {shown}", "", "", came, gone)
    moved = sorted(graph["per_relation"].items(), key=lambda item: (-item[1]["came"] - item[1]["gone"], item[0]))
    for label, change in moved[:NUM_RELATIONS]:
        yield from _set_row(f"triples of {label}", change)
    if len(moved) > NUM_RELATIONS:
        yield (f"triples of {counted(len(moved) - NUM_RELATIONS, 'more relation')}", "", "", "", "")
    if graph["num_renamed"]:
        yield ("entities with another name", "", str(graph["num_renamed"]), "", "")
    yield from _percent_row("entities with a name, percent", graph["named_before"], graph["named_after"])
    yield from _set_row("questions", changes["questions"])
    if changes["num_reworded"]:
        yield ("questions reworded", "", str(changes["num_reworded"]), "", "")
    if changes["num_moved"]:
        yield ("questions in another split", "", str(changes["num_moved"]), "", "")
    if changes["num_subgraphs_changed"]:
        where = "" if changes["subgraphs_by"] == "digest" else f" within {changes['hops']} hops"
        yield (f"questions whose subgraph changed{where}", "", str(changes["num_subgraphs_changed"]), "", "")
    for row in changes["coverage"]:
        group = row["split"] if row["hops"] is None else f"{row['split']}, {row['hops']} hops"
        yield from _percent_row(f"any answer within reach, {group}, percent", row["any_before"], row["any_after"])
        yield from _percent_row(f"all answers within reach, {group}, percent", row["all_before"], row["all_after"])


def _set_row(name: str, change: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    if change["came"] or change["gone"]:
        yield (name, str(change["before"]), str(change["after"]), f"+{change['came']}", f"-{change['gone']}")


def _percent_row(name: str, before: float | None, after: float | None) -> Iterator[tuple[str, ...]]:
    if before != after:
        yield (name, show_percent(before), show_percent(after), "", "")
