"""``kgqa sql``: a query over everything that a run has built."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import print_json, print_table, say, show_cell
from flows.cli_session import Conf, Json, Settings, make_console, open_run, working
from kgqa_core.errors import ArtifactError, ConfigError, QueryError, counted

if TYPE_CHECKING:
    from kgqa_core.artifacts import Artifact
    from kgqa_core.run.pipeline import Pipeline

NUM_ROWS = 100  # printed, unless --limit says otherwise
LEAST_WIDTH = 10  # of a column; where there is less, each row is a table of its own


def sql(
    conf: Conf,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One query of DuckDB's SQL. Default: list the views.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help=f"At most N rows; printed are {NUM_ROWS} by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rows, all of them, to a .parquet or .csv file.")
    ] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Query a build that was refused, not the last accepted one.")
    ] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Query the shards, questions and predictions of a run with SQL.

    Every table of the artifacts that are done is a view: entities, relations, triples, facts (triples with names),
    questions, predictions_seed0, graph_rejects and more. Without a query, the views are listed. Queries only read.

    \b
    Examples:
      kgqa sql conf/demo.yaml
      kgqa sql conf/demo.yaml "select relation, count(*) from facts group by all"
      kgqa sql conf/demo.yaml "from facts where head_name = 'The Drowned Harbour'" --out harbour.csv
    """
    if query is None and out is not None:
        raise ConfigError("--out needs a query, such as: from facts")
    pipeline = open_run(conf, settings)
    with working("querying"):
        document = answer(pipeline, query, limit, out, refused=refused)
    print_json(document) if as_json else print_answer(document)


def answer(
    pipeline: Pipeline, query: str | None, limit: int | None, out: Path | None, *, refused: bool = False
) -> dict[str, Any]:
    """Return what a query finds, or where it was written; without a query, the views. The run must have artifacts."""
    from flows.sql_views import CAST, open_views

    artifacts = artifacts_of(pipeline, refused=refused)
    if changes := pipeline.remembered("changes"):
        artifacts["changes"] = changes
    if out is not None and out.resolve().is_relative_to(pipeline.store.root.resolve()):
        raise ConfigError(f"--out {out} lies in the artifact store, which only stages write to; name another folder")
    scratch = pipeline.home / "run"
    with suppress(OSError):
        scratch.mkdir(parents=True, exist_ok=True)
    if not os.access(scratch, os.W_OK):  # somebody else's home
        scratch = Path(gettempdir())
    memory_limit = pipeline.config.runtime.memory_limit
    with (
        TemporaryDirectory(prefix="sql-", dir=scratch) as spill,
        open_views(artifacts, memory_limit=memory_limit, temp_directory=Path(spill)) as views,
    ):
        if query is None:
            return {"views": views.list_views()}
        if out is not None:
            return {"file": str(out), "rows": views.write(query, out, limit=limit)}
        try:
            table, more = views.read(query, limit=NUM_ROWS if limit is None else limit)
        except QueryError as problem:
            missing = [key for key in pipeline.specs if key not in artifacts]
            said, no_view, _ = str(problem).partition(" does not exist!")
            if not (missing and no_view):
                raise
            listed = f"{said}{no_view} Its stage may be one that is not made yet: {', '.join(missing)}"
            raise QueryError(f"{listed} (kgqa build CONF, kgqa run CONF)") from None
    # Rows are lists in order of the columns: two columns may share a name.
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    try:
        rows = [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    except OverflowError as problem:  # dates before Christ, and infinity
        raise QueryError(f"a value cannot be shown: {problem}. {CAST}") from None
    return {"columns": columns, "rows": rows, "more": more}


def artifacts_of(pipeline: Pipeline, *, refused: bool = False) -> dict[str, Artifact]:
    """Return what a run has made, of the accepted build unless ``refused``; ArtifactError where there is nothing."""
    if not refused and pipeline.use_accepted():
        say("The last build is not the accepted one: this is the accepted one (--refused: the other).", err=True)
    artifacts = {key: artifact for key in pipeline.specs if (artifact := pipeline.find(key))}
    if not artifacts:
        raise ArtifactError(
            f"nothing of {pipeline.config.name!r} is built as its files and settings are now: kgqa build CONF; "
            "kgqa status CONF says more"
        )
    return artifacts


def print_answer(document: dict[str, Any]) -> None:
    """Print views, rows, or where the rows are."""
    if "views" in document:
        columns = [", ".join(" ".join(column) for column in view["columns"].items()) for view in document["views"]]
        rows = [
            (view["name"], str(view["rows"]), shown) for view, shown in zip(document["views"], columns, strict=True)
        ]
        print_table("Views", ("view", "rows", "columns"), rows)
    elif "file" in document:
        typer.echo(f"{counted(document['rows'], 'row')} in {document['file']}")
    else:
        header, shown = [column["name"] for column in document["columns"]], document["rows"]
        if shown and len(header) * LEAST_WIDTH > make_console().width:
            for number, row in enumerate(shown, 1):  # beside each other the cells would have no room
                print_table(f"row {number}", ("column", "value"), zip(header, map(show_cell, row), strict=True))
        elif shown or not document["more"]:
            print_table(counted(len(shown), "row"), header, (map(show_cell, row) for row in shown))
        if document["more"]:
            there, printed = ("more", "more") if shown else ("rows", "N")
            typer.echo(f"There are {there}: --limit N prints {printed} of them, --out FILE writes all.")
