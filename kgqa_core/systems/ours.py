"""Ours: explorer and planner fused: which of a few answer sets, each with evidence of its own, fits both best.

The options of a question are the explorer's answer set and what each plan reaches. An option's score is

    (1 - weight) * agreement with the explorer + weight * the plan's probability among the question's plans

so that weight 0 is the explorer alone and 1 the planner alone. Agreement is the F1 of the option with what the explorer
answers. Where the explorer and the first plan disagree, a language model may say how probable it thinks the plans, and
is believed in the planner's place. The weight, whether the entities of a chosen plan tie or keep the explorer's order,
and whether the model's word is worth its calls, are chosen on dev.

How sure ours is, is the probability of the chosen option's plans among all plans, also those that lead nowhere: where
the facts of the likeliest plan are missing, another one is no better for that. Where a model weighed them, it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.evaluation.metrics import score_predictions, score_sets
from kgqa_core.graph.follow import end_of, execute_plans, reasoning_paths
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import Plan, PlanAsker, PlanQuestion, render_plan, weigh_plans
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.systems.types import Ask, Steps, System, SystemAnswer
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath

WEIGHTS = tuple(tenth / 10 for tenth in range(11))
TIE = 1e-9  # points: figures that are sums of the same numbers
WORTH = 0.01  # points of the objective that a language model has to add to be asked


class OursSection(Section):
    """Settings of ours, the same for all its rows: what it fuses is chosen once for a run."""

    planner: Literal["generator", "dense"] = "dense"  # a generator costs a call for every question
    num_plans: Annotated[int, Field(ge=1)] = 3


# ------ The fusion: its options, its scores, and its choice on dev.


@dataclass(frozen=True, slots=True)
class Option:
    """One possible answer set."""

    entities: tuple[int, ...]
    plans: tuple[int, ...] = ()  # the places of those that reach it; none: the explorer's alone
    explored: bool = False  # is it the explorer's?


@dataclass(frozen=True, slots=True)
class Fusion:
    """How much the plans count, and who says how probable they are where explorer and planner disagree."""

    weight: float  # 0..1
    decided_by: Literal["planner", "lm"] = "planner"
    equal: bool = False  # do all entities of a chosen plan tie? else they are in the explorer's order


@dataclass(frozen=True, slots=True)
class DevPoint:
    """What one way of answering gives on dev."""

    hits1: float  # percent
    f1: float  # percent
    asked: float = 0.0  # share of the questions with a call of a language model, 0..1

    @property
    def objective(self) -> float:
        """Return what is maximised: the mean of Hits@1 and F1."""
        return (self.hits1 + self.f1) / 2


class DevQuestion(NamedTuple):
    """One dev question with all that is fused."""

    question: Question
    explored: Prediction
    options: tuple[Option, ...]
    weights: Sequence[float]  # of the planner
    lm_weights: Sequence[float] | None = None  # of the language model; None: not asked, or the run has none


def options_of(explored: Prediction, reached: Sequence[Sequence[int]]) -> tuple[Option, ...]:
    """Return the explorer's set, then what each plan reaches; equal sets are one option, empty ones none."""
    found: dict[frozenset[int], Option] = {}
    if explored.answers:
        found[frozenset(explored.answers)] = Option(explored.answers, explored=True)
    for place, entities in enumerate(reached):
        if key := frozenset(entities):
            before = found.get(key, Option(tuple(entities)))
            found[key] = replace(before, plans=(*before.plans, place))
    return tuple(found.values())


def disagree(options: Sequence[Option]) -> bool:
    """Say whether the first plan that reaches anything does not reach what the explorer answers."""
    first = min((place for option in options for place in option.plans), default=None)
    return first is not None and not any(option.explored and first in option.plans for option in options)


def fuse(
    question: Question, explored: Prediction, options: Sequence[Option], weights: Sequence[float], fusion: Fusion
) -> tuple[Prediction, Option | None]:
    """Return the fused prediction without evidence, and the option of the highest score, of equals the first.

    ``weights`` are the plans' probabilities. The option's entities come first, then the explorer's others, each part by
    the explorer's probability, ties kept; those of a plan all tie where ``fusion.equal``. No other ties with an answer:
    scores are 2/3 to 1, and 0 to 1/3.
    """
    if not options:
        return explored, None

    def fit(option: Option) -> float:
        _, _, agreement, _ = score_sets(frozenset(explored.answers), frozenset(option.entities))
        probability = sum(weights[place] for place in option.plans)
        return (1 - fusion.weight) * agreement + fusion.weight * probability

    chosen = options[int(np.argmax(list(map(fit, options))))]
    best = explored.scores[0] if explored.scores and explored.scores[0] > 0 else 1.0
    share = {entity: score / best for entity, score in zip(explored.candidates, explored.scores, strict=True)}
    taken = set(chosen.entities)
    if fusion.equal and chosen.plans:
        share |= dict.fromkeys(taken, 1.0)
    order = sorted(chosen.entities, key=lambda entity: (-share.get(entity, 0.0), entity))
    top = share.get(order[0]) or 1.0  # shares of the best answer: entities that the explorer hardly sees must not tie
    rest = [entity for entity in explored.candidates if entity not in taken]
    candidates = (*order, *rest)
    above, below = [(2 + share.get(entity, 0.0) / top) / 3 for entity in order], [share[entity] / 3 for entity in rest]
    covered = explored.covered or not set(question.answers).isdisjoint(candidates)
    verdict = question.claim in taken if question.claim is not None else None
    scores = (*above, *below)
    return Prediction(question.id, candidates, scores, chosen.entities, covered=covered, verdict=verdict), chosen


def choose_fusion(asked: Sequence[DevQuestion]) -> tuple[Fusion, dict[Fusion, DevPoint]]:
    """Return the best fusion on dev, and all that were tried; the model decides only where that is worth its calls."""
    tried: dict[Fusion, DevPoint] = {}
    best: list[Fusion] = []  # of the planner, then of the language model
    deciders: list[Literal["planner", "lm"]] = ["planner", "lm"]
    for who in deciders if any(one.lm_weights is not None for one in asked) else deciders[:1]:
        told = [one.lm_weights if who == "lm" else None for one in asked]
        share = sum(said is not None for said in told) / max(1, len(asked))
        own: dict[Fusion, DevPoint] = {}
        for fusion in (Fusion(weight, who, equal) for weight in WEIGHTS for equal in (False, True)):
            predictions = [
                fuse(one.question, one.explored, one.options, one.weights if said is None else said, fusion)[0]
                for one, said in zip(asked, told, strict=True)
            ]
            own[fusion] = judge([one.question for one in asked], predictions, share)
        best.append(max(own, key=lambda fusion: own[fusion].objective))
        tried |= own
    is_worth = tried[best[-1]].objective > tried[best[0]].objective + WORTH
    return best[-1] if is_worth else best[0], tried


def judge(questions: Sequence[Question], predictions: Sequence[Prediction], asked: float = 0.0) -> DevPoint:
    """Return the figures of some predictions."""
    figures = score_predictions(questions, predictions).summary()
    return DevPoint(figures["hits1"], figures["f1"], asked)


def reached_by(
    search: SearchGraph, topics: Sequence[Sequence[int]], plans: Sequence[Sequence[Plan]]
) -> list[list[tuple[int, ...]]]:
    """Return the entities that each plan of each question reaches; ``topics`` are of the graph that is walked."""
    paths = [[plan.path for plan in own] for own in plans]
    found = execute_plans(search.graph, topics, paths, reenter_topic=search.reenter_topic)
    return [[search.to_entities(entities.tolist()) for entities in own] for own in found]


def first_plan(questions: Sequence[Question], reached: Sequence[Sequence[tuple[int, ...]]]) -> DevPoint:
    """Return the figures of answering all that the first plan reaches."""
    pairs = zip(questions, (own[0] if own else () for own in reached), strict=True)
    return judge(questions, [Prediction(question.id, own, (1.0,) * len(own), own) for question, own in pairs])


def describe_choice(asked: Sequence[DevQuestion], alone: dict[str, DevPoint]) -> dict[str, Any]:
    """Choose; return as JSON the choice, the figures of its parts (``alone``: the planners) and all that were tried."""
    fusion, tried = choose_fusion(asked)
    explored = judge([one.question for one in asked], [one.explored for one in asked])
    parts = {"explorer": explored, **alone}
    gain = tried[fusion].objective - max(point.objective for point in parts.values())
    return {
        "chosen": asdict(fusion),
        "num_questions": len(asked),
        "on_dev": {name: asdict(point) for name, point in {"ours": tried[fusion], **parts}.items()},
        "beats_its_parts": "yes" if gain > TIE else "ties" if gain > -TIE else "no",
        "tried": [{**asdict(one), **asdict(point)} for one, point in tried.items()],
    }


@dataclass(frozen=True, slots=True)
class Ours(System):
    """The best combination found, declared as such."""

    search: SearchGraph
    explorer: ExplorerSystem
    plans: PlanSource
    judge: PlanAsker  # how the language model is asked what it thinks of plans
    fusion: Fusion
    settings: OursSection
    on_rows: ClassVar[bool] = False  # the explorer's candidates are entities

    def prepare(self, questions: Sequence[Question]) -> list[tuple[Prediction, list[Plan] | None]]:
        """Explore, and plan where that takes no call."""
        explored = replace(self.explorer, evidence_of_answers=True).answer(questions)
        plans = self.plans.prepare(self.search.place(questions), self.settings.num_plans)
        return list(zip(explored, plans, strict=True))

    def steps(self, question: Question, prepared: tuple[Prediction, list[Plan] | None]) -> Steps:
        """Fuse; where explorer and planner disagree, first ask the model how probable it thinks the plans."""
        (explored, plans), inside = prepared, self.search.place([question])[0]
        if plans is None:
            plans = yield from self.plans.ask(inside, self.settings.num_plans)
        options = options_of(explored, reached_by(self.search, [inside.topics], [plans])[0])
        weights = weigh_plans([plan.log_prob for plan in plans])  # and how sure: where the planner does not say, alike
        shares = [weight if plan.sure is None else plan.sure for plan, weight in zip(plans, weights, strict=True)]
        apart = disagree(options)
        if apart and self.fusion.decided_by == "lm":
            case = self.judge.case(PlanQuestion(inside.id, inside.asked(self.plans.mask_topics), inside.topics))
            texts = tuple(render_plan(plan.path) for plan in plans)
            (reply,) = yield [Ask(self.judge.instruction, case, options=texts)]
            if not isinstance(reply.result, ParseFailure):
                shares = weights = weigh_plans(reply.log_probs)
        prediction, chosen = fuse(question, explored, options, weights, self.fusion)
        evidence = dict(zip(explored.candidates, explored.paths, strict=False))
        if chosen is not None and not chosen.explored:  # what the plan does not lead to keeps the explorer's own path
            evidence |= self._along(plans[chosen.plans[0]].path, inside, len(prediction.answers))
        paths = tuple(evidence.get(entity, ()) for entity in prediction.candidates)
        counts = {"num_plans": len(plans), "num_options": len(options), "disagree": float(apart)}
        counts["num_paths"] = sum(map(bool, paths))
        told = [shares[place] for place in chosen.plans] if chosen and plans else explored.scores[:1]
        followed, sure = tuple(plan.path for plan in plans), min(1.0, sum(told))  # without any plan the explorer's own
        return SystemAnswer(replace(prediction, paths=paths), (), counts, sure, followed)

    def _along(self, plan: LabelPath, inside: Question, num_ends: int) -> dict[int, ReasoningPath]:
        """Return the first path along a plan to each of the ``num_ends`` entities that it reaches."""
        search, relations = self.search, to_relations(self.search.graph, plan)
        assert relations is not None  # it reaches something
        found: dict[int, ReasoningPath] = {}
        walks = reasoning_paths(search.graph, inside.topics, relations, reenter_topic=search.reenter_topic)
        for path in islice(walks, num_ends):  # the first path to every end comes before any second
            ends = search.to_entities([end for step in path for end in (step.head, step.tail)])
            pairs = zip(path, ends[::2], ends[1::2], strict=True)
            found[search.to_entities([end_of(path)])[0]] = tuple(replace(step, head=h, tail=t) for step, h, t in pairs)
        return found


def _open_ours(parts: Any) -> Ours:
    planner = parts.settings.planner
    plans = parts.plans("lm" if planner == "generator" else planner)
    return Ours(parts.search, parts.explorer(), plans, parts.asker(), Fusion(**parts.fusion()), parts.settings)


OURS = SystemType(
    _open_ours,
    settings=OursSection,
    roles=lambda settings: ("plan",),
    explores=True,
    fuses=True,
    plan_source=lambda settings: str(settings.planner),
)
