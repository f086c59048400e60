"""The system that a process answers chunks of questions with: opened once, kept from one chunk to the next."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from kgqa_core.comparing import Bench, open_bench, read_asked
from kgqa_core.config import RunConfig
from kgqa_core.pipeline import Pipeline
from kgqa_core.types import Question

_kept: dict[tuple[str, str, str], tuple[ExitStack, Bench, tuple[Question, ...]]] = {}  # one at most: models are large


def kept_bench(config_json: str, key: str, fingerprint: str) -> tuple[Bench, tuple[Question, ...]]:
    """Return the system of a stage and all questions; another one that this process kept is closed.

    Args:
        config_json: the run's configuration.
        key: of the stage.
        fingerprint: of the stage's recipe: a worker that outlives a run must not answer the next one from old data.

    Raises:
        ArtifactError: something that it stands on is not made.
    """
    wanted = (config_json, key, fingerprint)
    if wanted not in _kept:
        close_bench()
        with ExitStack() as stack:
            pipeline = Pipeline(RunConfig.model_validate_json(config_json))
            bench = stack.enter_context(open_bench(pipeline, key))
            questions = tuple(read_asked(pipeline))
            if torch := sys.modules.get("torch"):  # a worker's one thread stays one
                torch.set_num_threads(min(torch.get_num_threads(), pipeline.config.runtime.threads))
            _kept[wanted] = (stack.pop_all(), bench, questions)
    _, bench, questions = _kept[wanted]
    return bench, questions


def close_bench() -> None:
    """Close what this process keeps: its call cache is compacted, its model may go."""
    while _kept:
        _, (stack, _, _) = _kept.popitem()
        stack.close()
