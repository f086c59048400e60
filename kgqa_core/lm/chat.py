"""Text to tokens and back: the chat template where the model has one, answers apart from prompts, how a text ends.

Training, generating and scoring all go through here, so that a model is asked as it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgqa_core.errors import InputError, shorten
from kgqa_core.lm.types import Prompt


def render(tokenizer: Any, prompt: Prompt) -> str:
    """Return the whole text that the model continues.

    With a chat template: its turns, the system turn merged into the user's where the template knows none. Without one:
    the system text, an empty line, the user's text; nothing follows, so a prompt's text ends as the answer shall begin.

    Raises:
        InputError: the template fails on a single user turn.
    """
    import jinja2

    joined = "\n\n".join(part for part in (prompt.system, prompt.text) if part)
    if not tokenizer.chat_template:
        return joined
    turns = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.text}]
    problem: Exception | None = None
    for asked in (turns, [{"role": "user", "content": joined}]) if prompt.system else (turns[1:],):
        try:
            text = str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            problem = error  # a template is somebody's program
            continue
        if asked is not turns or prompt.system.strip() in text:  # some templates drop the system's turn without a word
            return text
    raise InputError(
        f"the chat template of {tokenizer.name_or_path} fails on a single user turn: {shorten(str(problem))}. "
        "Repair chat_template.jinja in the model's folder, or delete it to ask without a template"
    ) from problem


def encode_prompts(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return each prompt's tokens as the model reads them, with what the tokenizer puts before a text."""
    if not prompts:
        return []
    # A chat template writes its own special tokens.
    texts = [render(tokenizer, prompt) for prompt in prompts]
    rows = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    rows = [row[:-1] if row and row[-1] == end and not text.endswith(tokenizer.eos_token) else row
            for row, text in zip(rows, texts, strict=True)]  # fmt: skip
    nothing = [int(end if begin is None else begin)]  # a model must read something
    return [[int(token) for token in row] or list(nothing) for row in rows]


def encode_answers(tokenizer: Any, answers: Sequence[str]) -> list[list[int]]:
    """Return each answer's tokens, tokenised apart from any prompt, without special tokens and without the end."""
    if not answers:
        return []
    rows = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    return [[int(token) for token in row] for row in rows]


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of an answer's tokens, special tokens included: plans may be made of them."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def end_tokens(tokenizer: Any, generation_config: Any) -> list[int]:
    """Return the tokens that end an answer: the tokenizer's end first, which is the one that scores count."""
    told = getattr(generation_config, "eos_token_id", None)
    told = [told] if isinstance(told, int) else list(told or [])
    own = tokenizer.eos_token_id
    return list(dict.fromkeys([*([own] if own is not None else []), *told]))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a text ends."""

    tokenizer: Any
    tokens: frozenset[int]
    stop: tuple[str, ...] = ()

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Say whether the text holds a stop string; before its last token it held none."""
        if not self.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.stop)
        tail = decode(self.tokenizer, tokens[-longest - 4 :])  # a token is a byte of text at least
        return any(stop in tail for stop in self.stop) and self.answer(tokens) != decode(self.tokenizer, tokens)

    def answer(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer: before its end token, and before the first stop string."""
        ended = bool(tokens) and tokens[-1] in self.tokens
        text = decode(self.tokenizer, tokens[:-1] if ended else tokens)
        return text[: min((place for stop in self.stop if (place := text.find(stop)) >= 0), default=None)]
