"""From the parts of a dump to a graph folder: what the topics' k-hop closure holds, and nothing else.

DuckDB does the joins: passes over the triples find the labels that are reached (``closure_walk.py``). Only then the
labels are numbered in byte order, and one more pass turns their triples into numbered edges, which ``edges.py`` sorts.
So memory holds the labels of the closure, whatever the size of the dump.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError
from kgqa_core.graph import build
from kgqa_core.graph.closure_walk import Closure, Query
from kgqa_core.graph.csr import SHARED_NAMES, write_string_indexes
from kgqa_core.graph.dump_rows import LITERAL
from kgqa_core.graph.edges import Layout, join_buckets, plan_buckets, write_bucket, write_run
from kgqa_core.graph.input_files import rebatch, scratch_folder, write_rejects
from kgqa_core.profiles import MID

DEFAULT_LIMITS = build.BuildLimits()
RUN_ROWS = 2**20  # triples of a run: larger ones leave the cache of a processor
KINDS = ("entity", "cvt", "foreign", "iri", "blank", "literal")  # schemas.ENTITIES
BEST_NAME = "(min({place: if(kind = 0, 2, kind), name: name}) filter (kind <> 1 and name is not null)).name"
NO_NAME = " (no name)"  # shown after the label of a MID that has none
LAST_PART = "regexp_extract(label, '^https?://[^/?#]+/(?:[^?]*[/#])?([^/?#]+)$', 1)"  # of an IRI
WORDS = f"trim(replace(coalesce(try(url_decode({LAST_PART})), {LAST_PART}), '_', ' '))"  # %FF alone is no UTF-8


@dataclass(frozen=True, slots=True)
class ClosureReport:
    """What a closure found. All but the counts per relation is written to closure.json."""

    num_entities: int
    num_relations: int
    num_triples: int  # distinct
    num_duplicates: int  # repeats dropped, within a dump file and across; under a cap, for each end that was left
    num_topics: int  # distinct topics asked for
    num_topics_missing: int  # in no triple of the dumps; listed in topics.parquet
    num_hubs: int  # groups that were capped; listed in hubs.parquet
    num_named: int  # entities with a name in the wanted language
    num_several_names: int  # of those, entities with more than one: the first in byte order is shown
    num_shared_names: int  # names that several entities have
    num_aliases: int  # rows of aliases.parquet
    num_types: int  # rows of types.parquet
    kinds: dict[str, int] = field(default_factory=dict)  # ENTITIES.kind -> entities
    # Per hop, 0 the topics: num_entities first reached by it, num_triples first walked by it, num_passes over the dump
    # (one, and one more for each CVT in a row). None where every triple is kept.
    hops: tuple[dict[str, int], ...] = ()
    triples_per_relation: dict[str, int] = field(default_factory=dict)


def build_from_dump(
    dumps: Sequence[Path],
    topics: Sequence[str],
    out_dir: Path,
    *,
    hops: int | None = 2,
    cvt_is_hop: bool = True,
    hub_cap: int | None = None,
    names_relations: bool = False,
    names_iris: bool = False,
    named: Mapping[str, Sequence[str]] | None = None,
    limits: build.BuildLimits = DEFAULT_LIMITS,
) -> ClosureReport:
    """Write the graph of the closure of ``topics`` (labels) to ``out_dir``, a folder that ``open_graph`` opens.

    Beside the graph there are closure.json, hubs.parquet, topics.parquet, aliases.parquet and types.parquet. ``dumps``
    are folders of parsed dumps (schemas.DUMP_*), one per dump file. ``hops`` are walked from the topics, in both
    directions; None: every triple of the dumps, whatever the topics. Where CVTs (MIDs without a name in any language)
    are no hop, they are left within the hop that reaches them. At most ``hub_cap`` triples of a (head, relation) or
    (relation, tail) group are walked, those whose other end is first in byte order; None: all. ``names_relations``: a
    relation is called as the node that has its label, or else by the words of its IRI. ``names_iris``: an entity
    without a name is called by the last part of its IRI. ``named``: of topics that are names, the labels that bear
    them. These are walked as well, and the name itself may be no node.

    Raises InputError where the dumps hold no triple, or none of the topics; ArtifactError where a folder holds no
    parsed dump.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    with (
        scratch_folder(out_dir / "closure.work") as work,
        build.connect(limits.memory_limit, work, {}) as connection,
    ):
        closure = Closure(dumps, work, connection, limits)
        connection.execute("create macro words_of(label) as " + (WORDS if names_iris else "''"))
        names = named or {}
        asked = {label: label in names for topic in topics for label in (topic, *names.get(topic, ()))}
        passes = closure.reach_all() if hops is None else closure.walk([*asked], hops, cvt_is_hop, hub_cap)
        report = _write_graph(closure, asked, passes, walked=hops is not None, out_dir=out_dir)
        if names_relations:
            _name_relations(closure, out_dir / "relations.parquet")
        return report


def write_runs(task: tuple[Query, Layout]) -> tuple[list[Path], list[int], int]:
    """Write edges of triples, given by a query for their numbered heads, relations and tails, and their hops.

    Returns the runs, which relations occur, and how many triples there are.
    """
    query, layout = task
    runs: list[Path] = []
    used = np.zeros(layout.num_relations, np.bool_)
    num_rows = 0
    with build.connect(*query.limits, query.views) as connection:
        for table in rebatch(connection.sql(query.sql).to_arrow_reader(build.BATCH_ROWS), RUN_ROWS):
            if table["relation"].null_count:
                files = ", ".join(str(path) for path in query.views["part"])
                raise ArtifactError(f"{files}: a relation is not in relations.parquet beside it. Build the dump again")
            columns = [table[name].to_numpy() for name in ("head", "relation", "tail", "hop")]
            used[columns[1]] = True
            runs.append(write_run(columns, layout, Path(f"{query.out}-{len(runs):04d}")))
            num_rows += table.num_rows
    return runs, np.flatnonzero(used).tolist(), num_rows


def _write_graph(
    closure: Closure, topics: Mapping[str, bool], passes: Sequence[int], *, walked: bool, out_dir: Path
) -> ClosureReport:
    """Number the reached labels and write all files of the graph. ``topics``: label -> is it a name of others?"""
    connection = closure.connection
    reached = dict(connection.sql("select level, count(*) from reached group by level").fetchall())
    nodes, num_entities = closure.number()
    layout = Layout(num_entities, len(closure.relations), len(passes) - 1)
    per_hop, per_relation, num_rows = _write_triples(closure, nodes, layout, out_dir)
    names = _write_entities(closure, nodes, out_dir)
    asked = [pa.array(topics.keys(), pa.string()), pa.array(topics.values(), pa.bool_())]
    connection.register("topic", pa.table(asked, names=["label", "is_name"]))
    found_topics = (
        "select label, id as entity_id from topic left join node using (label) where id is not null or not is_name "
        "order by label"
    )
    hubs = (
        "select label, relation, if(backward, 'backward', 'forward') as direction, hop, degree, kept from hub "
        "order by label, relation, backward"
    )
    tables = {
        name: connection.sql(sql).to_arrow_table().cast(schema)
        for name, sql, schema in (("topics", found_topics, schemas.REACHED_TOPICS), ("hubs", hubs, schemas.HUBS))
    }
    for name, table in tables.items():
        pq.write_table(table, out_dir / f"{name}.parquet", compression="zstd")
    write_rejects([], out_dir / "rejects.parquet")
    shared: dict[str, Any] = {
        "num_entities": num_entities,
        "num_relations": len(per_relation),
        "num_triples": sum(per_hop),
        "num_duplicates": closure.num_repeats if closure.kept else num_rows - sum(per_hop),
        "triples_per_relation": per_relation,
    }
    hops = (
        {"hop": hop, "num_entities": reached.get(hop, 0), "num_triples": per_hop[hop], "num_passes": count}
        for hop, count in enumerate(passes)
    )
    report = ClosureReport(
        **shared,
        **names,
        num_topics=tables["topics"].num_rows,
        num_topics_missing=tables["topics"]["entity_id"].null_count,
        num_hubs=tables["hubs"].num_rows,
        hops=tuple(hops) if walked else (),
    )
    shared |= {name: names[name] for name in ("num_named", "num_shared_names", "kinds")}
    build.write_facts(build.GraphReport(**shared, num_rows=num_rows, num_blank=0), out_dir / "graph.json")
    build.write_facts(report, out_dir / "closure.json")
    return report


def _write_triples(
    closure: Closure, nodes: Path, layout: Layout, out_dir: Path
) -> tuple[list[int], dict[str, int], int]:
    """Write triples-NNNN.parquet, relations.parquet and the CSR.

    Returns the distinct triples by the hop that first walks them and by relation, and the rows that they were read of.
    """
    limits = closure.limits
    relations = closure.new_file("relations")
    numbers = pa.array(range(len(closure.relations)), pa.int32())
    pq.write_table(pa.table({"id": numbers, "label": pa.array(closure.relations, pa.string())}), relations)
    hop = "part.hop" if closure.kept else "least(h.leave, t.leave)"
    sql = (
        f"select h.id as head, r.id as relation, t.id as tail, {hop} as hop from part join node h on head = h.label "
        f"join node t on tail = t.label left join relation r on relation = r.label where {hop} <= {layout.max_hop}"
    )
    queries = closure.queries(closure.kept or "triples", sql, node=nodes, relation=relations)
    made = list(limits.map_chunks(write_runs, [(query, layout) for query in queries]))
    runs = [run for found, _, _ in made for run in found]
    used = sorted({relation for _, found, _ in made for relation in found})
    buckets = plan_buckets(runs, used, layout, limits.shard_rows, closure.work)
    per_hop, per_relation = zip(*limits.map_chunks(write_bucket, buckets), strict=True)
    join_buckets(buckets, out_dir)
    labels = [closure.relations[relation] for relation in used]
    counts = np.sum(per_relation, axis=0)
    ids = np.arange(len(used), dtype=np.int32)
    table = pa.table([ids, labels, labels, counts, [None] * len(used)], schema=schemas.RELATIONS)
    pq.write_table(table, out_dir / "relations.parquet", compression="zstd")
    num_rows = sum(num_rows for _, _, num_rows in made)
    return np.sum(per_hop, axis=0).tolist(), dict(zip(labels, counts.tolist(), strict=True)), num_rows


def _write_entities(closure: Closure, nodes: Path, out_dir: Path) -> dict[str, Any]:
    """Write entities.parquet, aliases.parquet, types.parquet and the string indexes; return what was counted."""
    connection = closure.connection
    build.create_view(connection, "node", [nodes])
    closure.each("types", "select id, type from part join node on entity = label", node=nodes)
    types = connection.sql("select id as entity_id, type from found group by all order by all")
    num_types = build.write_ordered(types, schemas.TYPES, out_dir / "types.parquet", use_dictionary=["type"])
    closure.each("names", "select id, kind, name from part join node on entity = label", node=nodes)
    aliases = connection.sql(
        "select id as entity_id, name as alias from found where kind = 1 group by all order by all"
    )
    num_aliases = build.write_ordered(aliases, schemas.ALIASES, out_dir / "aliases.parquet", use_dictionary=[])
    connection.execute(
        f"create temp table named as select id, {BEST_NAME} as name, min(name) filter (kind = 0) as first, "
        "max(name) filter (kind = 0) as last, bool_or(kind <> 2) as here from found group by id"
    )
    described = f"select *, regexp_full_match(label, '{MID}') as is_mid from node left join named using (id)"
    last = r"if(regexp_matches(words_of(label), '\pL'), words_of(label), label)"
    name = f"coalesce(name, if(is_mid, label || '{NO_NAME}', {last}))"
    kind = (
        "case when is_literal then 'literal' when here then 'entity' when not here then 'foreign' "
        "when is_mid then 'cvt' when label[:2] = '_:' then 'blank' else 'iri' end"
    )
    terms = f"unnest(regexp_extract(if(is_literal, label, ''), '{LITERAL}', ['text', 'datatype', 'language']))"
    entities = connection.sql(
        f"select label, if(is_literal, text, {name}) as name, {kind} as kind, nullif(datatype, '') as datatype, "
        f"nullif(language, '') as language from (select *, label[1] = '\"' as is_literal, {terms} from ({described})) "
        "order by id"
    )
    out = out_dir / "entities.parquet"
    build.write_ordered(entities, schemas.ENTITIES, out, numbered=True, use_dictionary=["kind", "datatype", "language"])
    write_string_indexes(out, out_dir)
    build.create_view(connection, "entity", [out])
    kinds = dict(connection.sql("select kind, count(*) from entity group by kind").fetchall())
    return {
        "num_named": closure.count("select count(name) from named"),
        "num_several_names": closure.count("select count(*) from named where first <> last"),
        "num_shared_names": closure.count(SHARED_NAMES),
        "num_aliases": num_aliases,
        "num_types": num_types,
        "kinds": {kind: kinds.get(kind, 0) for kind in KINDS},
    }


def _name_relations(closure: Closure, path: Path) -> None:
    """Call each relation as the node that has its label, or by the words of its IRI; names stay unique."""
    table = pq.read_table(path)
    pq.write_table(table.select(["label"]), wanted := closure.new_file("relations"))
    closure.each("names", "select entity as id, kind, name from part semi join wanted on entity = label", wanted=wanted)
    found = dict(closure.connection.sql(f"select id, {BEST_NAME} from found group by id").fetchall())
    named = build.with_names(table, lambda label: found.get(label) or words_of_iri(label))
    pq.write_table(named, path, compression="zstd")


def words_of_iri(label: str) -> str:
    """Return the words of the last part of an IRI: "birth place" for http://dbpedia.org/ontology/birthPlace."""
    last = re.split(r"[/#]", label.rstrip("/#"))[-1]
    words = re.split(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\s_.:-]+", last)
    return " ".join(word if word.isupper() else word.lower() for word in words if word) or label
