"""Several language models as one: each prompt goes to the model that plays the role of its instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kgqa_core.config_lm import ROLES, Role
from kgqa_core.errors import KgqaError
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt

ROLE_OF: dict[str, Role] = {instruction: role for role, own in ROLES.items() for instruction in own}


class RoleModels:
    """Implements ``LanguageModel`` by those of several roles, each metered by itself: calls are kept under its name."""

    def __init__(self, models: Mapping[Role, LanguageModel]) -> None:
        """Dispatch among ``models``, one for each role in which anything is asked."""
        self._models = dict(models)
        names = {role: model.name for role, model in models.items()}
        self.name = ", ".join(f"{role}: {name}" for role, name in names.items())
        self.context = min(model.context for model in models.values())

    def of(self, instruction: str) -> LanguageModel:
        """Return the model that an instruction is asked of; KgqaError where none was opened for its role."""
        role = ROLE_OF.get(instruction, "reason")
        if role not in self._models:
            raise KgqaError(
                f"{instruction!r} is asked of role {role!r}, and only {', '.join(self._models)} were opened: let the "
                "system's SystemType.roles name it"
            )
        return self._models[role]

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as its own model reads it."""
        return self._dispatch(prompts, lambda model, places: model.count_tokens([prompts[one] for one in places]))

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; the prompts of a model go to it together."""
        return self._dispatch(prompts, lambda model, places: model.generate([prompts[one] for one in places], decoding))

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options by its own model."""
        return self._dispatch(
            prompts,
            lambda model, places: model.score([prompts[one] for one in places], [options[one] for one in places]),
        )

    def _dispatch(self, prompts: Sequence[Prompt], ask: Callable[[LanguageModel, list[int]], list[Any]]) -> list[Any]:
        places: dict[int, list[int]] = {}  # of the prompts of each model, which may play several roles
        models = [self.of(prompt.instruction) for prompt in prompts]
        for place, model in enumerate(models):
            places.setdefault(id(model), []).append(place)
        found: list[Any] = [None] * len(prompts)
        for own in places.values():
            for place, one in zip(own, ask(models[own[0]], own), strict=True):
                found[place] = one
        return found
