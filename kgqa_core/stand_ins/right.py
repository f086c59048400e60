"""Which of the options that a prompt shows are right, by what is known of its question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kgqa_core.evaluation.normalise import normalise_name
from kgqa_core.instructions.enough_information import NO, YES
from kgqa_core.instructions.render import ARROW
from kgqa_core.stand_ins.clues import step_clues
from kgqa_core.stand_ins.knowledge import Known
from kgqa_core.stand_ins.options import Options
from kgqa_core.stand_ins.reading import ReadPrompt


def right_options(shown: ReadPrompt, options: Options, known: Known) -> list[int]:
    """Return the places of the right options, in the order shown."""
    match options.instruction:
        case "score_relations":
            right: Collection[str] = _next_steps(known, shown.path)
        case "score_entities":
            right = _on_the_way(known, shown.plan)
        case "enough_information":
            right = (YES,) if any(end in known.golds for path in shown.paths for end in path.ends) else (NO,)
        case "map_relations":
            pairs = set(_clue_of_relation(shown, known))
            return _places_of_pairs(options, pairs)
        case "map_entities":
            pairs = {(clue, name) for clue in shown.clues for name in shown.entities if _is_name(clue, name)}
            named = {name for _, name in pairs}
            pairs |= {(clue, name) for clue, name in _clue_of_entity(shown, known) if name not in named}
            return _places_of_pairs(options, pairs)
        case _:
            right = known.golds
    return [place for place, name in enumerate(options.names) if name in right]


def _places_of_pairs(options: Options, pairs: set[tuple[str, str]]) -> list[int]:
    return [at for at, pair in enumerate(zip(options.clues, options.names, strict=True)) if pair in pairs]


def _next_steps(known: Known, path: Sequence[str]) -> set[str]:
    """Return the steps that go on from ``path`` along some gold plan."""
    size = len(path)
    return {plan[size] for plan in known.plans if len(plan) > size and plan[:size] == tuple(path)}


def _on_the_way(known: Known, plan: Sequence[str]) -> set[str]:
    """Return the names on the ways to golds, topics left out, along the gold plans that begin with ``plan``."""
    size = len(plan)
    layers = [own for gold, own in zip(known.plans, known.layers, strict=True) if gold[:size] == tuple(plan)]
    return {name for own in layers for layer in own[1:] for name in layer}


def _clue_of_relation(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str]]:
    """Yield (clue, step) of each step that goes on from the entity shown, and whose clue is left."""
    for clue, step, place in _steps_left(shown, known):
        if _stands_at(shown.entity, known, place):
            yield clue, step


def _clue_of_entity(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str]]:
    """Yield (clue, name) of each entity that the clue's own step leads to on a way to golds."""
    for clue, step, place in _steps_left(shown, known):
        if _stands_at(shown.entity, known, place) and shown.relation in ("", step):
            after = known.layers[0][place + 1]
            yield from ((clue, name) for name in shown.entities if name in after)


def _steps_left(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str, int]]:
    """Yield (clue as shown, step, place) of each step of the first gold plan whose clue is left."""
    left = {normalise_name(clue): clue for clue in shown.clues}
    for place, (step, own) in enumerate(zip(known.plans[0] if known.plans else (), step_clues(known), strict=True)):
        clue = left.get(normalise_name(own))
        if clue is not None:
            yield clue, step, place


def _stands_at(entity: str, known: Known, place: int) -> bool:
    """Say whether the first gold plan's step at ``place`` starts at an entity, or at the end of a path to several."""
    way = ARROW.join(("", *known.plans[0][:place]))
    return not entity or entity in known.layers[0][place] or (place > 0 and entity.endswith(way))


def _is_name(clue: str, name: str) -> bool:
    return normalise_name(clue) == normalise_name(name)
