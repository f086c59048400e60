"""Plans that exist: relation paths around the topics of a graph, or made of known relations where there is no graph.

A plan exists around some topics if following it from any of them ends somewhere (``graph.paths.follow_path``), topics
not re-entered unless asked for. Frontiers are worked out as far as a plan is written, and kept for all plans that begin
alike; nothing is enumerated.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.label_paths import write_step
from kgqa_core.graph.paths import reach
from kgqa_core.instructions.plan_text import END, SEPARATOR, START, render_step

MAX_TOPICS = 1024  # sets of topics whose frontiers a ``PathConstraints`` keeps


def all_steps(labels: Sequence[str]) -> list[str]:
    """Return the steps along relations as plans write them, by relation id: forward, then backward."""
    return [render_step(write_step(label, backward)) for backward in (False, True) for label in labels]


class PathConstraint:
    """The plans around one set of topics, written as ``render_plan`` does.

    After the start marker a piece is a step with the marker behind it, so none begins another.
    """

    def __init__(self, space: PathConstraints, topics: tuple[int, ...]) -> None:
        """Stand at ``topics``: distinct entity ids, ascending."""
        self.key = f"{space.key}:{','.join(map(str, topics))}"
        self._space = space
        self._start: Ints = np.array(topics, dtype=np.int64)
        self._barred: Ints = np.empty(0, dtype=np.int64) if space.reenter_topic else self._start
        self._frontiers: dict[tuple[int, ...], Ints] = {(): self._start}
        self._pieces: dict[tuple[str, ...], tuple[str, ...]] = {}

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the start marker, then steps in order of relation id: those that end the plan, those that go on."""
        found = self._pieces.get(pieces)
        if found is None:
            found = self._pieces[pieces] = self._after(pieces)
        return found

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the plan is whole."""
        return bool(pieces) and pieces[-1].endswith(END)

    def _after(self, pieces: tuple[str, ...]) -> tuple[str, ...]:
        if self.may_end(pieces):
            return ()
        if not pieces:
            return (START,) if self.next_relations(())[0].size else ()
        path = tuple(self._space.relation_of[piece.removesuffix(SEPARATOR)] for piece in pieces[1:])
        ending, going_on = self.next_relations(path)
        steps = self._space.steps
        ends = tuple(steps[relation] + END for relation in ending.tolist())
        if len(path) + 1 >= self._space.max_hops:
            return ends
        return ends + tuple(steps[relation] + SEPARATOR for relation in going_on.tolist())

    def next_relations(self, path: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return the relations that lead somewhere after ``path``, and those of them after which one more does."""
        graph, frontier = self._space.graph, self._frontier(path)
        groups = expand_ranges(graph.group_ptr[frontier], graph.group_ptr[frontier + 1])
        relations = np.asarray(graph.group_relation[groups])
        starts, ends = graph.edge_ptr[groups], graph.edge_ptr[groups + 1]
        ending = _leading_past(self._barred, graph.edge_tail, relations, starts, ends)
        going_on = _leading_past(self._dead_ends, graph.edge_tail, relations, starts, ends)
        return ending, going_on

    def _frontier(self, path: tuple[int, ...]) -> Ints:
        found = self._frontiers.get(path)
        if found is None:
            reached = reach(self._space.graph, self._frontier(path[:-1]), path[-1])
            found = self._frontiers[path] = reached[~np.isin(reached, self._barred)] if len(self._barred) else reached
        return found

    @cached_property
    def _dead_ends(self) -> Ints:
        """The topics, and the entities all of whose edges lead to topics: no plan goes on from there.

        Edges stand in the graph from both ends: these are neighbours of topics, with as many edges to them as in all.
        """
        if not len(self._barred):
            return self._barred
        graph = self._space.graph
        tails = graph.edge_tail
        first, last = (graph.edge_ptr[graph.group_ptr[self._start + side]] for side in (0, 1))
        near = np.sort(tails[expand_ranges(first, last)])
        entities = sorted_distinct(near)
        to_topics = np.searchsorted(near, entities, "right") - np.searchsorted(near, entities, "left")
        degrees = graph.edge_ptr[graph.group_ptr[entities + 1]] - graph.edge_ptr[graph.group_ptr[entities]]
        return sorted_distinct(np.concatenate([self._start, entities[to_topics == degrees]]))


class PathConstraints:
    """The plans of one graph: a constraint per set of topics, kept for questions that share them."""

    def __init__(self, graph: KnowledgeGraph, *, max_hops: int = 3, reenter_topic: bool = False) -> None:
        """Allow plans of 1..``max_hops`` steps."""
        self.graph, self.max_hops, self.reenter_topic = graph, max_hops, reenter_topic
        self.steps = all_steps(graph.relation_labels)
        self.relation_of = {step: relation for relation, step in enumerate(self.steps)}
        self.key = f"paths:{_identity(graph)}:{max_hops}:{int(reenter_topic)}"
        self._kept: OrderedDict[tuple[int, ...], PathConstraint] = OrderedDict()

    def around(self, topics: Sequence[int]) -> PathConstraint:
        """Return the plans that exist around ``topics``; no text is allowed where there is none."""
        key = tuple(sorted(set(topics)))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = PathConstraint(self, key)
            if len(self._kept) > MAX_TOPICS:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found


class RelationConstraint:
    """Plans of 1..``max_hops`` known steps, whatever is around the topic: where there is no graph."""

    def __init__(self, steps: Sequence[str], *, max_hops: int = 3) -> None:
        """Take the steps as plans hold them (``graph.label_paths``): "^label" only where plans walk backward."""
        rendered = [render_step(step) for step in dict.fromkeys(steps)]
        self._last = tuple(step + END for step in rendered)
        self._any = self._last + tuple(step + SEPARATOR for step in rendered)
        self._max_hops = max_hops
        told = "\0".join([str(max_hops), *sorted(rendered)])
        self.key = "relations:" + hashlib.sha256(told.encode()).hexdigest()

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        """Return the start marker, then any step with a marker behind it."""
        if self.may_end(pieces):
            return ()
        if not pieces:
            return (START,) if self._last else ()
        return self._last if len(pieces) >= self._max_hops else self._any

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        """Say whether the plan is whole."""
        return bool(pieces) and pieces[-1].endswith(END)


def _leading_past(barred: Ints, tails: Ints, relations: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the relations, ascending, of which a group of edges has a tail that is not in ``barred`` (ascending)."""
    if not len(barred):
        return sorted_distinct(relations)
    sure = ends - starts > len(barred)  # more tails, all distinct, than there are to avoid
    past = sorted_distinct(relations[sure])
    open_ = np.flatnonzero(~sure & ~np.isin(relations, past))
    edges = expand_ranges(starts[open_], ends[open_])
    owners = np.repeat(relations[open_], ends[open_] - starts[open_])
    return sorted_distinct(np.concatenate([past, owners[~_among(tails[edges], barred)]]))


def _among(values: Ints, ordered: Ints) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


def _identity(graph: KnowledgeGraph) -> str:
    """Return what tells this graph from others: a hash of its manifest, which holds its files', else of its arrays."""
    digest = hashlib.sha256()
    manifest = graph.folder / "manifest.json"
    if manifest.is_file():
        digest.update(manifest.read_bytes())
    else:
        digest.update("\0".join(graph.relation_labels).encode())
        for array in (graph.group_ptr, graph.group_relation, graph.edge_ptr, graph.edge_tail):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
