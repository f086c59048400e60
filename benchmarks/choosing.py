"""EtD over the candidates of an explorer that errs: MetaQA's questions of one and two hops in other words.

The facts are all there, so another candidate can be right; the explorer, trained on MetaQA's wordings, takes the
wrong one. An adapter is taught ``choose`` alone, on hard pools of the training questions; nobody has seen a wording
of the test half of ``paraphrases.tsv`` before.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import data_folder, write_section
from benchmarks.paraphrases import TOPIC, wordings_of
from benchmarks.systems import evaluate, markdown
from kgqa_core.questions.closed_domains import chain_of_type, read_brackets

CONF = "conf/metaqa-smollm2.yaml"
SYSTEMS = {
    "run": ["explorer", "etd"],
    "answered_by": ["lm", "random", "first"],
    "answers": "shown",
    "etd": {"num_candidates": 5},
    "variants": {"etd hidden": {"system": "etd", "settings": {"num_candidates": 5, "probabilities": False}}},
}
HOPS, PER_CHAIN = (1, 2), 40  # questions of one gold chain, each in all its wordings


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int
    taught: float  # share of the training questions
    settings: tuple[str, ...] = ()


FULL = Size(300, 0.03)
SMALL = Size(6, 0.0004, ("explorer.epochs=1", "reasoner.dev_examples=2"))


def run(home: Path, size: Size = FULL) -> None:
    """Train explorer and adapter where that is not done, ask, and write the section."""
    folder = home / "metaqa-other-wordings"
    write_questions(data_folder() / "metaqa", folder)
    settings = [
        f"dataset.questions.path={folder}",
        f"dataset.questions.hops={[*HOPS]}",
        f"explorer.steps={max(HOPS)}",
        "reasoner.instructions={choose: 1.0}",
        f"reasoner.shares={{choose: {size.taught}}}",
        "reasoner.dev_examples=96",
        f"systems={json.dumps(SYSTEMS)}",
        *size.settings,
    ]
    comparison = evaluate(home, size.questions, *settings, conf=CONF)
    write_section("Choosing in other words", "\n".join(body(comparison)), "python -m benchmarks choosing")


def body(comparison: dict[str, Any]) -> list[str]:
    """Return every row, and who was right where a model could overrule the explorer."""
    tables = comparison["tables"]
    overruled = next(table for table in tables if "overruled" in table["header"])
    return [
        f"{comparison['num_questions']} of MetaQA's test questions of one and two hops, in wordings that no training "
        "question has; an explorer of one seed, five candidates; random and first choose blindly among the same.",
        "",
        *markdown(tables[0]),
        "",
        *markdown(overruled),
    ]


def write_questions(source: Path, out: Path) -> None:
    """Write MetaQA's folder with its test questions in the wordings of the test half."""
    for hops in HOPS:
        own, new = source / f"{hops}-hop", out / f"{hops}-hop"
        new.mkdir(parents=True, exist_ok=True)
        for name in (f"qa_{split}{what}.txt" for split in ("train", "dev") for what in ("", "_qtype")):
            shutil.copy(own / name, new / name)
        kinds, asked = ((own / f"qa_test{what}.txt").read_text("utf-8").splitlines() for what in ("_qtype", ""))
        lines = [*reworded(kinds, asked)]
        for what, column in (("", 0), ("_qtype", 1)):
            (new / f"qa_test{what}.txt").write_text("".join(f"{line[column]}\n" for line in lines), encoding="utf-8")


def reworded(kinds: list[str], asked: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (line of the question file, its kind) of the first questions of each kind, in all wordings of it."""
    wordings, counts = wordings_of("test"), Counter[str]()
    for kind, line in zip(kinds, asked, strict=True):
        marked, answers = line.split("\t")
        text, ((start, end),) = read_brackets(marked)
        chain = " ".join(chain_of_type(kind) or ()).replace("~", "^")
        counts[kind] += 1
        for wording in wordings[chain] if counts[kind] <= PER_CHAIN else ():
            yield f"{wording.replace(TOPIC, f'[{text[start:end]}]')}\t{answers}", kind
