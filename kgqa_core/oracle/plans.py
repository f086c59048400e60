"""Plans that no model makes: random ones, and hard negatives, which take the place of retrieval (``systems.pool``).

Hard negatives are the gold plan among wrong plans that exist, so that only the question tells which is right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kgqa_core.graph.follow import follow_layers, reasoning_paths
from kgqa_core.graph.kg import to_labels, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.examples import wrong_plans
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanQuestion
from kgqa_core.oracle.player import seed_of
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath

NUM_WRONG = 2

PlansOf = Mapping[str, Sequence[LabelPath]]
"""Question id -> plans."""


@dataclass(frozen=True, slots=True)
class RandomPlans:
    """Random plans that exist around the topics (RoG Table 2, w/ random plans). Implements ``Planner``."""

    space: PathConstraints
    seed: int = 0

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans of random length per question, all as probable."""
        found = []
        for question in questions:  # what is drawn for one does not depend on the others
            chance = random.Random(seed_of("random plans", question.id, self.seed) >> 192)
            drawn = [random_plan(self.space, question.topics, chance) for _ in range(4 * num_plans)]
            distinct = list(dict.fromkeys(plan for plan in drawn if plan))[:num_plans]
            found.append([Plan(path, -math.log(num_plans)) for path in distinct])
        return found


def random_plan(space: PathConstraints, topics: Sequence[int], chance: random.Random) -> LabelPath | None:
    """Return a plan drawn relation by relation among those that lead somewhere; None where none does."""
    around = space.around(tuple(topics))
    wanted = chance.randint(1, space.max_hops)
    path: tuple[int, ...] = ()
    for length in range(1, wanted + 1):
        here, further = around.next_relations(path)
        options = further if length < wanted and len(further) else here
        if not len(options):
            break
        path = (*path, int(options[chance.randrange(len(options))]))
    return to_labels(space.graph, path) if path else None


@dataclass(frozen=True, slots=True)
class FixedPlans:
    """Plans that are given by question, in their order and of equal weight. Implements ``Planner``."""

    plans: PlansOf  # none of a question that is not there: RoG without planning

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return all plans of each question."""
        found = [self.plans.get(question.id, ()) for question in questions]
        return [[Plan(path, -math.log(len(own))) for path in own] for own in found]


def propose_ends(search: SearchGraph, plans: PlansOf, questions: Sequence[Question]) -> list[Prediction]:
    """Return a prediction per question, as an explorer does: the first end of each plan that no plan before it has.

    All are as probable, each with its path.
    """
    graph, rows = search.graph, search.subgraphs
    predictions = []
    for question in search.place(questions):
        paths: dict[int, ReasoningPath] = {}
        for relations in filter(None, (to_relations(graph, plan) for plan in plans.get(question.id, ()))):
            layers = follow_layers(graph, question.topics, relations, reenter_topic=search.reenter_topic)
            fresh = [end for end in layers[-1].tolist() if end not in paths][:1]
            ways = reasoning_paths(graph, (), relations, ends=fresh, layers=layers)
            paths |= dict(zip(fresh, ways, strict=False))
        covered, scores = not set(question.answers).isdisjoint(paths), (1 / max(1, len(paths)),) * len(paths)
        shown = (tuple(paths), scores, (), tuple(paths.values()))
        found = Prediction(question.id, *shown, covered)
        predictions.append(rows.to_entities(found) if rows else found)
    return predictions


def find_hard_negatives(
    space: PathConstraints, questions: Sequence[Question], gold_plans: PlansOf, *, seed: int = 0
) -> dict[str, tuple[LabelPath, ...]]:
    """Return the first gold plan of every question that has one, and two wrong plans of ``space``, shuffled.

    Of equally hard ones a seed decides that follows from the question's id.
    """
    graph, found = space.graph, {}
    for question in questions:
        chance = random.Random(seed_of("pool", seed, question.id))
        known = [path for plan in gold_plans.get(question.id, ()) if (path := to_relations(graph, plan))]
        if known:
            plans = [known[0], *islice(wrong_plans(graph, space, question, known, chance), NUM_WRONG)]
            chance.shuffle(plans)
            found[question.id] = tuple(to_labels(graph, path) for path in plans)
    return found
