"""map_relations: which of the clues left does a relation of this entity stand for? (FiSKE §3.4)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.mappings import Mappings, parse_mappings
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt, render_lines
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class MapRelationsCase:
    """The clues left and the relations of the entity where the exploration stands."""

    question: str
    clues: tuple[str, ...]
    relations: tuple[str, ...]  # steps, "^" before one walked backward; the released code asks about 20 at once
    question_id: str = ""
    entity: str = ""  # name; of several entities the path that leads to them


@dataclass(frozen=True, slots=True)
class MapRelationsInstruction:
    """The instruction ``map_relations``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``map_relations``."""
        return "map_relations"

    def render(self, case: MapRelationsCase) -> Prompt:
        """Return the prompt."""
        values = {
            "question": case.question,
            "clues": render_lines(map(escape, case.clues)),
            "entity": escape(case.entity),
            "relations": render_lines(map(escape, case.relations)),
        }
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id)

    def target(self, case: MapRelationsCase) -> str | None:
        """Return None: no graph says which words of a question mean a relation."""
        return None

    def parse(self, text: str, case: MapRelationsCase) -> Mappings | ParseFailure:
        """Return pairs of (clue, relation) with scores of 0 to 10."""
        return parse_mappings(text, case.clues, case.relations)

    def constraint(self, case: MapRelationsCase) -> Constraint | None:
        """Return None: how many pairs there are is the model's to say."""
        return None
