"""Small made-up graphs of many trades, with questions: what teaches an adapter that a wording means a relation.

``worlds.tsv`` has a line per relation: its types, how many tails a head has at most, labels, and wordings written by
hand: questions for its tails and for its heads, and what either is called inside a longer question. ``{}`` is the
topic. A draw of a world takes one label of each relation, one way to spell labels, and new names for all entities.
``world_names.tsv`` says what entities of a type are called: one of a list, a number with its unit, or a made-up word in
a pattern. The worlds of ``HELD_OUT`` teach nothing: with them one sees what an adapter makes of a trade it never met.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measure import markdown, write_section
from benchmarks.systems import evaluate

FILE = Path(__file__).with_suffix(".tsv")
NAMES_FILE = FILE.with_name("world_names.tsv")
HELD_OUT = ("software", "arcade", "farms")
NUM_ENTITIES = 24  # of each type, where the type does not list its names
MOST_ANSWERS = 20
SPELLINGS: tuple[Callable[[str, str], str], ...] = (
    lambda head, label: label.replace(" ", "_"),
    lambda head, label: label.split()[0] + "".join(word.title() for word in label.split()[1:]),
    lambda head, label: f"{head.replace(' ', '_')}.{label.replace(' ', '_')}",
    lambda head, label: label,
)
FIRST = "Ada,Bela,Cyrus,Dora,Emil,Farah,Goran,Hedda,Ivo,Jana,Kofi,Lena,Milo,Nadia,Otto,Priya,Quinn,Rosa,Sami,Tara"
LAST = "Abbott,Brandt,Castillo,Dvorak,Eriksen,Fontaine,Grimaldi,Hosoda,Ibrahim,Jansen,Kowalski,Moreau,Nakata"
SYLLABLES = "ba,be,bri,co,da,del,fen,gar,ho,ja,kel,la,lor,ma,mi,nor,ol,pe,qua,ra,sel,ta,tor,u,va,wen,xi,ya,zu"


@dataclass(frozen=True, slots=True)
class Relation:
    """One line of the file."""

    head: str
    tail: str
    most: int
    labels: tuple[str, ...]
    asked: tuple[tuple[str, ...], tuple[str, ...]]  # for tails, for heads
    named: tuple[tuple[str, ...], tuple[str, ...]]  # what the tails of a head are called, and the heads of a tail


@dataclass(frozen=True, slots=True)
class World:
    """One draw."""

    triples: list[tuple[str, str, str]]
    questions: list[dict[str, Any]]  # as in a file of questions
    alike: dict[str, list[str]]  # label -> what else its relation could be called, spelled alike

    @property
    def num_dev(self) -> int:
        """Return how many of its questions, the first, do not teach."""
        return len(self.questions) // 10


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    draws: int
    questions: int  # of each draw


FULL = Size(4, 50)
SMALL = Size(1, 4)
LM = "lm={kind: packaged, adapter: shipped}"
POOLS = "systems={run: [rog], pool: hard, answers: shown, answered_by: [lm, random, first]}"
OPEN = "systems={run: [kaping, rog], rog: {plans: encoder, num_plans: 8}, answers: shown}"
NOTE = (
    "Made-up graphs of trades that taught nothing. None of the wordings is in the worlds that teach, nor any label of "
    "the software firms; some of WebQSP's training questions ask for founders and employers, too. The worlds of video "
    "games and farms were written after the seventh pass had begun, without a look at the others. Each draw has other "
    "labels, names and questions. Hits@1 / F1, in brackets Hits@1 of each draw. Hard pools hold the right plan and two "
    "wrong ones. Without pools, nothing is trained on the graph: KAPING reads facts, RoG paths, both ranked by the "
    "text encoder."
)


def run(home: Path, size: Size = FULL) -> None:
    """Ask the shipped adapter about the worlds that taught it nothing."""
    worlds = read_worlds()
    rows: dict[str, dict[str, str]] = {}
    for world in HELD_OUT:
        told: dict[str, list[dict[str, float]]] = defaultdict(list)
        drawn = (
            (f"{world}-{draw}", draw_world(worlds[world], f"test {draw}", size.questions)) for draw in range(size.draws)
        )
        for conf in write_worlds(home / "worlds", drawn, "test"):
            for systems in (POOLS, OPEN):
                for row in evaluate(home, None, LM, systems, conf=str(conf))["rows"]:
                    told[f"{row['system']}, {row['about']['answered_by']}"].append(row["overall"])
        for name, figures in told.items():
            hits, f1 = ([one[metric] for one in figures] for metric in ("hits1", "f1"))
            each = " ".join(f"{one:.0f}" for one in hits)
            rows.setdefault(name, {})[world] = f"{fmean(hits):.1f} / {fmean(f1):.1f} ({each})"
    cells = [[name, *(told[world] for world in HELD_OUT)] for name, told in rows.items()]
    lines = markdown(["row", *HELD_OUT], cells, 1 + len(HELD_OUT))
    write_section("A trade never met", "\n".join([NOTE, "", *lines]), "python -m benchmarks worlds")


def read_worlds() -> dict[str, list[Relation]]:
    """Return the relations of each world."""
    found = defaultdict[str, list[Relation]](list)
    for line in FILE.read_text(encoding="utf-8").splitlines()[1:]:
        world, head, tail, most, labels, asked, asked_back, named, named_back = line.split("\t")
        texts = [tuple(every.split("|")) for every in (labels, asked, asked_back, named, named_back)]
        found[world].append(Relation(head, tail, int(most), texts[0], (texts[1], texts[2]), (texts[3], texts[4])))
    return dict(found)


@cache
def read_types() -> dict[str, tuple[str, str]]:
    """Return kind ("listed", "number", "person" or "ending") and value of each type that ``world_names.tsv`` has."""
    rows = (line.split("\t") for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:])
    return {name: (kind, value) for name, kind, value in rows}


def draw_world(relations: list[Relation], seed: str, num_questions: int, two_steps: float = 0.4) -> World:
    """Draw labels, names, facts and questions, a share of them of two steps; equal seeds give equal worlds."""
    chance = random.Random(seed)
    types = dict.fromkeys(kind for one in relations for kind in (one.head, one.tail))
    names = {kind: draw_names(kind, chance) for kind in types}
    spell = chance.choice(SPELLINGS)
    labels = [spell(one.head, chance.choice(one.labels)) for one in relations]
    called = [[spell(one.head, label) for label in one.labels] for one in relations]
    labels = [one if labels.count(one) == 1 else f"{one} {place}" for place, one in enumerate(labels)]
    triples = dict[tuple[str, str, str], None]()
    ends = defaultdict[tuple[int, bool, str], set[str]](set)  # relation, backward, entity -> where it leads
    for place, one in enumerate(relations):
        for head in names[one.head]:
            for tail in chance.sample(names[one.tail], min(chance.randint(1, one.most), len(names[one.tail]))):
                if head != tail:
                    triples[head, labels[place], tail] = None
                    ends[place, False, head].add(tail)
                    ends[place, True, tail].add(head)
    questions: list[dict[str, Any]] = []
    for _ in range(20 * num_questions):
        if len(questions) == num_questions:
            break
        chain, text = draw_chain(relations, chance, two_steps)
        first = relations[chain[0][0]]
        topic = chance.choice(names[first.tail if chain[0][1] else first.head])
        reached = {topic}
        for step in chain:
            reached = {end for here in reached for end in ends.get((*step, here), ())}
        if (answers := sorted(reached - {topic})) and len(answers) <= MOST_ANSWERS:
            told = [f"{'~' * backward}{labels[place]}" for place, backward in chain]
            row = {"id": f"{seed} {len(questions)}", "question": text.replace("{}", topic), "topics": [topic]}
            questions.append(row | {"answers": answers, "hops": len(chain), "chain": told})
    others = {label: [one for one in every if one not in labels] for label, every in zip(labels, called, strict=True)}
    return World(list(triples), questions, others)


def draw_chain(
    relations: list[Relation], chance: random.Random, two_steps: float
) -> tuple[list[tuple[int, bool]], str]:
    """Return a chain of one or two steps (relation, backward), and a question for it with ``{}`` for its topic."""
    place, backward = chance.randrange(len(relations)), chance.random() < 0.4
    last = relations[place]
    text = chance.choice(last.asked[backward])
    if chance.random() < 1 - two_steps:
        return [(place, backward)], text
    start = last.tail if backward else last.head
    before = [
        (other, back)
        for other, one in enumerate(relations)
        for back in (False, True)
        if other != place and (one.head if back else one.tail) == start
    ]
    if not before:
        return [(place, backward)], text
    first = chance.choice(before)
    called = relations[first[0]].named[first[1]]
    named = chance.choice(called) if len(called) > 1 else called[0]
    return [first, (place, backward)], text.replace("the {}", "{}").replace("{}", named)


def draw_names(kind: str, chance: random.Random) -> list[str]:
    """Return the entities of a type."""
    how, value = read_types().get(kind, ("ending", "{}"))
    if how == "listed":
        return value.split(",")
    if how == "number":
        least, most, unit = value.split(",")
        return sorted({f"{chance.randint(int(least), int(most))}{unit}" for _ in range(NUM_ENTITIES)})
    first, last, syllables = FIRST.split(","), LAST.split(","), SYLLABLES.split(",")
    if how == "person":
        return sorted({f"{chance.choice(first)} {chance.choice(last)}" for _ in range(2 * NUM_ENTITIES)})
    words = {"".join(chance.choices(syllables, k=chance.randint(2, 3))).title() for _ in range(NUM_ENTITIES)}
    return sorted(value.format(word) for word in words)


def write_worlds(out: Path, worlds: Iterator[tuple[str, World]], split: str) -> list[Path]:
    """Write each world as a graph and a file of questions, with a run file; return the run files."""
    files = []
    for name, world in worlds:
        folder = out / name
        (folder / "questions").mkdir(parents=True, exist_ok=True)
        lines = ["\t".join(triple) for triple in world.triples]
        (folder / "triples.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        cut = world.num_dev if split == "train" else 0
        for part, rows in (("dev", world.questions[:cut]), (split, world.questions[cut:])):
            if rows:
                text = "".join(f"{json.dumps(row)}\n" for row in rows)
                (folder / "questions" / f"{part}.jsonl").write_text(text, encoding="utf-8")
        graph = {"format": "tsv", "path": str(folder / "triples.tsv")}
        questions = {"format": "jsonl", "path": str(folder / "questions")}
        dataset = {"name": f"world-{name}", "source": "files", "graph": graph, "questions": questions}
        plans = {"planners": ["dense"]}
        told = {
            "dataset": dataset,
            "encoder": {"kind": "minilm"},
            "explorer": {"steps": 2},
            "plans": plans,
            "dense": {},
        }
        files.append(folder / f"world-{name}.yaml")
        files[-1].write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return files
