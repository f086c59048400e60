"""Instruction data: what the graph supervises, rendered (RoG Eq. 7, EPERM Eq. 8, DualR's tuned choose).

A question makes examples instruction by instruction. Every draw depends on the question id and its purpose alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import InputError
from kgqa_core.graph.follow import end_of, follow_layers
from kgqa_core.graph.kg import KnowledgeGraph, golds_of, to_labels, to_relations
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import Mode, TaughtPath, takes
from kgqa_core.instructions import choose, plan, reason, search_examples
from kgqa_core.instructions.alignment import Wordings
from kgqa_core.instructions.render import Prompts
from kgqa_core.instructions.types import Example, Instruction
from kgqa_core.questions.link import hash_number
from kgqa_core.schemas import INSTRUCTIONS
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath, RelationPath

ENTITY_RIGHT, ENTITY_WRONG = (6.0, 1.5), (1.5, 4.0)  # Beta distributions that the finder's scores are drawn from
SUPPORTED = 0.2  # of the best path's score: an answer's path has at least that
MAX_SKILL = 4.0  # of an explorer: by how many deviations it sees right candidates above wrong ones
MAX_TRIED = 200  # plans around one question's topics that are looked at
ROWS = 20_000  # of one row group: what is held in memory

Made = Iterator[tuple[Instruction[Any, Any], Any]]  # with its case


@dataclass(frozen=True, slots=True)
class Source:
    """What the examples of a run are made of."""

    search: SearchGraph | None  # None: questions come with paths alone, and only plan is made
    prompts: Prompts
    reasoner: ReasonerSection  # which instructions, and what their examples show
    mode: Mode = "best"  # which shortest paths teach: the best-executing, all (RoG's Z*), or those of precision >= t
    threshold: float = 0.5  # t of EPERM Eq. 5
    mask_topics: bool = True  # planners read a placeholder where the question names a topic
    space: plan.PathConstraints | None = None  # the plans that exist: wrong ones are found there; None: no graph
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """Out-of-fold predictions of an explorer by question id, for choose, in the ids of the graph that is walked."""
    proposed: Mapping[str, Sequence[LabelPath]] = field(default_factory=dict)
    """Plans that a planner proposes, best first, by question id: what its pool holds in place of wrong plans drawn."""
    known: Wordings = field(default_factory=Wordings)
    """What the training questions' words tell (``alignment``): for clues, and which of equal paths is meant."""


def make_examples(
    source: Source,
    questions: Iterable[Question],
    supervision: Mapping[str, Sequence[TaughtPath]],
    *,
    skipped: Counter[str] | None = None,
) -> Iterator[Example]:
    """Yield the examples of each question in turn, which are placed in the graph that is walked.

    ``supervision`` holds the shortest paths by question id. ``skipped`` gets "instruction: reason" -> questions that
    made no such example. Raises InputError for an instruction without its graph.
    """
    counts: Counter[str] = Counter() if skipped is None else skipped
    weights, shares = source.reasoner.mixture, source.reasoner.shares
    if source.search is None and (needy := sorted(set(weights) - {"plan"})):
        raise InputError(f"examples of {', '.join(needy)} need a graph; without one there is only: plan")
    reenter = source.search is not None and source.search.reenter_topic
    aligned = source.reasoner.meant_only or not ALIGNED.isdisjoint(weights)
    for question in questions:
        rows = tuple(supervision.get(question.id, ()))
        taught = tuple(row for row in rows if takes(row, source.mode, source.threshold))
        meant = source.known.best(question.masked, taught) if aligned else None
        if source.reasoner.meant_only:
            taught = (meant,) if meant else ()
        asked = Asked(source, question, golds_of(question, reenter_topic=reenter), rows, taught, meant)
        for name, factor in sorted(weights.items()):
            share = shares.get(name, 1.0)
            if share < 1 and asked.draw(f"share of {name}").random() >= share:
                continue
            cases, made = list(CASES[name](asked)), 0
            # EPERM's planning examples weigh 1 each (Eq. 6). Of all else a question weighs 1: 1/|Z*| in RoG's Eq. 4.
            is_whole = name == "plan" and source.reasoner.objective == "eperm"
            weight = factor if is_whole else 1 / max(len(cases), 1) * factor
            for instruction, case in cases:
                target = instruction.target(case)
                if target is not None:
                    made += 1
                    text, id, split = instruction.render(case), question.id, question.split
                    yield Example(name, id, split, text.system, text.text, target, weight)
            counts[f"{name}: nothing to teach"] += not made


def write_examples(examples: Iterable[Example], out: Path) -> dict[str, int]:
    """Write schemas.INSTRUCTIONS whole, in bounded memory; return how many examples each instruction has."""
    counts: Counter[str] = Counter()
    waiting = iter(examples)
    with written_whole(out) as partial, pq.ParquetWriter(partial, INSTRUCTIONS) as writer:
        while batch := list(islice(waiting, ROWS)):
            columns = [[getattr(example, column.name) for example in batch] for column in INSTRUCTIONS]
            writer.write_table(pa.table(columns, schema=INSTRUCTIONS))
            counts.update(example.instruction for example in batch)
    return dict(sorted(counts.items()))


def fold_of(question_id: str, folds: int) -> int:
    """Return the fold, 0..folds-1, of a question: its candidates come from an explorer that was trained on the others.

    An explorer that has seen the question nearly always puts the gold first: ``choose`` would learn to answer "A".
    """
    return hash_number("fold", question_id) % folds


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with what supervises it."""

    source: Source
    question: Question
    golds: frozenset[int]  # entity ids
    rows: tuple[TaughtPath, ...]  # its shortest paths
    teaching: tuple[TaughtPath, ...]  # those of them that teach
    meant: TaughtPath | None  # of these the one that the question's words mean; for instructions in ``ALIGNED``

    @property
    def search(self) -> SearchGraph:
        """Return what is walked, where there must be something."""
        assert self.source.search is not None  # make_examples has checked
        return self.source.search

    def draw(self, purpose: str) -> Random:
        """Return the draws of this question for one purpose: the same whatever else is made, in whichever order."""
        return Random(hash_number(purpose, self.question.id))

    def names(self, entities: Iterable[int]) -> tuple[str, ...]:
        """Return the entities' names."""
        return tuple(map(self.search.name_of, entities))

    def evidence(self, plans: Sequence[tuple[LabelPath, float]], *, most: int | None = None) -> reason.Evidence:
        """Return the paths of plans from the question's topics, at most as many as are set, or ``most``."""
        most = self.source.reasoner.max_paths if most is None else most
        return reason.gather_evidence(self.search, self.question.topics, plans, max_paths=most)

    def pool(self, purpose: str) -> list[tuple[LabelPath, bool]]:
        """Return plans that teach and wrong ones as hard as can be found, shuffled, each with: does it teach?

        Of the wrong ones about half are a step longer or shorter than a right one. A share of the pools, ``abstain``,
        holds wrong plans alone. None where nothing teaches. Proposed plans stay in their order in half of the pools:
        what comes first there is more often right.
        """
        draw, reasoner, source = self.draw(purpose), self.source.reasoner, self.source
        rows = draw.sample(self.teaching, min(reasoner.paths_per_question, len(self.teaching)))
        if rows and (proposed := source.proposed.get(self.question.id)):
            teach = [row.path for row in self.teaching]
            first = proposed[: draw.randint(2, max(2, len(proposed)))]
            mixed = [(path, path in teach) for path in dict.fromkeys([*first, rows[0].path])]
            return draw.sample(mixed, len(mixed)) if draw.random() < 0.5 else mixed
        found = [(row.path, True) for row in rows]
        if rows and reasoner.wrong_plans and source.space is not None:
            graph = self.search.graph
            known = [path for row in (rows[0], *self.rows) if (path := to_relations(graph, row.path))]
            wrong = wrong_plans(graph, source.space, self.question, known, draw, off_by_one=True)
            wanted = draw.randint(1, reasoner.wrong_plans)
            bad = [(to_labels(graph, path), False) for path in islice(wrong, wanted)] if known else []
            found = bad if bad and draw.random() < reasoner.abstain else found + bad
            draw.shuffle(found)
        return found


# ------ The cases that one question makes, instruction by instruction.


def plan_cases(asked: Asked) -> Made:
    """Each teaching path is a target of its own."""
    instruction, text = plan.PlanInstruction(asked.source.prompts), asked.question.asked(asked.source.mask_topics)
    for row in asked.teaching:
        yield instruction, plan.PlanCase(text, path=row.path)


def reason_cases(asked: Asked) -> Made:
    """The paths of K plans; taught are the golds that they end at (to abstain, where they miss them all), or all."""
    most = reason.MOST_IN_BLOCKS if asked.source.prompts["reason"].in_blocks else None
    plans = [(path, 1.0) for path, _ in asked.pool("shown_plans")]  # weights must not tell what is right
    evidence = asked.evidence(plans, most=most)
    if evidence.paths and asked.golds:
        right = [entity for entity in evidence.ends if entity in asked.golds]
        answers = asked.names(right if asked.source.reasoner.answers == "shown" else sorted(asked.golds))
        shown = asked.names(evidence.ends)
        case = reason.ReasonCase(asked.question.text, evidence.paths, shown, answers)
        yield reason.ReasonInstruction(asked.source.prompts), case


def scored_cases(asked: Asked) -> Made:
    """As reason, with the score of each path, best first, as EPERM's finder gives them: plan times entities (Fig. 4).

    Scores are drawn around the truth: a right plan outweighs a wrong one three times in four, an entity that leads to
    a gold scores 0.8 on average, another one 0.27. Taught are the golds whose paths have a share of the best score.
    """
    draw, pool = asked.draw("reason_scored"), asked.pool("scored_plans")
    logits = [draw.gauss(0.0 if teaches else -1.0, 1.0) for _, teaches in pool]
    weights = dict(zip((path for path, _ in pool), plan.weigh_plans(logits), strict=True)) if pool else {}
    evidence = asked.evidence([*weights.items()])
    if not evidence.paths or not asked.golds:
        return
    ends = [end_of(path) for path in evidence.steps]
    entity_scores = []  # of each path
    for end, path in zip(ends, evidence.steps, strict=True):
        alpha, beta = ENTITY_RIGHT if end in asked.golds else ENTITY_WRONG
        entity_scores.append([draw.betavariate(alpha, beta) for _ in path])
    shares = plan.score_paths([weights[path.steps] for path in evidence.paths], entity_scores)
    order = sorted(range(len(ends)), key=lambda place: -shares[place])
    paths = tuple(replace(evidence.paths[place], score=shares[place]) for place in order)
    golden = [ends[place] for place in order if ends[place] in asked.golds]
    high = [ends[place] for place in order if shares[place] >= SUPPORTED * shares[order[0]]]
    right = [entity for entity in dict.fromkeys(high) if entity in asked.golds] or golden[:1]
    shown = asked.names(dict.fromkeys(ends[place] for place in order))
    case = reason.ReasonCase(asked.question.text, paths, shown, asked.names(right))
    yield reason.ReasonInstruction(asked.source.prompts, scored=True), case


def choose_cases(asked: Asked) -> Made:
    """The first N candidates of an out-of-fold explorer, or a pool's; every right one is taught, none where none is."""
    source, question, count = asked.source, asked.question, asked.source.reasoner.num_candidates
    is_pool = source.reasoner.candidates == "pool"
    found = candidates_of_pool(asked, count) if is_pool else source.predictions.get(question.id)
    if found is not None and found.candidates:
        right = tuple(place for place, entity in enumerate(found.candidates[:count]) if entity in asked.golds)
        shown = choose.Shown(probabilities=not is_pool or asked.draw("shown").random() < 0.5)
        case = choose.ChooseCase(question.text, choose.show_candidates(asked.search, found, count), right)
        yield choose.ChooseInstruction(source.prompts, shown), case


def candidates_of_pool(asked: Asked, count: int) -> Prediction:
    """Return up to ``count`` ends of a pool's plans, best first, as an explorer would."""
    draw, found = asked.draw("candidates"), dict[int, ReasoningPath]()
    steps = asked.evidence([(path, 1.0) for path, _ in asked.pool("candidate_plans")]).steps
    for path in steps:  # of the plans in turns
        found.setdefault(end_of(path), path)
    entities = draw.sample([*found][:count], min(count, len(found)))
    scores = draw_probabilities([entity in asked.golds for entity in entities], draw)
    order = sorted(range(len(entities)), key=lambda place: -scores[place])
    ranked = tuple(entities[place] for place in order)
    probabilities, paths = tuple(scores[place] for place in order), tuple(found[entity] for entity in ranked)
    return Prediction(asked.question.id, ranked, probabilities, (), paths)


def draw_probabilities(right: Sequence[bool], draw: Random) -> list[float]:
    """Return what an explorer of a skill that is drawn, 0 to 4, would say of candidates.

    It sees a normal value of each, higher by its skill where that is right, and gives the posterior. So what it says
    is calibrated: one without skill says the same of all, and one that is sure is nearly always right.
    """
    skill = draw.uniform(0.0, MAX_SKILL)
    return plan.weigh_plans([skill * draw.gauss(skill * one, 1.0) for one in right])


def direct_cases(asked: Asked) -> Made:
    """The golds, without any evidence."""
    if asked.golds:
        case = reason.ReasonCase(asked.question.text, answers=asked.names(sorted(asked.golds)))
        yield reason.DirectInstruction(asked.source.prompts), case


# ------ Hard negatives: plans that exist around a question's topics, are like a right one, and reach no gold.


def wrong_plans(
    graph: KnowledgeGraph,
    space: plan.PathConstraints,
    question: Question,
    right: Sequence[RelationPath],
    chance: Random,
    *,
    off_by_one: bool = False,
) -> Iterator[RelationPath]:
    """Yield plans that lead from the topics to entities, none of them a gold: the most like ``right[0]`` first.

    Those of its length that share most of its beginning come first, then others; of equals ``chance`` decides. With
    ``off_by_one`` about every other plan stops a step short of it, or goes on from it, as long as there are such: what
    a planner proposes beside the right plan is mostly of this kind.
    """
    golds = golds_of(question, reenter_topic=True)
    around = space.around(question.topics)
    tried = _tried(around, right[0], space.max_hops, chance)
    if off_by_one:
        near = [right[0][:-1]] if len(right[0]) > 1 else []
        if len(right[0]) < space.max_hops:
            near += [(*right[0], relation) for relation in around.next_relations(right[0])[0].tolist()]
        chance.shuffle(near)
        tried = _mixed(near, tried, chance)
    for path in tried:
        reached = follow_layers(graph, question.topics, path, reenter_topic=space.reenter_topic)[-1]
        if path not in right and len(reached) and golds.isdisjoint(reached.tolist()):
            yield path


def _mixed(some: list[RelationPath], others: list[RelationPath], chance: Random) -> list[RelationPath]:
    """Return all of both in their orders, each next one from either by chance."""
    left, right, found = some[::-1], others[::-1], list[RelationPath]()
    while left and right:
        found.append((left if chance.random() < 0.5 else right).pop())
    return list(dict.fromkeys([*found, *reversed(left), *reversed(right)]))


def _tried(around: plan.PathConstraint, gold: RelationPath, max_hops: int, chance: Random) -> list[RelationPath]:
    """Return plans that exist, in the order in which they are tried: the most like ``gold`` first."""
    found: dict[RelationPath, None] = {}

    def extend(begin: RelationPath, length: int) -> None:
        """Add plans of ``length`` steps that begin with ``begin``, in an order drawn."""
        if len(found) >= MAX_TRIED:
            return
        here, further = around.next_relations(begin)
        options = (here if len(begin) + 1 == length else further).tolist()
        chance.shuffle(options)
        for relation in options:
            if len(begin) + 1 == length:
                found.setdefault((*begin, int(relation)))
            else:
                extend((*begin, int(relation)), length)

    for shared in range(len(gold) - 1, -1, -1):
        extend(gold[:shared], len(gold))
    for length in (*range(len(gold) - 1, 0, -1), *range(len(gold) + 1, max_hops + 1)):
        extend(gold[: length - 1], length)
        extend((), length)
    return list(found)


CASES: Mapping[str, Callable[[Asked], Made]] = {
    "plan": plan_cases,
    "reason": reason_cases,
    "reason_scored": scored_cases,
    "choose": choose_cases,
    "direct": direct_cases,
    **search_examples.CASES,
}
"""Instructions with targets. There is none for explain and chain_of_thought: no graph says how to think."""
ALIGNED = frozenset(search_examples.CASES)  # those that read ``Source.known``
