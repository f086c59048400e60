"""The coded parts that parsing a made-up dump gives, without the text: for what comes after the parser."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.freebase import facts
from benchmarks.freebase.names import Phrases
from benchmarks.freebase.vocabulary import Ints, Literals
from benchmarks.freebase.world import World
from kgqa_core import schemas
from kgqa_core.graph.dump.codes import codes_of

PART_ROWS = 8 << 20  # of triples; the other kinds of parts are cut with them
GROUP_ROWS = 1 << 20
NAME, ALIAS, TYPE = "type.object.name", "common.topic.alias", "type.object.type"
NAMED, ALIASED, FOREIGN = 0, 1, 2  # DUMP_NAMES.kind


def write_coded_parts(folder: Path, num_triples: int, seed: int = 0, *, part_rows: int = PART_ROWS) -> dict[str, int]:
    """Write the parts (schemas.DUMP_*) of a Freebase of about ``num_triples`` triples.

    Returns the report that is also written as dump.json. Memory is flat; a triple takes about 0.2 CPU µs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = World(num_triples, seed)
    literals, phrases = Literals(world.num_literals, seed), Phrases(seed)
    literal_codes, type_codes = codes_of(pa.array(literals.labels)), codes_of(pa.array(world.schema.types))
    lines = np.zeros(len(world.schema.relations) + 3, np.int64)
    parts = _Parts(folder, part_rows)
    with parts:
        texts = _Texts(literals.labels, literal_codes, world.schema.types, type_codes)
        for block in facts.blocks(world):
            codes = world.mid_codes(np.arange(block.start, block.stop))
            triples = facts.draw_triples(world, block)
            literal = triples.tail < 0
            tails = np.empty_like(triples.tail)
            tails[~literal] = world.mid_codes(triples.tail[~literal])
            tails[literal] = literal_codes[-1 - triples.tail[literal]]
            texts.see(-1 - triples.tail[literal])
            lines[:-3] += np.bincount(triples.relation, minlength=len(lines) - 3)
            parts.write("triples", [codes[triples.place], triples.relation.astype(np.int32), tails])
            place, types = facts.draw_types(world, block)
            texts.see(len(literals.labels) + types)
            parts.write("types", [codes[place], type_codes[types]])
            names = facts.draw_names(world, block)
            parts.write("names", _name_rows(names, codes, phrases))
            lines[-3:] += len(names.place) - names.is_alias.sum(), names.is_alias.sum(), len(place)
            if parts.full:
                texts.flush(parts)
        texts.flush(parts)
    _write_relations(folder / "relations.parquet", world.schema.relations, lines)
    pq.write_table(schemas.REJECTS.empty_table(), folder / "rejects.parquet")
    report = {"lines": int(lines.sum()), "kept": int(lines[:-3].sum()), **_counts(lines), "nodes": world.num_nodes}
    (folder / "dump.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


class _Parts:
    """Numbered Parquet files of several kinds, all closed when one of triples is full."""

    def __init__(self, folder: Path, part_rows: int) -> None:
        self._folder, self._part_rows = folder, part_rows
        self._number = 0
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._rows = 0

    @property
    def full(self) -> bool:
        return self._rows >= self._part_rows

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def write(self, kind: str, columns: list[object]) -> None:
        schema = getattr(schemas, f"DUMP_{kind.upper()}")
        batch = pa.record_batch([pa.array(column) for column in columns], schema=schema)
        held = self._held.setdefault(kind, [])
        held.append(batch)
        if kind == "triples":
            self._rows += batch.num_rows
        if sum(one.num_rows for one in held) >= GROUP_ROWS:
            self._flush(kind)

    def close(self) -> None:
        """End this part; what follows goes to the next."""
        for kind in self._held:
            self._flush(kind)
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._number += 1
        self._rows = 0

    def _flush(self, kind: str) -> None:
        held = self._held[kind]
        if not held:
            return
        if kind not in self._writers:
            path = self._folder / f"{kind}-{self._number:05d}.parquet"
            schema = held[0].schema
            # Codes hardly repeat within a page: a dictionary of them would only cost time.
            repeats = [name for name in ("relation", "kind", "type") if name in schema.names]
            self._writers[kind] = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=repeats)
        self._writers[kind].write_table(pa.Table.from_batches(held).combine_chunks(), row_group_size=GROUP_ROWS)
        held.clear()


class _Texts:
    """Which labels that are no MID occurred in a part."""

    def __init__(self, literals: list[str], literal_codes: Ints, types: list[str], type_codes: Ints) -> None:
        self._labels = pa.array(literals + types)
        self._codes = np.concatenate([literal_codes, type_codes])
        self._seen = np.zeros(len(self._codes), np.bool_)

    def see(self, rows: Ints) -> None:
        self._seen[rows] = True

    def flush(self, parts: _Parts) -> None:
        """Write each once, by its code, and end the part."""
        rows = np.flatnonzero(self._seen)
        codes, first = np.unique(self._codes[rows], return_index=True)
        if len(codes):
            parts.write("texts", [codes, self._labels.take(pa.array(rows[first]))])
        parts.close()
        self._seen[:] = False


def _name_rows(names: facts.Names, codes: Ints, phrases: Phrases) -> list[object]:
    """Return the columns of DUMP_NAMES: English names and aliases, and one row for each node named otherwise only."""
    english = names.language == 0
    has_english = np.zeros(len(codes), np.bool_)
    has_english[names.place[english]] = True
    first = np.concatenate([[True], names.place[1:] != names.place[:-1]]) if len(names.place) else english
    rows = np.flatnonzero(english | (first & ~has_english[names.place]))
    kind = np.where(english[rows], np.where(names.is_alias[rows], ALIASED, NAMED), FOREIGN).astype(np.int8)
    text = phrases.labels(names.language[rows], names.words[rows], ~english[rows])
    return [codes[names.place[rows]], kind, text]


def _counts(lines: Ints) -> dict[str, int]:
    return dict(zip(("names", "aliases", "types"), lines[-3:].tolist(), strict=True))


def _write_relations(path: Path, labels: list[str], lines: Ints) -> None:
    use = ["triple"] * len(labels) + ["name", "alias", "type"]
    columns = [np.arange(len(lines), dtype=np.int32), [*labels, NAME, ALIAS, TYPE], use, lines]
    pq.write_table(pa.table([pa.array(column) for column in columns], schema=schemas.DUMP_RELATIONS), path)
