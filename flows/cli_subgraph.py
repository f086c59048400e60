"""``kgqa subgraph``: one neighbourhood of a built graph, printed or exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli_output import print_table, show_cell
from flows.cli_session import Conf, Settings, open_run, working
from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ConfigError, InputError, LinkError, counted, nearest, shorten

if TYPE_CHECKING:
    from flows.neighbourhood import Neighbourhood
    from kgqa_core.run.pipeline import Pipeline

NUM_ROWS = 50  # of a table, unless --limit says otherwise
Format = Literal["table", "tsv", "jsonl", "parquet"]


def subgraph(
    conf: Conf,
    question: Annotated[str | None, typer.Option(metavar="ID", help="Id of a question: around its topics.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name or label of an entity; all that share a name.")
    ] = None,
    hops: Annotated[
        int | None, typer.Option(min=0, max=9, metavar="K", help="Steps from the topics. Default: as the run, or 2.")
    ] = None,
    cap: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Triples per entity, relation and direction; as the run, or 200."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to write it; parquet needs --out.")] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"At most N triples; a table has {NUM_ROWS} by default.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Print or export the triples around a question's topics, or around an entity, nearest first.

    Where every question of the run has a subgraph of its own, --question shows that, unless --hops or --cap is given.

    \b
    Examples:
      kgqa subgraph conf/demo.yaml --topic "The Drowned Harbour" --hops 1
      kgqa subgraph conf/webqsp-nsm.yaml --question WebQTest-0 --format tsv > triples.tsv
      kgqa subgraph conf/freebase-webqsp.yaml --topic m.0d3k14 --format parquet --out neighbourhood.parquet
    """
    if (question is None) == (topic is None):
        raise ConfigError("give either --question ID or --topic NAME")
    if format == "parquet" and (out is None or limit is not None):
        raise ConfigError("--format parquet writes a file of all triples: give --out FILE, and no --limit")
    pipeline = open_run(conf, settings)
    with working("walking"):
        found = find_neighbourhood(pipeline, question, topic, hops, cap)
    write_out(found, format, out, limit)


def find_neighbourhood(
    pipeline: Pipeline, question: str | None, topic: str | None, hops: int | None, cap: int | None
) -> Neighbourhood:
    """Return a question's own subgraph, or what a walk from its topics, or from an entity, comes to."""
    from flows.neighbourhood import of_question, walk_from
    from kgqa_core.config_base import FileDataset, SubgraphSection
    from kgqa_core.graph.subgraph_cut import open_expander
    from kgqa_core.questions.link import require_ids
    from kgqa_core.run.open import graph_of, subgraphs_of

    graph = graph_of(pipeline)
    topics: Sequence[int] = require_ids(topic, graph) if topic is not None else ()
    if question is not None:
        topics = topics_of(pipeline, question)
        if hops is None and cap is None and (subgraphs := subgraphs_of(pipeline)):
            return of_question(subgraphs, graph, question, topics)
    dataset = pipeline.config.dataset
    cut = dataset.subgraphs if isinstance(dataset, FileDataset) else SubgraphSection()
    given = {"hops": hops, "group_cap": cap}
    cut = cut.model_copy(update={name: value for name, value in given.items() if value is not None})
    return walk_from(open_expander(graph, cut), graph, topics)


def topics_of(pipeline: Pipeline, question_id: str) -> list[int]:
    """Return the topics of a linked question; LinkError, with the nearest ids, where there is none of that id."""
    import pyarrow.parquet as pq

    table = pq.read_table(pipeline.artifact("questions").folder / "questions.parquet", columns=["id", "topics"])
    ids = table["id"].to_pylist()
    if question_id not in ids:
        near = nearest(question_id, ids, 3, cutoff=0.5)  # ids are short
        hint = f" The nearest ids: {', '.join(map(repr, near))}." if near else f" Ids look like {ids[0]!r}."
        raise LinkError(f"there is no question {shorten(question_id)} in this run.{hint}", near)
    return list(table["topics"][ids.index(question_id)].as_py())


def write_out(found: Neighbourhood, format: Format, out: Path | None, limit: int | None) -> None:
    """Write a neighbourhood to standard output or to a file."""
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.absolute().parent}")
    if format == "parquet" and out is not None:
        from flows.neighbourhood import write_neighbourhood

        with written_whole(out) as partial:
            write_neighbourhood(found, partial)
    elif format == "table" and out is None:
        print_neighbourhood(found, limit or NUM_ROWS)
    else:
        lines = lines_of(found, "tsv" if format == "table" else format, limit)
        if out is None:
            sys.stdout.writelines(lines)
        else:
            with written_whole(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(lines)
    if out is not None:
        typer.echo(f"{counted(len(found) if limit is None else min(limit, len(found)), 'triple')} in {out}", err=True)


def lines_of(found: Neighbourhood, format: str, limit: int | None) -> Iterable[str]:
    """Yield the lines of a TSV file with a header, or JSON lines; a TSV has no line breaks or tabs in its values."""
    from kgqa_core.schemas import NEIGHBOURHOOD

    if format == "tsv":
        yield "\t".join(NEIGHBOURHOOD.names) + "\n"
    for row in found.rows(limit):
        if format == "tsv":
            yield "\t".join(" ".join(value.split()) for value in row) + "\n"
        else:
            yield json.dumps(dict(zip(NEIGHBOURHOOD.names, row, strict=True)), ensure_ascii=False) + "\n"


def shown(label: str, name: str) -> str:
    """Return name and label of an entity; that of one without a name says so."""
    from kgqa_core.questions.coverage import NAMELESS

    if NAMELESS.fullmatch(name) and name.startswith(label):
        return name if name != label else f"{label} (no name)"
    return label if name == label else f"{name} ({label})"


def print_neighbourhood(found: Neighbourhood, limit: int) -> None:
    """Print the first triples as a table, and what there is beside them."""
    graph = found.graph
    topics = ", ".join(shown(graph.label_of(topic), graph.name_of(topic)) for topic in found.topics)
    title = f"{counted(len(found), 'triple')} of {counted(found.num_entities, 'entity')} around {topics or 'no topic'}"
    rows = [(show_cell(shown(*row[:2])), row[2], show_cell(shown(*row[3:]))) for row in found.rows(limit)]
    print_table(title, ("head", "relation", "tail"), rows)
    if len(found) > limit:
        typer.echo(f"… and {len(found) - limit:,} more: --limit N, or all of them with --format tsv, jsonl or parquet")
    if found.num_capped:
        typer.echo(f"{found.num_capped:,} groups have more triples than are walked: --cap N walks more")
    if found.stopped:
        typer.echo("The limit of triples (dataset.subgraphs.max_triples) ended the walk.")
