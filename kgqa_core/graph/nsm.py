"""NSM and GraftNet files: one question per line, as JSON, with the subgraph that was retrieved for it.

    {"id": "WebQTrn-9", "question": "...", "entities": ["m.0c9c0"], "answers": [{"kb_id": "1971-10-13", "text": null}],
     "subgraph": {"tuples": [["m.0j_y2l6", "people.sibling_relationship.sibling", "m.0c9c0"], ...], "entities": [...]}}

An entity or relation is a label, or an object whose ``kb_id`` (``rel_id`` of a relation; else ``text``) is the label. A
topic may also be a number: its place in ``subgraph.entities``. Where ``entities.txt`` and ``relations.txt`` lie beside
the file, as published sets have them, every number is instead a line of these (from 0). Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import TypeAdapter

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError
from kgqa_core.graph.formats import (
    EMPTY_FIELD,
    NAME_COLUMNS,
    NOT_AN_OBJECT,
    NOT_JSON,
    NOT_UTF8,
    TRIPLE_COLUMNS,
    TRUNCATED,
    WRONG_FIELDS,
    Chunk,
    ChunkReport,
    GraphFormat,
    RawReject,
    line_cuts,
    listed_part,
    read_slice,
    split_lines,
    texts_table,
    write_rows,
)

NO_QUESTION = "no question text"
NO_SUBGRAPH = "no subgraph with tuples"
BAD_TOPIC = "field entities: neither labels nor places in subgraph.entities"
BAD_ANSWER = "field answers: not a list of labels"
NUMBERED = "tuple of numbers, not of labels"
VOCABULARY_FILES = ("entities.txt", "relations.txt")

JSON = TypeAdapter[Any](Any)  # unlike the standard library's, it refuses text that is no Unicode

LabelledTriple = tuple[str, str, str]  # head, relation, tail


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the numbers of a file stand for."""

    entities: list[str]
    relations: list[str]

    def spell(self, record: dict[str, Any]) -> None:
        """Write labels for the numbers of a line; a number that stands for nothing stays, and is rejected later."""
        entities, relations = self.entities, self.relations
        for holder in (record, record.get("subgraph")):
            if isinstance(holder, dict) and isinstance(holder.get("entities"), list):
                holder["entities"] = [_look_up(value, entities) for value in holder["entities"]]
        subgraph = record.get("subgraph")
        if isinstance(subgraph, dict) and isinstance(subgraph.get("tuples"), list):
            subgraph["tuples"] = [
                [_look_up(value[0], entities), _look_up(value[1], relations), _look_up(value[2], entities)]
                if isinstance(value, list) and len(value) == 3
                else value
                for value in subgraph["tuples"]
            ]


def _look_up(value: object, labels: list[str]) -> object:
    return labels[value] if type(value) is int and 0 <= value < len(labels) else value


def vocabulary_files(path: Path) -> list[Path]:
    """Return entities.txt and relations.txt beside a file, empty where not both are there."""
    files = [path.parent / name for name in VOCABULARY_FILES]
    return files if all(file.is_file() for file in files) else []


def vocabulary_of(path: Path) -> Vocabulary | None:
    """Return what the numbers of a file stand for, None where nothing beside it says so."""
    files = vocabulary_files(path)
    return _read_vocabulary(*((file, file.stat().st_mtime_ns) for file in files)) if files else None


@lru_cache(maxsize=2)
def _read_vocabulary(entities: tuple[Path, int], relations: tuple[Path, int]) -> Vocabulary:
    def lines(path: Path) -> list[str]:
        return [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").split("\n")]

    return Vocabulary(lines(entities[0]), lines(relations[0]))


@dataclass(frozen=True, slots=True)
class NsmLine:
    """One usable line."""

    id: str | None  # as given
    question: str
    topics: tuple[str, ...]  # labels; empty where nothing was linked
    answers: tuple[str, ...]  # labels; empty where none is known
    names: dict[str, str]  # label -> the text that the file gives for it
    subgraph: list[Any]  # tuples as they stand in the file: see read_tuples


def parse_line(line: str, vocabulary: Vocabulary | None = None) -> NsmLine | str:
    """Return what a line says, or why it cannot be used. ``vocabulary``: what numbers stand for.

    The graph, the subgraphs and the questions are read by this one function, so all three use the same lines.
    """
    try:
        record = JSON.validate_json(line)
    except ValueError:
        return NOT_JSON
    if not isinstance(record, dict):
        return NOT_AN_OBJECT
    if vocabulary:
        vocabulary.spell(record)
    text, subgraph, given_id = record.get("question"), record.get("subgraph"), record.get("id")
    if not isinstance(text, str) or not text.strip():
        return NO_QUESTION
    if not isinstance(subgraph, dict) or not isinstance(subgraph.get("tuples"), list):
        return NO_SUBGRAPH
    listed = subgraph.get("entities")
    places = listed if isinstance(listed, list) else []
    given_topics = [_at_place(topic, places) for topic in _as_list(record.get("entities"))]
    topics = _labels(given_topics)
    answers = _labels(record.get("answers"))
    if topics is None:
        return BAD_TOPIC
    if answers is None:
        return BAD_ANSWER
    return NsmLine(
        id=str(given_id) if isinstance(given_id, str | int) and str(given_id).strip() else None,
        question=text,
        topics=topics,
        answers=answers,
        names=_names([*places, *given_topics, *record["answers"]]),
        subgraph=subgraph["tuples"],
    )


def default_id(path: Path, number: int) -> str:
    """Return the id of a line that gives none, by its file and line number: ``train-17``."""
    return f"{path.stem}-{number}"


def read_label(value: object) -> str | None:
    """Return the label of an entity or relation, None where there is none (numbers included)."""
    if isinstance(value, dict):
        given = (value.get(key) for key in ("kb_id", "rel_id", "text"))
        return next((label for label in given if isinstance(label, str) and label.strip()), None)
    return value if isinstance(value, str) and value.strip() else None


def read_tuples(values: Sequence[Any]) -> tuple[list[LabelledTriple], list[tuple[str, str]]]:
    """Return the triples of a line's subgraph, and (reason, text) of each that is none."""
    triples: list[LabelledTriple] = []
    faults: list[tuple[str, str]] = []
    for value in values:
        triple = _read_tuple(value)
        if isinstance(triple, str):
            faults.append((triple, json.dumps(value, ensure_ascii=False)))
        else:
            triples.append(triple)
    return triples, faults


def _read_tuple(value: object) -> LabelledTriple | str:
    if not isinstance(value, list) or len(value) != 3:
        return WRONG_FIELDS
    head, relation, tail = map(read_label, value)
    if head and relation and tail:
        return head, relation, tail
    return NUMBERED if any(isinstance(part, int) for part in value) else EMPTY_FIELD


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [None]  # None: not a label, so the line is rejected


def _at_place(topic: object, places: list[Any]) -> object:
    """Return the entity that a number stands for, anything else as it is."""
    if not isinstance(topic, int) or isinstance(topic, bool):
        return topic
    return places[topic] if 0 <= topic < len(places) else None


def _labels(values: object) -> tuple[str, ...] | None:
    if not isinstance(values, list):
        return None
    labels = [read_label(value) for value in values]
    return tuple(label for label in labels if label is not None) if None not in labels else None


def _names(values: Sequence[object]) -> dict[str, str]:
    """Return label -> text of the objects that have both; of two texts for one label the first counts."""
    names: dict[str, str] = {}
    for value in values:
        label, text = read_label(value), value.get("text") if isinstance(value, dict) else None
        if label is not None and isinstance(text, str) and text.strip() and text != label:
            names.setdefault(label, text)
    return names


ReadChunk = Callable[[Chunk], tuple[list[tuple[int, NsmLine]], int, int, list[RawReject]]]
"""Returns (line number inside the chunk, what it says) of the usable lines, the number of all lines, of blank ones, and
the rejected ones."""


def read_nsm_chunk(
    chunk: Chunk, *, parse: Callable[[str], NsmLine | str] | None = None
) -> tuple[list[tuple[int, NsmLine]], int, int, list[RawReject]]:
    """Read a chunk of JSON lines: see ``ReadChunk``.

    ``parse`` says what is in a line, or why it cannot be used; by default ``parse_line`` with the file's vocabulary.
    """
    lines, complete = split_lines(read_slice(chunk.path, chunk.start, chunk.end))
    parse = parse or partial(parse_line, vocabulary=vocabulary_of(chunk.path))
    usable: list[tuple[int, NsmLine]] = []
    rejects: list[RawReject] = []
    num_blank = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, bytes):
            rejects.append((number, NOT_UTF8, line.decode("utf-8", errors="replace")))
        elif not line.strip():
            num_blank += 1
        elif isinstance(parsed := parse(line), NsmLine):
            usable.append((number, parsed))
        else:
            cut_off = parsed == NOT_JSON and number == len(lines) and not complete
            rejects.append((number, TRUNCATED if cut_off else parsed, line))
    return usable, len(lines), num_blank, rejects


def parse_nsm_chunk(chunk: Chunk, *, read: ReadChunk = read_nsm_chunk) -> ChunkReport:
    """Write a chunk's triples and rejects, and to ``listed_part`` its topics, answers and names."""
    usable, num_lines, num_blank, rejects = read(chunk)
    rows: list[tuple[object, ...]] = []
    listed: set[str] = set()
    names: set[tuple[str, str]] = set()
    for number, line in usable:
        found, faults = read_tuples(line.subgraph)
        rows += [(*triple, chunk.start + number) for triple in found]
        rejects += [(number, reason, text) for reason, text in faults]
        listed.update(line.topics, line.answers)
        names.update(line.names.items())
    with written_whole(listed_part(chunk.part)) as part:
        beside = [*((label, None) for label in sorted(listed)), *sorted(names)]
        pq.write_table(texts_table(beside, NAME_COLUMNS), part, compression="zstd")
    table = texts_table(rows, (*TRIPLE_COLUMNS, "position"))
    return write_rows(chunk, table, sorted(rejects), num_lines=num_lines, num_blank=num_blank)


def cut_lines(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a question file at line ends; InputError where it is a gzip."""
    if path.suffix == ".gz":
        raise InputError(f"{path}: question files are not read from a gzip. Unpack it: gunzip --keep {path.name}")
    return line_cuts(path, columns, chunk_bytes)


FORMAT = GraphFormat(
    '{"question": "…", "entities": ["m.1"], "answers": [], "subgraph": {"tuples": [["m.1", "r", "m.2"]]}}',
    parse_nsm_chunk,
    cut_lines,
    read=read_nsm_chunk,
)
