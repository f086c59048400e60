"""EtD and DualR: explore, then determine; and the explorer on which they stand, alone too.

EtD: Liu et al., 2024; §3.3, Table 4 and appendix E: the explorer's first N candidates in one multiple-choice call.
DualR (Liu et al., 2025; §3.3, §4.2) is EtD's way with first-and-last-layer encodings. torch is imported when the
explorer answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from kgqa_core.config_base import FilePath, Section
from kgqa_core.config_systems import SystemType
from kgqa_core.evaluation.compare import NOBODY
from kgqa_core.evaluation.predictions import Answer
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph, Subgraphs
from kgqa_core.instructions.answers import Answers, match_answers
from kgqa_core.instructions.choose import Choice, ChooseCase, ChooseInstruction, Shown, show_candidates
from kgqa_core.instructions.plan import PlanAsker, PlanQuestion, render_plan, weigh_plans
from kgqa_core.instructions.render import Prompts, show_path
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import meant_by_verdict
from kgqa_core.systems.types import Ask, Rounds, Steps, System, SystemAnswer
from kgqa_core.types import LabelPath, Prediction, Question

if TYPE_CHECKING:
    from kgqa_core.explorer.explore import Exploration
    from kgqa_core.explorer.model import Card, EncodeTexts, Explorer


@dataclass(slots=True)
class AnswerCost:
    """What answering costs: sums over the batches that were answered."""

    num_questions: int = 0  # explored: those with a topic
    num_candidates: int = 0  # nodes after the last step
    num_nodes: int = 0  # of all steps
    num_classes: int = 0
    num_edges: int = 0  # walked, identity edges included
    cpu_seconds: float = 0.0  # of this process, all its threads; encoding of texts not included

    def add(self, found: Exploration, num_questions: int) -> None:
        """Add one batch."""
        self.num_questions += num_questions
        self.num_candidates += len(found.entity)
        self.num_nodes += found.counts["nodes"]
        self.num_classes += found.counts["classes"]
        self.num_edges += found.counts["edges"]

    def figures(self) -> dict[str, float]:
        """Return the figures per question; empty where none was explored."""
        if not self.num_questions:
            return {}
        return {
            "candidates_per_question": self.num_candidates / self.num_questions,
            "edges_per_question": self.num_edges / self.num_questions,
            "classes_per_node": self.num_classes / self.num_nodes,
            "cpu_seconds": self.cpu_seconds,
            "questions_per_second": self.num_questions / max(self.cpu_seconds, 1e-9),
        }


@dataclass(frozen=True, slots=True)
class ExplorerSystem:
    """A trained explorer over one graph, or over a subgraph per question."""

    graph: KnowledgeGraph
    model: Explorer  # on the device where questions are answered
    card: Card
    encode: EncodeTexts
    evidence_paths: int = 3
    evidence_of_answers: bool = False  # one for every answer as well
    batch_size: int = 64
    subgraphs: Subgraphs | None = None  # where each question explores its own, not the graph

    def answer(
        self,
        questions: Sequence[Question],
        progress: Callable[[int, int], None] = lambda done, total: None,
        cost: AnswerCost | None = None,
    ) -> list[Prediction]:
        """Return one prediction per question, in order; what it costs is added to ``cost``."""
        from kgqa_core.explorer.explore import ExploreOptions
        from kgqa_core.explorer.model import texts_of
        from kgqa_core.explorer.predict import predict

        inside, card = self.subgraphs, self.card
        asked = sorted({question.asked(card.mask_topics) for question in questions})
        texts = texts_of(asked, self.graph, self.encode).to(self.model.identity.device)
        cost = AnswerCost() if cost is None else cost
        started = time.process_time()
        predictions = predict(
            self.model,
            inside.graph if inside else self.graph,
            [*map(inside.to_rows, questions)] if inside else questions,
            texts=texts,
            text_row={text: row for row, text in enumerate(asked)},
            options=ExploreOptions(card.edge_budget, card.reenter_topic, attention_threshold=card.attention_threshold),
            answer_threshold=card.answer_threshold,
            mask_topics=card.mask_topics,
            evidence_paths=self.evidence_paths,
            evidence_of_answers=self.evidence_of_answers,
            batch_size=self.batch_size,
            progress=progress,
            on_batch=cost.add,
        )
        cost.cpu_seconds += time.process_time() - started
        return [inside.to_entities(prediction) for prediction in predictions] if inside else predictions

    def limited(
        self, *, edge_budget: int | Literal["all"] | None = None, attention_threshold: float | None = None
    ) -> ExplorerSystem:
        """Return the same explorer under another K (``all``: every edge) and threshold (0..1); None leaves it."""
        budget = 2 * self.graph.num_triples + 1 if edge_budget == "all" else edge_budget
        limits = {"edge_budget": budget, "attention_threshold": attention_threshold}
        given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
        return replace(self, card=replace(self.card, **given))


@dataclass(frozen=True, slots=True)
class ExplorerAlone(System):
    """The answer set of the checkpoint's threshold, each answer with its evidence path."""

    explorer: ExplorerSystem
    on_rows: ClassVar[bool] = False  # the explorer turns rows back into entities itself

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the explorer's predictions."""
        return replace(self.explorer, evidence_of_answers=True).answer(questions)

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Answer without a call."""
        return SystemAnswer(prepared, confidence=min(1.0, max(prepared.scores, default=0.0)))
        yield  # what makes this a generator: it asks nothing


EXPLORER = SystemType(lambda parts: ExplorerAlone(parts.explorer()), roles=lambda settings: (), explores=True)


# ------ EtD and DualR: the explorer's first N candidates in one multiple-choice call.

WeighPlans = Callable[[Sequence[PlanQuestion], Sequence[Sequence[LabelPath]]], list[list[float]]]
"""(questions, plans of each) -> their log-probabilities."""

LEAST = 1e-12  # probability: what the explorer has as zero stays comparable


class EtdSection(Section):
    """Settings of EtD."""

    num_candidates: Annotated[int, Field(ge=1, le=26)] = 3  # N
    multiple_choice: bool = True  # False, w/o mcp: one list of names, without labels
    candidates: bool = True  # False, w/o candidates: names are not shown
    probabilities: bool = True  # False, w/o probabilities
    paths: bool = True  # False, w/o paths: no evidence chains
    renormalise: Literal["all", "shown"] = "all"  # Eq. 3 over all candidates, or over those shown
    only_candidates: bool = False  # hold the model to the labels; the paper leaves it free
    determine: Literal["choose", "plan"] = "choose"  # plan (ours): whose chain is the model's most probable plan
    explorer_weight: Annotated[float, Field(ge=0)] = 1.0  # with plan: exponent of the explorer's probability
    dense_weight: Annotated[float, Field(ge=0)] = 0.0  # with plan: exponent of the dense planner's probability


class DualrSection(EtdSection):
    """Settings of DualR: EtD's, with its own prompt and a tuned ``choose`` (§4.3, Table 5)."""

    explorer: FilePath | None = None  # run configuration of an explorer on first+last encodings; None: EtD's own


@dataclass(frozen=True, slots=True)
class Etd(System):
    """Candidates, their probabilities and evidence chains in one prompt.

    Tied candidates are shown in order of entity id. An answer that cannot be read is none at all.
    """

    search: SearchGraph
    prompts: Prompts
    explore: Answer  # the first ``num_candidates`` with evidence
    settings: EtdSection
    judge: PlanAsker | None = None  # how plans are asked about; needed where they determine
    dense: WeighPlans | None = None  # by the dense planner; needed where it has a weight
    mask_topics: bool = True  # as its planner reads questions
    on_rows: ClassVar[bool] = False  # the explorer turns rows back into entities itself

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the explorer's candidates."""
        return self.explore(questions)

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Show what was explored, and ask once."""
        kept = self.settings
        if kept.determine == "plan":
            choice, sure = yield from self._weigh(question, prepared)
            return replace(self._answer(question, prepared, choice), confidence=sure)
        candidates = show_candidates(self.search.entities, prepared, kept.num_candidates)
        if kept.renormalise == "shown" and (whole := sum(one.score for one in candidates)):
            candidates = tuple(replace(one, score=one.score / whole) for one in candidates)
        shown = Shown(kept.multiple_choice, kept.candidates, kept.probabilities, kept.paths)
        instruction = ChooseInstruction(self.prompts, shown, only_candidates=kept.only_candidates)
        (reply,) = yield [Ask(instruction, ChooseCase(question.text, candidates=candidates))]
        return self._answer(question, prepared, reply.result)

    def _weigh(self, question: Question, explored: Prediction) -> Rounds:
        """Return those of the first N whose chain is the most probable plan: a likelihood each, no text is generated.

        It is multiplied by the explorer's probability of the chain's best candidate, to the power ``explorer_weight``,
        and the dense planner's of the chain, to the power ``dense_weight``; hidden probabilities count for nothing.
        Candidates without a chain are not weighed; where all have one plan, nobody is asked. Return also the chosen
        chain's share of all products.
        """
        judge = self.judge
        assert judge is not None
        paths = explored.paths[: min(self.settings.num_candidates, len(explored.candidates))]
        plans = [show_path(self.search.entities, path).steps for path in paths]
        best: dict[LabelPath, float] = {}  # the explorer's probability of a chain's best candidate, which comes first
        for plan, probability in zip(plans, explored.scores, strict=False):
            if plan:
                best.setdefault(plan, probability)
        options, sure = list(best), 1.0
        if len(options) > 1:
            inside = self.search.place([question])[0]
            asked = PlanQuestion(question.id, inside.asked(self.mask_topics), inside.topics)
            case = judge.case(asked)
            (reply,) = yield [Ask(judge.instruction, case, options=tuple(map(render_plan, options)))]
            if isinstance(reply.result, ParseFailure):
                return reply.result, None
            weight = self.settings.explorer_weight if self.settings.probabilities else 0.0
            told = np.asarray(reply.log_probs) + weight * np.log(np.maximum([*best.values()], LEAST))
            if self.dense is not None:
                told += self.settings.dense_weight * np.asarray(self.dense([asked], [options])[0])
            options, sure = [options[int(np.argmax(told))]], max(weigh_plans(told.tolist()))
        chosen = tuple(index for index, plan in enumerate(plans) if plan in options)
        return Choice(chosen, "plan" if chosen else "abstained"), sure

    def _answer(self, question: Question, explored: Prediction, choice: Choice | ParseFailure) -> SystemAnswer:
        count = self.settings.num_candidates
        counts: dict[str, float] = {
            "num_shown": min(count, len(explored.candidates)),
            "explorer_first": explored.candidates[0] if explored.candidates else NOBODY,
        }
        if isinstance(choice, ParseFailure):
            return SystemAnswer(_ranked(question, explored, ()), (), counts)
        meant = meant_by_verdict(question, Answers(choice.free, verdict=choice.verdict), explored.candidates[:count])
        answers = [explored.candidates[index] for index in choice.chosen] if meant is None else meant
        names = choice.free if meant is None else ()
        # A free answer is the model's own; what it names may still be a candidate that was not shown.
        others = {entity: self.search.entities.name_of(entity) for entity in explored.candidates} if names else {}
        free = match_answers(names, others, self.search.whole)
        ways = ("label", "name", "plan", "free", "abstained")
        counts |= {f"by_{way}": float(way == choice.by) for way in ways}  # their means are shares
        counts |= {"num_conflicts": choice.conflict, "num_unsupported": len(free.entities)}
        found = _ranked(question, explored, (*answers, *free.entities))
        if meant is not None:  # a verdict is an answer, also where nothing is left beside the claim
            found = replace(found, verdict=question.claim in meant)
        return SystemAnswer(found, free.unmatched, counts)


def _ranked(question: Question, explored: Prediction, answers: Sequence[int]) -> Prediction:
    """Return a prediction of ``answers``, scored 1, 1/2, ..., then what else was explored, in its order, below them."""
    answers = tuple(dict.fromkeys(answers))
    if not answers:  # nothing is ranked: the explorer's first is not what the model said
        return Prediction(question.id, (), (), (), covered=explored.covered)
    taken = set(answers)
    path_of = dict(zip(explored.candidates, explored.paths, strict=False))
    rest = [pair for pair in zip(explored.candidates, explored.scores, strict=True) if pair[0] not in taken]
    candidates = (*answers, *(entity for entity, _ in rest))
    below = 1 / (len(answers) + 1)
    return Prediction(
        question_id=question.id,
        candidates=candidates,
        scores=(*(1 / place for place in range(1, len(answers) + 1)), *(below * score for _, score in rest)),
        answers=answers,
        paths=tuple(path_of.get(entity, ()) for entity in candidates),
        covered=explored.covered or not taken.isdisjoint(question.answers),
        verdict=question.claim in taken if question.claim is not None else None,
    )


def _open_etd(parts: Any) -> Etd:
    kept = parts.settings
    judge = parts.asker() if kept.determine == "plan" else None
    dense = parts.planner("dense").weigh if judge and kept.dense_weight else None
    explore = parts.candidates(kept.num_candidates)
    return Etd(parts.search, parts.prompts, explore, kept, judge, dense, parts.mask_topics)


ETD = SystemType(
    _open_etd,
    settings=EtdSection,
    roles=lambda settings: ("plan",) if settings.determine == "plan" else ("reason",),
    explores=True,
    hard_negatives=True,
    plan_source=lambda settings: "dense" if settings.determine == "plan" and settings.dense_weight else "none",
)
DUALR = replace(ETD, settings=DualrSection, depends_on_run=lambda settings: settings.explorer)
