"""MOOC Q&A (used by FiSKE): query and true/false questions with the triples that they rest on.

The authors publish no description of their files. Read is one JSON object per line, or one JSON array of them:

    {"question": "…", "answer": ["A", "B"], "triples": [["course", "taught by", "A"]], "id": "optional"}

``answer`` is a name, a list of names, or true, false, "yes", "no" (any case). ``triples`` is the chain of triples from
the topic on, in the order in which they are walked; a true/false question claims the last entity of it. Without triples
the topic is found by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from kgqa_core.graph.formats import require_file
from kgqa_core.questions.formats import (
    Fault,
    Placed,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    Text,
    files_by_split,
    parse_items,
    parse_lines,
    read_object,
)

NO_CLAIM_TRIPLES = "true/false question without triples"
BROKEN_CHAIN = "field triples: they do not hang together"
VERDICTS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class MoocQuestion:
    """One question."""

    question: Text
    answer: bool | Text | Annotated[list[Text], Field(min_length=1)]
    triples: list[tuple[Text, Text, Text]] = Field(default_factory=list)
    id: Annotated[Text, Field(coerce_numbers_to_str=True)] | None = None


QUESTION = TypeAdapter(MoocQuestion)


def read_mooc(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of an array or of JSON lines; one without an id is called ``<split or file>-<number>``.

    Raises InputError where the file is missing or no JSON.
    """

    def parse(text: str, number: int) -> RawQuestion | Fault:
        read = read_object(QUESTION, text)
        if isinstance(read, Fault):
            return read
        answer = read.answer
        verdict = answer if isinstance(answer, bool) else VERDICTS.get(str(answer).casefold())
        if verdict is not None and not read.triples:
            return Fault(NO_CLAIM_TRIPLES)
        walked = walk(read.triples)
        if walked is None:
            return Fault(BROKEN_CHAIN)
        entities, chain = walked
        if verdict is not None:
            answer = [entities[-1]] if verdict else []
        return RawQuestion(
            id=read.id or f"{file.split or file.path.stem}-{number}",
            text=read.question,
            answers=tuple(dict.fromkeys(answer if isinstance(answer, list) else [str(answer)])),
            topics=entities[:1],
            hops=len(chain) or None,
            chain=chain or None,
            claim=None if verdict is None else entities[-1],
            verdict=verdict,
        )

    require_file(file.path, what="question file")
    with file.path.open("rb") as start:
        is_array = start.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return parse_items(file.path, parse) if is_array else parse_lines(file.path, parse)


def walk(triples: list[tuple[str, str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the entities and the relations of a chain of triples, "~" before one that is walked backwards.

    The first triple is walked forwards, unless only its head is in the second. None where a triple does not go on from
    the one before.
    """
    if not triples:
        return (), ()
    head, _, tail = triples[0]
    turned = len(triples) > 1 and tail not in triples[1][::2] and head in triples[1][::2]
    entities, chain = [tail if turned else head], []
    for head, relation, tail in triples:
        if entities[-1] not in (head, tail):
            return None
        forward = entities[-1] == head
        entities.append(tail if forward else head)
        chain.append(relation if forward else f"~{relation}")
    return tuple(entities), tuple(chain)


FORMAT = QuestionFormat(files_by_split("{split}.jsonl", "{split}.json"), read_mooc)
