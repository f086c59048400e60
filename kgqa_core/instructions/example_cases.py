"""Which examples are made of a question, and how the paths that teach are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from kgqa_core.errors import ConfigError, nearest, shorten
from kgqa_core.graph.csr import expand_ranges, sorted_distinct
from kgqa_core.graph.follow import end_of, follow_path
from kgqa_core.graph.kg import KnowledgeGraph, to_labels, to_relations
from kgqa_core.graph.supervision import Mode, TaughtPath
from kgqa_core.instructions.choose import Candidate, ChooseCase, ChooseInstruction, EnoughCase, EnoughInstruction
from kgqa_core.instructions.evidence import Evidence, gather_evidence
from kgqa_core.instructions.plan import PlanCase, PlanInstruction
from kgqa_core.instructions.reason import (
    DirectCase,
    DirectInstruction,
    ExplainCase,
    ExplainInstruction,
    ReasonCase,
    ReasonInstruction,
)
from kgqa_core.instructions.render import Names, Prompts, escape, neighbour_triples, render_triples
from kgqa_core.instructions.scores import (
    EntitiesCase,
    EntityCandidate,
    RelationsCase,
    ScoreEntitiesInstruction,
    ScoreRelationsInstruction,
)
from kgqa_core.instructions.types import Instruction
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath

TAUGHT = (
    "plan",
    "reason",
    "score_relations",
    "score_entities",
    "choose",
    "explain",
    "enough_information",
    "direct",
)
"""Instructions with targets: eight of twelve. No graph says how to think, or which words of a question count."""


@dataclass(frozen=True, slots=True)
class ExampleSettings:
    """What instruction data is made of."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"plan": 1.0, "reason": 1.0})
    """Instruction -> factor of its examples' weights; only those in it are made."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Instruction -> share of the questions that make its examples, by hash; all, where it is not in it."""
    mode: Mode = "best"  # which shortest paths teach: the best-executing, all (RoG's Z*), or those of precision >= t
    threshold: float = 0.5  # t of EPERM Eq. 5
    share: bool = True  # a planning example weighs 1/|Z*| (RoG Eq. 4); False: 1 each (EPERM Eq. 6)
    num_plans: int = 3  # K: plans whose paths a reason, explain or enough_information example shows
    wrong_plans: int = 0  # shortest paths that do not teach, shown among them: so that selecting is learnt
    max_paths: int = 40  # reasoning paths shown per example
    answers: Literal["shown", "all"] = "shown"  # what reason teaches: the golds that its paths end at, or all (RoG)
    scored: bool = False  # show path scores (EPERM); else none (RoG)
    signed: bool = True  # "^" before relations walked backward; False: as published checkpoints were trained
    mask_topics: bool = True  # planners read a placeholder where the question names a topic
    reenter_topic: bool = False  # may a plan arrive at a topic again?
    budget: int = 3  # relations that score_relations asks for
    max_relations: int = 40  # of those offered to it; those that lead to golds always are
    num_entities: int = 2  # examples of score_entities per question
    max_triples: int = 10  # around each of their candidates
    num_candidates: int = 3  # N of choose
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an instruction that has no target.

        Raises:
            ConfigError: with what is legal.
        """
        for name in (*self.weights, *self.shares):
            if name not in TAUGHT:
                guess = nearest(name, TAUGHT)
                hint = f" Did you mean {guess[0]}?" if guess else ""
                raise ConfigError(
                    f"{shorten(name)} cannot be taught: it has no target.{hint} Legal: {', '.join(TAUGHT)}"
                )


def random_of(question_id: str, purpose: str, seed: int) -> Random:
    """Return the draws of one question for one purpose: the same whatever else is made, and in whichever order."""
    digest = hashlib.sha256(f"{seed}\x1f{purpose}\x1f{question_id}".encode("utf-8", "surrogatepass")).digest()
    return Random(int.from_bytes(digest[:8], "big"))


def is_drawn(question_id: str, instruction: str, settings: ExampleSettings) -> bool:
    """Say whether a question makes examples of an instruction: see ``ExampleSettings.shares``."""
    share = settings.shares.get(instruction, 1.0)
    return share >= 1 or random_of(question_id, f"share of {instruction}", settings.seed).random() < share


def fold_of(question_id: str, folds: int, *, seed: int = 0) -> int:
    """Return the fold, 0..folds-1, of a question: its candidates come from an explorer that was trained on the others.

    Candidates of an explorer that has seen the question are nearly always led by the gold, and a ``choose`` tuned on
    them learns to answer "A".
    """
    digest = hashlib.sha256(f"{seed}\x1ffold\x1f{question_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % folds


# ------ What relations and entities on the way are worth, where the papers give no targets: the ...


MAX_LOOKED_AT = 50  # entities of one layer that are scored, to choose examples from


def offered_relations(
    graph: KnowledgeGraph, topics: Sequence[int], path: LabelPath, *, reenter_topic: bool = False
) -> tuple[str, ...]:
    """Return the steps that go on from where ``path`` leads, in order of relation id; forward before backward."""
    relations = to_relations(graph, path)
    if relations is None:
        return ()
    frontier = follow_path(graph, topics, relations, reenter_topic=reenter_topic)
    groups = expand_ranges(graph.group_ptr[frontier], graph.group_ptr[frontier + 1])
    found = sorted_distinct(graph.group_relation[groups])
    return tuple(to_labels(graph, (int(relation),))[0] for relation in found)


def score_offered(offered: Iterable[str], path: LabelPath, rows: Iterable[TaughtPath]) -> dict[str, float]:
    """Return what each step that goes on from ``path`` is worth."""
    scores = dict.fromkeys(offered, 0.0)
    for row in rows:
        step = row.path[len(path)] if len(row.path) > len(path) and row.path[: len(path)] == path else None
        if step in scores:
            scores[step] = max(scores[step], row.precision)
    return scores


def score_candidates(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    golds: Collection[int],
    path: LabelPath,
    *,
    place: int,
    draw: Random,
    reenter_topic: bool = False,
) -> list[tuple[int, float]]:
    """Return entities after ``place`` steps of ``path`` with what they are worth, right and wrong ones in turns."""
    relations = to_relations(graph, path)
    if relations is None:
        return []
    barred = () if reenter_topic else topics
    layer = follow_path(graph, topics, relations[:place], reenter_topic=reenter_topic).tolist()
    golden = [entity for entity in layer if entity in golds] if place == len(relations) else []
    looked_at = dict.fromkeys(draw.sample(layer, min(MAX_LOOKED_AT, len(layer))))
    if golden:
        looked_at |= dict.fromkeys(draw.sample(golden, 1))
    scored = [(entity, _share(graph, entity, relations[place:], golds, barred)) for entity in looked_at]
    right = [pair for pair in scored if pair[1] > 0]
    wrong = [pair for pair in scored if pair[1] == 0]
    turns = [pair for both in zip(right, wrong, strict=False) for pair in both]
    rest = max(right, wrong, key=len)[min(len(right), len(wrong)) :]
    return turns + rest


def _share(
    graph: KnowledgeGraph, entity: int, rest: Sequence[int], golds: Collection[int], barred: Sequence[int]
) -> float:
    ends = follow_path(graph, [entity], tuple(rest), topics=barred).tolist()
    return sum(end in golds for end in ends) / max(len(ends), 1)


# ------ The cases that one question makes, instruction by instruction; each comes with its example's weight.


Made = Iterator[tuple[Instruction[Any, Any], Any, float]]  # instruction, case, weight
WeightedPlans = list[tuple[LabelPath, float]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with what supervises it."""

    question: Question
    golds: frozenset[int]  # entity ids
    rows: tuple[TaughtPath, ...]  # its shortest paths
    teaching: tuple[TaughtPath, ...]  # those of them that teach


@dataclass(frozen=True, slots=True)
class Maker:
    """What cases are made of; see ``examples.make_examples``."""

    graph_or_none: KnowledgeGraph | None
    prompts: Prompts
    settings: ExampleSettings
    plans: Mapping[str, Sequence[tuple[LabelPath, float]]]
    predictions: Mapping[str, Prediction]
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
    """As reason, with a template's explanation along the paths that end right (RoG lets a teacher write them)."""
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
        explanation=explain_paths(maker.naming, ways),
        answers=maker.names(right),
    )
    yield ExplainInstruction(maker.prompts), case, 1.0


MAX_EXPLAINED = 3  # paths that a template's text goes through


def explain_paths(names: Names, paths: Sequence[ReasoningPath]) -> str:
    """Return sentences that walk along the first few paths; empty for none."""
    return "\n".join(_sentence(names, path) for path in paths[:MAX_EXPLAINED] if path)


def _sentence(names: Names, path: ReasoningPath) -> str:
    parts: list[str] = []
    for step in path:
        start, end = (step.tail, step.head) if step.reverse else (step.head, step.tail)
        words = names.relation_text(step.relation)
        way = f'"{words}", read backward,' if step.reverse else f'"{words}"'
        begin = f"From {escape(names.name_of(start))}, " if not parts else "and from there "
        parts.append(f"{begin}{way} leads to {escape(names.name_of(end))}")
    return ", ".join(parts) + "."


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
