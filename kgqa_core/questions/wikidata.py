"""Questions over Wikidata and DBpedia: SimpleQuestions (Bordes et al. 2015) as mapped to Wikidata by Diefenbach et al.
2017, and the JSON of the QALD challenges, in which LC-QuAD is given, too.

Labels are those of a graph of format ``wikidata``, or whole IRIs. Every question is kept, also where the graph lacks
its topic or its answer: it counts as wrong in every figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic import AliasPath, Field
from pydantic.dataclasses import dataclass

from kgqa_core.questions import formats
from kgqa_core.questions.formats import LOOSE, Fault, Placed, QuestionFile, QuestionFormat, RawQuestion, Text

ITEM = "http://www.wikidata.org/entity/"  # left out of labels
NAMESPACES = {"wd": ITEM, "dbr": "http://dbpedia.org/resource/", "res": "http://dbpedia.org/resource/"}
NO_FACT = "not an item, a property, its value and a question between tabs"
FACT = re.compile(r"(Q\d+)\t([PR])(\d+)\t([^\t]+)\t([^\t]*\S[^\t]*)")
DECLARED = re.compile(r"\bPREFIX\s+([\w-]*):\s*<([^>]+)>", re.IGNORECASE)
CLASS = re.compile(  # what something is an instance of
    r"(?:[:/]P(?:31|279)>?[*+]?|(?<![\w?$:<>/.-])a|\brdf:type)\s+(?:<[^>]*>|[\w-]+:\S+)"
)
TERM = re.compile(  # an IRI, or prefix:name with brackets in pairs or escaped
    r"<([^<>\s]+)>|(?<![\w<:-])([\w-]+):"
    r"((?:[\w.%/:'-]|,(?=_)|\\[^\w\s]|\([^()\s]*\))*(?:\w|\\[^\w\s]|\([^()\s]*\)))"
)


def read_simple_questions(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file of lines ``subject, property, object, question``; R19 is P19 walked backwards."""

    def parse(line: str, number: int) -> RawQuestion | Fault:
        fact = FACT.fullmatch(line)
        if fact is None:
            return Fault(NO_FACT)
        subject, direction, place, end, text = fact.groups()
        relation = f"~P{place}" if direction == "R" else f"P{place}"
        name = f"{file.split or file.path.stem}-{number}"
        return RawQuestion(name, text.strip(), (end,), (subject,), hops=1, chain=(relation,), keep=True)

    return formats.parse_lines(file.path, parse)


# ------ QALD.


@dataclass(frozen=True, config=LOOSE)
class _Answer:
    rows: list[dict[str, dict[str, Any]]] = Field([], validation_alias=AliasPath("results", "bindings"))
    boolean: bool | None = None


@dataclass(frozen=True, config=LOOSE)
class _Question:
    id: Text
    question: list[dict[str, Any]]  # a wording per language
    sparql: str | None = Field("", validation_alias=AliasPath("query", "sparql"))
    answers: list[_Answer] = Field(default_factory=list)


def make_qald(split: str | None, read: _Question, number: int) -> RawQuestion | Fault:  # each split counts anew
    """Return one question in English: topics are what its query names, but for classes; yes and no are answers."""
    text = next((str(one.get("string") or "").strip() for one in read.question if one.get("language") == "en"), "")
    if not text:
        return Fault("no wording in English")
    rows = [row for answer in read.answers for row in answer.rows]
    found = [  # ``uriLabel`` is the name of ``uri``
        str(one.get("value", "")).removeprefix(ITEM)
        for row in rows
        for variable, one in row.items()
        if not (variable.endswith("Label") and variable.removesuffix("Label") in row)
    ]
    said = [str(answer.boolean).lower() for answer in read.answers if answer.boolean is not None]
    golds = tuple(dict.fromkeys(filter(None, found + said)))
    return RawQuestion(f"{split}-{read.id}" if split else read.id, text, golds, topics_of(read.sparql or ""), keep=True)


def topics_of(sparql: str) -> tuple[str, ...]:
    """Return the labels of the items and resources that a query names, in its order; but no class."""
    known = NAMESPACES | dict(DECLARED.findall(sparql))
    body = CLASS.sub(" ", DECLARED.sub(" ", sparql))
    named = (iri or known.get(prefix, "") + re.sub(r"\\(.)", r"\1", rest) for iri, prefix, rest in TERM.findall(body))
    wanted = tuple(NAMESPACES.values())
    return tuple(dict.fromkeys(iri.removeprefix(ITEM) for iri in named if iri.startswith(wanted)))


SIMPLE_QUESTIONS = QuestionFormat(
    formats.files_by_split("annotated_wd_data_{split}_answerable.txt", "annotated_wd_data_{split}.txt", dev=("valid",)),
    read_simple_questions,
)
QALD = QuestionFormat(
    formats.files_by_split("qald_9_plus_{split}_wikidata.json", "qald-9-{split}-multilingual.json", "{split}.json"),
    lambda file: formats.require_answers(
        formats.parse_items(file.path, formats.parser_of(_Question, partial(make_qald, file.split)), key="questions"),
        file.path,
        "ask an endpoint its queries, and put what it says into 'answers'",
    ),
)
