"""The embedded model's tokenizer: byte-level BPE over questions and names, with plans in as few tokens as can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kgqa_core.errors import ConfigError

END_TOKEN, PAD_TOKEN = "<end>", "<pad>"
NUM_BYTES = 256


def train_tokenizer(texts: Iterable[str], *, whole: Sequence[str], steps: Sequence[str], vocabulary: int) -> Any:
    """Return a transformers tokenizer.

    Args:
        texts: what BPE learns its merges from, in a fixed order; equal ones count as often as they are there.
        whole: texts that are one token wherever they stand: markers of plans, frames of prompts.
        steps: texts that are one token where they stand as words of their own: relations as plans write them.
        vocabulary: tokens at most.

    Raises:
        ConfigError: ``vocabulary`` has no room for bytes, markers and relations.
    """
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    whole, steps = list(dict.fromkeys(whole)), [step for step in dict.fromkeys(steps) if step not in set(whole)]
    room = vocabulary - len(whole) - len(steps)
    if room < NUM_BYTES + 2:
        raise ConfigError(
            f"a vocabulary of {vocabulary} has no room for {NUM_BYTES + 2} bytes and ends and {len(steps)} relations; "
            f"give at least {NUM_BYTES + 2 + len(whole) + len(steps)}, or spell relations like any text (pieces)"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=2,
        special_tokens=[END_TOKEN, PAD_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Longest first: of two that fit, the one that was added first is taken.
    added = [AddedToken(text, normalized=False) for text in sorted(whole, key=len, reverse=True)]
    added += [AddedToken(text, normalized=False, single_word=True) for text in sorted(steps, key=len, reverse=True)]
    tokenizer.add_tokens(added)
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END_TOKEN, pad_token=PAD_TOKEN, clean_up_tokenization_spaces=False
    )
