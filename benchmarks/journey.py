"""How far one question goes: which core files and functions a reader passes from a line of JSONL to a row of ``rog``.

The question is read and linked, ``rog`` plans, follows and reasons, its evidence is checked, and its row and calls are
written. Stores are open, so is the format of the file, as a build opens it once; a first question has gone the way
before, so that neither imports nor caches count. A function counts once however often it is called; comprehensions,
lambdas and generated methods count for the function that they stand in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

from benchmarks.harness import Instant
from benchmarks.measure import write_section
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.plan import PathConstraints, PlanAsker, PlanInstruction
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.call_store import CallStore
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.questions.formats import JSONL, Loaded, QuestionFile
from kgqa_core.questions.link import Resolver, link_file
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.rog import Rog, RogSection
from kgqa_core.systems.runner import Bench
from kgqa_core.systems.tables import write_answered, write_calls

CORE = Path(__file__).resolve().parents[1] / "kgqa_core"
READ = (  # what one has to open to understand how a question becomes an answer with evidence, in this order
    "types.py",
    "graph/search_graph.py",
    "systems/types.py",
    "systems/runner.py",
    "systems/rog.py",
    "systems/answering.py",
    "instructions/types.py",
    "instructions/reason.py",
)
TRIPLES = (
    "Ash\tdirected_by\tDan Oak\nBirch\tdirected_by\tDan Oak\nAsh\tstarred\tAnn Elm\nDan Oak\tborn_in\tPort Amber\n"
)
ASKED = {"Birch": "who directed Birch?", "Ash": "who directed Ash?"}  # the second is followed
SAID = {"plan": "<PATH>directed_by</PATH>", "reason": "Dan Oak"}


@dataclass(frozen=True, slots=True)
class Journey:
    """What was passed: functions by core file, both in the order in which they were first entered."""

    functions: dict[str, tuple[str, ...]]

    @property
    def num_functions(self) -> int:
        """Return how many functions were passed."""
        return sum(map(len, self.functions.values()))


def follow(work: Callable[[], Any]) -> Journey:
    """Do some work, and return what of core it passed."""
    seen: dict[CodeType, None] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.setdefault(frame.f_code)

    sys.setprofile(enter)
    try:
        work()
    finally:
        sys.setprofile(None)
    found: dict[str, dict[str, None]] = {}
    for code in seen:
        path = Path(code.co_filename)
        name = code.co_qualname.partition(".<locals>.<")[0]
        if path.is_relative_to(CORE) and not name.startswith("<"):
            found.setdefault(path.relative_to(CORE).as_posix(), {}).setdefault(name)
    return Journey({file: tuple(names) for file, names in found.items()})


def journey(folder: Path) -> tuple[Journey, dict[str, Any]]:
    """Return what the second question passes, and the row that it becomes."""
    import pyarrow.parquet as pq

    (folder / "triples.tsv").write_text(TRIPLES, encoding="utf-8")
    build_graph(folder / "triples.tsv", format="tsv", out_dir=folder / "graph")
    graph = open_graph(folder / "graph")
    search, prompts = SearchGraph(graph, graph, None, max_hops=2, reenter_topic=False), read_prompts()
    plans = PlanSource(PlanAsker(PlanInstruction(prompts), PathConstraints(graph, max_hops=2)))
    with CallStore(folder / "calls") as store:
        model = Metered(Instant(SAID), meter=Meter(), store=store, system="rog")
        source = SystemSource("graph", "rog", 0, "lm", model.name)
        bench = Bench(Rog(search, prompts, plans, RogSection()), search, model, (model.meter,), source)

        def go(topic: str) -> None:
            file = folder / f"{topic}.jsonl"
            loaded = Loaded()
            loaded.questions += link_file(QuestionFile(file, "test"), loaded, read=JSONL.read, resolver=Resolver(graph))
            done = bench.answer(loaded.questions)
            write_calls(folder / "calls.parquet", done.answered)
            write_answered(folder / "predictions.parquet", done, graph, source)

        for topic, text in ASKED.items():
            line = {"question": text, "topics": [topic], "answers": ["Dan Oak"]}
            (folder / f"{topic}.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        go("Birch")
        found = follow(lambda: go("Ash"))
    (row,) = pq.read_table(folder / "predictions.parquet").to_pylist()
    return found, row


def num_lines(files: Sequence[str] = READ) -> int:
    """Return how many lines some core files have together."""
    return sum(len((CORE / file).read_text(encoding="utf-8").splitlines()) for file in files)


def report(found: Journey) -> str:
    """Return the section."""
    rows = [f"| {file} | {len(names)} | {', '.join(names)} |" for file, names in found.functions.items()]
    head = (
        f"One question from a line of JSONL to its row of `rog` passes {len(found.functions)} core files and "
        f"{found.num_functions} functions. To understand how a question becomes an answer with evidence, read "
        f"{', '.join(READ)}: {num_lines():,} lines."
    )
    return "\n".join([head, "", "| file | functions | their names |", "|---|---:|---|", *rows])


def run(home: Path) -> None:
    """Follow one question, and write the section."""
    with TemporaryDirectory() as scratch:
        found, _ = journey(Path(scratch))
    text = report(found)
    print(text)
    write_section("The way of one question", text, "python -m benchmarks journey")
