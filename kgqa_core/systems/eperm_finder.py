"""EPERM's evidence path finder (§3, Eq. 3, Algorithm 1): plans followed in the subgraph, entities scored on the way."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np

from kgqa_core.config_systems import EpermSection
from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.label_paths import to_relations
from kgqa_core.instructions.evidence import paths_through
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import ScoredPath, neighbour_triples, render_reasoning_path
from kgqa_core.instructions.score_entities import EntitiesCase, EntityCandidate, ScoreEntitiesInstruction
from kgqa_core.instructions.scores import Scores
from kgqa_core.planners.plan_weights import score_paths, weigh_plans
from kgqa_core.planners.types import Plan
from kgqa_core.systems.calls import CallsLeft, room_for
from kgqa_core.systems.eperm_subgraph import Part
from kgqa_core.systems.types import Ask, Reply
from kgqa_core.systems.walk import Walk, ends_of
from kgqa_core.types import LabelPath, Question, ReasoningPath, RelationPath

UNSCORED = 0.5  # an entity that was asked about in vain, or not at all: neither for nor against
LISTED = 1000  # paths of one plan that are looked at, to show the best of them


@dataclass(slots=True, eq=False)
class _Trail:
    """One plan, as far as it has been followed."""

    labels: LabelPath
    relations: RelationPath
    weight: float
    open: list[Ints]  # entities after 0, 1, ... steps that may be kept, ascending
    layers: list[Ints]  # those kept
    scores: list[dict[int, float]] = field(default_factory=list)  # of the entities of each layer but the first

    @property
    def is_open(self) -> bool:
        """Say whether a step is left, and somewhere to take it from."""
        return len(self.scores) < len(self.relations) and len(self.layers[-1]) > 0


@dataclass(frozen=True, slots=True)
class FoundPath:
    """One evidence path."""

    path: ReasoningPath
    text: str
    weight: float  # of its plan
    scores: tuple[float, ...]  # of the entities after each step; none where entities are not scored


@dataclass(frozen=True, slots=True)
class Found:
    """The evidence paths of one question, best first; distinct texts."""

    steps: tuple[ReasoningPath, ...]
    paths: tuple[ScoredPath, ...]  # parallel to steps; their scores sum to 1


@dataclass(frozen=True, slots=True)
class Finder:
    """Follows all plans of a question hop by hop, and keeps the S best entities of each plan and hop."""

    walk: Walk
    prompts: Prompts
    settings: EpermSection

    def find(
        self, question: Question, plans: Sequence[Plan], part: Part, calls: CallsLeft
    ) -> Generator[Sequence[Ask[Any]], Sequence[Reply[Any]], Found]:
        """Return the weighted evidence paths along ``plans`` in ``part``.

        With ``look_ahead`` plans that lead nowhere, and entities from which a plan's rest does, are left out before
        anybody is asked. Where calls run out, the entities of the lighter plans go unscored first.
        """
        trails = self._trails(question, plans, part)
        while walking := [trail for trail in trails if trail.is_open]:
            reached = [self._reach(trail, part) for trail in walking]
            groups = [
                (trail, group) for trail, layer in zip(walking, reached, strict=True) for group in self._groups(layer)
            ]
            asks = calls.fit([self._ask(question, *group) for group in groups])
            replies = (yield asks) if asks else ()
            given: dict[int, dict[int, float]] = {id(trail): {} for trail in walking}
            for (trail, group), reply in zip(groups, replies, strict=False):  # there may be room for the first alone
                given[id(trail)] |= _scores(group, reply)
            for trail, layer in zip(walking, reached, strict=True):
                best = self._best(layer, given[id(trail)])
                trail.scores.append(best)
                trail.layers.append(np.array(sorted(best), dtype=np.int64) if self.settings.entity_scores else layer)
        return self._gather(trails, part)

    def _trails(self, question: Question, plans: Sequence[Plan], part: Part) -> list[_Trail]:
        """Return the plans that lead somewhere, as far as is known, heaviest first."""
        topics = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
        barred = topics[:0] if self.walk.reenter_topic else topics
        weights = weigh_plans([plan.log_prob if self.settings.weighted_plans else 0.0 for plan in plans])
        trails = []
        for plan, weight in zip(plans, weights, strict=True):
            relations = to_relations(self.walk.graph, plan.path) or ()
            layers = part.layers(topics, relations, barred=barred)
            layers = part.whole(layers, relations) if self.settings.look_ahead else layers
            if relations and len(layers[0]):
                trails.append(_Trail(plan.path, relations, weight, layers, layers[:1]))
        return sorted(trails, key=lambda trail: -trail.weight)

    def _reach(self, trail: _Trail, part: Part) -> Ints:
        step = len(trail.scores)
        return shared_sorted(part.reach(trail.layers[-1], trail.relations[step]), trail.open[step + 1])

    def _groups(self, layer: Ints) -> list[tuple[int, ...]]:
        """Return the entities that are asked about, call by call."""
        if not self.settings.entity_scores:
            return []
        asked = tuple(layer[: self.settings.max_candidates].tolist())
        return [(entity,) for entity in asked] if self.settings.finder == "single" else [asked] * bool(asked)

    def _ask(self, question: Question, trail: _Trail, entities: tuple[int, ...]) -> Ask[Any]:
        walk, limit = self.walk, self.settings.num_neighbours
        candidates = tuple(
            EntityCandidate(walk.names.name_of(entity), neighbour_triples(walk.graph, walk.names, entity, limit=limit))
            for entity in entities
        )
        topics = tuple(map(walk.names.name_of, question.topics))
        case = EntitiesCase(question.text, candidates, topics=topics, plan=trail.labels)
        return Ask(ScoreEntitiesInstruction(self.prompts), case, room_for(len(entities)))

    def _best(self, layer: Ints, given: dict[int, float]) -> dict[int, float]:
        """Return the S best entities of a layer with their scores, of equals the smallest ids; none are not scored."""
        if not self.settings.entity_scores:
            return {}
        most = self.settings.top_entities
        silent = [entity for entity in layer[: most + len(given)].tolist() if entity not in given]
        scored = given | dict.fromkeys(silent, UNSCORED)
        return dict(sorted(scored.items(), key=lambda one: (-one[1], one[0]))[:most])

    def _gather(self, trails: Sequence[_Trail], part: Part) -> Found:
        """Return the paths through what was kept, best first; equally good ones of all plans in turns."""
        turns = chain.from_iterable(zip_longest(*(self._paths(trail, part) for trail in trails)))
        distinct: dict[str, FoundPath] = {}
        for path in turns:
            if path is not None:
                distinct.setdefault(path.text, path)
            if not self.settings.entity_scores and len(distinct) == self.settings.max_paths:
                break  # none is better than another: those of every plan in turns
        found = list(distinct.values())
        order = np.argsort([-path.weight * float(np.prod(path.scores)) for path in found], kind="stable")
        kept = [found[place] for place in order[: self.settings.max_paths]]
        shares = score_paths([path.weight for path in kept], [path.scores for path in kept]) if kept else []
        return Found(
            tuple(path.path for path in kept),
            tuple(ScoredPath(path.text, share) for path, share in zip(kept, shares, strict=True)),
        )

    def _paths(self, trail: _Trail, part: Part) -> Iterator[FoundPath]:
        """Yield the paths of one plan, one to each end in turns."""
        if len(trail.scores) < len(trail.relations):
            return  # nowhere to go on from on the way

        def before(here: int, place: int) -> Ints:
            return part.before(here, trail.relations[place], trail.layers[place])

        ends = trail.layers[-1].tolist()
        num_relations = self.walk.graph.num_relations
        for path in islice(paths_through(ends, trail.relations, before, num_relations=num_relations), LISTED):
            scores = tuple(own[ends_of(step)[1]] for own, step in zip(trail.scores, path, strict=True) if own)
            yield FoundPath(path, render_reasoning_path(self.walk.names, path), trail.weight, scores)


def _scores(entities: tuple[int, ...], reply: Reply[Any]) -> dict[int, float]:
    """Return the score of each entity that a call gave one."""
    scores = reply.result.scores if isinstance(reply.result, Scores) else ()
    return {entities[index]: score for index, score in scores}
