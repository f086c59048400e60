"""The questions of the embedded dataset, drawn from the graph and worded by type.

A fact (a question type with its topics) is asked in one split only. In train it may be asked in several wordings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kgqa_core.embedded.draw import Draw
from kgqa_core.embedded.graph import MovieGraph, follow
from kgqa_core.embedded.question_type import QuestionType
from kgqa_core.embedded.wordings import QUESTION_TYPES
from kgqa_core.types import SPLITS, Split

PER_TYPE: dict[Split, int] = {"train": 72, "dev": 10, "test": 14}
MAX_ANSWERS = 60  # beyond that a list of answers tells a reader nothing
PERCENT_UNMARKED = 12  # questions without topics, to be linked by the name in the text

Topics = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question before it is written."""

    type: QuestionType
    wording: str
    topics: Topics  # labels, in the order of the text
    answers: tuple[str, ...]  # labels, sorted; complete
    claim: str | None = None  # label
    marked: bool = True  # are the topics given, or to be found in the text?


def make_questions(graph: MovieGraph, seed: int) -> dict[Split, list[Asked]]:
    """Return the questions of every split in a random order."""
    num_dev, num_test = PER_TYPE["dev"], PER_TYPE["test"]
    asked: dict[Split, list[Asked]] = {split: [] for split in SPLITS}
    for question_type in QUESTION_TYPES:
        draw = Draw(seed, f"questions/{question_type.kind}")  # a type's questions do not depend on the other types
        facts = draw.shuffle(_list_facts(graph, question_type, draw))
        shares: dict[Split, tuple[list[Topics], tuple[str, ...]]] = {
            "dev": (facts[:num_dev], question_type.dev),
            "test": (facts[num_dev : num_dev + num_test], question_type.test),
            "train": (facts[num_dev + num_test :], ()),
        }
        for split, (share, unseen) in shares.items():
            asked[split] += _ask(graph, question_type, share, count=PER_TYPE[split], unseen=unseen, draw=draw)
    mark = _make_marker(graph, Draw(seed, "marks"))
    return {split: [mark(one) for one in Draw(seed, f"order/{split}").shuffle(asked[split])] for split in SPLITS}


def render(graph: MovieGraph, asked: Asked) -> str:
    """Return the question as a person reads it."""
    text = asked.wording
    if asked.claim is not None:
        text = text.replace("[claim]", graph.names[asked.claim])
    for topic in asked.topics:
        text = text.replace("[topic]", graph.names[topic], 1)
    return text


def to_record(graph: MovieGraph, asked: Asked, question_id: str) -> dict[str, Any]:
    """Return the line of the questions file, in the format that own data has."""
    record: dict[str, Any] = {"id": question_id, "question": render(graph, asked)}
    if asked.marked:
        record["topics"] = list(asked.topics)
    record |= {"answers": list(asked.answers), "hops": len(asked.type.chain), "chain": list(asked.type.chain)}
    if asked.claim is not None:
        record |= {"claim": asked.claim, "verdict": asked.claim in asked.answers}
    return record


def _list_facts(graph: MovieGraph, question_type: QuestionType, draw: Draw) -> list[Topics]:
    """Return the topics that a type can ask about: those with a readable number of answers."""
    chain = question_type.chain
    reached = {topic: follow(graph, topic, chain) for topic in graph.steps[chain[0]]}
    if question_type.num_topics == 1:
        return [(topic,) for topic, answers in sorted(reached.items()) if 1 <= len(answers) <= MAX_ANSWERS]
    leads_to: dict[str, list[str]] = {}
    for topic, answers in sorted(reached.items()):
        for answer in sorted(answers):
            leads_to.setdefault(answer, []).append(topic)
    shared = sorted(answer for answer, topics in leads_to.items() if len(topics) > 1)
    pairs: dict[Topics, None] = {}  # a dict keeps the order in which the pairs were drawn
    wanted = sum(PER_TYPE.values())
    while len(pairs) < wanted:
        first, second = draw.shuffle(leads_to[draw.pick(shared)])[:2]
        if _can_stand_together(graph, first, second) and (second, first) not in pairs:
            pairs[first, second] = None
    return list(pairs)


def _ask(
    graph: MovieGraph,
    question_type: QuestionType,
    facts: Sequence[Topics],
    *,
    count: int,
    unseen: tuple[str, ...],
    draw: Draw,
) -> list[Asked]:
    """Return ``count`` questions over ``facts``; every second one in an ``unseen`` wording, where there are any."""
    first = [draw.below(len(question_type.train)) for _ in facts]
    rights = draw.shuffle([number % 2 == 0 for number in range(count)])  # half of the claims are right
    questions = []
    for number in range(count):
        lap, place = divmod(number, len(facts))
        if unseen and number % 2:
            wording = unseen[number // 2 % len(unseen)]
        else:  # another lap over the facts takes the next wording, so that no question comes twice
            wording = question_type.train[(first[place] + lap) % len(question_type.train)]
        answers = answer(graph, question_type, facts[place])
        claim = None
        if question_type.has_claim:
            claim = _pick_claim(graph, question_type, facts[place][0], answers, right=rights[number], draw=draw)
        questions.append(Asked(question_type, wording, facts[place], tuple(sorted(answers)), claim))
    return questions


def answer(graph: MovieGraph, question_type: QuestionType, topics: Topics) -> frozenset[str]:
    """Return the labels that the type's chain leads to from every one of ``topics``, never through a topic."""
    reached = [follow(graph, topic, question_type.chain, banned=topics) for topic in topics]
    return frozenset.intersection(*reached)


def _pick_claim(
    graph: MovieGraph, question_type: QuestionType, topic: str, answers: frozenset[str], *, right: bool, draw: Draw
) -> str:
    """Return one of the answers, or an entity of the same sort that is none and has no answer's name."""
    last = question_type.chain[-1]
    back = last[1:] if last.startswith("~") else f"~{last}"
    wrong = sorted(graph.steps[back].keys() - answers)
    true_names = {graph.names[label] for label in answers}
    good = [label for label in sorted(answers) if _can_stand_together(graph, topic, label)]
    if right and good:
        return draw.pick(good)
    while True:
        claim = draw.pick(wrong)
        if graph.names[claim] not in true_names and _can_stand_together(graph, topic, claim):
            return claim


def _can_stand_together(graph: MovieGraph, one: str, other: str) -> bool:
    """Return whether two entities can be told apart in one text: neither name contains the other."""
    first, second = graph.names[one].casefold(), graph.names[other].casefold()
    return first not in second and second not in first


def _make_marker(graph: MovieGraph, draw: Draw) -> Callable[[Asked], Asked]:
    """Return a function that takes the topics' mark from some questions: those whose one topic can be found by name."""
    num_bearers = Counter(name.casefold() for name in graph.names.values())

    def mark(asked: Asked) -> Asked:
        if len(asked.topics) > 1 or asked.claim is not None or not draw.chance(PERCENT_UNMARKED):
            return asked
        wording = asked.wording.casefold()
        if num_bearers[graph.names[asked.topics[0]].casefold()] > 1 or any(name in wording for name in num_bearers):
            return asked
        return replace(asked, marked=False)

    return mark
