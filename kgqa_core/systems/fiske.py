"""FiSKE: clues, starting entities by their names, relation and entity mapping in turns (Tao et al., 2024; §3, Table 6).

No topic entity is given to it. Once a branch has mapped all clues, its paths answer the question; else the model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgqa_core.config_systems import FiskeSection
from kgqa_core.instructions.mappings import CluesCase, ExtractCluesInstruction
from kgqa_core.instructions.reason import DirectCase, DirectInstruction
from kgqa_core.instructions.render import Prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_alone, answer_on_paths, ask_reason
from kgqa_core.systems.fiske_explore import Branch, Exploration, list_paths, look_up, rewrite_question
from kgqa_core.systems.types import Ask, CallsLeft, Steps, room_for
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Question

MAX_CLUES = 16  # of a question; a text with more is no list of clues


@dataclass(frozen=True, slots=True)
class Fiske:
    """Explores until a branch has mapped all clues. Implements ``System``."""

    walk: Walk
    prompts: Prompts
    settings: FiskeSection
    max_calls: int | None = None  # per question; exploration leaves one for the answer
    name: str = "fiske"
    needs_topic: bool = False
    on_rows: bool = True

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Extract clues, explore, answer."""
        text = rewrite_question(question.text) if self.settings.rewrite_question else question.text
        calls = CallsLeft(self.max_calls)
        replies = yield calls.fit([Ask(ExtractCluesInstruction(self.prompts), CluesCase(text), room_for(MAX_CLUES))])
        said = [reply.result for reply in replies if not isinstance(reply.result, ParseFailure)]
        clues = look_up(self.walk, question.id, said[0][:MAX_CLUES] if said else ())
        starts = clues.starts(self.settings.max_starts, only_proper=self.settings.starts == "proper")
        exploration = Exploration(
            self.walk, self.prompts, self.settings, calls, text, clues, starts, question.claim is not None
        )
        yield from exploration.rounds()
        branches = self._evidence(exploration)
        paths = list_paths(self.walk.graph, branches, max_triples=self.settings.answer_triples)
        if paths or not self.settings.end_flag:
            (reply,) = yield [ask_reason(self.walk, self.prompts, text, paths)]
            answer = answer_on_paths(self.walk, question, reply.result, paths)
        else:
            (reply,) = yield [Ask(DirectInstruction(self.prompts), DirectCase(text))]
            answer = answer_alone(self.walk, question, reply.result)
        counts = {
            "num_clues": len(clues.texts),
            "num_starts": len(starts),
            "num_rounds": exploration.num_rounds,
            "num_paths": len(paths),
            "num_complete": len(exploration.complete),
            "num_refused_calls": calls.refused,
        }
        return replace(answer, counts={**answer.counts, **counts})

    def _evidence(self, exploration: Exploration) -> Sequence[Branch]:
        """Return the branches that the answer rests on: the shortest complete evidence; without the end flag all."""
        complete = exploration.complete
        if not self.settings.end_flag:
            return [*(branch for found in complete for branch in found.branches), *exploration.ended]
        shortest = min((found.length for found in complete), default=0)
        return [
            branch for found in complete if found.length == shortest for branch in found.branches
        ] or exploration.refuting()
