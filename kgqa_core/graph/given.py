"""Question files whose lines bring reasoning paths: what another system retrieved, to be answered by this one's model.

    {"id": "q1", "question": "…", "answers": ["London"], "paths": [["Ada", "born_in", "London"], "Ada -> of -> X"]}

``answers`` may be called ``ground_truth``. Paths may stand in a prompt instead, as the prediction files of RoG and
GNN-RAG have them: field ``input``, one path per line from "Reasoning Paths:" to "Question:". ``scores`` may hold a
number per path, and ``prediction`` what somebody answered to it: a list of names, or a text with a name per line. Names
are labels, so entities of one name are one. The triples of the paths are the question's subgraph, their starts its
topics. Other keys are ignored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from kgqa_core.graph import nsm
from kgqa_core.graph.formats import TRIPLE_COLUMNS, Chunk, GraphFormat
from kgqa_core.graph.input_files import require_file

NO_PATHS = "neither field paths nor paths in field input"
BAD_ANSWERS = "fields answers and ground_truth: not lists of names"
BAD_SCORES = "field scores: not a number for each path"
BAD_PREDICTION = "field prediction: neither a text nor a list of names"

ARROW = " -> "
_PROMPT = re.compile(r"Reasoning Paths:[ \t]*\n(.*?)(?:^\s*Question:|\Z)", re.DOTALL | re.MULTILINE)
_FREEBASE = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+){2,}")  # domain.type.property; few entities are called like that


def parse_given(record: Any) -> nsm.QuestionLine | str:
    """Return what a line holds, or why it cannot be used; a path that cannot be read stays in the subgraph as it is."""
    asked = nsm.read_asked(record)
    if isinstance(asked, str):
        return asked
    given = record.get("paths")
    if given is None and isinstance(record.get("input"), str) and (shown := _PROMPT.search(record["input"])):
        given = [line for line in shown[1].split("\n") if line.strip()]
    if not isinstance(given, list):
        return NO_PATHS
    answers = nsm.distinct_names(record.get("answers", record.get("ground_truth")))
    if answers is None:
        return BAD_ANSWERS
    said = record.get("prediction", [])
    said = nsm.distinct_names([line.strip() for line in said.split("\n")] if isinstance(said, str) else said)
    if said is None:
        return BAD_PREDICTION
    scores = record.get("scores", [1.0] * len(given))
    if not isinstance(scores, list) or len(scores) != len(given) or not all(map(_is_number, scores)):
        return BAD_SCORES
    triples: list[Any] = []
    paths: dict[nsm.LabelledPath, float] = {}  # of equal ones the first counts
    for one, score in zip(given, scores, strict=True):
        path = read_path(one)
        triples += [list(path[at : at + 3]) for at in range(0, len(path) - 1, 2)] if path else [one]
        if path:
            paths.setdefault(path, float(score))
    topics = tuple(dict.fromkeys(path[0] for path in paths))
    return nsm.QuestionLine(*asked, topics, answers, {}, triples, tuple(paths.items()), said)


def _is_number(value: Any) -> bool:
    """Is it a number that a float holds? Neither NaN nor infinity are."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_path(value: Any) -> nsm.LabelledPath | None:
    """Return names and relations in turns, a name first and last; None where ``value`` is no path.

    In a text, an arrow may be part of a name. Where names and relations of Freebase do not stand in turns, the
    relations tell where names end.
    """
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(ARROW)]
        places, found = list(range(1, len(parts), 2)), [n for n, part in enumerate(parts) if _FREEBASE.fullmatch(part)]
        if found and not {*places} <= {*found}:
            places = found
        names = [ARROW.join(parts[first + 1 : last]) for first, last in pairwise([-1, *places, len(parts)])]
        value = [name for pair in zip(names, [*(parts[place] for place in places), ""], strict=True) for name in pair]
        value = value[:-1]
    is_path = isinstance(value, list) and len(value) % 2 == 1 and len(value) > 1
    return tuple(value) if is_path and all(isinstance(one, str) and one.strip() for one in value) else None


def read_given(files: Mapping[Path, str]) -> dict[str, nsm.QuestionLine]:
    """Return what each question of some files was given, by its id; of two lines with one id the first counts.

    ``files``: each with what the ids of its lines without one begin with. Raises InputError where a file is missing.
    Lines that cannot be used are among the rejects of graph and questions.
    """
    found: dict[str, nsm.QuestionLine] = {}
    for path, stem in files.items():
        require_file(path, what="file of paths")
        whole = Chunk(path=path, format="paths", columns=TRIPLE_COLUMNS, start=0, end=path.stat().st_size, part=path)
        for number, line in nsm.read_chunk(whole)[0]:
            found.setdefault(line.id or f"{stem}-{number}", line)
    return found


LINE = '{"question": "…", "answers": ["London"], "paths": [["Ada", "born_in", "London"]]}'
FORMAT = GraphFormat(LINE, nsm.parse_chunk, nsm.cut_rows, parser_of=lambda path: parse_given)
