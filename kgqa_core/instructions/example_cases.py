"""The cases that one question makes, instruction by instruction; each comes with its example's weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction
from kgqa_core.instructions.direct import DirectCase, DirectInstruction
from kgqa_core.instructions.enough_information import EnoughCase, EnoughInstruction
from kgqa_core.instructions.evidence import Evidence, end_of, gather_evidence
from kgqa_core.instructions.example_scores import offered_relations, score_candidates, score_offered
from kgqa_core.instructions.example_settings import ExampleSettings, PathRow, random_of
from kgqa_core.instructions.explain import ExplainCase, ExplainInstruction
from kgqa_core.instructions.explanations import explain_paths
from kgqa_core.instructions.plan import PlanCase, PlanInstruction
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import Names, neighbour_triples, render_triples
from kgqa_core.instructions.score_entities import EntitiesCase, EntityCandidate, ScoreEntitiesInstruction
from kgqa_core.instructions.score_relations import RelationsCase, ScoreRelationsInstruction
from kgqa_core.instructions.types import Instruction
from kgqa_core.types import LabelPath, Prediction, Question

Made = Iterator[tuple[Instruction[Any, Any], Any, float]]  # instruction, case, weight
WeightedPlans = list[tuple[LabelPath, float]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with what supervises it."""

    question: Question
    golds: frozenset[int]  # entity ids
    rows: tuple[PathRow, ...]  # its shortest paths
    teaching: tuple[PathRow, ...]  # those of them that teach


@dataclass(frozen=True, slots=True)
class Maker:
    """What cases are made of; see ``examples.make_examples``."""

    graph_or_none: KnowledgeGraph | None
    prompts: Prompts
    settings: ExampleSettings
    plans: Mapping[str, Sequence[tuple[LabelPath, float]]]
    predictions: Mapping[str, Prediction]
    explanations: Mapping[str, str]
    own_names: Names | None = None

    @property
    def graph(self) -> KnowledgeGraph:
        """Return the graph, where there must be one."""
        assert self.graph_or_none is not None  # make_examples has checked
        return self.graph_or_none

    @property
    def naming(self) -> Names:
        """Return what the graph's entities are called."""
        return self.own_names or self.graph

    def names(self, entities: Sequence[int]) -> tuple[str, ...]:
        """Return the entities' names."""
        return tuple(map(self.naming.name_of, entities))

    def evidence(self, asked: Asked, plans: WeightedPlans) -> Evidence:
        """Return the paths of plans from the question's topics."""
        kept = self.settings
        return gather_evidence(
            self.graph,
            asked.question.topics,
            plans,
            max_paths=kept.max_paths,
            names=self.naming,
            reenter_topic=kept.reenter_topic,
            signed=kept.signed,
        )


def plan_cases(maker: Maker, asked: Asked) -> Made:
    """Each teaching path is a target of its own."""
    instruction, text = PlanInstruction(maker.prompts), asked.question.asked(maker.settings.mask_topics)
    weight = 1 / max(len(asked.teaching), 1) if maker.settings.share else 1.0
    for row in asked.teaching:
        yield instruction, PlanCase(text, asked.question.id, path=row.path), weight


def reason_cases(maker: Maker, asked: Asked) -> Made:
    """The paths of K plans; taught are the golds that they end at (to abstain, where they miss them all), or all."""
    evidence = maker.evidence(asked, shown_plans(maker, asked))
    if not evidence.paths or not asked.golds:
        return
    right = [entity for entity in evidence.ends if entity in asked.golds]
    answers = right if maker.settings.answers == "shown" else sorted(asked.golds)
    case = ReasonCase(
        asked.question.text,
        asked.question.id,
        paths=evidence.paths,
        shown=maker.names(evidence.ends),
        answers=maker.names(answers),
    )
    yield ReasonInstruction(maker.prompts, scored=maker.settings.scored), case, 1.0


def explain_cases(maker: Maker, asked: Asked) -> Made:
    """As reason, with a teacher's explanation, or a template's along the paths that end right."""
    evidence = maker.evidence(asked, shown_plans(maker, asked))
    right = [entity for entity in evidence.ends if entity in asked.golds]
    if not right:
        return
    ways = [path for path in evidence.steps if end_of(path) in asked.golds]
    case = ExplainCase(
        asked.question.text,
        asked.question.id,
        paths=evidence.paths,
        shown=maker.names(evidence.ends),
        explanation=maker.explanations.get(asked.question.id) or explain_paths(maker.naming, ways),
        answers=maker.names(right),
    )
    yield ExplainInstruction(maker.prompts), case, 1.0


def enough_cases(maker: Maker, asked: Asked) -> Made:
    """The paths of a teaching plan (enough), or a plan that stops short of the golds or misses them (not enough)."""
    if not asked.teaching:
        return
    draw = random_of(asked.question.id, "enough_information", maker.settings.seed)
    path = draw.choice(asked.teaching).path
    enough = draw.random() < 0.5
    tried = [path]
    if not enough:
        tried = [path[:-1]] if len(path) > 1 else _other_relations(maker, asked, path)
        draw.shuffle(tried)
    for plan in tried:
        evidence = maker.evidence(asked, [(plan, 1.0)])
        if evidence.paths and enough != asked.golds.isdisjoint(evidence.ends):
            case = EnoughCase(
                asked.question.text,
                asked.question.id,
                topics=maker.names(asked.question.topics),
                paths=evidence.paths,
                enough=enough,
            )
            yield EnoughInstruction(maker.prompts), case, 1.0
            return


def score_relations_cases(maker: Maker, asked: Asked) -> Made:
    """At every step along one teaching path: the relations that go on, scored."""
    if not asked.teaching:
        return
    kept, question = maker.settings, asked.question
    draw = random_of(question.id, "score_relations", kept.seed)
    path = draw.choice(asked.teaching).path
    for place in range(len(path)):
        offered = offered_relations(maker.graph, question.topics, path[:place], reenter_topic=kept.reenter_topic)
        scores = score_offered(offered, path[:place], asked.rows)
        wrong = [step for step in offered if not scores[step]]
        room = max(kept.max_relations - len(offered) + len(wrong), 0)
        dropped = set(wrong) - set(draw.sample(wrong, min(room, len(wrong))))
        relations = tuple(step for step in offered if step not in dropped)
        case = RelationsCase(
            question.text,
            relations,
            question.id,
            topics=maker.names(question.topics),
            path=path[:place],
            budget=kept.budget,
            scores=tuple(scores[step] for step in relations),
        )
        yield ScoreRelationsInstruction(maker.prompts), case, 1 / len(path)


def score_entities_cases(maker: Maker, asked: Asked) -> Made:
    """Some entities on the way of one teaching path, one per example (EPERM asks about one at a time)."""
    if not asked.teaching:
        return
    kept, question = maker.settings, asked.question
    draw = random_of(question.id, "score_entities", kept.seed)
    path = draw.choice(asked.teaching).path
    scored = score_candidates(
        maker.graph,
        question.topics,
        asked.golds,
        path,
        place=draw.randint(1, len(path)),
        draw=draw,
        reenter_topic=kept.reenter_topic,
    )
    for entity, score in scored[: kept.num_entities]:
        triples = neighbour_triples(maker.graph, maker.naming, entity, limit=kept.max_triples)
        case = EntitiesCase(
            question.text,
            (EntityCandidate(maker.naming.name_of(entity), triples),),
            question.id,
            topics=maker.names(question.topics),
            plan=path,
            scores=(score,),
        )
        yield ScoreEntitiesInstruction(maker.prompts), case, 1 / min(kept.num_entities, len(scored))


def choose_cases(maker: Maker, asked: Asked) -> Made:
    """The first N candidates of an out-of-fold explorer; every right one is taught, none where none is right."""
    prediction = maker.predictions.get(asked.question.id)
    if prediction is None:
        return
    count = maker.settings.num_candidates
    paths = [render_triples(maker.naming, path) for path in prediction.paths[:count]]
    shown = list(zip(prediction.candidates[:count], prediction.scores[:count], strict=True))
    case = ChooseCase(
        asked.question.text,
        asked.question.id,
        candidates=tuple(
            Candidate(maker.naming.name_of(entity), score, paths[place] if place < len(paths) else "")
            for place, (entity, score) in enumerate(shown)
        ),
        right=tuple(place for place, (entity, _) in enumerate(shown) if entity in asked.golds),
    )
    yield ChooseInstruction(maker.prompts), case, 1.0


def direct_cases(maker: Maker, asked: Asked) -> Made:
    """The golds, without any evidence."""
    if asked.golds:
        case = DirectCase(asked.question.text, asked.question.id, answers=maker.names(sorted(asked.golds)))
        yield DirectInstruction(maker.prompts), case, 1.0


CASES: Mapping[str, Callable[[Maker, Asked], Made]] = {
    "plan": plan_cases,
    "reason": reason_cases,
    "score_relations": score_relations_cases,
    "score_entities": score_entities_cases,
    "choose": choose_cases,
    "explain": explain_cases,
    "enough_information": enough_cases,
    "direct": direct_cases,
}
"""What makes the examples of each instruction that has targets."""


def shown_plans(maker: Maker, asked: Asked) -> WeightedPlans:
    """Return the plans given for a question, else K of those that teach, with wrong ones where asked for, shuffled.

    Plans that teach weigh by their precision: what is right must not be told by who put it there.
    """
    kept = maker.settings
    if asked.question.id in maker.plans:
        return list(maker.plans[asked.question.id][: kept.num_plans])
    draw = random_of(asked.question.id, "shown_plans", kept.seed)
    rows = draw.sample(asked.teaching, min(kept.num_plans, len(asked.teaching)))
    if rows and kept.wrong_plans:
        taught = set(asked.teaching)
        wrong = [row for row in asked.rows if row not in taught]
        rows += draw.sample(wrong, min(kept.wrong_plans, len(wrong)))
        draw.shuffle(rows)
    return [(row.path, row.precision) for row in rows]


def _other_relations(maker: Maker, asked: Asked, path: LabelPath) -> list[LabelPath]:
    """Return the other plans of one step."""
    topics, reenter = asked.question.topics, maker.settings.reenter_topic
    return [(step,) for step in offered_relations(maker.graph, topics, (), reenter_topic=reenter) if (step,) != path]
