"""Which words of a question stand for which steps of its plan: no data says so, but many questions together do.

Words and steps are aligned as the words of two languages are (IBM model 1, Brown et al., 1993): what questions of any
plan are asked with stands for none of its steps. Of paths that do equally well on the graph, the words tell the one
that was meant.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from kgqa_core.graph.kg import read_step
from kgqa_core.graph.supervision import TaughtPath
from kgqa_core.instructions.reason import ask_for_what
from kgqa_core.questions.link import CLAIM, TOPIC
from kgqa_core.types import LabelPath

Words = Mapping[str, Mapping[str, float]]  # step, or "" for none -> folded word -> share of what it is asked with
ROUNDS = 10  # of expectation maximisation
MIN_SHARE = 0.2  # of the plan that a wording means most often: what it means less often, it means by chance
MIN_SHARED = 4  # letters that two words of one stem begin with alike
FILLER = """a an the this that these those of in on at by for from to with as and or is are was were be been being do
does did has have had can could would will shall may it its he his she her they their there i me my you your we us our
what which who whom whose where when why how s also some any all please tell find give list name show many few"""
_FILLER = frozenset(FILLER.split())
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def content_words(masked: str) -> list[str]:
    """Return the words of a masked question, as they are written, that may stand for something in a graph."""
    found = _WORD.findall(ask_for_what(masked).replace(TOPIC, " ").replace(CLAIM, " "))
    return [word for word in found if word.casefold() not in _FILLER]


def learn_wordings(asked: Iterable[tuple[str, Sequence[LabelPath]]]) -> Wordings:
    """Learn from masked questions, with the paths that each may mean: questions of one wording mean the same."""
    meant = _count_meant(asked)
    most = {masked: max(counts.values()) for masked, counts in meant.items()}
    plans = {masked: {path: n / most[masked] for path, n in counts.items()} for masked, counts in meant.items()}
    return Wordings(_learn_words(meant), plans)


def _count_meant(asked: Iterable[tuple[str, Sequence[LabelPath]]]) -> dict[str, dict[LabelPath, float]]:
    """Return how many questions of each wording mean each path: a question that may mean several counts in parts."""
    told = Counter((masked, tuple(paths)) for masked, paths in asked if paths)
    plans: dict[str, dict[LabelPath, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))  # at first all alike
    for _ in range(ROUNDS):
        meant: dict[str, dict[LabelPath, float]] = defaultdict(lambda: defaultdict(float))
        for (masked, paths), count in told.items():
            total = sum(plans[masked][path] for path in paths)
            for path in paths:
                meant[masked][path] += count * plans[masked][path] / total
        plans = meant
    return plans


def _learn_words(meant: Mapping[str, Mapping[LabelPath, float]]) -> dict[str, dict[str, float]]:
    """Return the words that each step is asked with (IBM model 1), of what ``_count_meant`` returns."""
    counts: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = defaultdict(float)  # (words, steps) -> questions
    for masked, paths in meant.items():
        words = tuple(sorted({word.casefold() for word in content_words(masked)}))
        for path, num_questions in paths.items():
            counts[words, ("", *sorted(set(path)))] += num_questions
    shares: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))  # at first all alike
    for _ in range(ROUNDS):
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for (words, steps), weight in counts.items():
            for word in words:
                total = sum(shares[step][word] for step in steps)
                for step in steps:
                    sums[step][word] += weight * shares[step][word] / total
        shares = {step: {word: n / sum(own.values()) for word, n in own.items()} for step, own in sums.items()}
    return shares


def align(words: Sequence[str], path: LabelPath, learned: Words) -> tuple[float, list[int]]:
    """Return how well a plan fits the words of its question, and for each step the place of a word that stands for it.

    The fit is about 0 to 2, that of the mean step. The surest pairs go first: by what was learned, and by a stem that a
    word shares with the relation. Where words run out the fit is -1, and there are no places.
    """
    folded = [word.casefold() for word in words]

    def rate(word: str, step: str) -> tuple[float, float]:
        """Return how sure a word stands for a step, 0 to 2, and its share of what the step is asked with."""
        others = sorted(set(path) - {step})
        shares = [learned.get(one, {}).get(word, 0.0) for one in (step, "", *others)]
        label_words = _WORD.findall(read_step(step)[0].replace("_", " ").casefold())
        stem = 1.0 if any(same_stem(one, word) for one in label_words) else 0.0
        return shares[0] / (sum(shares) or 1.0) + stem, shares[0]

    pairs = [(rate(word, step), place, at) for place, word in enumerate(folded) for at, step in enumerate(path)]
    pairs.sort(key=lambda pair: pair[0], reverse=True)  # equals stay in order
    places: dict[int, int] = {}  # place of a step -> place of its word
    taken: set[str] = set()
    total = 0.0
    for (score, _), place, at in pairs:
        if at not in places and folded[place] not in taken:
            places[at] = place
            taken.add(folded[place])
            total += score / len(path)
    if len(places) < len(path):
        return -1.0, []
    return total, [places[at] for at in range(len(path))]


def same_stem(first: str, second: str) -> bool:
    """Say whether two folded words begin alike, and end within three letters of that."""
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    return first == second or (size >= MIN_SHARED and size >= min(len(first), len(second)) - 3)


@dataclass(frozen=True, slots=True)
class Wordings:
    """What many questions together tell about their words, and so of paths that may answer one; by default nothing."""

    words: Words = field(default_factory=dict)
    plans: Mapping[str, Mapping[LabelPath, float]] = field(default_factory=dict)  # masked question -> plan -> share

    def strength(self, masked: str, path: LabelPath) -> float:
        """Return how much speaks for a path: how often its wording means it, and how well its words fit."""
        fit, _ = align(content_words(masked), path, self.words)
        return self.plans.get(masked, {}).get(path, 0.0) + max(fit, 0.0)

    def best(self, masked: str, rows: Sequence[TaughtPath]) -> TaughtPath | None:
        """Return the path that is meant, of those that teach, of equals the first.

        None where its wording nearly always means others: then it leads to the answers by chance.
        """
        found = max(rows, key=lambda row: self.strength(masked, row.path), default=None)
        plans = self.plans.get(masked)
        is_chance = found is not None and plans is not None and plans.get(found.path, 0.0) < MIN_SHARE
        return None if is_chance else found

    def weigh(self, masked: str, rows: Sequence[TaughtPath], best: TaughtPath) -> dict[LabelPath, float]:
        """Return what paths are worth: their precision, times what speaks for them beside the one that is meant."""
        most = self.strength(masked, best.path) if self.words else 0.0
        if most <= 0:  # nothing speaks for any path
            return {row.path: row.precision for row in rows}
        return {row.path: row.precision * min(self.strength(masked, row.path) / most, 1.0) for row in rows}
