"""RoG's transfer (Table 12): tuning on MetaQA starts from the adapter, if its first loss is the adapter's own.

The packaged model and the shipped adapter, without dropout. The other loss is computed here, from the loaded adapter
alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.measure import PROJECT, write_section
from kgqa_core.config_file import read_config
from kgqa_core.lm import tune_data
from kgqa_core.lm.folders import load
from kgqa_core.lm.tune import tune_in_processes
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import base_weights
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.tuning import INSTRUCTIONS_FILE

SETTINGS = (
    "reasoner={instructions: {plan: 1.0}, shares: {plan: 0.001}, batch_size: 8, learning_rate: 5e-4, dropout: 0.0,"
    " max_steps: 1, dev_examples: 12}",
    "systems={run: [rog]}",
)


def run(home: Path) -> None:
    """Take one step from the shipped adapter on MetaQA's questions, and compute the adapter's loss on its batch."""
    os.environ["KGQA_HOME"] = str(home)
    pipeline = Pipeline(read_config(PROJECT / "conf" / "metaqa-smollm2.yaml", SETTINGS))
    ensure(pipeline, ["instructions"])
    weights = base_weights(pipeline)
    assert weights is not None and weights.adapter is not None and pipeline.config.reasoner is not None
    rows = []
    with TemporaryDirectory() as scratch:
        for start, adapter in (("the adapter", weights.adapter), ("anew", None)):
            job = tune_data.TuneJob(
                base=weights.folder,
                adapter=adapter,
                examples=(pipeline.artifact("instructions").folder / INSTRUCTIONS_FILE,),
                section=pipeline.config.reasoner,
                out=Path(scratch) / start,
            )
            first = tune_in_processes(job, 1).train_loss
            rows.append(f"| {start} | {first:.6f} | {first - _loss(job, weights.adapter, Path(scratch)):+.1e} |")
    text = "| tuning starts | loss of its first step | less that of the adapter on the same batch |\n|---|---:|---:|\n"
    text += "\n".join(rows) + "\n\nNats per target token, eight plans of MetaQA. Asked: equal to 1e-5."
    write_section("RoG's transfer", text, "python -m benchmarks transfer")


def _loss(job: tune_data.TuneJob, adapter: Path, scratch: Path) -> float:
    """Return the loss of a loaded adapter on the first batch of a job."""
    loaded = load(job.base, adapter=adapter)
    tune_data.write_tokens(job.examples, loaded.tokenizer, scratch / "tokens", max_length=job.section.max_length)
    tokens = tune_data.read_tokens(scratch / "tokens")
    batches = tune_data.draw_batches(tokens, job.section, seed=job.seed)
    with torch.no_grad():
        passes = tune_data.passes_of(tokens, batches, rank=0, pad=loaded.tokenizer.pad_token_id)
        return sum(float(tune_data.target_nll(loaded.model, one, torch.float32) @ one["weights"]) for one in passes)
