"""Text to tokens and back: the chat template where the model has one, and answers apart from their prompts.

Training, generating and scoring all go through here, so that a model is asked as it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    joined = "\n\n".join(part for part in (prompt.system, prompt.text) if part)
    if not tokenizer.chat_template:
        return joined
    if prompt.system:
        turns = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.text}]
        text = _apply(tokenizer, turns)
        if isinstance(text, str) and prompt.system.strip() in text:  # some templates drop the turn without a word
            return text
    text = _apply(tokenizer, [{"role": "user", "content": joined}])
    if isinstance(text, str):
        return text
    raise InputError(
        f"the chat template of {tokenizer.name_or_path} fails on a single user turn: {shorten(str(text))}. "
        "Repair chat_template.jinja in the model's folder, or delete it to ask without a template"
    ) from text


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> str | Exception:
    """Return the rendered turns, or what the template (somebody's program) raised."""
    import jinja2

    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return error


def encode_prompts(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return each prompt's tokens as the model reads them, with what the tokenizer puts before a text."""
    if not prompts:
        return []
    # A chat template writes its own special tokens.
    texts = [render(tokenizer, prompt) for prompt in prompts]
    rows = tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    end = tokenizer.eos_token_id
    rows = [row[:-1] if row and row[-1] == end and not text.endswith(tokenizer.eos_token) else row
            for row, text in zip(rows, texts, strict=True)]  # fmt: skip
    return [[int(token) for token in row] or [start_token(tokenizer)] for row in rows]


def start_token(tokenizer: Any) -> int:
    """Return the token before a text, for a prompt of no tokens at all: a model must read something."""
    return int(tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id)


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
