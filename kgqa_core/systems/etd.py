"""EtD and DualR: explore, then determine: the explorer's first N candidates in one multiple-choice call.

EtD: Liu et al., 2024; §3.3, Table 4 and appendix E. DualR (Liu et al., 2025; §3.3, §4.2) is EtD's way with
first-and-last-layer encodings. Without determination this is the system ``explorer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from kgqa_core.config_base import FilePath, Section
from kgqa_core.config_systems import SystemType
from kgqa_core.evaluation.side_by_side import NOBODY
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import match_answers
from kgqa_core.instructions.choose import Candidate, Choice, ChooseCase, ChooseInstruction, Shown
from kgqa_core.instructions.render import Prompts, render_triples
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import decide
from kgqa_core.systems.explorer import ExplorerSystem
from kgqa_core.systems.types import Ask, CandidateSource, Parts, Reply, Steps, SystemAnswer
from kgqa_core.types import Prediction, Question

MANY_TIED = 256  # candidates with evidence where those tied with the chosen ones are answers, too
TIE = 1e-4  # relative difference of probabilities up to which candidates are the same to the explorer


class EtdSection(Section):
    """Settings of EtD."""

    num_candidates: Annotated[int, Field(ge=1, le=26)] = 3  # N
    multiple_choice: bool = True  # False, w/o mcp: one list of names, without labels
    candidates: bool = True  # False, w/o candidates: names are not shown
    probabilities: bool = True  # False, w/o probabilities
    paths: bool = True  # False, w/o paths: no evidence chains
    renormalise: Literal["all", "shown"] = "all"  # Eq. 3 over all candidates, or over those shown
    only_candidates: bool = False  # hold the model to the labels; the paper leaves it free
    determine: Literal["text", "likelihood"] = "text"  # likelihood: the most probable label line is the choice
    answer_set: Literal["chosen", "tied"] = "chosen"  # tied: with those beyond N that tie with one chosen (ours)


class DualrSection(EtdSection):
    """Settings of DualR: EtD's, with its own prompt and a tuned ``choose`` (§4.3, Table 5)."""

    explorer: FilePath | None = None  # run configuration of an explorer on first+last encodings; None: EtD's own


@dataclass(frozen=True, slots=True)
class Etd:
    """Candidates, their probabilities and evidence chains in one prompt. Implements ``System``.

    Tied candidates are shown in order of entity id. What is chosen comes first in the prediction, the explorer's other
    candidates follow in its own order; an answer that cannot be read is none at all.
    """

    search: SearchGraph
    prompts: Prompts
    explorer: CandidateSource
    settings: EtdSection
    name: str = "etd"
    needs_topic: bool = True
    on_rows: bool = False  # the explorer turns rows back into entities itself

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the explorer's candidates with the evidence of those that may become answers."""
        source = self.explorer
        if isinstance(source, ExplorerSystem):
            needed = self.settings.num_candidates if self.settings.answer_set == "chosen" else MANY_TIED
            source = replace(source, evidence_paths=needed)
        return source.answer(questions)

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Show what was explored, and ask once."""
        case = self._case(question, prepared)
        instruction = self._instruction()
        if self.settings.determine == "likelihood":
            options = tuple(write_option(instruction, case, index) for index in range(len(case.candidates)))
            replies = (yield [Ask(instruction, case, options=options)]) if options else []
            choice = _most_probable(replies)
        else:
            (reply,) = yield [Ask(instruction, case)]
            choice = reply.result
        return self._answer(question, prepared, choice)

    def _instruction(self) -> ChooseInstruction:
        kept = self.settings
        # Without candidates the paper's prompt has neither names nor labels: facts and probabilities alone (Table 14).
        shown = Shown(kept.multiple_choice and kept.candidates, kept.candidates, kept.probabilities, kept.paths)
        return ChooseInstruction(self.prompts, shown, only_candidates=kept.only_candidates)

    def _case(self, question: Question, explored: Prediction) -> ChooseCase:
        """Return the first N candidates; their probabilities are Eq. 3 over all, or shares of what is shown."""
        count = self.settings.num_candidates
        scores = explored.scores[:count]
        whole = sum(scores) if self.settings.renormalise == "shown" else 1.0
        paths = [*explored.paths[:count], *[()] * count]
        names = self.search.entities
        candidates = tuple(
            Candidate(
                names.name_of(entity),
                score / whole if whole else 0.0,
                render_triples(names, path),
                names.name_of(path[-1].tail) if path else "",
            )
            for entity, score, path in zip(explored.candidates[:count], scores, paths, strict=False)
        )
        return ChooseCase(question.text, candidates=candidates)

    def _answer(self, question: Question, explored: Prediction, choice: Choice | ParseFailure) -> SystemAnswer:
        counts: dict[str, float] = {
            "num_shown": min(self.settings.num_candidates, len(explored.candidates)),
            "explorer_first": explored.candidates[0] if explored.candidates else NOBODY,
        }
        if isinstance(choice, ParseFailure):
            return SystemAnswer(_ranked(question, explored, ()), (), counts)
        answers = [explored.candidates[index] for index in choice.chosen]
        if self.settings.answer_set == "tied":
            answers += _unseen_equals(explored, choice.chosen, self.settings.num_candidates)
        # A free answer is the model's own; what it names may still be a candidate that was not shown.
        others = {entity: self.search.entities.name_of(entity) for entity in explored.candidates} if choice.free else {}
        free = match_answers(choice.free, others, self.search.entities)
        counts |= {f"by_{choice.by}": 1, "num_conflicts": choice.conflict, "num_unsupported": len(free.entities)}
        return SystemAnswer(_ranked(question, explored, (*answers, *free.entities)), free.unmatched, counts)


def write_option(instruction: ChooseInstruction, case: ChooseCase, index: int) -> str:
    """Return what choosing one candidate alone would read: its label and name, or its name where none has a label."""
    line = instruction.target(replace(case, right=(index,))) or ""
    return line if instruction.shown.labels else line.partition(" ")[2]


def _most_probable(replies: Sequence[Reply[Any]]) -> Choice | ParseFailure:
    """Return the choice of the option of highest likelihood, the first of equals."""
    if not replies:
        return ParseFailure("no candidates", "")
    (reply,) = replies
    if isinstance(reply.result, ParseFailure):
        return reply.result
    kept = reply.log_probs[: len(reply.case.candidates)]  # others did not fit the prompt
    return Choice((max(range(len(kept)), key=kept.__getitem__),), "label") if kept else ParseFailure("too long", "")


def _unseen_equals(explored: Prediction, chosen: Sequence[int], count: int) -> list[int]:
    """Return the candidates beyond the first ``count`` that tie with one of the chosen."""
    scores = [explored.scores[index] for index in chosen]
    unseen = zip(explored.candidates[count:], explored.scores[count:], strict=True)
    return [entity for entity, own in unseen if any(abs(own - score) <= TIE * score for score in scores)]


def _ranked(question: Question, explored: Prediction, answers: Sequence[int]) -> Prediction:
    """Return a prediction of ``answers``, scored 1, 1/2, ..., then what else was explored, below them.

    Without an answer nothing is ranked: the explorer's first is not what the model said.
    """
    answers = tuple(dict.fromkeys(answers))
    verdict = decide(question, answers)
    if not answers:
        return Prediction(question.id, (), (), (), covered=explored.covered, verdict=verdict, abstained=True)
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
        verdict=verdict,
    )


def open_etd(parts: Parts) -> Etd:
    """Open EtD."""
    return Etd(parts.search, parts.prompts, parts.candidates(), parts.settings)


def open_dualr(parts: Parts) -> Etd:
    """Open DualR."""
    return replace(open_etd(parts), name="dualr")


ETD = SystemType(open_etd, settings=EtdSection, explores=True, hard_negatives=True)
DUALR = replace(ETD, open=open_dualr, settings=DualrSection, depends_on_run=lambda settings: settings.explorer)
