"""EPERM: retrieve a subgraph, find weighted evidence paths in it, predict from them (Long et al., 2025; §3, Fig. 3).

The retriever (Eq. 2; A.4) walks a beam of relation paths; the edges that it walked are the question's part of the
graph, known by where each relation was taken from: a hub costs no more than any other entity. The finder (Eq. 3,
Algorithm 1) follows plans in the part; the predictor reads the paths with their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section, Share
from kgqa_core.config_systems import PlanSourceName, SystemType
from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import NOTHING, end_of, leave, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph, to_relations
from kgqa_core.graph.search_graph import SearchGraph, ends_of, relations_around
from kgqa_core.instructions.plan import Plan, score_paths, weigh_plans
from kgqa_core.instructions.reason import Evidence, ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import Prompts, ScoredPath, neighbour_triples, show_path
from kgqa_core.instructions.scores import EntitiesCase, EntityCandidate, RelationsCase, ScoreEntitiesInstruction, Scores
from kgqa_core.systems.answering import PlanSource, Relations, answer_by_name, answer_with, ask_relations, positive
from kgqa_core.systems.types import Ask, CallsLeft, Rounds, Steps, System, SystemAnswer, room_for
from kgqa_core.types import LabelPath, Question, ReasoningPath, RelationPath

LINES_PER_RELATION = 4  # of an answer: its line, with a reason
UNSCORED = 0.5  # an entity that was asked about in vain, or not at all: neither for nor against
LISTED = 1000  # paths of one plan that are looked at, to show the best of them


class EpermSection(Section):
    """Settings of EPERM (Tables 3-4)."""

    num_plans: Annotated[int, Field(ge=1)] = 5  # s: weighted plans of the generator
    plans: PlanSourceName = "lm"
    retriever: bool = True  # False: plans are followed in the whole neighbourhood
    retriever_width: Annotated[int, Field(ge=1)] = 3  # K of the beam of relations
    retriever_depth: Annotated[int, Field(ge=1)] | None = None  # steps; None: the explorer's
    relation_batch: Annotated[int, Field(ge=2)] = 100  # relations per call
    relations: Relations = "written"
    weighted_plans: bool = True  # False: all plans weigh alike
    entity_scores: bool = True  # False: all entities weigh alike, and none is asked about
    top_entities: Annotated[int, Field(ge=1)] = 4  # S per plan and hop
    look_ahead: bool = True  # ours: what leads nowhere along its plan is not asked about; False: as published
    max_candidates: Annotated[int, Field(ge=1)] = 20  # asked about per plan and hop: those behind the best first
    num_neighbours: Annotated[int, Field(ge=0)] = 5  # triples shown around an entity
    finder: Literal["single", "batch"] = "batch"  # one call per candidate entity (EPERM), or per frontier (ours)
    max_paths: Annotated[int, Field(ge=1)] = 40
    least_share: Share = 0.0  # of the best path's score; worse paths are not shown
    # by which paths are ordered, left out and read: their own; another's of the same question, drawn by seed; none
    scores: Literal["real", "shuffled", "hidden"] = "real"
    order: Literal["score", "drawn"] = "score"  # of the paths; drawn by seed: then their scores alone tell them apart
    predictor: Literal["lm", "none"] = "lm"  # none: all that the paths end at (Table 4, w/o answer predictor)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Edges of a graph; each may be walked from both its ends, whichever the retriever came from."""

    graph: KnowledgeGraph
    starts: Mapping[int, Ints] | None  # relation (0..2R-1) -> where it was taken, ascending; None: the whole graph

    def reach(self, frontier: Ints, relation: int, barred: Ints = NOTHING) -> Ints:
        """Return the entities (ascending, distinct) one step of ``relation`` away from any of ``frontier``."""
        if self.starts is None:
            return leave(self.graph, frontier, relation, barred)
        onward = leave(self.graph, shared_sorted(frontier, self.starts.get(relation, NOTHING)), relation, barred)
        other_way = self.starts.get(self._inverse(relation), NOTHING)
        if not len(other_way):
            return onward
        back = shared_sorted(leave(self.graph, frontier, relation, barred), other_way)
        return sorted_distinct(np.concatenate([onward, back]))

    def layers(self, topics: Ints, path: RelationPath, *, barred: Ints, look_ahead: bool) -> list[Ints]:
        """Return the entities (ascending) after 0..len(path) steps; no step arrives at one of ``barred``.

        With ``look_ahead`` only those from which the rest of the path leads on.
        """
        found = [topics]
        for relation in path:
            found.append(self.reach(found[-1], relation, barred))
        for place in range(len(path) - 1, -1, -1) if look_ahead else ():
            back = self.reach(found[place + 1], self._inverse(path[place]))
            found[place] = shared_sorted(back, found[place])
        return found

    def keep(self, found: Ints, here: int, relation: int) -> Ints:
        """Return those of ``found``, ascending, from which a step of ``relation`` to ``here`` is in the part."""
        if self.starts is None or here in self.starts.get(self._inverse(relation), NOTHING):
            return found
        return shared_sorted(found, self.starts.get(relation, NOTHING))

    def _inverse(self, relation: int) -> int:
        return (relation + self.graph.num_relations) % self.graph.identity


class _Branch(NamedTuple):
    """One path of the retriever's beam."""

    path: RelationPath
    score: float  # product of its relations' scores
    frontier: Ints  # where it leads to, ascending


@dataclass(slots=True, eq=False)
class _Trail:
    """One plan, as far as the finder has followed it."""

    labels: LabelPath
    relations: RelationPath
    weight: float
    open: list[Ints]  # entities after 0, 1, ... steps that may be kept, ascending
    layers: list[Ints]  # those kept
    scores: list[dict[int, float]] = field(default_factory=list)  # of the entities of each layer but the first


class _Path(NamedTuple):
    steps: ReasoningPath
    shown: ScoredPath
    weight: float  # of its plan
    scores: tuple[float, ...]  # of the entities after each step; none where entities are not scored


@dataclass(frozen=True, slots=True)
class Eperm(System):
    """Plans from the question alone (Eq. 6); a call is left for them and one for the answer."""

    search: SearchGraph
    prompts: Prompts
    plans: PlanSource
    settings: EpermSection
    max_calls: int | None = None  # per question; None: no limit
    seed: int = 0  # of what is shuffled

    def prepare(self, questions: Sequence[Question]) -> Sequence[list[Plan] | None]:
        """Return the plans that do not have to be asked for."""
        return self.plans.prepare(questions, self.settings.num_plans)

    def steps(self, question: Question, prepared: list[Plan] | None) -> Steps:
        """Retrieve, plan, find, predict."""
        calls, plans = CallsLeft(self.max_calls), prepared or []
        planners = calls.fit([self.plans] if prepared is None else [])  # a call is kept for planning
        part = Part(self.search.graph, None)
        if self.settings.retriever and (planners or plans):  # without a plan nobody would walk it
            part = yield from self._retrieve(question, calls)
        for planner in planners:
            plans = yield from planner.ask(question, self.settings.num_plans)
        found = yield from self._find(question, plans, part, calls)
        counts = {"num_plans": len(plans), "num_paths": len(found.paths), "num_refused": calls.refused}
        counts["num_unasked"] = found.num_left_out  # entities that max_candidates kept from being asked about
        ways = found.steps + found.alike
        if self.settings.predictor == "none":
            answer = answer_with(question, found.ends, ways, weights=found.weights)
        else:
            shown = tuple(dict.fromkeys(path.end for path in found.paths))
            instruction = ReasonInstruction(self.prompts, scored=self.settings.scores != "hidden")
            paths = found.paths
            if self.settings.order == "drawn":
                paths = tuple(self._draw(question).sample(sorted(paths, key=lambda path: path.text), len(paths)))
            case = ReasonCase(question.text, paths, shown)
            (reply,) = yield [Ask(instruction, case)]
            answer = answer_by_name(self.search, question, reply.result, ways, on_rows=True)
        followed = tuple(plan.path for plan in plans)
        return SystemAnswer(answer.prediction, answer.unmatched, {**answer.counts, **counts}, plans=followed)

    def _draw(self, question: Question) -> Random:
        return Random(f"{self.seed}:{question.id}")

    # The retriever: a beam of relation paths from the topics; what they walk is the question's part.

    def _retrieve(self, question: Question, calls: CallsLeft) -> Rounds:
        """Expand the K best relation paths, one relation per round; return what they walk, the whole graph if nothing.

        A path whose call fails, has no room, or names no relation above 0 ends there: that may be where the answer is.
        """
        search, width = self.search, self.settings.retriever_width
        barred, starts = search.avoided(question.topics), dict[int, Ints]()
        beam = [_Branch((), 1.0, sorted_distinct(np.asarray(question.topics, dtype=np.int64)))]
        for _ in range(self.settings.retriever_depth or search.max_hops):
            offers = [offer for branch in beam for offer in self._offers(branch, barred)]
            asks = [
                (number, self._ask_relations(question, branch, relations))
                for number, (branch, relations, is_asked) in enumerate(offers)
                if is_asked
            ]
            replies = dict((yield from calls.ask(asks)))
            scored: list[tuple[float, _Branch, int]] = []  # (score of a longer path, the path so far, what it adds)
            for number, (branch, relations, is_asked) in enumerate(offers):
                options = positive(replies.get(number)) if is_asked else [(0, 1.0)]
                scored += [(branch.score * score, branch, relations[option]) for option, score in options]
            scored.sort(key=lambda one: -one[0])  # of equals the first named
            beam = []
            for score, branch, relation in scored[:width]:
                reached = leave(search.graph, branch.frontier, relation, barred)
                beam.append(_Branch((*branch.path, relation), score, reached))
                known = starts.get(relation, branch.frontier)
                starts[relation] = sorted_distinct(np.concatenate([known, branch.frontier]))
        return Part(search.graph, starts or None)

    def _offers(self, branch: _Branch, barred: Ints) -> list[tuple[_Branch, list[int], bool]]:
        """Return the relations that go on from a path, in calls of about equal size; one alone is taken unasked."""
        relations = relations_around(self.search.graph, branch.frontier, barred)
        num_calls = math.ceil(len(relations) / self.settings.relation_batch)
        return [(branch, relations[call::num_calls], len(relations) > 1) for call in range(num_calls)]

    def _ask_relations(self, question: Question, branch: _Branch, relations: Sequence[int]) -> Ask[Scores]:
        names, label = tuple(map(self.search.name_of, question.topics)), self.search.step_label
        width, path = self.settings.retriever_width, tuple(map(label, branch.path))
        case = RelationsCase(question.text, tuple(map(label, relations)), topics=names, path=path, budget=width)
        return ask_relations(self.prompts, case, self.settings.relations, room_for(LINES_PER_RELATION * width))

    # The finder: plans followed in the part hop by hop, the S best entities of each plan and hop kept.

    def _find(self, question: Question, plans: Sequence[Plan], part: Part, calls: CallsLeft) -> Rounds:
        """Return the weighted evidence paths along ``plans`` in ``part``, best first.

        Where calls run out, the entities of the lighter plans go unscored first.
        """
        trails, num_unasked = self._trails(question, plans, part), 0
        while walking := [one for one in trails if len(one.scores) < len(one.relations) and len(one.layers[-1])]:
            asks: list[tuple[tuple[int, tuple[int, ...]], Ask[Any]]] = []
            reached = []
            for number, trail in enumerate(walking):
                step = len(trail.scores)
                onward = part.reach(trail.layers[-1], trail.relations[step])
                reached.append(shared_sorted(onward, trail.open[step + 1]))
                if not self.settings.entity_scores:
                    continue
                asked = self._first(trail, part, reached[-1])
                num_unasked += len(reached[-1]) - len(asked)
                groups = [(one,) for one in asked] if self.settings.finder == "single" else [asked]
                asks += [((number, group), self._ask_entities(question, trail, group)) for group in groups if group]
            given: list[dict[int, float]] = [{} for _ in walking]
            for (number, entities), reply in (yield from calls.ask(asks)):
                scores = reply.result.scores if isinstance(reply.result, Scores) else ()
                given[number] |= {entities[index]: score for index, score in scores}
            for trail, layer, own in zip(walking, reached, given, strict=True):
                best = self._best(layer, own)
                trail.scores.append(best)
                trail.layers.append(np.array(sorted(best), dtype=np.int64) if self.settings.entity_scores else layer)
        return replace(self._gather(question, trails, part), num_left_out=num_unasked)

    def _trails(self, question: Question, plans: Sequence[Plan], part: Part) -> list[_Trail]:
        """Return the plans that lead somewhere, as far as is known, heaviest first."""
        topics = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
        barred = self.search.avoided(question.topics)
        weights = weigh_plans([plan.log_prob if self.settings.weighted_plans else 0.0 for plan in plans])
        trails = []
        for plan, weight in zip(plans, weights, strict=True):
            relations = to_relations(self.search.graph, plan.path) or ()
            layers = part.layers(topics, relations, barred=barred, look_ahead=self.settings.look_ahead)
            if relations and len(layers[0]):
                trails.append(_Trail(plan.path, relations, weight, layers, layers[:1]))
        return sorted(trails, key=lambda trail: -trail.weight)

    def _first(self, trail: _Trail, part: Part, reached: Ints) -> tuple[int, ...]:
        """Return the entities that are asked about: those behind the best-scored ones first, of equals by id."""
        most, order = self.settings.max_candidates, dict[int, None]()
        if len(reached) > most and trail.scores:
            last = trail.scores[-1]
            for entity in sorted(last, key=lambda one: (-last[one], one)):
                onward = part.reach(np.array([entity], dtype=np.int64), trail.relations[len(trail.scores)])
                order |= dict.fromkeys(shared_sorted(onward, reached).tolist())
        return tuple(islice(order or reached.tolist(), most))

    def _ask_entities(self, question: Question, trail: _Trail, entities: tuple[int, ...]) -> Ask[Scores]:
        search, limit = self.search, self.settings.num_neighbours
        candidates = tuple(
            EntityCandidate(search.name_of(entity), neighbour_triples(search, entity, limit=limit))
            for entity in entities
        )
        topics = tuple(map(search.name_of, question.topics))
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

    def _gather(self, question: Question, trails: Sequence[_Trail], part: Part) -> Evidence:
        """Return the paths through what was kept, best first; equally good ones of all plans in turns."""
        distinct: dict[str, dict[int, _Path]] = {}  # text -> the best path to each end of that name
        for path in chain.from_iterable(zip_longest(*(self._paths(trail, part) for trail in trails))):
            if path is not None:
                own, end = distinct.setdefault(path.shown.text, {}), end_of(path.steps)
                own[end] = max(own.get(end, path), path, key=lambda one: math.prod(one.scores))
            if not self.settings.entity_scores and len(distinct) == self.settings.max_paths:
                break  # none is better than another: those of every plan in turns
        found = [max(own.values(), key=lambda one: math.prod(one.scores)) for own in distinct.values()]
        scores = score_paths([path.weight for path in found], [path.scores for path in found])
        if self.settings.scores == "shuffled":
            scores = self._draw(question).sample(scores, len(scores))
        elif self.settings.scores == "hidden":
            scores = [1.0] * len(found)
        order = sorted(range(len(found)), key=lambda place: -scores[place])[: self.settings.max_paths]
        kept = [place for place in order if scores[place] >= self.settings.least_share * max(scores)]
        total, totals = math.fsum(scores[place] for place in kept), dict[int, float]()
        alike = [distinct[found[place].shown.text] for place in kept]
        for place, own in zip(kept, alike, strict=True):
            for end in own:
                totals[end] = totals.get(end, 0.0) + scores[place]
        return Evidence(
            paths=tuple(replace(found[place].shown, score=scores[place] / total) for place in kept),
            steps=tuple(found[place].steps for place in kept),
            ends=tuple(sorted(totals, key=lambda end: -totals[end])),
            num_left_out=0,
            weights=totals,
            alike=tuple(path.steps for own in alike for path in own.values()),
        )

    def _paths(self, trail: _Trail, part: Part) -> Iterator[_Path]:
        """Yield the paths of one plan, one to each end in turns."""
        if len(trail.scores) < len(trail.relations):
            return  # nowhere to go on from on the way

        def keep(found: Ints, here: int, place: int) -> Ints:
            return part.keep(found, here, trail.relations[place])

        ways = reasoning_paths(self.search.graph, (), trail.relations, layers=trail.layers, keep=keep)
        for path in islice(ways, LISTED):
            scores = tuple(own[ends_of(step)[1]] for own, step in zip(trail.scores, path, strict=True) if own)
            yield _Path(path, show_path(self.search, path), trail.weight, scores)


EPERM = SystemType(
    lambda parts: Eperm(
        parts.search, parts.prompts, parts.plans(parts.settings.plans), parts.settings, parts.max_calls, parts.seed
    ),
    settings=EpermSection,
    roles=lambda settings: (
        *(("score",) if settings.retriever or settings.entity_scores else ()),
        *(("reason",) if settings.predictor == "lm" else ()),
    ),
    hard_negatives=True,
    plan_source=lambda settings: str(settings.plans),
)
