"""Which of the options that a prompt shows are right, by what is known of its question."""

from __future__ import annotations

from collections.abc import Sequence

from kgqa_core.evaluation.normalise import normalise_name
from kgqa_core.instructions.enough_information import NO, YES
from kgqa_core.stand_ins.clues import clues_of, step_clues
from kgqa_core.stand_ins.knowledge import Known
from kgqa_core.stand_ins.options import Options, Pair
from kgqa_core.stand_ins.reading import ReadPrompt


def right_options(shown: ReadPrompt, options: Options, known: Known) -> list[int]:
    """Return the places of the right options, in the order shown; of instructions that offer options."""
    kind = shown.instruction
    if kind == "score_relations":
        right = _next_steps(known, shown.path)
        return [place for place, step in enumerate(options.names) if step in right]
    if kind == "score_entities":
        on_way = _on_way(known, shown.plan)
        return [place for place, name in enumerate(options.names) if name in on_way]
    if kind == "enough_information":
        enough = any(end in known.golds for path in shown.paths for end in path.ends)
        return [options.names.index(YES if enough else NO)]
    if kind == "map_relations":
        pairs = _relation_pairs(shown, known)
        return [place for place, pair in enumerate(options.pairs) if pair in pairs]
    if kind == "map_entities":
        return _right_entities(shown, options, known)
    return [place for place, name in enumerate(options.names) if name in known.golds]


def _next_steps(known: Known, path: Sequence[str]) -> set[str]:
    """Return the steps that go on from ``path`` along some gold plan."""
    size = len(path)
    return {plan[size] for plan in known.plans if len(plan) > size and plan[:size] == tuple(path)}


def _on_way(known: Known, plan: Sequence[str]) -> set[str]:
    """Return the names on the ways of the gold plans that begin with ``plan``, topics left out."""
    size = len(plan)
    layers = [own for gold, own in zip(known.plans, known.layers, strict=True) if gold[:size] == tuple(plan)]
    return {name for own in layers for layer in own[1:] for name in layer}


def _relation_pairs(shown: ReadPrompt, known: Known) -> set[Pair]:
    """Return (clue, relation) of every step that a gold way takes from the entity shown, and whose clue is left."""
    if not known.plans:
        return set()
    steps = list(zip(known.plans[0], step_clues(known), known.layers[0], strict=False))
    left = _folded(shown.clues)
    return {
        (left[normalise_name(clue)], step)
        for step, clue, layer in steps
        if normalise_name(clue) in left and (not shown.entity or shown.entity in layer)
    }


def _right_entities(shown: ReadPrompt, options: Options, known: Known) -> list[int]:
    """Return the pairs of a clue with the entity that it names, or that its step leads to along a gold way."""
    right = {(clue, name) for clue in shown.clues for name in shown.names if clue.casefold() == name.casefold()}
    named = {name for _, name in right}
    if known.plans:
        left = _folded(shown.clues)
        layers = known.layers[0]
        for place, (step, clue) in enumerate(zip(known.plans[0], step_clues(known), strict=True)):
            own = left.get(normalise_name(clue))
            starts = not shown.entity or shown.entity in layers[place]
            if own is not None and starts and (not shown.relation or shown.relation == step):
                right |= {(own, name) for name in shown.names if name in layers[place + 1] and name not in named}
    return [place for place, pair in enumerate(options.pairs) if pair in right]


def _folded(clues: Sequence[str]) -> dict[str, str]:
    return {normalise_name(clue): clue for clue in clues}


def start_clues(known: Known) -> tuple[str, ...]:
    """Return the clues that name topics."""
    steps = set(step_clues(known))
    return tuple(clue for clue in clues_of(known) if clue not in steps)
