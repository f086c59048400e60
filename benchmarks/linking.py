"""Linking by text alone: topics of MetaQA and WorldCup2014 test questions hidden and found again, and what it costs."""

from __future__ import annotations

import random
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.linking_names import WAYS, measure_way, write_drawn_names
from benchmarks.linking_score import LinkScore, score_links
from benchmarks.measure import write_section
from benchmarks.path_cases import build_folders
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.link import find_mention
from kgqa_core.questions.link_names import NameIndex
from kgqa_core.questions.link_text import TextLinker, link_topics
from kgqa_core.types import Question

RUNS = {"MetaQA": "conf/metaqa-joint.yaml", "WorldCup2014": "conf/wc2014-mixed.yaml"}
BY_HOPS = ("as written", "lower-cased", "misspelt")
UNSEEN = 5  # one masked text of so many, by hash, is kept from the training questions
WARM = 50  # questions linked before the clock starts: what is made on first use is made


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # of each dataset; None: all of test
    names: int  # entities of the drawn graph
    repeats: int


FULL = Size(questions=None, names=1_000_000, repeats=3)
SMALL = Size(questions=100, names=50_000, repeats=1)


@dataclass(frozen=True, slots=True)
class Linked:
    """What one way of asking gave."""

    score: LinkScore
    by_hops: dict[int, LinkScore]
    per_question: float  # CPU seconds


def run(home: Path, size: Size = FULL) -> None:
    """Measure quality, then speed and memory in processes of their own, and write the section."""
    rows = [
        "| dataset | asked | hops | questions | P | R | F1 | exactly right | gold among them | errors | CPU ms |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name, conf in RUNS.items():
        graph, questions = build_folders(home, conf)
        opened = open_graph(graph)
        test, dev, train = (read_questions(questions, split) for split in ("test", "dev", "train"))
        test, dev = test[: size.questions], dev[: size.questions]
        rows += quality_rows(name, test, train, opened)
        if name == "MetaQA":
            rows += quality_rows("MetaQA, dev", dev, train, opened)
            speed = speed_rows(graph, questions, opened, size)
    body = "\n".join([*rows, "", QUALITY_NOTE, "", *speed, "", SPEED_NOTE])
    write_section("Linking", body, "python -m benchmarks linking")


QUALITY_NOTE = (
    "Percent; P, R and F1 of the set of topics, mean over questions. Topics are hidden, and found by the text alone; "
    "training questions, where used, give their masked texts and topics (no answer). MetaQA's texts have no brackets "
    "here and capitals in names alone; lower-cased, a film and a tag of one name are one word. Misspelt: one letter "
    "inside the name lost, doubled or exchanged with the one before it. Unseen wordings: a fifth of the masked texts, "
    "none of which a training question has. Longest name: `kgqa ask` without a topic. The rules for misspelt names "
    "were set while looking at MetaQA's test questions; its dev questions had not been looked at."
)
SPEED_NOTE = (
    "MetaQA's test questions. Memory is what the process grew by; the sorted names stay on disk, but only the longest "
    "exact name is searched, without accents or punctuation normalised. The first two give every run of words that is "
    "a name; the automaton keeps one entity per name."
)


def quality_rows(name: str, test: Sequence[Question], train: Sequence[Question], graph: KnowledgeGraph) -> list[str]:
    """Return a row for each way of asking; those of the main way by hops too."""
    index = NameIndex(graph)
    spoilt = [misspell(question, graph) for question in test]
    ways: list[tuple[str, Sequence[Question], Sequence[Question]]] = [
        ("as written", test, train),
        ("lower-cased", lower(test), lower(train)),
        ("misspelt", spoilt, train),
        ("misspelt and lower-cased", lower(spoilt), lower(train)),
        ("as written, unseen wordings", asked_by(test, unseen), asked_by(train, seen)),
        ("lower-cased, unseen wordings", lower(asked_by(test, unseen)), lower(asked_by(train, seen))),
        ("as written, no training questions", test, ()),
        ("lower-cased, no training questions", lower(test), ()),
    ]
    rows = []
    for asked, questions, examples in ways:
        linker = TextLinker(index, examples)
        found = measure_links(questions, graph, lambda own, linker=linker: link_topics(own, linker))
        for hops, score in found.by_hops.items() if asked in BY_HOPS else ():
            rows.append(quality_row(name, asked, str(hops), score, None))
        rows.append(quality_row(name, asked, "all", found.score, found.per_question))
    longest = measure_links(test, graph, lambda own: [longest_name(question, graph) for question in own])
    rows.append(quality_row(name, "as written, longest name", "all", longest.score, longest.per_question))
    return rows


def measure_links(
    questions: Sequence[Question], graph: KnowledgeGraph, link: Callable[[Sequence[Question]], Sequence[Question]]
) -> Linked:
    """Link the questions, and score them overall and by hops."""
    link(questions[:WARM])
    started = time.process_time()
    linked = link(questions)
    spent = (time.process_time() - started) / len(questions)
    hops = sorted({question.hops for question in questions if question.hops is not None})
    by_hops = {}
    for hop in hops:
        pairs = [(one, other) for one, other in zip(questions, linked, strict=True) if one.hops == hop]
        by_hops[hop] = score_links([one for one, _ in pairs], [other for _, other in pairs], graph)
    return Linked(score_links(questions, linked, graph), by_hops, spent)


def quality_row(name: str, asked: str, hops: str, score: LinkScore, per_question: float | None) -> str:
    """Return one row of the table of quality."""
    shares = (score.precision, score.recall, score.f1, score.exact, score.holds_topic)
    errors = ", ".join(f"{count} {kind}" for kind, count in score.errors.items())
    spent = "" if per_question is None else f"{1000 * per_question:.2f}"
    figures = " | ".join(f"{100 * share:.2f}" for share in shares)
    return f"| {name} | {asked} | {hops} | {score.num_questions:,} | {figures} | {errors} | {spent} |"


def speed_rows(graph: Path, questions: Path, opened: KnowledgeGraph, size: Size) -> list[str]:
    """Return what finding names costs each way, with this graph's names and with many more."""
    titles = {
        "hashes": "runs of words by hash",
        "automaton": "pyahocorasick",
        "sorted": "sorted names on disk, longest",
    }
    rows = [
        "| names | found by | made in CPU s | memory, MB | CPU ms per question | found |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as drawn:
        write_drawn_names(Path(drawn), opened, size.names)
        for folder, number in ((graph, opened.num_entities), (Path(drawn), size.names)):
            for way in WAYS:
                found: dict[str, Any] = run_child(
                    measure_way, way=way, graph=folder, questions=questions, repeats=size.repeats
                ).result
                rows.append(
                    f"| {number:,} | {titles[way]} | {found['made']:.2f} | {found['memory']:.0f} | "
                    f"{1000 * found['per_text']:.3f} | {found['found']:,} |"
                )
    return rows


def asked_by(questions: Sequence[Question], wanted: Callable[[str], bool]) -> list[Question]:
    """Return the questions whose masked text is wanted."""
    return [question for question in questions if wanted(question.masked)]


def unseen(masked: str) -> bool:
    """Is it one of the wordings that are kept from the training questions?"""
    return zlib.crc32(masked.encode()) % UNSEEN == 0


def seen(masked: str) -> bool:
    """Is it not?"""
    return not unseen(masked)


def lower(questions: Sequence[Question]) -> list[Question]:
    """Return the questions in lower case."""
    return [replace(question, text=question.text.lower(), masked=question.masked.lower()) for question in questions]


def longest_name(question: Question, graph: KnowledgeGraph) -> Question:
    """Return the question with all that bear the longest name in its text as topics."""
    mention = find_mention(question.text, graph)
    return replace(question, topics=() if mention is None else mention[1])


def misspell(question: Question, graph: KnowledgeGraph) -> Question:
    """Spoil one letter of the topic's name where it stands; names of fewer than four letters are left alone."""
    draw, name = random.Random(question.id), graph.name_of(question.topics[0])
    letters = [place for place, letter in enumerate(name) if letter.isalpha()]
    if len(letters) < 4:
        return question
    place = draw.choice(letters[1:])
    lost, doubled = name[:place] + name[place + 1 :], name[: place + 1] + name[place:]
    turned = name[: place - 1] + name[place] + name[place - 1] + name[place + 1 :]
    spoilt = draw.choice((lost, doubled, turned if turned != name else lost))  # "ll" turned round is "ll"
    return replace(question, text=question.text.replace(name, spoilt))
