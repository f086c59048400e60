"""What FiSKE asks, taught by the graph: clues of a question, and which relations and entities they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgqa_core.graph.csr import Ints
from kgqa_core.graph.follow import follow_layers, leave, on_way
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph, links_to, relations_around
from kgqa_core.instructions.alignment import align, content_words
from kgqa_core.instructions.reason import ExtractCluesInstruction, ReasonCase, ask_for_what
from kgqa_core.instructions.render import say_where
from kgqa_core.instructions.scores import MapCase, MapEntitiesInstruction, MapRelationsInstruction
from kgqa_core.questions.link import spans_of
from kgqa_core.types import LabelPath

if TYPE_CHECKING:
    from kgqa_core.instructions.examples import Asked, Made

BATCH = 20  # relations of one prompt, as FiSKE asks
MAX_RIGHT, MAX_WRONG = 10, 10  # entities of one prompt


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
    path, own = meant.path, align(words, meant.path, asked.source.known.words).places
    relations = to_relations(search.graph, path)
    walks = [
        follow_layers(search.graph, [topic], relations or (), reenter_topic=search.reenter_topic)
        for topic in question.topics
    ]
    walks = [layers for layers in walks if not asked.golds.isdisjoint(layers[-1].tolist())]
    if not own or not relations or not walks:
        return None
    layers = draw.choice(walks)
    found: dict[str, tuple[int, int, int]] = {}  # folded clue -> where it stands, what it names, its step
    for entity in dict.fromkeys([*question.topics, *([question.claim] if question.claim is not None else [])]):
        for start, end in spans_of(text, search.name_of(entity))[:1]:
            found.setdefault(text[start:end], (start, entity, -1))
    for at, place in enumerate(own):
        spans = spans_of(text, words[place])
        found.setdefault(words[place], (spans[0][0] if spans else len(text), -1, at))
    ordered = sorted(found.items(), key=lambda item: (item[1], item[0]))
    steps = [step for _, (_, _, step) in ordered]
    if int(layers[0][0]) not in [entity for _, (_, entity, _) in ordered] or len(set(steps) - {-1}) < len(path):
        return None
    clues, named = tuple(clue for clue, _ in ordered), tuple(entity for _, (_, entity, _) in ordered)
    return Way(text, clues, named, tuple(map(steps.index, range(len(path)))), path, relations, tuple(layers))


# ------ The cases of one question.


def clue_cases(asked: Asked) -> Made:
    """Names in the question, and a word of it for every step of a teaching plan."""
    if way := find_way(asked):
        case = ReasonCase(way.text, asked.question.id, answers=way.clues)
        yield ExtractCluesInstruction(asked.source.prompts), case, 1.0


def map_relations_cases(asked: Asked) -> Made:
    """At every step of a plan the batch of relations with the right one, and where nothing fits.

    That is another batch, or where a wrong turn leads to, unless a step that is still to come could go on from there.
    """
    way, search, draw = find_way(asked), asked.search, asked.draw("map_relations")
    if way is None:
        return
    barred, start = search.avoided(way.layers[0]), int(way.layers[0][0])
    made: list[MapCase] = []

    def ask(frontier: Ints, path: LabelPath, relations: Sequence[int], right: Iterable[str], own: int) -> None:
        left = way.left(search, len(path), frontier)
        options = [search.step_label(relation) for relation in relations]
        draw.shuffle(options)
        pairs = tuple((left.index(own), options.index(step)) for step in right)
        clues, where = tuple(way.clues[at] for at in left), say_where(search, frontier, start, path)
        made.append(MapCase(way.text, clues, tuple(options), asked.question.id, entity=where, pairs=pairs))

    for place, own in enumerate(way.own):
        path, frontier = way.path[:place], way.layers[place]
        around = relations_around(search.graph, frontier, barred)
        ahead = {row.path[place] for row in asked.rows if row.path[:place] == path and len(row.path) > place}
        nothing = []
        for batch in (around[first : first + BATCH] for first in range(0, len(around), BATCH)):
            right = [way.path[place]] if way.relations[place] in batch else []
            if right:
                ask(frontier, path, batch, right, own)
            else:
                nothing.append(batch)
        if nothing:
            ask(frontier, path, draw.choice(nothing), (), own)
        wrong = [relation for relation in around if search.step_label(relation) not in ahead]
        reached = leave(search.graph, frontier, turn := draw.choice(wrong), barred) if wrong else frontier[:0]
        around = relations_around(search.graph, reached, barred)
        fits = not set(way.relations[place + 1 :]).isdisjoint(around)
        if around and not fits and way.left(search, place + 1, reached):
            ask(reached, (*path, search.step_label(turn)), draw.sample(around, min(BATCH, len(around))), (), own)
    for case in made:
        yield MapRelationsInstruction(asked.source.prompts), case, 1 / len(made)


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
    case = MapCase(way.text, clues, tuple(shown), asked.question.id, where, way.path[place], pairs)
    yield MapEntitiesInstruction(asked.source.prompts), case, 1.0


def distinct(search: SearchGraph, entities: Ints) -> list[str]:
    """Return the names of entities: those of one name are one line of a prompt."""
    return list(dict.fromkeys(map(search.name_of, entities.tolist())))


CASES = {"extract_clues": clue_cases, "map_relations": map_relations_cases, "map_entities": map_entities_cases}
