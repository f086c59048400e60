"""What a report says of a configuration's run beside its answers: data, curves, earlier runs, what was explored."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from flows.cli_lint import lint_tables, read_lint
from flows.cli_output import CHANGES_HEADER, CHANGES_TITLE, PERCENT, change_rows
from flows.report import MOST_SINGLE, Beside, build, packed
from flows.summary import ANSWER_HEADER, HEADER, answer_cells, remark_sentences, report_cells
from kgqa_core.artifacts import read_artifact
from kgqa_core.errors import counted
from kgqa_core.evaluation.figures import ReportRow
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS
from kgqa_core.evaluation.tables import report_scopes
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import gold_hops
from kgqa_core.run.ensure import CHANGES, DOCUMENT
from kgqa_core.run.open import explorer_key, open_system, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.systems import COMPARISON
from kgqa_core.tracking import read_record
from kgqa_core.types import Question
from tasks.garbage import read_history
from tasks.release import Releases, champion_of, model_name

if TYPE_CHECKING:
    from kgqa_core.explorer.explore import Exploration

COSTS = {"calls": "calls_per_question", "tokens": "tokens_per_question", "seconds": "seconds_per_question"}
PUBLISHED = {  # column of a comparison -> figure of ours
    "published Hits@1": "hits1",
    "published Hit": "hit",
    "published partial": "partial",
    "published complete": "complete",
}
Evaluated = Sequence[tuple[str, Path]]
"""Runs of explorers: the letter before the names of their rows, and their predictions."""
MOST_KEPT = 20_000  # answers, questions x systems, of which every run leaves a report: 5 CPU seconds, 9 MB
MOST_REJECTS = 200  # lines shown of those that were not used
MOST_POINTS = 200  # of one curve
MOST_EDGES = 200  # drawn of what was explored for one question
MOST_ASKED = 1_000  # drawn when a reader asks for more


def answered(pipeline: Pipeline) -> list[tuple[str, Path]]:
    """Return the systems of a run that have answered by now: what to call them, and their predictions."""
    keys = [key for key, spec in pipeline.specs.items() if spec.stage == "system"]
    there = [(key.removeprefix("system-"), pipeline.find(key)) for key in keys]
    return [(name, found.folder / "predictions.parquet") for name, found in there if found]


def keep_report(pipeline: Pipeline) -> Path | None:
    """Write the report of a run that compared its systems into its home, unless it is there; return its folder.

    It is ``report.html`` for few questions, else ``report/``. Earlier ones of the configuration go. None where nothing
    was compared, or so much that a report is left to whoever wants one.
    """
    compared = pipeline.find(COMPARISON) if COMPARISON in pipeline.specs else None
    if compared is None:
        return None
    runs = answered(pipeline)
    folder = pipeline.home / "reports" / pipeline.config.name / compared.fingerprint
    document = stored_comparison(pipeline)
    if document is None or document["num_questions"] * len(runs) > MOST_KEPT:
        return None
    single = document["num_questions"] <= MOST_SINGLE
    out = folder / ("report.html" if single else "report")
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(runs, out, title=pipeline.config.name, beside=beside_of(pipeline, document), single=single)
    for old in folder.parent.iterdir():
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def beside_of(pipeline: Pipeline, systems: Mapping[str, Any] | None, evaluated: Evaluated = ()) -> Beside:
    """Return all that a report shows beside the answers of a configuration's run; the rest is of ``overview_of``."""
    overview = overview_of(systems, evaluated)
    runs = list(runs_over_time(pipeline))
    if len(runs) > 1:
        header = list(dict.fromkeys(name for run in runs for name in run))  # not all have the same systems
        rows = [[run.get(name, "–") for name in header] for run in runs]
        overview["tables"].append(_table("Runs over time: Hits@1, and who was champion", header, rows, 4))
    about = {"tables": list(data_tables(pipeline)), "curves": [*curves(pipeline), *sweep_curves(pipeline)]}
    about["curves"] += cost_curves(systems["rows"] if systems else ())
    return Beside(overview, about, partial(explored, pipeline), partial(paths_to, pipeline))


def stored_comparison(pipeline: Pipeline) -> dict[str, Any] | None:
    """Return what a configuration's run has compared already, with the published figures; None where it has not."""
    found = pipeline.find(COMPARISON) if COMPARISON in pipeline.specs else None
    return json.loads((found.folder / "comparison.json").read_bytes()) if found else None


def overview_of(systems: Mapping[str, Any] | None, evaluated: Evaluated = ()) -> dict[str, Any]:
    """Return the tables of a comparison, and what each system costs; without systems what evaluations have kept."""
    if systems is None:
        return explorer_overview(evaluated)
    points = [
        {"system": row["system"], "hits1": row["overall"]["hits1"]}
        | {name: row["overall"].get(metric) for name, metric in COSTS.items()}
        for row in systems["rows"]
    ]
    return {
        "tables": [*systems["tables"], *published_table(systems)],
        "sentences": systems["sentences"],
        "points": points,
    }


def explorer_overview(evaluated: Evaluated) -> dict[str, Any]:
    """Return the tables of explorers beside their controls from ``scores.json`` beside the predictions of each."""
    read = [
        [ReportRow(**row | {"system": letter + row["system"]}) for row in json.loads(file.read_bytes())]
        for letter, path in evaluated
        if (file := path.with_name("scores.json")).is_file()
    ]
    every = [row for rows in read for row in rows]
    scopes, tables = report_scopes(every), []  # cells are made run by run: each has a template control of its own
    cells = sorted((cell[:-1] for rows in read for cell in report_cells(rows)), key=lambda cell: scopes.index(cell[0]))
    answers = sorted((cell for rows in read for cell in answer_cells(rows)), key=lambda c: ANSWER_BUCKETS.index(c[0]))
    if cells:
        title = f"{counted(round(every[0].overall['n']), 'question')}, {PERCENT}, [95 % interval]"
        tables.append(_table(title, HEADER[:-1], cells, 2))
    if answers:
        tables.append(_table("By the number of answers", ANSWER_HEADER, answers, 2))
    return {"tables": tables, "sentences": [told for rows in read for told in remark_sentences(rows)], "points": []}


def published_table(systems: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the table of published figures beside ours, with what differs; none where nothing is published."""
    own, found = {row["system"]: row for row in systems["rows"]}, []
    for table in systems["tables"]:
        for name in (name for name in table["header"] if name in PUBLISHED):
            for cells in (dict(zip(table["header"], row, strict=True)) for row in table["rows"]):
                values, _, method = cells[name].partition(" (")
                if not values:
                    continue
                row, theirs = own[cells["system"]], [float(value) for value in values.split(" / ")]
                groups = [row["by_hops"][hops] for hops in "123" if hops in row["by_hops"]]
                if len(theirs) not in (1, len(groups)):
                    continue  # not all numbers of hops were asked here: nobody knows which are theirs
                ours = [one[PUBLISHED[name]] for one in (groups if len(theirs) > 1 else [row["overall"]])]
                players = row["about"]["answered_by"] or "no language model"
                asked = counted(systems["num_questions"], "question")
                differs = f"theirs: {method[:-1]}, all questions; ours: {players}, {asked}"
                apart = " / ".join(f"{mine - value:+.1f}" for mine, value in zip(ours, theirs, strict=True))
                shown = " / ".join(f"{mine:.1f}" for mine in ours)
                found.append((cells["system"], name.removeprefix("published "), differs, values, shown, apart))
    if found:
        header = ("system", "figure", "what differs", "published", "ours", "difference")
        yield _table("Published figures beside ours; of several, by hops", header, found, 3)


def runs_over_time(pipeline: Pipeline) -> Iterator[dict[str, str]]:
    """Yield a line for each run of the configuration whose artifacts are here, the first one first.

    Its figures are those of its comparison; a run that made a release says what became of it.
    """
    home, name = pipeline.home, pipeline.config.name
    root = pipeline.store.root
    releases = Releases(home, model_name(name))
    moves, made = releases.moves(), [releases.read(id) for id in releases.ids()]
    for artifacts in read_history(home, name):
        fingerprints = {one.partition("/")[2] for one in artifacts}
        own = next((one for one in artifacts if one.startswith(f"{COMPARISON}/")), "")
        compared = read_artifact(root / own) if own else None
        if compared is None:
            continue
        found = json.loads((compared.folder / "comparison.json").read_bytes())
        systems = [read_artifact(root / one) for one in artifacts if one.startswith("system/")]
        splits = sorted({str(one.recipe.config["split"]) for one in systems if one})  # figures of others do not compare
        ended = time.gmtime(read_record(compared.folder).ended_ms / 1000)
        line = {"when": time.strftime("%Y-%m-%d %H:%M", ended)}
        line |= {"questions": " ".join([f"{found['num_questions']:,}", *splits]), "release": "–", "state": "–"}
        if release := next((one.id for one in made if set(one.stages.values()) <= fingerprints), ""):
            kinds = [move.kind for move in moves if move.to_release == release]
            state = "champion" if release == champion_of(moves) else kinds[-1] if kinds else "–"
            line |= {"release": release, "state": state}
        for row in found["rows"]:
            line[row["system"]] = f"{row['overall']['hits1']:.2f}"
        yield line


def data_tables(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """Yield what the last rebuild moved, what lint finds, and the lines that were not used."""
    now = {f"now {key}": pipeline.artifact(key).content for key in ("graph", "questions")}
    changes = pipeline.remembered(CHANGES)  # noted by the run's name, which another folder's run may have
    if changes is not None and now.items() <= changes.recipe.inputs.items():
        found = json.loads((changes.folder / DOCUMENT).read_text(encoding="utf-8"))
        if moved := [*change_rows(found)]:
            yield _table(CHANGES_TITLE, CHANGES_HEADER, moved, 1)
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
        for name, points in sorted(read_record(artifact.folder).curves.items()) if artifact else ():
            every = -(-len(points) // MOST_POINTS)
            kept = points[: len(points) - 1 : every] + points[-1:]  # the last one always: it is where training ended
            yield {"stage": key, "figure": name, "points": [[step, value] for step, value, _ in kept]}


def cost_curves(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each system of a comparison spends per question as questions take more hops: tokens, else seconds."""
    for row in rows:
        by_hops = sorted((int(hops), own) for hops, own in row["by_hops"].items() if hops.isdigit())
        name = "tokens" if row["overall"].get(COSTS["tokens"]) else "seconds"
        points = [[hops, own[COSTS[name]]] for hops, own in by_hops if own.get(COSTS[name])]
        if len(points) > 1:
            yield {"stage": "cost by hops", "figure": f"{row['system']}: {name} per question", "points": points}


def sweep_curves(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """Yield the lines of every sweep over the run's graph: figure, and points of what was varied and its mean."""
    for file in sorted((pipeline.home / "artifacts" / "sweep").glob("*/sweep.json")):
        rows = pq.read_table(file.with_name("rows.parquet"), columns=["fingerprint.evaluation"])[0].to_pylist()
        read = [read_artifact(pipeline.store.root / "evaluation" / one) for one in rows]
        graph = pipeline.artifact("graph").content
        if any(one is None or one.recipe.inputs["graph"] != graph for one in read):
            continue
        found, artifact = json.loads(file.read_text(encoding="utf-8")), read_artifact(file.parent)
        for plot in artifact.recipe.config["plots"] if artifact else ():
            lines: dict[tuple[str, str], list[list[float]]] = {}
            for point in found["points"]:
                figures, x = {name: one["mean"] for name, one in point["figures"].items()}, plot["x"]
                at = figures.get(x, point["place"].get(x))
                others = ", ".join(str(value) for name, value in point["place"].items() if name not in (x, "point"))
                for name in plot["y"] if isinstance(at, int | float) else ():
                    if name in figures:
                        lines.setdefault((name, others), []).append([at, figures[name]])
            for (name, others), points in lines.items():
                figure = f"{name} by {plot['x']}{f', {others}' if others else ''}"
                yield {"stage": f"sweep {found['sweep']}", "figure": figure, "points": sorted(points)}


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], figures_from: int) -> dict[str, Any]:
    return {"title": title, "header": list(header), "rows": [list(row) for row in rows], "figures_from": figures_from}


def paths_to(pipeline: Pipeline, ids: Sequence[str]) -> dict[str, bool]:
    """Return of those questions of the run that have answers: does a path of the steps that are searched lead to one?

    Hops and chains that the files give are not believed: `kgqa lint` counts golds that no path reaches all the same.
    """
    wanted, search = set(ids), search_graph(pipeline)
    read = read_questions(pipeline.artifact("questions").folder, pipeline.config.evaluation.split)
    asked = [one for one in read if one.id in wanted and one.answers]
    reached = gold_hops(search.place(asked), search, max_steps=search.max_hops)
    return {one.id: bool((hops > 0).any()) for one, hops in zip(asked, reached, strict=True)}


# ------ What the explorer walked.


def explored(pipeline: Pipeline, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the run's explorer of the first seed walks for some questions; nothing where none is trained.

    ``topics``: where it starts; ``edges``: head, relation, tail, step from 1, and attention (Eq. 1) in percent, the
    strongest first at each step, from nodes that are drawn themselves; ``nodes``: probability in percent of what is
    drawn; ``num_edges`` of all. ``more``: where not all are drawn, the same with up to ``MOST_ASKED`` edges, packed.
    """
    key = explorer_key(pipeline.config)
    if key not in pipeline.specs or pipeline.find(key) is None or "subgraphs" in pipeline.specs or not ids:
        return {}  # systems that walk without an explorer do not train it
    from kgqa_core.explorer.batch import question_arrays
    from kgqa_core.explorer.explore import ExploreOptions, Lessons
    from kgqa_core.explorer.model import texts_of
    from kgqa_core.explorer.predict import explore_all

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
    for rows, batch, one in explore_all(system.model, Lessons(graph, arrays, texts, options)):
        probability = np.exp(one.log_probability(len(batch)).cpu().numpy())
        for place, row in enumerate(rows.tolist()):
            barred = set() if card.reenter_topic else set(questions[row].topics)
            pick = partial(walked, one, place, questions[row], graph, probability, barred)
            drawn, asked_for = pick(most=MOST_EDGES), pick(most=MOST_ASKED)
            if len(asked_for["edges"]) > len(drawn["edges"]):
                drawn["more"] = packed(asked_for)
            found[questions[row].id] = drawn
    return found


def walked(
    found: Exploration,
    place: int,
    question: Question,
    graph: KnowledgeGraph,
    probability: np.ndarray,
    barred: Set[int],
    *,
    most: int,
) -> dict[str, Any]:
    """Return at most ``most`` edges of one question of a batch, and their nodes, as ``explored`` does.

    Each step has the same share of them; none arrives at ``barred``.
    """
    shown, edges, total = set(question.topics), dict[tuple[int, int, int], tuple[int, float]](), 0
    most //= max(len(found.traces), 1)
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
        "topics": [graph.name_of(topic) for topic in question.topics],
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
