"""``kgqa builds``: what became of the builds of a run's graph, and which one readers get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import print_json, print_table
from flows.cli_session import Conf, Json, Settings, open_run, with_exit_code, working

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline

builds = typer.Typer(help="The builds of a run's graph and questions: list them, or let readers have an earlier one.")


@builds.command("list")
@with_exit_code
def list_(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """List builds, the oldest first: when each was accepted or refused, how large it is, and which one readers get.

    \b
    Example:
      kgqa builds list conf/demo.yaml
    """
    pipeline = open_run(conf, settings)
    with working("looking"):
        found = [describe(pipeline, line) for line in pipeline.builds()]
        now = pipeline.accepted_note()
        of_now = [number for number, one in enumerate(found) if one["stages"] == now and one["what"] != "refused"]
        found = [{**one, "current": number in of_now[-1:]} for number, one in enumerate(found)]
    if as_json:
        print_json({"run": pipeline.config.name, "builds": found})
        return
    header = ("build", "when", "what", "entities", "triples", "questions", "")
    rows = [
        (
            one["build"],
            one["when"] or "–",
            f"{one['what']} from {one['left']}" if one["left"] else one["what"],
            *(f"{one[name]:,}" if one["whole"] else "gone" for name in ("entities", "triples", "questions")),
            ("readers get this" if one["whole"] else "readers had this") if one["current"] else "",
        )
        for one in found
    ]
    print_table(f"Builds of {pipeline.config.name}", header, rows)


@builds.command()
@with_exit_code
def rollback(
    conf: Conf,
    to: Annotated[
        str | None, typer.Option("--to", metavar="BUILD", help="Which accepted one: its id, or how that begins.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Let readers (sql, lint, export, status) have the build accepted before, or --to another; artifacts stay.

    The build that they had stops every command that would build on it, until it is accepted again or the data change.

    \b
    Examples:
      kgqa builds rollback conf/demo.yaml
      kgqa builds rollback conf/demo.yaml --to 41bc4e40
    """
    pipeline = open_run(conf, settings)
    with working("rolling back"):
        pipeline.roll_back(to)
        found = describe(pipeline, pipeline.builds()[-1])
    if as_json:
        print_json(found)
    else:
        typer.echo(f"Readers of {pipeline.config.name} get build {found['build']} now, no longer {found['left']}")


def describe(pipeline: Pipeline, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of ``Pipeline.builds`` with the sizes of what it is about."""
    import pyarrow.parquet as pq

    from kgqa_core.run.pipeline import build_id

    stages, artifacts = line["stages"], pipeline.read_build(line["stages"])
    is_whole = set(stages) <= set(artifacts)
    sizes = dict[str, int]()
    if is_whole:
        facts = json.loads((artifacts["graph"].folder / "graph.json").read_text(encoding="utf-8"))
        asked = pq.read_metadata(artifacts["questions"].folder / "questions.parquet").num_rows
        sizes = {"entities": facts["num_entities"], "triples": facts["num_triples"], "questions": asked}
    left = line.get("left")
    about = {"when": line["when"], "what": line["what"], "left": build_id(left) if left else None}
    return {"build": build_id(stages), **about, "whole": is_whole, **sizes, "stages": stages}
