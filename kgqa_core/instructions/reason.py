"""What plans lead along, as prompts show it: reasoning paths with scores, and the entities that they end at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice, zip_longest
from typing import ClassVar

from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.graph.follow import end_of, reasoning_paths
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import (
    ABSTENTION,
    Answers,
    distinct_names,
    parse_answers,
    parse_explained,
    write_answers,
)
from kgqa_core.instructions.render import NAMES_SHOWN, ScoredPath, escape, group_paths, render_paths, show_path
from kgqa_core.instructions.types import Case, Instruction, ParseFailure
from kgqa_core.lm.constraints import Lines
from kgqa_core.lm.types import Constraint
from kgqa_core.types import LabelPath, ReasoningPath

MOST_IN_BLOCKS = 1000  # paths of a question whose prompt shows them as blocks, each with its first names alone


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reasoning paths of one question's plans."""

    paths: tuple[ScoredPath, ...]  # distinct texts
    steps: tuple[ReasoningPath, ...]  # parallel to paths
    ends: tuple[int, ...]  # entity ids, distinct, in the order of the paths
    num_left_out: int  # plans that have more paths than are listed; of EPERM entities that nobody was asked about
    alike: tuple[ReasoningPath, ...] = ()  # by or to other entities of the same names: each reads as one of ``paths``
    weights: Mapping[int, float] = field(default_factory=dict)  # of ends, where paths are scored: summed over the paths


def gather_evidence(
    search: SearchGraph, topics: Sequence[int], plans: Sequence[tuple[LabelPath, float]], *, max_paths: int
) -> Evidence:
    """Return the paths of all plans in turns, one of each plan, so that a cap starves none of them.

    ``plans`` are distinct relation paths with weights; those that the graph cannot follow give nothing. A plan's weight
    is shared out over its paths, so that a question's sum to 1 (EPERM Fig. 4, all entities on the way scored alike).
    """
    graph, reenter = search.graph, search.reenter_topic
    known = [(relations, weight) for path, weight in plans if (relations := to_relations(graph, path))]
    walks = [reasoning_paths(graph, topics, relations, reenter_topic=reenter) for relations, _ in known]
    listed: dict[str, tuple[ReasoningPath, int, ScoredPath]] = {}  # text -> (path, place of its plan, as shown)
    ends: dict[int, None] = {}
    alike: list[ReasoningPath] = []
    counts = [0] * len(walks)
    cut = set[int]()  # plans with a path that had no room
    for turn in zip_longest(*walks):
        for plan, path in enumerate(turn):
            if path is not None and len(listed) < max_paths:
                shown = show_path(search, path)
                ends[end_of(path)] = None
                if shown.text not in listed:
                    counts[plan] += 1
                    listed[shown.text] = path, plan, shown
                else:
                    alike.append(path)
            elif path is not None:
                cut.add(plan)
        if len(listed) >= max_paths:
            cut.update(plan for plan, walk in enumerate(walks) if next(walk, None) is not None)
            break
    total = sum(weight for count, (_, weight) in zip(counts, known, strict=True) if count) or 1.0
    shares = [weight / total / max(count, 1) for count, (_, weight) in zip(counts, known, strict=True)]
    paths = tuple(replace(shown, score=shares[plan]) for _, plan, shown in listed.values())
    steps = tuple(path for path, _, _ in listed.values())
    return Evidence(paths, steps, tuple(ends), len(cut), tuple(alike))


# ------ Along paths: reason (RoG §4.4; EPERM's predictor, with a score per path) and explain (RoG A.10).


@dataclass(frozen=True, slots=True)
class ReasonCase(Case):
    """A question with the paths that its plans led along; none where no graph is asked."""

    paths: tuple[ScoredPath, ...] = ()
    shown: tuple[str, ...] = ()  # names that may be meant: taken as they stand in an answer
    answers: tuple[str, ...] | None = None  # names that are taught; none at all: to abstain
    bound: bool = False  # may only names in ``shown`` be answered?
    stations: bool = False  # may what lies on the paths be meant as well as their ends?


@dataclass(frozen=True)
class ReasonInstruction(Instruction[ReasonCase, Answers]):
    """The instruction ``reason``."""

    name: ClassVar[str] = "reason"
    part: ClassVar[str] = "paths"
    scored: bool = False  # show a score after each path and ask to prefer high ones (EPERM A.4)

    @property
    def file(self) -> str:
        """Return the name of the wording for paths with scores, or without."""
        return f"{self.name}_scored" if self.scored else self.name

    def values(self, case: ReasonCase) -> dict[str, str]:
        """Return all paths: one prompt shows them together (RoG A.10), each by itself or by their relations."""
        return render_paths(case.paths, scored=self.scored, stations=case.stations)

    def target(self, case: ReasonCase) -> str | None:
        """Return the answers that are taught: without those that a block only counts."""
        if case.answers is None:
            return None
        in_blocks = self.prompts[self.file].in_blocks and not self.scored
        blocks = group_paths(case.paths, stations=case.stations).values() if in_blocks else ()
        seen = {name for block in blocks for name in islice(block, NAMES_SHOWN)}
        hidden = set(chain.from_iterable(blocks)) - seen
        return write_answers([name for name in case.answers if name not in hidden] or case.answers, case.shown)

    def parse(self, text: str, case: ReasonCase) -> Answers | ParseFailure:
        """Return the distinct answers of a text, or that it abstains.

        Whoever answers all names that a block shows means those, too, that it only counts.
        """
        found = parse_answers(text, case.shown, case.question)
        if isinstance(found, ParseFailure) or self.scored or not self.prompts[self.file].in_blocks:
            return found
        said, blocks = set(map(normalise_name, found.names)), group_paths(case.paths, stations=case.stations).values()
        whole = [block for block in blocks if said.issuperset(map(normalise_name, islice(block, NAMES_SHOWN)))]
        return replace(found, names=distinct_names([*found.names, *chain.from_iterable(whole)]))

    def constraint(self, case: ReasonCase) -> Constraint | None:
        """Return that only shown names may be answered, or nothing; None where any text may."""
        return Lines(list(map(escape, case.shown)), ABSTENTION) if case.bound and case.shown else None


class ExplainInstruction(Instruction[ReasonCase, Answers]):
    """The instruction ``explain``."""

    name: ClassVar[str] = "explain"
    part: ClassVar[str] = "paths"

    def values(self, case: ReasonCase) -> dict[str, str]:
        """Return what the prompt shows."""
        return render_paths(case.paths)

    def parse(self, text: str, case: ReasonCase) -> Answers | ParseFailure:
        """Return the answers that a text explains."""
        return parse_explained(text, case.shown, case.question)


# ------ Without any graph: the same cases with no paths, and other wordings.


class DirectInstruction(ReasonInstruction):
    """The instruction ``direct`` (the IO baseline; tuned: RoG's Table 16)."""

    name: ClassVar[str] = "direct"


class ChainOfThoughtInstruction(ExplainInstruction):
    """The instruction ``chain_of_thought`` (the CoT baseline): thoughts and answers, which no graph can teach."""

    name: ClassVar[str] = "chain_of_thought"


# ------ extract_clues: keywords of a question that entities and relations of a graph can stand for (FiSKE).


# How FiSKE's released code begins questions, so that what is asked for is a clue, too:
WH_WORDS = {"who": "which person", "where": "which place", "when": "what time"}
MOST_ENDS = 100  # of words and signs in a question whose clues are held to it: n ends have some n n / 2 runs of words
_HEADING = re.compile(r"(?i)^\W*(?:\d+\W+)?(?:here are )?(?:the )?(?:clues?|key ?words?)\W*(?:are\s*)?:[\s*]*")


def ask_for_what(question: str) -> str:
    """Return a question that asks for a person, place or time in so many words, where it asked who, where or when."""
    first, blank, rest = question.strip().partition(" ")
    return f"{WH_WORDS[first.casefold()]}{blank}{rest}" if first.casefold() in WH_WORDS else question


class ExtractCluesInstruction(Instruction[ReasonCase, tuple[str, ...]]):
    """The instruction ``extract_clues``."""

    name: ClassVar[str] = "extract_clues"

    def parse(self, text: str, case: ReasonCase) -> tuple[str, ...] | ParseFailure:
        """Return the distinct clues of a text: lines, a list, or one line with commas."""
        lines = [_HEADING.sub("", line, count=1) for line in text[:20_000].split("\n")]
        found = parse_answers("\n".join(lines))
        if isinstance(found, ParseFailure) or not found.names:
            return ParseFailure("no clue")
        names = found.names
        if len(names) == 1 and "," in names[0] and names[0] != case.question:
            names = distinct_names(part.strip(" .()") for part in names[0].split(","))
        return names or ParseFailure("no clue")

    def target(self, case: ReasonCase) -> str | None:
        """Return the clues that are taught, one per line; None where they would be read as something else."""
        text = write_answers(case.answers or ())
        return text if case.answers and self.parse(text, case) == case.answers else None

    def constraint(self, case: ReasonCase) -> Constraint | None:
        """Return that clues are runs of the question's words, with or without the signs around; None: any text."""
        places = [match.start() for match in re.finditer(r"(?<!\w)|(?!\w)", case.question)]  # not inside of a word
        if not case.bound or len(places) > MOST_ENDS or len(case.question.split()) < 2:  # some scripts have no blanks
            return None
        cut = {case.question[start:end] for start, end in combinations(places, 2)}
        runs = sorted(run for run in cut if run == run.strip())
        return Lines(runs, runs[0])
