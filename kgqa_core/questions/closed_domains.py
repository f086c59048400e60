"""Questions over small graphs of one domain: MetaQA (films), WorldCup2014 (footballers) and MOOC Q&A (courses).

MetaQA: ``text with [topic entity]`` TAB ``answer|answer``, in folders, one per number of hops: the official
``1-hop/vanilla/qa_train.txt`` or plain ``1-hop/qa_train.txt``. The gold chains lie in ``1-hop/qa_train_qtype.txt``,
line by line, and may be missing.

WorldCup2014 (Zhang, Winn and Tomioka 2016): ``1-hop.txt``, ``2-hop.txt``. Five columns with tabs between them:
question, one answer, gold path (``Ann#plays_in_club#Reds``, filled up with ``#<end>#Reds``), all answers
(``Reds/Blues/``), neighbourhood. The topic is the path's first entity. There is one line per triple, so a question is
repeated for each of its answers: ``merge_repeats`` keeps it once.

MOOC Q&A (used by FiSKE): query and true/false questions with the triples that they rest on. The authors publish no
description of their files. Read is one JSON object per line, or one JSON array of them:

    {"question": "…", "answer": ["A", "B"], "triples": [["course", "taught by", "A"]], "id": "optional"}

``answer`` is a name, a list of names, or true, false, "yes", "no" (any case). ``triples`` is the chain of triples from
the topic on, in the order in which they are walked; a true/false question claims the last entity of it. Without triples
the topic is found by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import follow_layers
from kgqa_core.graph.formats import EMPTY_FIELD, WRONG_FIELDS
from kgqa_core.graph.input_files import require_file
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions import formats
from kgqa_core.questions.formats import LOOSE, Fault, Loaded, Placed, QuestionFile, QuestionFormat, RawQuestion, Text
from kgqa_core.types import SPLITS, Question, Span

# ------ MetaQA.


RELATION_OF_TYPE = {
    "director": "directed_by",
    "genre": "has_genre",
    "imdbrating": "has_imdb_rating",
    "imdbvotes": "has_imdb_votes",
    "tag": "has_tags",
    "tags": "has_tags",
    "language": "in_language",
    "year": "release_year",
    "actor": "starred_actors",
    "writer": "written_by",
}
"""WikiMovies: every triple's head is a movie, so a type names the relation that leads to it."""


def read_metaqa(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of one file, with the gold chains of the file beside it where there is one.

    Raises InputError where the question file is missing, or both files differ in their number of lines.
    """
    require_file(file.path, what="question file")
    stem = "-".join(["metaqa", *([str(file.hops)] if file.hops is not None else []), file.split or "test"])
    chains: list[str] = []
    for beside in chain_file(file.path):
        both = (beside, file.path)
        chains, questions = (path.read_bytes().decode(errors="replace").rstrip().split("\n") for path in both)
        if len(chains) != len(questions):
            raise InputError(
                f"{beside} has {len(chains)} lines, {file.path} has {len(questions)}: they must match line by line. "
                "Remove the chain file or use the one that belongs to the questions."
            )

    def parse(line: str, number: int) -> RawQuestion | Fault:
        fields = line.split("\t")
        if len(fields) != 2:
            return Fault(WRONG_FIELDS)
        text, mentions = read_brackets(fields[0])
        answers = tuple(fields[1].split("|"))
        if not text.strip() or not all(map(str.strip, answers)):
            return Fault(EMPTY_FIELD)
        topics = tuple(text[start:end] for start, end in mentions)
        chain = chain_of_type(chains[number - 1]) if chains else None
        return RawQuestion(f"{stem}-{number}", text, answers, topics, mentions, file.hops, chain)

    return formats.parse_lines(file.path, parse)


def read_brackets(marked: str) -> tuple[str, tuple[Span, ...]]:
    """Return the text without its outermost brackets, and where in it each bracketed topic stands.

    Brackets inside a topic are part of its name ("[[REC]]"); one that never closes is ordinary text.
    """
    text, mentions, depth, opened = "", [], 0, 0
    for character in marked if marked.count("[") == marked.count("]") else "":
        depth += (character == "[") - (character == "]")
        if character == "[" and depth == 1:
            opened = len(text)
        elif character == "]" and depth == 0:
            mentions.append((opened, len(text)))
        else:
            text += character
    return (text, tuple(mentions)) if text else (marked, ())


def chain_of_type(qtype: str) -> tuple[str, ...] | None:
    """Return the relation labels of "movie_to_director_to_movie": ("directed_by", "~directed_by"); None if unknown."""
    steps = []
    for source, target in pairwise(qtype.strip().split("_to_")):
        if source == "movie" and target in RELATION_OF_TYPE:
            steps.append(RELATION_OF_TYPE[target])
        elif target == "movie" and source in RELATION_OF_TYPE:
            steps.append("~" + RELATION_OF_TYPE[source])
        else:  # two people: through the movie between them
            return None
    return tuple(steps) or None


def chain_file(path: Path) -> list[Path]:
    """Return the file with the gold chains of a question file, beside it or one folder up; empty: none is there."""
    name = f"{path.stem}_qtype.txt"
    return [place for place in (path.with_name(name), path.parent.parent / name) if place.is_file()][:1]


def list_metaqa(folder: Path, hops: Sequence[int] | None) -> list[QuestionFile]:
    """Return the files of a MetaQA folder, all hops found where none are named.

    Raises InputError where the folder, a hop or a file is missing.
    """
    found = sorted(int(entry.name.removesuffix("-hop")) for entry in folder.glob("[0-9]-hop"))
    missing = [hop for hop in hops or () if hop not in found]
    if not found or missing:
        wanted = f"{missing[0]}-hop" if missing else "1-hop, 2-hop or 3-hop"
        present = ", ".join(f"{hop}-hop" for hop in found) or "none"
        raise InputError(
            f"question folder: {folder} has no {wanted} folder (found: {present}). "
            "Expected 1-hop/qa_train.txt or 1-hop/vanilla/qa_train.txt, and so on for dev and test."
        )
    files = []
    for hop in hops or found:
        for split in SPLITS:
            plain = folder / f"{hop}-hop" / f"qa_{split}.txt"
            official = plain.parent / "vanilla" / plain.name
            files.append(QuestionFile(official if official.is_file() else plain, split, hop))
            require_file(files[-1].path, what="question file")
    return files


# ------ WorldCup2014.


NUM_COLUMNS = 5
END = "<end>"  # instead of a relation: the path is over
BAD_PATH = "gold path is not entity#relation#entity"
OTHER_ANSWER = "answer is not among all answers"


def read_wc2014(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file, which are called ``wc2014-<file>-<line number>``."""

    def parse(line: str, number: int) -> RawQuestion | Fault:
        fields = line.split("\t")
        if len(fields) != NUM_COLUMNS:
            return Fault(WRONG_FIELDS)
        text, answer, path, listed, _ = fields
        answers = tuple(listed.removesuffix("/").split("/"))
        if not text.strip() or not all(map(str.strip, answers)):
            return Fault(EMPTY_FIELD)
        if answer not in answers:
            return Fault(OTHER_ANSWER)
        steps = path.split("#")
        relations = steps[1::2]
        chain = tuple(relations[: relations.index(END)] if END in relations else relations)
        if len(steps) % 2 == 0 or not chain or not all(map(str.strip, steps)):
            return Fault(BAD_PATH)
        id = f"wc2014-{file.stem}-{number}"
        return RawQuestion(id, text, answers, topics=(steps[0],), hops=len(chain), chain=chain)

    return formats.parse_lines(file.path, parse)


def list_wc2014(path: Path, hops: Sequence[int] | None) -> list[QuestionFile]:
    """Return the files of a folder, all hops found where none are named; or ``path`` itself where it is a file.

    Raises InputError where the folder or a hop is missing.
    """
    if path.is_file():
        return [QuestionFile(path)]
    found = sorted(path.glob("[0-9]-hop.txt"))
    wanted = found if hops is None else [path / f"{hop}-hop.txt" for hop in hops]
    missing = [file.name for file in wanted if file not in found] or ([] if found else ["1-hop.txt or 2-hop.txt"])
    if missing:
        present = ", ".join(file.name for file in found) or "none"
        raise InputError(f"question folder: {path} has no {missing[0]} (found: {present}).")
    return [QuestionFile(file) for file in wanted]


def merge_repeats(loaded: Loaded, graph: KnowledgeGraph, reenter_topic: bool) -> None:
    """Keep each question (text and topics) once, with the answers of all its lines.

    Repeats are noted, and so are questions whose answers are not exactly what the gold chain leads to in the graph.
    """
    first: dict[tuple[str, tuple[int, ...]], Question] = {}
    for question in loaded.questions:
        key = (question.masked, question.topics)
        kept = first.setdefault(key, question)
        if kept is not question:
            loaded.note("repeated_question", kept.split, f"{kept.id} = {question.id}")
            first[key] = replace(kept, answers=tuple(sorted({*kept.answers, *question.answers})))
    loaded.questions = list(first.values())
    for question in loaded.questions:
        if question.chain is not None:
            reached = follow_layers(graph, question.topics, question.chain, reenter_topic=reenter_topic)[-1]
            if tuple(reached.tolist()) != question.answers:
                loaded.note("gold_is_not_its_chain", question.split, question.id)


# ------ MOOC Q&A.


NO_CLAIM_TRIPLES = "true/false question without triples"
BROKEN_CHAIN = "field triples: they do not hang together"
VERDICTS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, config=LOOSE)
class MoocQuestion:
    """One question."""

    question: Text
    answer: StrictBool | Text | Annotated[list[Text], Field(min_length=1)]
    triples: list[tuple[Text, Text, Text]] = Field(default_factory=list)
    id: Text | None = None


def read_mooc(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of an array or of JSON lines; one without an id is called ``<split or file>-<number>``.

    Raises InputError where the file is missing or no JSON.
    """

    def make(read: MoocQuestion, number: int) -> RawQuestion | Fault:
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
    parse = formats.parser_of(MoocQuestion, make)
    return formats.parse_items(file.path, parse) if is_array else formats.parse_lines(file.path, parse)


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


METAQA = QuestionFormat(list_metaqa, read_metaqa, beside=chain_file, has_hops=True)
WC2014 = QuestionFormat(list_wc2014, read_wc2014, finish=merge_repeats, has_hops=True)
MOOC = QuestionFormat(formats.files_by_split("{split}.jsonl", "{split}.json"), read_mooc)
