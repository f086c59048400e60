"""What an oracle knows: of each question the golds, the plans that lead to them, and who stands on the way.

A call is known by its prompt, not by whose it is: equal prompts get equal answers in a cache and in a batch, whichever
question asked first. So questions of one text are known together.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kgqa_core.errors import InputError
from kgqa_core.graph.follow import follow_layers, on_way
from kgqa_core.graph.kg import golds_of, read_step, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.alignment import same_stem
from kgqa_core.instructions.answers import distinct_names
from kgqa_core.instructions.plan import PathConstraint, identity_of
from kgqa_core.lm.types import Prompt
from kgqa_core.types import LabelPath, Question

Plans = Mapping[str, Sequence[LabelPath]]  # question id -> relation paths, best first
MAX_KEPT = 4096  # questions that it keeps the names of


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of one question, by name: prompts show nothing else."""

    id: str  # of the question; of several of one text the first
    text: str
    masked: str
    golds: frozenset[str]
    topics: tuple[str, ...]
    plans: tuple[LabelPath, ...]  # gold plans, best first
    find_layers: Callable[[LabelPath], tuple[frozenset[str], ...]]

    @cached_property
    def layers(self) -> tuple[tuple[frozenset[str], ...], ...]:
        """Per plan: the names of the entities on its ways to golds, after 0..length steps."""
        return tuple(map(self.find_layers, self.plans))


class Knowledge:
    """What is known of many questions; worked out when one is asked about."""

    def __init__(self, search: SearchGraph, questions: Sequence[Question], plans: Plans) -> None:
        """Take all questions that may be asked, as what is known of them is part of the oracle's name.

        ``plans``: the gold plans; a question that is not among them has none.
        """
        self.search = search
        self._plans = plans
        self._questions = {question.id: question for question in questions}
        self._by_text: dict[str, list[str]] = defaultdict(list)
        self._by_masked: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
        for id, question in sorted(self._questions.items()):
            self._by_text[question.text].append(id)
            self._by_masked[question.masked, question.topics].append(id)
        self._first_masked = {masked: ids[0] for (masked, _), ids in reversed(self._by_masked.items())}
        self._known = lru_cache(maxsize=MAX_KEPT)(self._work_out)

    @cached_property
    def key(self) -> str:
        """Return what tells this knowledge from other: a hash of all that it follows from."""
        digest = hashlib.sha256()
        for id, question in sorted(self._questions.items()):
            golds = sorted(golds_of(question, reenter_topic=True))
            wording = (id, question.text, question.masked)
            digest.update(repr((wording, question.topics, golds, question.chain, self._plans.get(id))).encode())
        search = self.search
        told = (identity_of(search.graph), identity_of(search.entities), search.max_hops, search.reenter_topic)
        digest.update(repr(told).encode())
        return digest.hexdigest()[:16]

    def of_prompt(self, prompt: Prompt, question: str) -> Known | None:
        """Return what is known of the question that a prompt shows; None of one that nobody told of.

        A masked question stands for many: a constraint to the plans around topics tells which is meant, else the first.
        """
        ids = self._by_text.get(question)
        own = self._questions.get(prompt.question_id)
        if ids is None and question in self._first_masked:
            if own is not None and isinstance(prompt.constraint, PathConstraint):
                ids = self._by_masked.get((question, own.topics))
            ids = ids or [self._first_masked[question]]
        if ids is None and own is not None:  # whoever asks has worded it anew
            ids = self._by_text[own.text]
        return self._known(*ids) if ids else None

    def _work_out(self, *ids: str) -> Known:
        questions, names = [self._questions[id] for id in ids], self.search.entities
        golds = dict.fromkeys(gold for one in questions for gold in sorted(golds_of(one, reenter_topic=True)))
        topics = dict.fromkeys(topic for one in questions for topic in one.topics)
        placed, first = [], questions[0]
        for one in questions:
            try:
                placed += self.search.place([one])
            except InputError:  # it has no place in what is walked: there it is without a topic
                placed.append(replace(one, topics=(), answers=(), claim=None))

        def find_layers(plan: LabelPath) -> tuple[frozenset[str], ...]:
            found = [self._layers(one, plan) for one in placed]
            return tuple(frozenset().union(*layer) for layer in zip(*found, strict=True))

        return Known(
            id=first.id,
            text=first.text,
            masked=first.masked,
            golds=frozenset(map(names.name_of, golds)),
            topics=tuple(dict.fromkeys(map(names.name_of, topics))),
            plans=tuple(dict.fromkeys(plan for one in placed for plan in self._plans.get(one.id, ()))),
            find_layers=find_layers,
        )

    def _layers(self, question: Question, plan: LabelPath) -> tuple[frozenset[str], ...]:
        """Return the names on the ways along ``plan`` that end in golds; empty sets where there is none."""
        graph = self.search.graph
        path = to_relations(graph, plan)
        if path is None or not question.topics:
            return (frozenset(),) * (len(plan) + 1)
        layers = follow_layers(graph, question.topics, path, reenter_topic=self.search.reenter_topic)
        kept = on_way(graph, list(layers), path, golds_of(question, reenter_topic=True))
        return tuple(frozenset(map(self.search.name_of, layer.tolist())) for layer in kept)


# ------ The clues that an oracle takes out of a question: where it starts, and one per step of its gold plan.

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_BETWEEN = re.compile(r"[\W_]+")


def clues_of(known: Known) -> tuple[str, ...]:
    """Return the topics' mentions, as the question writes them, then a clue for every step of the first gold plan."""
    text, mentions = known.text, []
    for name in known.topics:
        place = text.casefold().find(name.casefold())
        found = text[place : place + len(name)]
        mentions.append(found if place >= 0 and found.casefold() == name.casefold() else name)
    return distinct_names((*(mentions or [""]), *step_clues(known)))


@lru_cache(maxsize=MAX_KEPT)
def step_clues(known: Known) -> tuple[str, ...]:
    """Return a clue for every step of the first gold plan, distinct and none of them a topic's name.

    It is the question's own word of one stem with a word of the relation ("directed" for directed_by), else the latter.
    """
    taken = {name.casefold() for name in known.topics}
    clues: list[str] = []
    for step in known.plans[0] if known.plans else ():
        words, number = relation_words(read_step(step)[0]), 1
        free = [word for word in _WORD.findall(known.masked) if word.casefold() not in taken]
        parts = words.casefold().split()
        clue = next((word for part in parts for word in free if same_stem(part, word.casefold())), words)
        while clue.casefold() in taken:
            number += 1
            clue = f"{words} {number}"
        taken.add(clue.casefold())
        clues.append(clue)
    return tuple(clues)


def relation_words(label: str) -> str:
    """Return the words of the last part of a relation's label: "place lived" of people.person.place_lived."""
    last = re.split(r"[./#]", label.rstrip("./#"))[-1]
    return _BETWEEN.sub(" ", last).strip() or label
