"""An oracle: a player that knows what is right, says only what its prompt shows, and errs as often as it is told to.

It knows of each question the golds, the plans that lead to them, and who stands on the way. A call is known by its
prompt, not by whose it is: equal prompts get equal answers in a cache and in a batch, whichever question asked first.
So questions of one text are known together.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kgqa_core.config_systems import OracleSection
from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import normalise_name
from kgqa_core.graph.follow import follow_layers, on_way
from kgqa_core.graph.kg import golds_of, read_step, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.alignment import same_stem
from kgqa_core.instructions.answers import ABSTENTION, distinct_names
from kgqa_core.instructions.choose import NO, YES
from kgqa_core.instructions.plan import PathConstraint, identity_of, render_plan
from kgqa_core.instructions.render import ARROW
from kgqa_core.instructions.scores import MapCase
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.types import Prompt
from kgqa_core.oracle import player
from kgqa_core.oracle.player import Call, Options, Player, Said, options_of, say_picks, seed_of
from kgqa_core.types import LabelPath, Question

SURE = 0.9  # probability of all that is right together
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


# ------ What an oracle says.


def open_oracle(knowledge: Knowledge, *, settings: OracleSection) -> Player:
    """Return an oracle as a language model; ``knowledge`` is of all questions that it may be asked."""
    told = f"{settings.error:g}-{settings.knows:g}-{settings.seed}{'-fills' if settings.fill_budget else ''}"
    return Player(f"oracle-v{player.VERSION}-{told}-{knowledge.key}", Oracle(knowledge, settings))


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call as the oracle understands it."""

    call: Call
    known: Known | None  # None: of this question it was told nothing
    is_wrong: bool
    seed: tuple[object, ...]  # of all that is drawn for it

    @property
    def chance(self) -> random.Random:
        return random.Random(seed_of("which", *self.seed))  # the same whenever it is asked


@dataclass(frozen=True, slots=True)
class Oracle:
    """What the oracle says. Implements ``Mind``."""

    knowledge: Knowledge
    settings: OracleSection

    def say(self, call: Call, num: int) -> list[Said]:
        """Return plans, best first, or the one text that answers any other instruction."""
        asked = self._understand(call)
        if call.name == "plan":
            return _say_plans(asked, num)
        if call.name == "extract_clues":
            return [(_say_clues(asked), math.log(SURE))]
        options, picks = self._pick(asked)
        others: list[int] = []
        if self.settings.fill_budget and call.name == "score_relations":  # in an order drawn, without right ones
            right = right_options(call, options, asked.known) if asked.known else []
            others = sorted(set(range(len(options.names))).difference(picks, right))
            asked.chance.shuffle(others)
        return [(player.held_to(call.prompt.constraint, say_picks(call, options, picks, others)), math.log(SURE))]

    def weigh(self, call: Call, options: Sequence[str]) -> list[float]:
        """Let the options that it would say share ``SURE``, and the others the rest."""
        good = self._good_texts(self._understand(call))
        is_good = [option.strip() in good for option in options]
        num_good, num_bad = sum(is_good), len(options) - sum(is_good)
        share, left = SURE if num_good and num_bad else 1.0, 1 - SURE if num_good else 1.0
        return [math.log(share / num_good if one else left / num_bad) for one in is_good]

    def _understand(self, call: Call) -> _Asked:
        known = self.knowledge.of_prompt(call.prompt, call.case.question)
        seed = call.seed(self.settings.seed, known.id if known else "")
        return _Asked(call, known, share_of("error", *seed) < self.settings.error, seed)

    def _pick(self, asked: _Asked) -> tuple[Options, list[int]]:
        """Return what there is to pick from, and what the oracle picks; of questions alone: what it knows by heart.

        A call that goes wrong picks the other verdict, another option, or none; where none is right, one.
        """
        call, known, kept = asked.call, asked.known, self.settings
        if call.name in ("direct", "chain_of_thought"):
            by_heart = known and share_of("knows", kept.seed, known.id) < kept.knows and not asked.is_wrong
            golds = sorted(known.golds) if known and by_heart else []
            return Options(tuple(golds)), list(range(len(golds)))
        options = options_of(call)
        right = right_options(call, options, known) if known else []
        if known and not right and getattr(call.case, "stations", False):  # then what lies between may be meant
            between = Options(tuple(dict.fromkeys(name for path in call.case.paths for name in path.stations)))
            if right := right_options(call, between, known):
                options = between
        wrong, chance = sorted(set(range(len(options.names))).difference(right)), asked.chance
        if not asked.is_wrong:
            return options, right
        if call.name == "enough_information":
            return options, wrong
        if not wrong or (right and chance.random() < 0.5):
            return options, []
        return options, [wrong[chance.randrange(len(wrong))]]

    def _good_texts(self, asked: _Asked) -> set[str]:
        """Return all that would be weighed as what the oracle says."""
        call = asked.call
        if call.name == "plan":
            golds = [] if asked.is_wrong or not asked.known else asked.known.plans
            return {render_plan(plan) for plan in golds} or {text for text, _ in _say_plans(asked, 1)}
        if call.name == "extract_clues":
            return {_say_clues(asked)}
        options, picks = self._pick(asked)
        return {say_picks(call, options, picks)}.union(*(player.ways_to_say(call, options, pick) for pick in picks))


def share_of(*parts: object) -> float:
    """Return a number 0 <= x < 1 that follows from ``parts`` alone, evenly spread."""
    return (seed_of(*parts) >> 203) / 2**53  # the first 53 of its 256 bits: as many as a float holds exactly


def _say_clues(asked: _Asked) -> str:
    """Return the question's clues, one per line; a call that goes wrong leaves one out."""
    clues = clues_of(asked.known) if asked.known else ()
    if clues and asked.is_wrong:
        lost = asked.chance.randrange(len(clues))
        clues = clues[:lost] + clues[lost + 1 :]
    return "\n".join(clues) or ABSTENTION


# ------ Which of the options that a case shows are right, by what is known of its question.


def right_options(call: Call, options: Options, known: Known) -> list[int]:
    """Return the places of the right options, in the order shown."""
    case = call.case
    right: Collection[str] = known.golds
    match call.name:
        case "score_relations":  # the steps that go on along some gold plan
            size = len(case.path)
            right = {plan[size] for plan in known.plans if len(plan) > size and plan[:size] == tuple(case.path)}
        case "score_entities":  # those on ways to golds, topics left out, along the gold plans that begin like this one
            size, plan = len(case.plan), tuple(case.plan)
            layers = [own for gold, own in zip(known.plans, known.layers, strict=True) if gold[:size] == plan]
            right = {name for own in layers for layer in own[1:] for name in layer}
        case "enough_information":
            right = (YES,) if any(path.end in known.golds for path in case.paths) else (NO,)
        case "map_relations" | "map_entities":
            steps = _steps_here(call, known)
            is_entity = call.name == "map_entities"
            pairs = _entity_pairs(case, known, steps) if is_entity else {(clue, step) for clue, step, _ in steps}
            return [at for at, pair in enumerate(zip(options.clues, options.names, strict=True)) if pair in pairs]
    return [place for place, name in enumerate(options.names) if name in right]


def _entity_pairs(case: MapCase, known: Known, steps: Iterable[tuple[str, str, int]]) -> set[tuple[str, str]]:
    """Return clues with the entities that they name; each other entity with a clue whose step leads there to golds."""
    folded = {clue: normalise_name(clue) for clue in case.clues}
    pairs = {(clue, name) for clue in case.clues for name in case.options if folded[clue] == normalise_name(name)}
    unnamed = set(case.options).difference(name for _, name in pairs)
    for clue, step, place in steps:
        if case.relation in ("", step):
            pairs |= {(clue, name) for name in unnamed & known.layers[0][place + 1]}
    return pairs


def _steps_here(call: Call, known: Known) -> Iterator[tuple[str, str, int]]:
    """Yield (clue as shown, step, place) of each step of the first gold plan from the entity shown on, if left."""
    left, entity = {normalise_name(clue): clue for clue in call.case.clues}, call.case.entity
    plan = known.plans[0] if known.plans else ()
    for place, (step, own) in enumerate(zip(plan, step_clues(known), strict=True)):
        clue, way = left.get(normalise_name(own)), ARROW.join(("", *plan[:place]))
        if clue is None:
            continue
        if not entity or entity in known.layers[0][place] or (place > 0 and entity.endswith(way)):
            yield clue, step, place


def _say_plans(asked: _Asked, num: int) -> list[Said]:
    """Return gold plans, which share ``SURE``, then others, the most like a gold one first, each half as probable."""
    constraint, golds = asked.call.prompt.constraint, asked.known.plans if asked.known else ()
    allowed = [plan for plan in golds if plan and (constraint is None or is_allowed(constraint, render_plan(plan)))]
    gold = [] if asked.is_wrong else allowed[:num]
    others: dict[LabelPath, None] = {}
    near = player.near_plans(constraint, allowed[0] if allowed else (), asked.chance) if constraint else iter(())
    while len(others) < num - len(gold) and (plan := next(near, None)):
        if plan not in golds:
            others[plan] = None
    share, left = (SURE / len(gold), 1 - SURE) if gold else (1.0, 1.0)
    log_probs = [math.log(share)] * len(gold)
    log_probs += [math.log(min(share, left / 2 ** (place + 1))) for place in range(len(others))]
    return list(zip(map(render_plan, (*gold, *others)), log_probs, strict=True)) or [("", player.NO_TEXT)]
