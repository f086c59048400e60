"""A language model that plays exact answers, to follow an algorithm step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kgqa_core.errors import KgqaError, shorten
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt
from kgqa_core.oracle.player import CONTEXT, num_tokens

MAX_PROMPT = 3000  # characters of a prompt that an error shows

Asks = str | Callable[[str], bool]
"""What a prompt must hold, or must make true; empty: any."""


class ScriptError(KgqaError):
    """A scripted model was asked something that it has no line for, or was not asked all that it should have been."""


@dataclass(slots=True)
class Line:
    """What is said to some prompts."""

    instruction: str  # empty: of any
    asks: Asks
    texts: tuple[str, ...]  # best first
    scores: tuple[float, ...] | None = None  # log-probabilities: of options by their place, else of the texts
    times: int | None = 1  # how often it may be said; None: any number of times
    num_said: int = 0

    def fits(self, prompt: Prompt) -> bool:
        """Say whether it answers this prompt."""
        if self.instruction and self.instruction != prompt.instruction:
            return False
        return self.asks in prompt.text if isinstance(self.asks, str) else self.asks(prompt.text)


@dataclass(slots=True)
class ScriptedModel:
    """Says the first line left that fits a prompt. Implements ``LanguageModel``.

    With ``in_order`` the next line alone may be said, so that a test also tells the order of the calls.
    """

    name: str = "script"
    context: int = CONTEXT
    in_order: bool = False
    lines: list[Line] = field(default_factory=list)
    asked: list[Prompt] = field(default_factory=list)  # every prompt, in order
    options: list[tuple[str, ...]] = field(default_factory=list)  # of the prompts that were scored, in order

    def on(
        self,
        instruction: str,
        asks: Asks = "",
        *texts: str,
        scores: Sequence[float] | None = None,
        times: int | None = 1,
    ) -> ScriptedModel:
        """Add a line and return this model: what is said to prompts that hold (or make true) ``asks``, best text first.

        Fewer texts than are asked for are filled up with empty ones.
        """
        self.lines.append(Line(instruction, asks, texts, None if scores is None else tuple(scores), times))
        return self

    def prompts_of(self, instruction: str) -> list[str]:
        return [prompt.text for prompt in self.asked if prompt.instruction == instruction]

    def check_done(self) -> None:
        """Raise ScriptError where a line was not said as often as it should have been."""
        left = [line for line in self.lines if line.num_said < (1 if line.times is None else line.times)]
        if left:
            told = "; ".join(f"{line.instruction or 'any'}: {shorten(line.texts)}" for line in left[:5])
            raise ScriptError(f"{len(left)} of {len(self.lines)} lines were never asked for: {told}")

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [num_tokens(prompt.system + prompt.text) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        found = []
        for prompt in prompts:
            line = self._line(prompt)
            texts = [
                Generation(text, None if line.scores is None else line.scores[place], num_tokens(text))
                for place, text in enumerate(line.texts[: decoding.num_returns])
            ]
            found.append(texts + [Generation("")] * (decoding.num_returns - len(texts)))
        return found

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        found = []
        for prompt, own in zip(prompts, options, strict=True):
            self.options.append(tuple(own))
            line = self._line(prompt)
            if line.scores is None or len(line.scores) != len(own):
                raise ScriptError(f"the line for {prompt.instruction} has no score for each option: {shorten(own)}")
            found.append(list(line.scores))
        return found

    def _line(self, prompt: Prompt) -> Line:
        self.asked.append(prompt)
        left = [line for line in self.lines if line.times is None or line.num_said < line.times]
        for line in left[:1] if self.in_order else left:
            if line.fits(prompt):
                line.num_said += 1
                return line
        raise ScriptError(
            f"no line of the script answers call {len(self.asked)}, {prompt.instruction or 'without instruction'} of "
            f"question {prompt.question_id!r}; {len(left)} lines are left. Its prompt:\n{prompt.text[:MAX_PROMPT]}"
        )


def script(*lines: tuple[str, str, str]) -> ScriptedModel:
    """Return a model that says these lines, (instruction, what its prompt holds, text), in this order alone."""
    model = ScriptedModel(in_order=True)
    for instruction, asks, text in lines:
        model.on(instruction, asks, text)
    return model
