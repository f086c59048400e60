"""WorldCup2014 question files (Zhang, Winn and Tomioka 2016), one per number of hops: ``1-hop.txt``, ``2-hop.txt``.

Five columns with tabs between them: question, one answer, gold path (``Ann#plays_in_club#Reds``, filled up with
``#<end>#Reds``), all answers (``Reds/Blues/``), neighbourhood. The topic is the path's first entity. There is one line
per triple, so a question is repeated for each of its answers: ``merge_repeats`` keeps it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.formats import EMPTY_FIELD, WRONG_FIELDS
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Fault, Loaded, Placed, QuestionFile, QuestionFormat, RawQuestion, parse_lines
from kgqa_core.types import Question

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
