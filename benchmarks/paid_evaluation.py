"""An evaluation whose every call of a language model is paid and takes its time: the child of ``killed_evaluation``.

``python -m benchmarks.paid_evaluation LEDGER SECONDS CONF [KEY=VALUE ...]`` makes the comparison of a configuration,
without Prefect. Whoever plays the model hands its answers on one by one, as an endpoint does, SECONDS after the one
before, and enters each into the ledger before it hands it on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgqa_core.lm.call_store import text_key
from kgqa_core.lm.types import GREEDY, Answer, Decoding, Generation, LanguageModel, Prompt

TOLD_SECONDS = 0.01  # what each call says that it took: so that two evaluations agree on that, too


@dataclass(frozen=True, slots=True)
class Paid:
    """A model whose texts are paid one by one. Implements ``LanguageModel`` and ``StreamingModel``."""

    inside: LanguageModel
    ledger: Path
    seconds: float  # that each call takes

    @property
    def name(self) -> str:
        """Return the name of the model inside: it says the same."""
        return self.inside.name

    @property
    def context(self) -> int:
        """Return the context of the model inside."""
        return self.inside.context

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt."""
        return self.inside.count_tokens(prompts)

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding) -> Iterator[Answer]:
        """Yield answers in order, each entered into the ledger first."""
        for index, prompt in enumerate(prompts):
            time.sleep(self.seconds)
            (texts,) = self.inside.generate([prompt], decoding)
            (size,) = self.inside.count_tokens([prompt])
            enter(self.ledger, text_key(self.name, prompt, decoding, 0))
            yield Answer(index, texts, size, TOLD_SECONDS)

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return what ``stream`` yields."""
        return [answer.generations for answer in self.stream(prompts, decoding)]

    def stream_scores(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> Iterator[Answer]:
        """Refuse, as ``score``."""
        raise NotImplementedError("only texts are paid one by one")

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Refuse: options are scored in batches, of which a kill may cost more than one call."""
        raise NotImplementedError("only texts are paid one by one")


def enter(ledger: Path, key: str) -> None:
    """Append a line, as a whole or not at all."""
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{key}\n".encode())
    finally:
        os.close(handle)


def main(ledger: Path, seconds: float, conf: Path, settings: Sequence[str]) -> None:
    """Make the comparison, in which no planner has a language model of its own: its calls would be paid, too."""
    from kgqa_core.config_file import read_config
    from kgqa_core.run import open as opening
    from kgqa_core.run.ensure import ensure
    from kgqa_core.run.pipeline import Pipeline
    from kgqa_core.run.stages.systems import COMPARISON

    metered = opening.metered

    def metered_and_paid(pipeline: Pipeline, players: Any, **options: Any) -> AbstractContextManager[Any]:
        paid = {role: player._replace(model=Paid(player.model, ledger, seconds)) for role, player in players.items()}
        return metered(pipeline, paid, **options)

    opening.metered = metered_and_paid
    ensure(Pipeline(read_config(conf, settings)), [COMPARISON])  # Prefect takes longer than so small a run


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
