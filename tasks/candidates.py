"""Out-of-fold candidates: each training question is answered by an explorer that was trained on the other folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from kgqa_core.types import Prediction, Question
from tasks.explorer import question_set
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

if TYPE_CHECKING:
    from kgqa_core.explorer.fit import QuestionSet


@pipeline_task("find out-of-fold candidates")
def find_candidates(pipeline: Pipeline) -> StageOutcome:
    """Train one explorer per fold; dev questions, which none of them learns from, are answered by the first."""
    reasoner = pipeline.config.reasoner
    assert reasoner is not None

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.instructions.example_cases import fold_of
        from kgqa_core.systems.candidates import CANDIDATES_FILE, write_candidates

        whole, found = question_set(pipeline), []
        for fold in range(reasoner.folds):
            held_out = [one for one in whole.train if fold_of(one.id, reasoner.folds) == fold]
            others = [one for one in whole.train if fold_of(one.id, reasoner.folds) != fold]
            asked = [*held_out, *(whole.dev if fold == 0 else ())]
            found += answer_unseen(pipeline, replace(whole, train=others), asked, folder, fold)
        write_candidates(found, folder, num_candidates=reasoner.num_candidates)
        golds = {one.id: set(one.answers) for one in (*whole.train, *whole.dev)}
        first = [one.candidates[0] in golds[one.question_id] for one in found if one.candidates]
        recorder.metric("hits1_out_of_fold", 100 * sum(first) / max(len(found), 1))
        recorder.metric("num_questions", len(found))
        recorder.table("candidates", CANDIDATES_FILE)

    return run_stage(pipeline, "candidates", write)


def answer_unseen(
    pipeline: Pipeline, learned: QuestionSet, asked: Sequence[Question], folder: Path, fold: int
) -> list[Prediction]:
    """Train an explorer on ``learned`` and return what it says to ``asked``."""
    from kgqa_core.explorer.fit import FitRun, FitSettings, fit_explorer
    from kgqa_core.run.open import device_of, encode_all, load_system, make_encoder

    config = pipeline.config
    section, encoder = config.exploration, make_encoder(config).name
    seed = section.seeds[0]
    what = f"out-of-fold explorer {fold + 1}"
    with TemporaryDirectory(dir=folder) as scratch:
        run = FitRun(
            Path(scratch),
            Recorder("candidates"),
            threads=config.runtime.threads,
            device=device_of(config),
            progress=lambda done, total: pipeline.progress(f"training {what}", done, total),
        )
        fit_explorer([learned], FitSettings(section, seed, encoder), run)
        system = load_system(
            Path(scratch),
            graph=learned.graph,
            encoder=encoder,
            encode=lambda texts: encode_all(pipeline, texts),
            evaluation=config.evaluation,
            batch_size=config.runtime.batch_size,
        )
    system = replace(system, model=system.model.to(device_of(config)))
    return system.answer(asked, lambda done, total: pipeline.progress(f"asking {what}", done, total))
