"""What searches of EPERM, Think-on-Graph and FiSKE ask, taught: relations, entities, clues, and whether it suffices.

The papers give no targets; here they are the share of golds. A search strays, and then nothing that it is shown is
right: every kind of prompt is made along a path that teaches and along one that does not. Options are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from kgqa_core.graph.csr import Ints
from kgqa_core.graph.follow import end_of, follow_layers, leave, on_way
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions import choose, scores
from kgqa_core.instructions.alignment import align, content_words
from kgqa_core.instructions.reason import ExtractCluesInstruction, ReasonCase, ask_for_what, gather_evidence
from kgqa_core.instructions.render import ScoredPath, neighbour_triples, say_where
from kgqa_core.instructions.scores import MapCase, MapEntitiesInstruction, MapRelationsInstruction
from kgqa_core.questions.link import spans_of
from kgqa_core.types import LabelPath, RelationPath

if TYPE_CHECKING:
    from kgqa_core.instructions.examples import Asked, Made

MAX_RELATIONS = 40  # of one prompt; those that lead to golds always are
MOST_NAMED = 8  # relations that one prompt asks for: as wide as a beam may be
SIZES = (1, 4, 8)  # candidates of one prompt
MAX_TRIPLES = 5  # around each of them, as EPERM shows
MAX_LOOKED_AT = 50  # entities of one layer that are scored, to choose candidates from
MAX_REACHED = 10_000  # entities that a stray path goes on from
NUM_PATHS, NUM_STRAYS = 2, 2  # of one plan, and plans that stray, in one prompt
BATCH = 20  # relations of one prompt, as FiSKE asks
MAX_RIGHT, MAX_WRONG = 10, 10  # entities of one prompt


@dataclass(frozen=True, slots=True)
class Walk:
    """A path from a question's topics, as it is followed."""

    path: LabelPath
    relations: RelationPath
    layers: list[Ints]  # entities, ascending, after 0..len(path) steps


def follow(asked: Asked, path: LabelPath) -> Walk:
    """Return a path of the question's graph as it is followed from all topics."""
    search, relations = asked.search, to_relations(asked.search.graph, path) or ()
    layers = follow_layers(search.graph, asked.question.topics, relations, reenter_topic=search.reenter_topic)
    return Walk(path[: len(relations)], relations, list(layers))


def stray(asked: Asked, draw: Random, size: int) -> Walk | None:
    """Return a walk of at most ``size`` steps that leaves all shortest paths at one of them, then goes on by chance."""
    search, begun = asked.search, follow(asked, draw.choice(asked.rows).path[: draw.randrange(size)])
    path, relations, layers = begun.path, begun.relations, begun.layers
    barred, known = search.avoided(asked.question.topics), {row.path[: len(path) + 1] for row in asked.rows}
    while len(path) < size:
        around = relations_around(search.graph, layers[-1], barred)
        around = [relation for relation in around if (*path, search.step_label(relation)) not in known]
        if not around:
            break
        step = search.step_label(relation := draw.choice(around))
        layers.append(leave(search.graph, layers[-1], relation, barred)[:MAX_REACHED])
        path, relations = (*path, step), (*relations, relation)
    return Walk(path, relations, layers) if len(path) > len(begun.path) else None


def score_offered(offered: Iterable[str], path: LabelPath, known: Mapping[LabelPath, float]) -> dict[str, float]:
    """Return what each step that goes on from ``path`` is worth, of what whole paths are known to be."""
    worth = dict.fromkeys(offered, 0.0)
    for whole, value in known.items():
        step = whole[len(path)] if len(whole) > len(path) and whole[: len(path)] == path else None
        if step in worth:
            worth[step] = max(worth[step], value)
    return worth


def score_relations_cases(asked: Asked) -> Made:
    """At every step along one teaching path, and once beyond its end or astray, the relations that go on, scored.

    They go on from all that the path leads to (EPERM), or from one entity on the way (Think-on-Graph).
    """
    search, draw = asked.search, asked.draw("score_relations")
    if (meant := asked.meant) is None:
        return
    walk, known = follow(asked, meant.path), asked.source.known.weigh(asked.question.masked, asked.rows, meant)
    ways, last = on_way(search.graph, walk.layers, walk.relations, asked.golds), search.max_hops - 1
    places = [(walk.path[:place], ways[place], walk.layers[place]) for place in range(len(walk.path))]
    most = min(len(walk.path), last)  # steps astray
    wrong = stray(asked, draw, draw.randint(1, most)) if most > 0 and draw.random() < 0.5 else None
    if wrong or len(walk.path) <= last:
        beyond = wrong or walk
        places.append((beyond.path, beyond.layers[-1], beyond.layers[-1]))
    for path, some, frontier in places:
        alone = draw.random() < 0.5 and len(some) > 0
        stands = np.array([draw.choice(some.tolist())]) if alone else frontier
        around = relations_around(search.graph, stands, search.avoided(asked.question.topics))
        worth = score_offered(map(search.step_label, around), path, known)
        offered = sorted(draw.sample(list(worth), len(worth)), key=lambda step: worth[step] == 0)[:MAX_RELATIONS]
        draw.shuffle(offered)
        if offered:
            topics, values = asked.names(asked.question.topics), tuple(worth[step] for step in offered)
            text, budget = asked.question.text, draw.randint(1, MOST_NAMED)
            case = scores.RelationsCase(text, tuple(offered), topics, path, budget, values)
            yield scores.ScoreRelationsInstruction(asked.source.prompts), case


def score_candidates(
    asked: Asked, reached: Ints, rest: RelationPath, draw: Random, *, look_ahead: bool
) -> list[tuple[int, float]]:
    """Return entities with the share of golds that the rest of a plan leads to, right and wrong ones in turns.

    With ``look_ahead`` what it leads nowhere from is left out.
    """
    search, golds = asked.search, asked.golds
    barred = () if search.reenter_topic else asked.question.topics
    layer = reached.tolist()
    looked_at = dict.fromkeys(draw.sample(layer, min(MAX_LOOKED_AT, len(layer))))
    if not rest and (golden := [entity for entity in layer if entity in golds]):
        looked_at |= dict.fromkeys(draw.sample(golden, 1))
    ends = {one: follow_layers(search.graph, [one], rest, topics=barred)[-1].tolist() for one in looked_at}
    kept = {one: own for one, own in ends.items() if own or not look_ahead}
    scored = [(one, sum(end in golds for end in own) / max(len(own), 1)) for one, own in kept.items()]
    right = [pair for pair in scored if pair[1] > 0]
    wrong = [pair for pair in scored if pair[1] == 0]
    return [pair for turn in zip_longest(right, wrong) for pair in turn if pair is not None]


def score_entities_cases(asked: Asked) -> Made:
    """Entities on the way of one teaching path, and of one that does not teach or strays.

    They have facts around them and a whole plan (EPERM), or are behind one relation of one entity (Think-on-Graph).
    """
    search, draw = asked.search, asked.draw("score_entities")
    if (meant := asked.meant) is None:
        return
    walks = [follow(asked, path := meant.path)]
    others = [row.path for row in asked.rows if row not in asked.teaching]
    wrong = follow(asked, draw.choice(others)) if others and draw.random() < 0.5 else stray(asked, draw, len(path))
    walks += [wrong] if wrong else []
    topics, barred = asked.names(asked.question.topics), search.avoided(asked.question.topics)
    for walk in walks:
        place, size = draw.randint(1, len(walk.path)), draw.choice(SIZES)
        rest, is_tog, found = walk.relations[place:], draw.random() < 1 / 3, list[tuple[int, float]]()
        if is_tog:
            here = draw.choice(walk.layers[place - 1].tolist())
            reached = leave(search.graph, np.array([here]), walk.relations[place - 1], barred)
            found = score_candidates(asked, reached, rest, draw, look_ahead=False)
        if is_tog := len(found) > 1:  # of one there is nothing to choose
            found = found[: max(size, 2)]
        else:
            found = score_candidates(asked, walk.layers[place], rest, draw, look_ahead=True)
            found = found[:size] if size > 1 else draw.sample(found[:2], min(1, len(found)))
        draw.shuffle(found)
        ids = [entity for entity, _ in found]
        facts = [() if is_tog else neighbour_triples(search, one, limit=MAX_TRIPLES) for one in ids]
        shown = tuple(map(scores.EntityCandidate, asked.names(ids), facts))
        if shown:
            plan, values = walk.path[:place] if is_tog else walk.path, tuple(score for _, score in found)
            case = scores.EntitiesCase(asked.question.text, shown, topics, plan, values)
            yield scores.ScoreEntitiesInstruction(asked.source.prompts), case


def enough_cases(asked: Asked) -> Made:
    """Paths of a teaching plan that end right (enough), or are on their way; or none of them. Others stray with them.

    As in a beam, all have the same number of steps, where a stray finds so many.
    """
    if (meant := asked.meant) is None:
        return
    question, search, draw = asked.question, asked.search, asked.draw("enough_information")
    path, enough = meant.path, draw.random() < 0.5
    depth = len(path) if enough else draw.randint(1, len(path))
    strays = [one.path for one in (stray(asked, draw, depth) for _ in range(NUM_STRAYS)) if one]
    main = path[:depth] if enough or depth < len(path) else strays.pop() if strays else ()
    shown: list[ScoredPath] = []
    for plan in dict.fromkeys((main, *strays) if main else ()):
        found = gather_evidence(search, question.topics, [(plan, 1.0)], max_paths=asked.source.reasoner.max_paths)
        right = enough and plan == main
        ends = zip(found.paths, map(end_of, found.steps), strict=True)
        paths = [one for one, end in ends if (end in asked.golds) == right]
        if plan == main and not paths:
            return
        shown += draw.sample(paths, min(NUM_PATHS, len(paths)))
    draw.shuffle(shown)
    if shown:
        case = choose.EnoughCase(question.text, asked.names(question.topics), tuple(shown), enough)
        yield choose.EnoughInstruction(asked.source.prompts), case


# ------ What FiSKE asks: clues of a question, and which relations and entities they stand for.


@dataclass(frozen=True, slots=True)
class Way:
    """A teaching plan, walked from one topic, with the clues that stand for its steps."""

    text: str  # the question as FiSKE asks it
    clues: tuple[str, ...]  # in the question's order
    named: tuple[int, ...]  # per clue the entity that it names; -1 where it stands for a step
    own: tuple[int, ...]  # per step the place of its clue
    path: LabelPath
    relations: tuple[int, ...]
    layers: tuple[Ints, ...]  # entities, ascending, after 0..len(path) steps

    def left(self, search: SearchGraph, place: int, frontier: Ints) -> list[int]:
        """Return the places of clues left after some steps: those that name what is near are not asked about."""
        start = int(self.layers[0][0])
        targets = sorted({one for one in self.named if one not in (-1, start)})
        links = links_to(search.graph, frontier, np.array(targets, dtype=np.int64)) if targets else {}
        gone = {start, *(one for found in links.values() for one in found)}
        return [at for at, one in enumerate(self.named) if one not in gone and at not in self.own[:place]]


def find_way(asked: Asked) -> Way | None:
    """Return the way that the words of a question fit best, of those that teach; None where they do for none."""
    search, question, draw = asked.search, asked.question, asked.draw("clues")
    if (meant := asked.meant) is None:
        return None
    text, words = ask_for_what(question.text), content_words(question.masked)
    path, (_, own) = meant.path, align(words, meant.path, asked.source.known.words)
    relations = to_relations(search.graph, path)
    graph, reenter = search.graph, search.reenter_topic
    walks = [follow_layers(graph, [topic], relations or (), reenter_topic=reenter) for topic in question.topics]
    walks = [layers for layers in walks if not asked.golds.isdisjoint(layers[-1].tolist())]
    if not own or not relations or not walks:
        return None
    layers = draw.choice(walks)
    # By the clue's text: where it stands, and what it stands for, an entity or a step of the plan; -1 for the other.
    found: dict[str, tuple[int, int, int]] = {}
    claim = () if question.claim is None else (question.claim,)
    for entity in dict.fromkeys((*question.topics, *claim)):
        for start, end in spans_of(text, search.name_of(entity))[:1]:
            found.setdefault(text[start:end], (start, entity, -1))
    for step, place in enumerate(own):
        spans = spans_of(text, words[place])
        found.setdefault(words[place], (spans[0][0] if spans else len(text), -1, step))
    ordered = dict(sorted(found.items(), key=lambda item: (item[1], item[0])))
    named, steps = [entity for _, entity, _ in ordered.values()], [step for *_, step in ordered.values()]
    if int(layers[0][0]) not in named or not set(range(len(path))).issubset(steps):
        return None
    places = tuple(map(steps.index, range(len(path))))
    return Way(text, tuple(ordered), tuple(named), places, path, relations, tuple(layers))


def clue_cases(asked: Asked) -> Made:
    """Names in the question, and a word of it for every step of a teaching plan."""
    if way := find_way(asked):
        case = ReasonCase(way.text, answers=way.clues)
        yield ExtractCluesInstruction(asked.source.prompts), case


def map_relations_cases(asked: Asked) -> Made:
    """At every step of a plan the batch of relations with the right one, and where nothing fits.

    That is another batch, or where a wrong turn leads to, unless a step that is still to come could go on from there.
    """
    way, search, draw = find_way(asked), asked.search, asked.draw("map_relations")
    if way is None:
        return
    barred, start = search.avoided(way.layers[0]), int(way.layers[0][0])
    instruction = MapRelationsInstruction(asked.source.prompts)

    def ask(frontier: Ints, path: LabelPath, relations: Sequence[int], right: Iterable[str], own: int) -> MapCase:
        left = way.left(search, len(path), frontier)
        options = [search.step_label(relation) for relation in relations]
        draw.shuffle(options)
        pairs = tuple((left.index(own), options.index(step)) for step in right)
        clues, where = tuple(way.clues[at] for at in left), say_where(search, frontier, start, path)
        return MapCase(way.text, clues, tuple(options), entity=where, pairs=pairs)

    for place, own in enumerate(way.own):
        path, frontier = way.path[:place], way.layers[place]
        around = relations_around(search.graph, frontier, barred)
        ahead = {row.path[place] for row in asked.rows if row.path[:place] == path and len(row.path) > place}
        nothing = []
        for batch in (around[first : first + BATCH] for first in range(0, len(around), BATCH)):
            if way.relations[place] in batch:
                yield instruction, ask(frontier, path, batch, [way.path[place]], own)
            else:
                nothing.append(batch)
        if nothing:
            yield instruction, ask(frontier, path, draw.choice(nothing), (), own)
        wrong = [relation for relation in around if search.step_label(relation) not in ahead]
        reached = leave(search.graph, frontier, turn := draw.choice(wrong), barred) if wrong else frontier[:0]
        around = relations_around(search.graph, reached, barred)
        fits = not set(way.relations[place + 1 :]).isdisjoint(around)
        if around and not fits and way.left(search, place + 1, reached):
            batch = draw.sample(around, min(BATCH, len(around)))
            yield instruction, ask(reached, (*path, search.step_label(turn)), batch, (), own)


def map_entities_cases(asked: Asked) -> Made:
    """The entities behind one step of a plan: on the way to golds they take its clue; once it is gone, none."""
    way, search, draw = find_way(asked), asked.search, asked.draw("map_entities")
    if way is None:
        return
    place = draw.randrange(len(way.path))
    names = distinct(search, on_way(search.graph, way.layers, way.relations, asked.golds)[place + 1])
    right = draw.sample(names, min(MAX_RIGHT, len(names)))
    others = [name for name in distinct(search, way.layers[place + 1]) if name not in set(names)]
    shown = right + draw.sample(others, min(MAX_WRONG, len(others)))
    draw.shuffle(shown)
    left, own = way.left(search, place, way.layers[place]), way.own[place]
    if draw.random() < 0.5 and len(left) > 1:  # the relation has taken it
        left.remove(own)
    pairs = tuple((left.index(own), at) for at, name in enumerate(shown) if own in left and name in set(right))
    where = say_where(search, way.layers[place], int(way.layers[0][0]), way.path[:place])
    clues = tuple(way.clues[at] for at in left)
    case = MapCase(way.text, clues, tuple(shown), where, way.path[place], pairs)
    yield MapEntitiesInstruction(asked.source.prompts), case


def distinct(search: SearchGraph, entities: Ints) -> list[str]:
    """Return the names of entities: those of one name are one line of a prompt."""
    return list(dict.fromkeys(map(search.name_of, entities.tolist())))


CASES = {
    "score_relations": score_relations_cases,
    "score_entities": score_entities_cases,
    "enough_information": enough_cases,
    "extract_clues": clue_cases,
    "map_relations": map_relations_cases,
    "map_entities": map_entities_cases,
}
