"""``kgqa export``: a run's graph for other programs, with what its columns mean and where it comes from."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from flows.cli_output import print_json
from flows.cli_session import Conf, Json, Settings, open_run, working
from flows.cli_sql import artifacts_of
from kgqa_core.artifacts import Artifact, hash_file, sync, write_json, written_whole
from kgqa_core.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline

CURRENT, LINEAGE, DATABASE = "current", "lineage.json", "graph.duckdb"
# Table -> what its rows are, and what its columns hold; docs/shards.md has the same words.
DICTIONARY: dict[str, tuple[str, dict[str, str]]] = {
    "entities": (
        "One row per node.",
        {
            "entity_id": "Number of the node, from 0, in byte order of the labels; not the same in every build.",
            "label": "What the triples call the node: unique, and the same in every build.",
            "name": "What people call it; the label where no name is given. Several nodes may share a name.",
            "kind": "literal; entity: it has a name or alias; else cvt (a Freebase id), foreign (named in other "
            "languages only), iri or blank; null: not told.",
            "datatype": "IRI of a literal's datatype; null: a plain text, no literal, or not told.",
            "language": "Language tag of a literal, in lower case.",
        },
    ),
    "relations": (
        "One row per relation.",
        {
            "relation_id": "Number of the relation, from 0, in byte order of the labels; not the same in every build.",
            "label": "What the triples call the relation: unique.",
            "name": "What plans and prompts call it: unique; the label where no name is known.",
            "num_triples": "How many triples have it.",
            "inverse": "What the source calls the relation walked from tail to head; null: nothing.",
        },
    ),
    "triples": (
        "One row per distinct triple.",
        {
            "head": "entity_id of the node that the triple starts at.",
            "relation": "relation_id of the relation.",
            "tail": "entity_id of the node that it ends at.",
        },
    ),
    "aliases": ("Other names, of a dump.", {"entity_id": "The node.", "alias": "Another name of it."}),
    "types": ("Types, of a dump.", {"entity_id": "The node.", "type": "Label of a type of it."}),
}
FACTS = """create view facts as select h.label as head_label, h.name as head_name, r.name as relation,
t.label as tail_label, t.name as tail_name from triples f join entities h on f.head = h.entity_id
join relations r on f.relation = r.relation_id join entities t on f.tail = t.entity_id"""


def export(
    conf: Conf,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where exports are kept; or s3://... or gs://...")],
    duckdb: Annotated[bool, typer.Option("--duckdb", help="One DuckDB file with the same tables as well.")] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Export a build that was refused.")] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Export the graph of a run as Parquet, with a description of every column and where the data comes from.

    Each build has a folder of its own, FOLDER/RUN/BUILD, and FOLDER/RUN/current leads to the last one exported. It is
    set once everything is written, so readers of it never see half of an export. In object storage it is an object that
    holds the name of the build.

    \b
    Examples:
      kgqa export conf/demo.yaml --out exports
      kgqa export conf/demo.yaml --out exports --duckdb
      kgqa export conf/demo.yaml --out s3://bucket/exports
    """
    from kgqa_core.addresses import address_path

    pipeline = open_run(conf, settings)
    try:
        is_address = address_path(out) is not None
    except ValueError as problem:
        raise ConfigError(f"--out {out!r} {problem}") from None
    if not is_address and Path(out).resolve().is_relative_to(pipeline.store.root.resolve()):
        raise ConfigError(f"--out {out} lies in the artifact store, which only stages write to; name another folder")
    with working("exporting"):
        graph = artifacts_of(pipeline, refused=refused).get("graph")
        if graph is None:
            raise ArtifactError(f"{pipeline.config.name!r} has no graph to export: kgqa build CONF")
        try:
            if is_address:
                document = upload_export(pipeline, graph, out.removesuffix("/"), with_database=duckdb)
            else:
                document = write_export(pipeline, graph, Path(out) / pipeline.config.name, with_database=duckdb)
        except OSError as problem:
            raise ArtifactError(f"cannot export to {out}: {problem.strerror or problem}") from problem
    if as_json:
        print_json(document)
        return
    for name, entry in document["files"].items():
        typer.echo(f"{name}: {entry['bytes'] / 1e6:,.1f} MB" + (f", {entry['rows']:,} rows" if "rows" in entry else ""))
    typer.echo(f"In {document['folder']}, and as {document['current']}")


def write_export(pipeline: Pipeline, graph: Artifact, folder: Path, *, with_database: bool) -> dict[str, Any]:
    """Write a build below ``folder``, unless it is there, and let ``current`` lead to it; return its lineage."""
    name = f"{graph.fingerprint[:12]}{'-duckdb' * with_database}"
    final, current = folder / name, folder / CURRENT
    folder.mkdir(parents=True, exist_ok=True)
    if not (final / LINEAGE).is_file():
        with written_whole(final) as made:
            made.mkdir()
            files: dict[str, dict[str, Any]] = {
                f"{t}.parquet": {"rows": write_table(graph, t, made)} for t in tables(graph)
            }
            if with_database:
                write_database([file.removesuffix(".parquet") for file in files], made)
                files[DATABASE] = {}
            for file, entry in files.items():
                entry |= {"bytes": (made / file).stat().st_size, "sha256": hash_file(made / file)}
                sync(made / file)
            write_json(made / LINEAGE, {**lineage(pipeline, graph), "files": files})
    link = folder / f".{CURRENT}.{uuid4().hex[:12]}"
    link.symlink_to(name)
    os.replace(link, current)
    written = json.loads((final / LINEAGE).read_text(encoding="utf-8"))
    return {**written, "folder": str(final), "current": str(current)}


def upload_export(pipeline: Pipeline, graph: Artifact, address: str, *, with_database: bool) -> dict[str, Any]:
    """Write a build beside the home's other work, and upload it when it is whole; return its lineage."""
    from tasks.objects import upload

    address = f"{address}/{pipeline.config.name}"
    with TemporaryDirectory(prefix=".export-", dir=pipeline.home) as scratch:
        document = write_export(pipeline, graph, Path(scratch), with_database=with_database)
        folder = Path(document["folder"])
        upload(folder, address, last=LINEAGE, current=CURRENT)
    return {**document, "folder": f"{address}/{folder.name}", "current": f"{address}/{CURRENT}"}


def tables(graph: Artifact) -> list[str]:
    """Return the tables that a graph has."""
    return [name for name in DICTIONARY if name == "triples" or (graph.folder / f"{name}.parquet").is_file()]


def write_table(graph: Artifact, name: str, out: Path) -> int:
    """Write a table as one sorted Parquet file that says what its columns are; return its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kgqa_core.graph.build import ROW_GROUP_ROWS
    from kgqa_core.graph.input_files import rebatch

    about, columns = DICTIONARY[name]
    parts = sorted(graph.folder.glob(f"{name}-*.parquet")) or [graph.folder / f"{name}.parquet"]
    plain = pq.read_schema(parts[0])
    fields = [field.with_metadata({"description": columns[field.name]}) for field in plain]
    # Programs that do not read Arrow's own schema find the same words as the file's metadata.
    schema = pa.schema(fields, {"description": about, **{f"description.{key}": text for key, text in columns.items()}})
    by = {"entities": 1, "relations": 1, "triples": 3}.get(name, 2)
    order = [pq.SortingColumn(place) for place in range(by)]
    rows = (batch for part in parts for batch in pq.ParquetFile(part).iter_batches(ROW_GROUP_ROWS))
    total = 0
    with pq.ParquetWriter(out / f"{name}.parquet", schema, compression="zstd", sorting_columns=order) as writer:
        for table in rebatch(pa.RecordBatchReader.from_batches(plain, rows), ROW_GROUP_ROWS):
            writer.write_table(table.cast(schema))
            total += table.num_rows
    return total


def write_database(names: list[str], folder: Path) -> None:
    """Write the tables to one DuckDB file, with the view ``facts`` of labels and names, and comments on columns."""
    import duckdb

    from kgqa_core.graph.build import signals_heeded

    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    with signals_heeded(), duckdb.connect(str(folder / DATABASE)) as connection:
        for name in names:
            about, columns = DICTIONARY[name]
            connection.execute(
                f"create table {name} as from read_parquet({quoted(glob.escape(f'{folder / name}.parquet'))})"
            )
            connection.execute(f"comment on table {name} is {quoted(about)}")
            for column, text in columns.items():
                connection.execute(f"comment on column {name}.{column} is {quoted(text)}")
        connection.execute(FACTS)


def lineage(pipeline: Pipeline, graph: Artifact) -> dict[str, Any]:
    """Return where a graph comes from: files with their hashes, the stages and their settings, the code."""
    from kgqa_core.run.inputs import origin_of
    from tasks.tracking import git_commit

    sources: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []

    def follow(key: str, artifact: Artifact) -> None:
        recipe = artifact.recipe
        stages.append(
            {
                "stage": key,
                "version": recipe.version,
                "fingerprint": artifact.fingerprint,
                "content": artifact.content,
                "settings": recipe.config,
            }
        )
        for name, digest in recipe.inputs.items():
            path = (pipeline.specs[key].files if key in pipeline.specs else {}).get(name)
            if path is None and (made := found_with(pipeline, name, digest)):
                follow(name, made)
            else:
                origin = origin_of(path, pipeline.home) if path else {}
                sources.append({"name": name, "sha256": digest, **_file(path), **origin})

    follow("graph", graph)
    return {
        "run": pipeline.config.name,
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "kgqa": version("kgqa"),
        "git_commit": git_commit(Path(__file__).parent),
        "sources": sources,
        "stages": stages,
    }


def found_with(pipeline: Pipeline, key: str, content: str) -> Artifact | None:
    """Return the artifact of a stage that has this content."""
    found = pipeline.find(key) if key in pipeline.specs else None
    return found if found and found.content == content else pipeline.store.find_content(key.partition("-")[0], content)


def _file(path: Path | None) -> Mapping[str, Any]:
    """Return name, size and date of a source that is still there; its hash tells whether it is still the same."""
    if path is None or not path.is_file():
        return {}
    status = path.stat()
    changed = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
    return {"file": path.name, "bytes": status.st_size, "changed": changed}
