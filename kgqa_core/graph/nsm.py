"""Question files whose lines bring a subgraph each: those of NSM and GraftNet, and those of RoG.

NSM: one question per line, as JSON, with the subgraph that was retrieved for it.

    {"id": "WebQTrn-9", "question": "...", "entities": ["m.0c9c0"], "answers": [{"kb_id": "1971-10-13", "text": null}],
     "subgraph": {"tuples": [["m.0j_y2l6", "people.sibling_relationship.sibling", "m.0c9c0"], ...], "entities": [...]}}

An entity or relation is a label, or an object whose ``kb_id`` (``rel_id`` of a relation; else ``text``) is the label. A
topic may also be a number: its place in ``subgraph.entities``. Where ``entities.txt`` and ``relations.txt`` lie beside
the file, as published sets have them, every number is instead a line of these (from 0). Other keys are ignored.

RoG (Luo et al. 2024), the form in which WebQSP and CWQ are on the model hubs: Parquet rows or JSON lines.

    {"id": "WebQTrn-9", "question": "…", "answer": ["London"], "q_entity": ["Ada Lovelace"], "a_entity": ["London"],
     "graph": [["Ada Lovelace", "people.person.place_of_birth", "London"], …]}

Names are the labels here, so entities of one name are one. Answers are ``a_entity``, where that is empty ``answer``.
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
from kgqa_core.graph import formats
from kgqa_core.graph.formats import Chunk, ChunkReport, GraphFormat, RawReject, ReadRows
from kgqa_core.graph.input_files import read_text, texts_table

NO_QUESTION = "no question text"
NO_SUBGRAPH = "no subgraph with tuples"
BAD_TOPIC = "field entities: neither labels nor places in subgraph.entities"
BAD_ANSWER = "field answers: not a list of labels"
NUMBERED = "tuple of numbers, not of labels"
NO_ROG_GRAPH = "field graph: not a list of triples"
BAD_ROG_TOPIC = "field q_entity: not a list of names"
BAD_ROG_ANSWER = "fields a_entity and answer: not lists of names"

VOCABULARY_FILES = ("entities.txt", "relations.txt")
ROG_NEEDED = ("question", "q_entity", "graph")  # of a Parquet file
ROG_COLUMNS = ("id", "question", "answer", "q_entity", "a_entity", "graph")
ROWS_AT_ONCE = 64
JSON = TypeAdapter[Any](Any)  # unlike the standard library's, it refuses text that is no Unicode

LabelledTriple = tuple[str, str, str]  # head, relation, tail
LabelledPath = tuple[str, ...]  # names and relations in turns, a name first and last
Vocabulary = tuple[Sequence[str], Sequence[str]]  # entities and relations that the numbers of a file stand for


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """One usable line or row."""

    id: str | None  # as given
    question: str
    topics: tuple[str, ...]  # labels; empty where nothing was linked
    answers: tuple[str, ...]  # labels; empty where none is known
    names: dict[str, str]  # label -> the text that the file gives for it
    subgraph: list[Any]  # tuples as they stand in the file: see read_tuples
    paths: tuple[tuple[LabelledPath, float], ...] = ()  # with scores, in the order of the file: see ``given``
    said: tuple[str, ...] = ()  # names that somebody answered


Parse = Callable[[Any], QuestionLine | str]  # of what a line or row holds: what it says, or why it cannot be used


def parse_line(line: str, parse: Parse) -> QuestionLine | str:
    """Return what a line of JSON says, or why it cannot be used.

    The graph, the subgraphs and the questions are read by the same functions, so all three use the same lines.
    """
    try:
        record = JSON.validate_json(line)
    except ValueError:
        return formats.NOT_JSON
    return parse(record)


def read_asked(record: Any) -> tuple[str | None, str] | str:
    """Return id and text of a question, or why there is none."""
    if not isinstance(record, dict):
        return formats.NOT_AN_OBJECT
    text, given_id = record.get("question"), record.get("id")
    has_id = isinstance(given_id, str | int) and str(given_id).strip()
    return (str(given_id) if has_id else None, text) if isinstance(text, str) and text.strip() else NO_QUESTION


def parse_nsm(record: Any, vocabulary: Vocabulary = ((), ())) -> QuestionLine | str:
    """Return what an NSM line holds; ``vocabulary``: what its numbers stand for."""
    asked, (entities, relations) = read_asked(record), vocabulary
    if isinstance(asked, str):
        return asked
    subgraph, topics, answers = record.get("subgraph"), record.get("entities"), record.get("answers")
    tuples = subgraph.get("tuples") if isinstance(subgraph, dict) else None
    if not isinstance(subgraph, dict) or not isinstance(tuples, list):
        return NO_SUBGRAPH
    if entities:
        kinds = (entities, relations, entities)
        tuples = [list(map(_spell, one, kinds)) if isinstance(one, list) and len(one) == 3 else one for one in tuples]
    listed = subgraph.get("entities")
    places = [_spell(one, entities) for one in listed] if isinstance(listed, list) else []
    named = [_spell(_spell(one, entities), places) for one in topics] if isinstance(topics, list) else [None]
    topic_labels, answer_labels = _labels(named), _labels(answers)
    if topic_labels is None or answer_labels is None:
        return BAD_TOPIC if topic_labels is None else BAD_ANSWER
    return QuestionLine(*asked, topic_labels, answer_labels, _texts([*places, *named, *answers]), tuples)


def _spell(value: Any, labels: Sequence[Any]) -> Any:
    """Return what a number stands for; one that stands for nothing stays, and is rejected later."""
    return labels[value] if type(value) is int and 0 <= value < len(labels) else value


def _labels(values: Any) -> tuple[str, ...] | None:
    labels = [read_label(value) for value in values] if isinstance(values, list) else [None]
    return tuple(label for label in labels if label is not None) if None not in labels else None


def _texts(values: Sequence[Any]) -> dict[str, str]:
    """Return label -> text of the objects that have both; of two texts for one label the first counts."""
    texts: dict[str, str] = {}
    for value in values:
        label, text = read_label(value), value.get("text") if isinstance(value, dict) else None
        if label is not None and isinstance(text, str) and text.strip() and text != label:
            texts.setdefault(label, text)
    return texts


def parse_rog(record: Any) -> QuestionLine | str:
    """Return what a RoG row holds."""
    asked = read_asked(record)
    if isinstance(asked, str):
        return asked
    if not isinstance(record.get("graph"), list):
        return NO_ROG_GRAPH
    topics, linked, given = (distinct_names(record.get(key)) for key in ("q_entity", "a_entity", "answer"))
    if topics is None:
        return BAD_ROG_TOPIC
    if linked is None and given is None:
        return BAD_ROG_ANSWER
    return QuestionLine(*asked, topics, linked or given or (), {}, record["graph"])


def distinct_names(values: Any) -> tuple[str, ...] | None:
    """Return distinct names, a single one as well; None where it is neither a name nor a list of names."""
    listed = [values] if isinstance(values, str) else values
    if not isinstance(listed, list) or not all(isinstance(value, str) for value in listed):
        return None
    return tuple(dict.fromkeys(value for value in listed if value.strip()))


def read_label(value: Any) -> str | None:
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
        is_triple = isinstance(value, list) and len(value) == 3
        head, relation, tail = map(read_label, value) if is_triple else (None, None, None)
        if head and relation and tail:
            triples.append((head, relation, tail))
        else:
            has_number = is_triple and any(isinstance(part, int) for part in value)
            reason = NUMBERED if has_number else formats.EMPTY_FIELD if is_triple else formats.WRONG_FIELDS
            faults.append((reason, json.dumps(value, ensure_ascii=False)))
    return triples, faults


# ------ Files.


def vocabulary_files(path: Path) -> list[Path]:
    """Return entities.txt and relations.txt beside a file, empty where not both are there."""
    files = [path.parent / name for name in VOCABULARY_FILES]
    return files if all(file.is_file() for file in files) else []


@lru_cache(maxsize=2)
def _read_vocabulary(*files: tuple[Path, int]) -> Vocabulary:
    texts = [read_text(path).split("\n") for path, _ in files]
    entities, relations = ([line.strip() for line in lines] for lines in texts or ([], []))
    return entities, relations


def nsm_parser(path: Path) -> Parse:
    """Return how the lines of an NSM file are parsed, whose numbers files beside it may explain."""
    beside = ((file, file.stat().st_mtime_ns) for file in vocabulary_files(path))
    return partial(parse_nsm, vocabulary=_read_vocabulary(*beside))


def read_chunk(chunk: Chunk) -> ReadRows[QuestionLine]:
    """Read a chunk of JSON lines, or of the rows of a Parquet file, which count as lines."""
    parse: Parse = formats.open_format(chunk.format).parser_of(chunk.path)
    if chunk.path.suffix != ".parquet":
        return formats.read_lines(chunk, lambda _, line: parse_line(line, parse), unfinished=formats.NOT_JSON)
    usable: list[tuple[int, QuestionLine]] = []
    rejects: list[RawReject] = []
    for number, row in enumerate(parquet_rows(chunk.path, chunk.start, chunk.end), 1):
        if isinstance(parsed := parse(row), str):
            rejects.append((number, parsed, row_text(row)))
        else:
            usable.append((number, parsed))
    return usable, rejects, chunk.end - chunk.start, 0


def parquet_rows(path: Path, start: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows ``start`` to ``end`` of a Parquet file; InputError where it is none."""
    file = formats.open_parquet(path)
    columns = [name for name in ROG_COLUMNS if name in file.schema_arrow.names]
    stop, at = file.metadata.num_rows if end is None else end, 0
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if at < stop and start < at + size:
            rows, first = file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns), at
            for batch in rows:
                yield from batch.slice(max(start - first, 0), max(stop - max(start, first), 0)).to_pylist()
                first += batch.num_rows
                if first >= stop:
                    return
        at += size


def row_text(row: Any) -> str:
    """Return a row as it is kept among the rejects."""
    return json.dumps(row, ensure_ascii=False, default=str)


def parse_chunk(chunk: Chunk) -> ChunkReport:
    """Write a chunk's triples and rejects, and to ``formats.listed_part`` its topics, answers and names."""
    usable, rejects, num_lines, num_blank = read_chunk(chunk)
    rows: list[tuple[object, ...]] = []
    listed: set[str] = set()
    names: set[tuple[str, str]] = set()
    for number, line in usable:
        found, faults = read_tuples(line.subgraph)
        rows += [(*triple, chunk.start + number) for triple in found]
        rejects += [(number, *fault) for fault in faults]
        listed.update(line.topics, line.answers, line.said)
        names.update(line.names.items())
    with written_whole(formats.listed_part(chunk.part)) as part:
        beside = [*((label, None) for label in sorted(listed)), *sorted(names)]
        pq.write_table(texts_table(beside, formats.NAME_COLUMNS), part, compression="zstd")
    table = texts_table(rows, (*formats.TRIPLE_COLUMNS, "position"))
    return formats.write_rows(chunk, table, sorted(rejects), num_lines=num_lines, num_blank=num_blank)


def cut_rows(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut at line ends, or inside row groups: a row with a subgraph may take 100 kB, a group of them a gigabyte."""
    if path.suffix == ".gz":
        raise InputError(f"{path}: question files are not read from a gzip. Unpack it: gunzip --keep {path.name}")
    if path.suffix != ".parquet":
        yield from formats.line_cuts(path, columns, chunk_bytes)
        return
    metadata = formats.open_parquet(path, ROG_NEEDED).metadata
    start = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        end = start + group.num_rows
        step = max(1, group.num_rows * chunk_bytes // max(group.total_byte_size, 1))
        yield from ((first, min(first + step, end)) for first in range(start, end, step))
        start = end


NSM_LINE = '{"question": "…", "entities": ["m.1"], "answers": [], "subgraph": {"tuples": [["m.1", "r", "m.2"]]}}'
ROG_LINE = '{"question": "…", "q_entity": ["Ada"], "a_entity": ["London"], "graph": [["Ada", "born_in", "London"]]}'
FORMAT = GraphFormat(NSM_LINE, parse_chunk, cut_rows, parser_of=nsm_parser)
ROG = GraphFormat(ROG_LINE, parse_chunk, cut_rows, parser_of=lambda path: parse_rog)
