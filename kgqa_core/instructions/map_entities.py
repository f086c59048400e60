"""map_entities: which of the clues left does an entity behind this relation stand for? (FiSKE §3.4)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.mappings import Mappings, parse_mappings
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt, render_lines
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class MapEntitiesCase:
    """The clues left and the entities that a mapped relation leads to."""

    question: str
    clues: tuple[str, ...]
    entities: tuple[str, ...]  # names; the released code asks about 80 at most
    question_id: str = ""
    entity: str = ""  # name of the entity that the relation starts at; of several the path that leads to them
    relation: str = ""  # step


@dataclass(frozen=True, slots=True)
class MapEntitiesInstruction:
    """The instruction ``map_entities``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``map_entities``."""
        return "map_entities"

    def render(self, case: MapEntitiesCase) -> Prompt:
        """Return the prompt."""
        values = {
            "question": case.question,
            "clues": render_lines(map(escape, case.clues)),
            "entity": escape(case.entity),
            "relation": escape(case.relation),
            "entities": render_lines(map(escape, case.entities)),
        }
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id)

    def target(self, case: MapEntitiesCase) -> str | None:
        """Return None: no graph says which words of a question mean an entity."""
        return None

    def parse(self, text: str, case: MapEntitiesCase) -> Mappings | ParseFailure:
        """Return pairs of (clue, entity)."""
        return parse_mappings(text, case.clues, case.entities)

    def constraint(self, case: MapEntitiesCase) -> Constraint | None:
        """Return None: how many pairs there are is the model's to say."""
        return None
