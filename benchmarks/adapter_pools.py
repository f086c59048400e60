"""Hard pools that are drawn, not searched: for WebQSP's training questions, whose graph is not at hand, and for worlds.

A question has its gold chain, other chains that published data says reach its answers, and wrong ones: gold chains of
other questions that are like its own. Their ends are names drawn from what a sample of Freebase has at the end of the
same relation. So a reader learns which chain answers a question, and nothing about which entity does.
In a made-up world the other right chains are the last relation by its other labels: a graph that says one thing twice.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.worlds import World
from kgqa_core.instructions import choose, plan, reason
from kgqa_core.instructions.examples import draw_probabilities
from kgqa_core.instructions.render import ARROW, Prompts, ScoredPath
from kgqa_core.instructions.types import Example
from kgqa_core.questions.link import TOPIC

_TRIPLE = re.compile(r"<\S+/ns/([^>]+)>\t<\S+/ns/([^>]+)>\t(?:<\S+/ns/([^>]+)>|\"(.*)\")")
NUM_RIGHT = (1,) * 11 + (2, 2, 2, 3, 3, 4, 5, 6, 8)  # how many ends the right chain has


@dataclass(frozen=True)
class Shape:
    """What a pool holds beside the right chain; every entry of a tuple is as likely."""

    more_right: tuple[int, ...] = (0,)  # ends of the right chain beyond NUM_RIGHT
    also_right: tuple[int, ...] = (0, 0, 0, 1, 1)  # other chains that reach the answers
    stray: tuple[int, ...] = (0, 0, 1, 2)  # names that each of those leads to as well, and that are no answers
    wrong: tuple[int, ...] = (1, 2, 3, 4)  # chains that do not
    max_paths: int = 10
    spread: float = 0.0  # share of the pools where a right name stands behind one or two of the right chains, any


PLANNED = Shape()  # as by a planner that is often wrong
# As by a retriever that is mostly right, and walks one shortest path to each of its candidates.
RETRIEVED = Shape((0, 0, 0, 1, 2, 4, 8, 16), (0, 1, 1, 2, 3), wrong=(0, 0, 1, 1, 2), max_paths=30, spread=0.7)
# As in published prompts of a trained retriever: more ways to an answer, and wrong chains that are near misses.
MANY = Shape((0, 0, 0, 0, 1, 2, 4, 8, 16), (0, 0, 0, 1, 2, 3, 5, 8), (0, 0, 0, 1), (0, 0, 0, 1, 1, 2, 3), 40, 0.9)
NEAR = replace(MANY, max_paths=24)  # longer prompts teach the same and cost more
SAID_TWICE = replace(RETRIEVED, stray=(0,))  # by other labels of the same relation
ABSTAIN = 0.03  # share of pools that hold wrong chains alone


@dataclass
class Names:
    """Names of things in a sample of Freebase, by the relation that they stand behind."""

    behind: dict[str, list[str]]  # step ("~": backward) -> names
    nameless: set[str]  # steps that lead to entities without a name: n-ary facts
    every: list[str]

    def draw(self, step: str, chance: random.Random) -> str:
        """Return a name that stands behind a step, behind one of the same last word, or any."""
        like = self.behind.get(step) or self.behind.get("." + step.rsplit(".", 1)[-1]) or self.every
        return chance.choice(like)


def read_names(sample: Path) -> Names:
    """Read a sample of Freebase's dump."""
    names: dict[str, str] = {}
    facts = []
    with gzip.open(sample, "rt", encoding="utf-8") as lines:
        for head, relation, tail, literal in map(re.Match.groups, filter(None, map(_TRIPLE.match, lines))):
            if relation == "type.object.name":
                names[head] = literal
            elif tail:
                facts.append((head, relation, tail))
    behind: dict[str, list[str]] = defaultdict(list)
    blank: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for head, relation, tail in facts:
        for step, end in ((relation, tail), ("~" + relation, head)):
            blank[step][end not in names] += 1
            if end in names:
                behind[step].append(names[end])
                behind["." + relation.rsplit(".", 1)[-1]].append(names[end])
    return Names(dict(behind), {step for step, (named, bare) in blank.items() if bare > named}, sorted(names.values()))


@dataclass(frozen=True)
class Asked:
    """A question with its gold chain and the others that are said to reach its answers."""

    id: str
    text: str
    topic: str
    chain: tuple[str, ...]
    others: tuple[tuple[str, ...], ...]
    misses: tuple[tuple[str, ...], ...] = ()  # plans of RoG's tuned 7B that nobody says to reach the answers


def read_asked(data: Path) -> list[Asked]:
    """Read the training questions that have a gold chain."""
    rows = map(json.loads, (data / "webqsp_plans" / "train.jsonl").read_text(encoding="utf-8").splitlines())
    planned = {row["question"].strip(" ?").casefold(): row for row in rows}
    found = []
    for line in (data / "gold_plans" / "webqsp_train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["chain"] and row["topic"]:
            also = planned.get(row["question"].strip(" ?").casefold(), {})
            chain = tuple(row["chain"])
            others, proposed = (
                tuple(tuple(path) for path in also.get(name, ()) if path)
                for name in ("relation_paths", "rog_llama2_7b_top3")
            )
            reach = set(map(_unsigned, (chain, *others)))
            misses = tuple(path for path in proposed if path not in reach)
            found.append(Asked(row["id"], row["question"], row["topic"], chain, others, misses))
    return found


@dataclass(frozen=True)
class Walk:
    """One path as it is shown: nodes and steps in turns."""

    nodes: tuple[str, ...]
    steps: tuple[str, ...]

    def shown(self) -> ScoredPath:
        """Return it as a prompt shows it."""
        steps = [step.replace("~", "^") for step in self.steps]
        parts = [part for pair in zip(self.nodes, [*steps, ""], strict=True) for part in pair][:-1]
        return ScoredPath(ARROW.join(parts), 1.0, tuple(steps), self.nodes[-1], self.nodes[0])

    def triples(self) -> tuple[str, ...]:
        """Return it as stored triples."""
        told = list[str]()
        for here, step, there in zip(self.nodes, self.steps, self.nodes[1:], strict=False):
            told.append(f"({there}, {step[1:]}, {here})" if step.startswith("~") else f"({here}, {step}, {there})")
        return tuple(told)


def _walks(topic: str, chain: Sequence[str], ends: Sequence[str], names: Names, chance: random.Random) -> list[Walk]:
    found = []
    for end in ends:
        between = []
        for step, following in pairwise(chain):
            known = step in names.behind or step in names.nameless
            same_thing = step.lstrip("~").rsplit(".", 1)[0] == following.lstrip("~").rsplit(".", 1)[0]
            blank = step in names.nameless if known else not same_thing or chance.random() < 0.5
            middle = "m.0" + "".join(chance.choices("0123456789bcdfghjklmnpqrstvwxyz_", k=5))
            between.append(middle if blank else names.draw(step, chance))
        found.append(Walk((topic, *between, end), tuple(chain)))
    return found


def _unsigned(chain: Sequence[str]) -> tuple[str, ...]:
    return tuple(step.lstrip("~") for step in chain)


def _likeness(one: Sequence[str], other: Sequence[str]) -> int:
    ours, theirs = one[0].lstrip("~").split("."), other[0].lstrip("~").split(".")
    return sum(mine == yours for mine, yours in zip(ours[:2], theirs[:2], strict=False)) * 2 + (len(one) == len(other))


def draw_pool(
    asked: Asked,
    chains: Sequence[tuple[str, ...]],
    names: Names,
    chance: random.Random,
    shape: Shape = PLANNED,
    near: bool = False,
) -> tuple[list[Walk], set[str]]:
    """Return the walks of a pool, shuffled or chain by chain, and the names that are right.

    Wrong chains are other questions' that are like this one's; with ``near`` all near misses come before them.
    """
    wanted = chance.choice(NUM_RIGHT) + chance.choice(shape.more_right)
    right = list(dict.fromkeys(names.draw(asked.chain[-1], chance) for _ in range(wanted)))
    right = [name for name in right if name != asked.topic] or [chance.choice(names.every)]
    others = [chain for chain in asked.others if _unsigned(chain) != _unsigned(asked.chain)]
    others = chance.sample(others, min(len(others), chance.choice(shape.also_right)))
    behind = [right, *(chance.sample(right, chance.randint(1, len(right))) for _ in others)]
    if others and chance.random() < shape.spread:
        ways = [set(chance.choices(range(len(behind)), k=chance.choice((1, 1, 2)))) for _ in right]
        behind = [[name for name, some in zip(right, ways, strict=True) if way in some] for way in range(len(behind))]
    groups = [_walks(asked.topic, asked.chain, behind[0], names, chance)]
    for chain, some in zip(others, behind[1:], strict=True):
        stray = [names.draw(chain[-1], chance) for _ in range(chance.choice(shape.stray))]
        groups.append(_walks(asked.topic, chain, [*some, *stray], names, chance))
    reach = set(map(_unsigned, (asked.chain, *asked.others)))  # published chains have no directions
    pool = [one for one in chance.sample(chains, min(200, len(chains))) if _unsigned(one) not in reach]
    pool.sort(key=lambda one: -_likeness(asked.chain, one))
    misses = asked.misses if near else ()
    wrong = list(dict.fromkeys((*misses, *pool)))[: max(len(misses), chance.choice(shape.wrong))]
    for chain in wrong:
        like = asked.chain[-1] if chance.random() < 0.3 else chain[-1]
        ends = [names.draw(like, chance) for _ in range(chance.choice((1, 1, 2, 3, 5)))]
        groups.append(_walks(asked.topic, chain, [one for one in ends if one not in right], names, chance))
    if wrong and chance.random() < ABSTAIN and any(groups[-len(wrong) :]):
        groups, right = groups[-len(wrong) :], []
    groups = [*filter(None, groups)]
    while sum(map(len, groups)) > shape.max_paths:  # the first, nearly always the right chain's, is cut last
        max(groups[1:] or groups, key=len).pop()
        groups = [*filter(None, groups)]
    chance.shuffle(groups)
    walks = [walk for group in groups for walk in group]
    if chance.random() < 0.5:
        chance.shuffle(walks)
    return walks, set(right)


def is_dev(asked: Asked) -> bool:
    """Return whether a question, one in ten, teaches nothing in any pass."""
    return random.Random(f"dev {asked.id}").random() < 0.1


def webqsp_examples(data: Path, prompts: Prompts, shares: dict[str, float], seed: int = 0) -> Iterator[Example]:
    """Yield examples of reason, half of them among near misses, of choose and plan; one question in ten is dev."""
    names, questions = read_names(data / "freebase" / "sample.nt.gz"), read_asked(data)
    chains = [one.chain for one in questions]
    for asked in questions:
        chance = random.Random(f"{seed} {asked.id}")
        split = "dev" if is_dev(asked) else "train"
        if chance.random() < shares.get("reason", 0):
            shape = chance.choice((PLANNED, RETRIEVED, NEAR, NEAR))
            walks, right = draw_pool(asked, chains, names, chance, shape, near=shape is NEAR)
            if shape is NEAR and chance.random() < 0.5:  # published paths have no directions
                walks = [replace(walk, steps=_unsigned(walk.steps)) for walk in walks]
            yield _reason_example(asked, walks, right, prompts, split)
        if chance.random() < shares.get("choose", 0):
            walks, right = draw_pool(asked, chains, names, chance)
            by_end = {walk.nodes[-1]: walk for walk in walks}
            ends = chance.sample([*by_end], min(len(by_end), chance.randint(3, 5)))
            scores = draw_probabilities([end in right for end in ends], chance)
            ends = sorted(ends, key=dict(zip(ends, scores, strict=True)).__getitem__, reverse=True)
            rows = zip(ends, sorted(scores, reverse=True), strict=True)
            candidates = tuple(choose.Candidate(end, score, by_end[end].triples()) for end, score in rows)
            places = tuple(place for place, end in enumerate(ends) if end in right)
            instruction = choose.ChooseInstruction(prompts, choose.Shown(probabilities=chance.random() < 0.5))
            if places:  # else nothing is taught
                choice = choose.ChooseCase(asked.text, candidates, places)
                yield _example("choose", instruction, choice, asked, split)
        text = re.sub(re.escape(asked.topic), TOPIC, asked.text, flags=re.IGNORECASE)
        if chance.random() < shares.get("plan", 0) and TOPIC in text:  # planners see questions with their topic masked
            path = tuple(step.replace("~", "^") for step in asked.chain)
            case_ = plan.PlanCase(text, path=path)
            yield _example("plan", plan.PlanInstruction(prompts), case_, asked, split)


def world_pools(world: World, prompts: Prompts, share: float) -> Iterator[Example]:
    """Yield examples of reason for a share of the questions that teach in a world, pools as of a retriever."""
    behind = defaultdict[str, list[str]](list)
    for head, label, tail in world.triples:
        for name in (label, *world.alike[label]):
            behind[name].append(tail)
            behind[f"~{name}"].append(head)
    names = Names(dict(behind), set(), sorted({name for every in behind.values() for name in every}))
    asked = [_asked_of_world(row, world) for row in world.questions]
    chains = [one.chain for one in asked]
    for one in asked[world.num_dev :]:
        chance = random.Random(one.id)
        if chance.random() < share:
            yield _reason_example(one, *draw_pool(one, chains, names, chance, SAID_TWICE), prompts, "train")


def _asked_of_world(row: dict[str, Any], world: World) -> Asked:
    *before, last = row["chain"]
    others = tuple((*before, "~" * last.startswith("~") + name) for name in world.alike[last.lstrip("~")])
    return Asked(row["id"], row["question"], row["topics"][0], tuple(row["chain"]), others)


def _reason_example(asked: Asked, walks: list[Walk], right: set[str], prompts: Prompts, split: str) -> Example:
    paths = tuple(walk.shown() for walk in walks)
    shown = tuple(dict.fromkeys(path.end for path in paths))
    case = reason.ReasonCase(asked.text, paths, shown, tuple(name for name in shown if name in right))
    return _example("reason", reason.ReasonInstruction(prompts), case, asked, split)


def _example(name: str, instruction: object, case: object, asked: Asked, split: str) -> Example:
    prompt = instruction.render(case)  # type: ignore[attr-defined]
    return Example(name, asked.id, split, prompt.system, prompt.text, instruction.target(case), 1.0)  # type: ignore[attr-defined]
