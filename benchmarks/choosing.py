"""Answers to MetaQA's questions of one and two hops in other words, where the explorer errs: who overrules it rightly?

The facts are all there, so another candidate can be right; the explorer, trained on MetaQA's wordings, takes the
wrong one. The adapter is that of the run file. Settings are chosen on dev questions in the wordings of the dev half of
``paraphrases.tsv``; nobody has seen a wording of the test half before.
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
from benchmarks.systems import by_hops, evaluate, table_of
from kgqa_core.questions.closed_domains import chain_of_type, read_brackets
from kgqa_core.types import Split

CONF = "conf/metaqa-smollm2.yaml"
WEIGHED: dict[str, Any] = {"num_candidates": 10, "determine": "plan"}
CHOSEN = {"num_candidates": 5, "determine": "choose"}
HIDDEN = {"probabilities": False}
SYSTEMS = {
    "run": ["explorer", "etd", "rog", "ours"],
    "answers": "shown",
    "etd": WEIGHED,
    "rog": {"plan_mass": 0.5},
    "ours": {"planner": "generator"},
    "choose": {
        "num_questions": None,
        "grids": {
            "etd": {"explorer_weight": [0.0, 0.25, 0.5, 1.0]},
            "etd hidden dense": {"dense_weight": [0.25, 0.5, 1.0, 2.0, 4.0]},
        },
    },
    "variants": {
        "rog on dense plans": {"system": "rog", "settings": {"plans": "dense", "plan_mass": 0.5}},
        "dense planner alone": {"system": "rog", "settings": {"plans": "dense", "reasoning": "none", "num_plans": 1}},
        "etd hidden": {"system": "etd", "settings": {**WEIGHED, **HIDDEN}},
        "etd hidden dense": {"system": "etd", "settings": {**WEIGHED, **HIDDEN, "dense_weight": 1.0}},
        "etd choose": {"system": "etd", "settings": CHOSEN, "answered_by": ["lm", "random", "first"]},
        "etd choose hidden": {"system": "etd", "settings": {**CHOSEN, **HIDDEN}},
    },
}
HOPS = (1, 2)
PER_CHAIN: dict[Split, int] = {"dev": 5, "test": 40}  # questions of one gold chain, each in all wordings of that half


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int
    settings: tuple[str, ...] = ()


FULL = Size(600)
SMALL = Size(
    6,
    (
        "explorer.epochs=1",
        "reasoner.shares={plan: 0.0004, choose: 0.0004}",
        "reasoner.instructions={plan: 1.0, choose: 1.0}",
        "reasoner.dev_examples=2",
        "dense.max_steps=2",
        "systems.choose.num_questions=4",
        "systems.run=[explorer, etd]",  # ours would plan for every dev question
    ),
)


def run(home: Path, size: Size = FULL) -> None:
    """Train explorer and adapter where that is not done, ask, and write the section."""
    folder = home / "metaqa-other-wordings"
    write_questions(data_folder() / "metaqa", folder)
    settings = [
        f"dataset.questions.path={folder}",
        f"dataset.questions.hops={[*HOPS]}",
        f"explorer.steps={max(HOPS)}",
        f"systems={json.dumps(SYSTEMS)}",
        *size.settings,
    ]
    comparison = evaluate(home, size.questions, *settings, conf=CONF)
    write_section("In other words", "\n".join(body(comparison)), "python -m benchmarks choosing")


def body(comparison: dict[str, Any]) -> list[str]:
    """Return every row, and who was right where a model could overrule the explorer."""
    tables = comparison["tables"]
    overruled = next(table for table in tables if "overruled" in table["header"])
    return [
        f"{comparison['num_questions']} of MetaQA's test questions of one and two hops, in wordings that no training "
        "question has; an explorer of one seed. `dense planner alone` answers all that its first plan reaches, without "
        "a language model. `etd` weighs the chains of ten candidates as plans, `dense` by the dense planner, "
        "too; `etd choose` asks for one of five; random and first choose blindly. Weights were chosen on dev questions "
        "in other wordings.",
        "",
        *table_of(without(tables[0], "topics", "price", "lift", "published Hits@1")),
        "",
        *by_hops(comparison["rows"]),
        "",
        *table_of(overruled),
    ]


def without(table: dict[str, Any], *columns: str) -> dict[str, Any]:
    """Return a table without some columns: published figures are of questions in MetaQA's own words."""
    kept = [place for place, name in enumerate(table["header"]) if name not in columns]
    rows = [[row[place] for place in kept] for row in table["rows"]]
    first = sum(place < table["figures_from"] for place in kept)
    return {**table, "header": [table["header"][place] for place in kept], "rows": rows, "figures_from": first}


def write_questions(source: Path, out: Path) -> None:
    """Write MetaQA's folder with its dev and test questions in the wordings of their halves."""
    for hops in HOPS:
        own, new = source / f"{hops}-hop", out / f"{hops}-hop"
        new.mkdir(parents=True, exist_ok=True)
        for what in ("", "_qtype"):
            shutil.copy(own / f"qa_train{what}.txt", new)
        for half in PER_CHAIN:
            kinds, asked = ((own / f"qa_{half}{what}.txt").read_text("utf-8").splitlines() for what in ("_qtype", ""))
            lines = [*reworded(kinds, asked, half)]
            for what, column in (("", 0), ("_qtype", 1)):
                text = "".join(f"{line[column]}\n" for line in lines)
                (new / f"qa_{half}{what}.txt").write_text(text, encoding="utf-8")


def reworded(kinds: list[str], asked: list[str], half: Split) -> Iterator[tuple[str, str]]:
    """Yield (line of the question file, its kind) of the first questions of each kind, in all wordings of it."""
    wordings, counts = wordings_of(half), Counter[str]()
    for kind, line in zip(kinds, asked, strict=True):
        marked, answers = line.split("\t")
        text, ((start, end),) = read_brackets(marked)
        chain = " ".join(chain_of_type(kind) or ()).replace("~", "^")
        counts[kind] += 1
        for wording in wordings[chain] if counts[kind] <= PER_CHAIN[half] else ():
            yield f"{wording.replace(TOPIC, f'[{text[start:end]}]')}\t{answers}", kind
