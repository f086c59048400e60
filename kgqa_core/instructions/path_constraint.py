"""Plans that exist: relation paths around the topics of a graph, or made of known relations where there is no graph.

A plan exists around some topics if following it from any of them ends somewhere (``graph.follow.follow_path``), topics
not re-entered unless asked for. Frontiers are worked out as far as a plan is written, and kept for all plans that begin
alike; nothing is enumerated.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from kgqa_core.graph.csr import I64, U8, Ints
from kgqa_core.graph.follow import LEADS, LEADS_ON, find_dead_ends, find_leading, leave
from kgqa_core.graph.kg import KnowledgeGraph, write_step
from kgqa_core.instructions.plan import END, SEPARATOR, START, render_step

MAX_PIECES = 50_000  # sets of pieces that it keeps
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
        start = np.array(topics, dtype=np.int64)
        self._barred: I64 = np.empty(0, dtype=np.int64) if space.reenter_topic else start
        self._frontiers: dict[tuple[int, ...], I64] = {(): start}
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
            return (START,) if self._leads(()).any() else ()
        space = self._space
        path = tuple(space.relation_of[piece] for piece in pieces[1:])
        return space.pieces_of(self._leads(path), may_go_on=len(path) + 1 < space.max_hops)

    def next_relations(self, path: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return the relations that lead somewhere after ``path``, and those of them after which one more does."""
        leads = self._leads(path)
        return np.flatnonzero(leads & LEADS), np.flatnonzero(leads & LEADS_ON)

    def _leads(self, path: tuple[int, ...]) -> U8:
        space = self._space
        return find_leading(space.csr, self._frontier(path), self._barred, self._dead_ends, len(space.steps))

    def _frontier(self, path: tuple[int, ...]) -> I64:
        found, space = self._frontiers.get(path), self._space
        if found is None:
            before = self._frontier(path[:-1])
            found = self._frontiers[path] = leave(space.graph, before, path[-1], self._barred)
        return found

    @cached_property
    def _dead_ends(self) -> I64:
        """The topics, and the entities all of whose edges lead to topics: no plan goes on from there."""
        return find_dead_ends(self._space.csr, self._barred)


class PathConstraints:
    """The plans of one graph: a constraint per set of topics, kept for questions that share them."""

    def __init__(self, graph: KnowledgeGraph, *, max_hops: int = 3, reenter_topic: bool = False) -> None:
        """Allow plans of 1..``max_hops`` steps."""
        self.graph, self.max_hops, self.reenter_topic = graph, max_hops, reenter_topic
        self.steps = all_steps(graph.relation_labels)
        self.ends = [step + END for step in self.steps]
        self.goes_on = [step + SEPARATOR for step in self.steps]
        self.relation_of = {piece: relation for relation, piece in enumerate(self.goes_on)}
        self.csr = graph.arrays
        self.key = f"paths:{identity_of(graph)}:{max_hops}:{int(reenter_topic)}"
        self._kept: OrderedDict[tuple[int, ...], PathConstraint] = OrderedDict()
        self._pieces: dict[tuple[bytes, bool], tuple[str, ...]] = {}

    def pieces_of(self, leads: U8, *, may_go_on: bool) -> tuple[str, ...]:
        """Return the pieces of relations [2R], as ``find_leading`` tells of them: few sets, met again and again."""
        key = (leads.tobytes(), may_go_on)
        found = self._pieces.get(key)
        if found is None:
            ends = [self.ends[relation] for relation in np.flatnonzero(leads & LEADS)]
            on = [self.goes_on[relation] for relation in np.flatnonzero(leads & LEADS_ON)] if may_go_on else []
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.clear()
            found = self._pieces[key] = (*ends, *on)
        return found

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
        """Take the steps as plans hold them (``graph.kg``): "^label" only where plans walk backward."""
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


def identity_of(graph: KnowledgeGraph) -> str:
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
