"""MetaQA question files: ``text with [topic entity]`` TAB ``answer|answer``, and their gold chains by type name.

Folders, one per hop: the official ``1-hop/vanilla/qa_train.txt`` or plain ``1-hop/qa_train.txt``; the chains lie in
``1-hop/qa_train_qtype.txt``, line by line, and may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.formats import EMPTY_FIELD, WRONG_FIELDS, require_file
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import (
    Fault,
    Loaded,
    Placed,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    Span,
    parse_lines,
)
from kgqa_core.types import SPLITS, Question, Split

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
    chains, hops, split = _read_chains(file.path), file.hops, file.split or "test"
    stem = f"metaqa-{hops}-{split}" if hops is not None else f"metaqa-{split}"

    def parse(line: str, number: int) -> RawQuestion | Fault:
        fields = line.split("\t")
        if len(fields) != 2:
            return Fault(WRONG_FIELDS)
        text, mentions = read_brackets(fields[0])
        answers = tuple(fields[1].split("|"))
        if not text.strip() or not all(map(str.strip, answers)):
            return Fault(EMPTY_FIELD)
        return RawQuestion(
            id=f"{stem}-{number}",
            text=text,
            answers=answers,
            topics=tuple(text[start:end] for start, end in mentions),
            mentions=mentions,
            hops=hops,
            chain=None if chains is None else chain_of_type(chains[number - 1]),
        )

    return parse_lines(file.path, parse)


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
    types = qtype.strip().split("_to_")
    steps = []
    for source, target in pairwise(types):
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


def _read_chains(path: Path) -> list[str] | None:
    for beside in chain_file(path):
        chains, questions = (file.read_bytes().rstrip().split(b"\n") for file in (beside, path))
        if len(chains) != len(questions):
            raise InputError(
                f"{beside} has {len(chains)} lines, {path} has {len(questions)}: they must match line by line. "
                "Remove the chain file or use the one that belongs to the questions."
            )
        return [chain.decode("utf-8", errors="replace") for chain in chains]
    return None


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
    return [QuestionFile(_find(folder / f"{hop}-hop", split), split, hop) for hop in hops or found for split in SPLITS]


def _find(folder: Path, split: Split) -> Path:
    plain, official = folder / f"qa_{split}.txt", folder / "vanilla" / f"qa_{split}.txt"
    path = official if official.is_file() else plain
    require_file(path, what="question file")
    return path


METAQA = QuestionFormat(list_metaqa, read_metaqa, beside=chain_file, has_hops=True)


# ------ WorldCup2014


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
        return RawQuestion(
            id=f"wc2014-{file.path.stem}-{number}",
            text=text,
            answers=answers,
            topics=(steps[0],),
            hops=len(chain),
            chain=chain,
        )

    return parse_lines(file.path, parse)


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
            reached = follow_path(graph, question.topics, question.chain, reenter_topic=reenter_topic)
            if tuple(reached.tolist()) != question.answers:
                loaded.note("gold_is_not_its_chain", question.split, question.id)


WC2014 = QuestionFormat(list_wc2014, read_wc2014, finish=merge_repeats, has_hops=True)
