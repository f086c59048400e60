"""The sweeps of conf/sweeps: a section of docs/results.md for each, with its table and its plots."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import data_folder, kgqa_json, markdown, write_section
from kgqa_core.text.transformer import checked_minilm


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file, and what is said of it."""

    file: str  # in conf/sweeps
    title: str  # of the section
    note: str


SPREAD = "Percent, mean ± standard deviation over the n explorers."
SWEEPS = (
    Sweep(
        "held-out-templates",
        "Held-out templates",
        f"{SPREAD} Five draws; a fifth of the masked texts is asked by the test split alone, and every chain type "
        "keeps one in training. Asked what it never saw, the template control takes the path that serves most training "
        "questions.",
    ),
    Sweep(
        "training-size",
        "Training size",
        f"{SPREAD} Three draws. With few questions batches are smaller and epochs more, so that every explorer takes "
        "several hundred steps.",
    ),
    Sweep(
        "encoders",
        "Text encoders",
        f"{SPREAD} Held-out templates, three draws. DualR's Table 12 makes the same comparison on WebQSP and CWQ.",
    ),
    Sweep(
        "encoder-local",
        "Text encoder from a local folder",
        f"{SPREAD} Held-out templates, three draws. The folder is that of MiniLM inside its package, read as any local "
        "transformers folder: last layer (EtD) against first and last (DualR).",
    ),
    Sweep("pretraining-metaqa", "Pre-training on WorldCup2014, then MetaQA", SPREAD),
    Sweep("pretraining-wc2014", "Pre-training on MetaQA, then WorldCup2014", SPREAD),
    Sweep(
        "pruning",
        "Before and after pruning",
        f"{SPREAD} After EtD Figure 3: candidates after the last step, edges of all steps (identity edges included). "
        "Without pruning every edge of every head is walked.",
    ),
    Sweep("edge-budget", "Edge budget while answering", f"{SPREAD} Trained with K = 40."),
    Sweep("edge-budget-trained", "Edge budget in training", SPREAD),
    Sweep(
        "attention-threshold",
        "Attention threshold while answering",
        f"{SPREAD} `default` is the threshold that was chosen on dev. Without evidence paths; CPU seconds of the "
        "fastest of five passes, encodings cached.",
    ),
)
SMALL = tuple(sweep for sweep in SWEEPS if sweep.file == "pruning")


def run(home: Path, sweeps: Sequence[Sweep] = SWEEPS) -> None:
    """Run the sweeps and write their sections; of one that was run before, only what is missing is done."""
    data_folder()
    for sweep in sweeps:
        # The one text encoder that is surely there is inside its package; as a folder it is like any other.
        settings = ["--set", f"encoder.path={checked_minilm()}"] if sweep.file == "encoder-local" else []
        found, _ = kgqa_json(["sweep", f"conf/sweeps/{sweep.file}.yaml", *settings], home)
        table = "\n".join(markdown(found["header"], found["cells"], len(found["dimensions"])))
        pictures = [f"![{sweep.title}](images/{name})" for name in copy_plots(sweep.file, found["plots"])]
        body = "\n\n".join([table, sweep.note, *pictures])
        write_section(sweep.title, body, f"kgqa sweep conf/sweeps/{sweep.file}.yaml")


def copy_plots(name: str, plots: Sequence[str]) -> list[str]:
    """Copy a sweep's plots into ``images`` beside the results, in the place of older ones; return their names."""
    folder = measure.RESULTS.parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"sweep-{name}-[0-9]*.png"):
        old.unlink()
    names = []
    for number, plot in enumerate(plots, start=1):
        names.append(f"sweep-{name}-{number}.png")
        shutil.copyfile(plot, folder / names[-1])
    return names
