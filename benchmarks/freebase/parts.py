"""What parsing a made-up dump gives, without the text: for what comes after the parser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.freebase import facts
from benchmarks.freebase.vocabulary import Literals, Phrases
from benchmarks.freebase.world import World
from kgqa_core import schemas
from kgqa_core.graph.dump_rows import KIND_ALIAS, KIND_FOREIGN, KIND_NAME

PART_NODES = 2**18
GROUP_ROWS = 2**19


def write_parts(folder: Path, num_triples: int, seed: int = 0, *, part_nodes: int = PART_NODES) -> int:
    """Write the parts (schemas.DUMP_*) of a Freebase of about ``num_triples`` triples; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(num_triples, seed)
    literals, phrases = pa.array(Literals(world.num_literals, seed).labels), Phrases(seed)
    relations, types = pa.array(world.schema.relations), pa.array(world.schema.types)
    tables: dict[str, list[pa.Table]] = {"triples": [], "types": [], "names": []}
    total = number = 0
    for block in facts.blocks(world):
        mids = world.mids(np.arange(block.start, block.stop))
        triples = facts.draw_triples(world, block)
        literal = triples.tail < 0
        order = pa.array(np.argsort(np.argsort(literal, kind="stable")))
        nodes, values = world.mids(triples.tail[~literal]), literals.take(pa.array(-1 - triples.tail[literal]))
        tails = pa.concat_arrays([nodes, values]).take(order)
        place, of_type = facts.draw_types(world, block)
        names = facts.draw_names(world, block)
        english = names.language == 0
        kinds = np.where(english, np.where(names.is_alias, KIND_ALIAS, KIND_NAME), KIND_FOREIGN).astype(np.int8)
        columns = {
            "triples": [mids.take(pa.array(triples.place)), relations.take(pa.array(triples.relation)), tails],
            "types": [mids.take(pa.array(place)), types.take(pa.array(of_type))],
            "names": [mids.take(pa.array(names.place)), kinds, phrases.labels(names.language, names.words, ~english)],
        }
        for kind, given in columns.items():
            tables[kind].append(pa.table(given, schema=getattr(schemas, f"DUMP_{kind.upper()}")))
        total += len(triples.place)
        if block.stop % part_nodes == 0 or block.stop == world.num_nodes:
            for kind, found in tables.items():
                path = folder / f"{kind}-{number:05d}.parquet"
                pq.write_table(pa.concat_tables(found), path, compression="zstd", row_group_size=GROUP_ROWS)
                found.clear()
            number += 1
    uses, lines = ["triple"] * len(relations), [1] * len(relations)
    pq.write_table(pa.table([relations, uses, lines], schema=schemas.DUMP_RELATIONS), folder / "relations.parquet")
    return total
