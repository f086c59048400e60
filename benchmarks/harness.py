"""What an evaluation costs beside systems and models: running, writing, judging, comparing; systems do nothing."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.measure import Clock, markdown, write_section
from benchmarks.path_cases import build_folders
from kgqa_core.evaluation.compare import side_by_side
from kgqa_core.evaluation.figures import system_row
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.evaluation.runs import group_runs, read_system_run
from kgqa_core.evaluation.tables import render_side_by_side
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.reason import DirectInstruction, ReasonCase
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt
from kgqa_core.questions.build import read_questions
from kgqa_core.systems.controls import answer_by_path
from kgqa_core.systems.runner import Bench
from kgqa_core.systems.tables import merge_parts, write_answered, write_calls
from kgqa_core.systems.types import Ask, Steps, SystemAnswer
from kgqa_core.types import Prediction, Question

ASKED_MS = 0.3
CHUNK = 256  # questions answered together, as systems.chunk has it
MAX_HOPS = 3
REPEATS = 3  # of what is done for all systems together


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: tuple[int, ...]  # of the test split, drawn
    systems: int  # that are compared, each wrong on other questions


FULL = Size(questions=(1_000, 3_000), systems=8)
SMALL = Size(questions=(60,), systems=2)


@dataclass(frozen=True, slots=True)
class Nothing:
    """Answers what was answered beforehand, after a call that changes nothing, where it has an instruction."""

    predictions: dict[str, Prediction]
    instruction: DirectInstruction | None = None
    name: str = "nothing"
    needs_topic: bool = True
    on_rows: bool = False

    def prepare(self, questions: Sequence[Question]) -> Sequence[Prediction]:
        """Return the answers."""
        return [self.predictions[question.id] for question in questions]

    def steps(self, question: Question, prepared: Prediction) -> Steps:
        """Return the answer of one question."""
        if self.instruction is not None:
            yield [Ask(self.instruction, ReasonCase(question.text))]
        return SystemAnswer(prepared, (), {"num_paths": len(prepared.paths)})


@dataclass(frozen=True, slots=True)
class Instant:
    """A model that says at once what it is told for an instruction, or nothing."""

    said: Mapping[str, str] = field(default_factory=dict)
    name: str = "instant"
    context: int = 100_000

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return a token for each prompt."""
        return [1] * len(prompts)

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return what is said to each prompt."""
        texts = [self.said.get(prompt.instruction, "nothing") for prompt in prompts]
        return [[Generation(text, num_tokens=1)] * decoding.num_returns for text in texts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return equal likelihoods."""
        return [[0.0] * len(own) for own in options]


def run(home: Path, size: Size = FULL) -> None:
    """Measure, in a process per number of questions, and write the section."""
    graph, questions = build_folders(home)
    counts = {"systems": size.systems, "graph": graph, "questions": questions}
    found = [run_child(measure, count=count, **counts).result for count in size.questions]
    write_section("Harness of an evaluation", report(found, size.systems), "python -m benchmarks harness")


PARTS = {
    "running": "running: rounds, checks of every path against the graph",
    "writing": "writing predictions and calls, 256 questions a part",
    "merging": "putting the parts together",
    "judging": "reading back and judging question by question",
    "figures": "figures with intervals, over all, by hops and by answers",
    "again": "reading and judging again, to compare",
    "comparing": "side by side: paired tests, answers joined with direct's, tables",
}
WITH_CALLS = {"running": "running, each question with one metered call", "writing": "writing, with that call"}


def report(found: Sequence[dict[str, Any]], num_systems: int) -> str:
    """Return the section."""
    names = [f"{one['questions']:,} questions" for one in found]
    rows = [[name, *(f"{one['ms'][part]:.3f}" for one in found)] for part, name in PARTS.items()]
    rows.append([f"**all of it** (asked: <= {ASKED_MS})", *(f"**{sum(one['ms'].values()):.3f}**" for one in found)])
    called = [[name, *(f"{one['called'][part]:.3f}" for one in found)] for part, name in WITH_CALLS.items()]
    note = (
        f"{num_systems} systems that answer at once with what following the gold chain gives "
        f"({found[0]['answers']:.1f} entities, three evidence paths at most), each wrong on another tenth of the "
        "questions; MetaQA, all hops, drawn from the test split. Each system is judged twice, as in an evaluation: on "
        "its own, and side by side. All do equal work: the least counts. The call is rendered, metered and kept, by a "
        "model that says the same at once."
    )
    tables = markdown(["CPU ms per question and system", *names], rows), markdown(["for comparison", *names], called)
    return "\n\n".join([note, *("\n".join(lines) for lines in tables)])


def measure(graph: str, questions: str, count: int, systems: int) -> dict[str, Any]:
    """Run ``systems`` over ``count`` questions; return CPU milliseconds per question and system, by part."""
    opened = open_graph(Path(graph))
    asked = read_questions(Path(questions), "test")
    asked = random.Random(0).sample(asked, min(count, len(asked)))
    walk = SearchGraph(opened, opened, None, MAX_HOPS, reenter_topic=False)
    right = {one.id: answer_by_path(walk, one, one.chain) for one in asked}
    clocks, together = [Clock() for _ in range(systems)], [Clock() for _ in range(REPEATS)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        warm = Nothing({one.id: right[one.id] for one in asked[:1]})
        evaluate(warm, asked[:1], walk, folder / "warm.parquet", Clock())
        files = []
        for number, clock in enumerate(clocks):
            files.append(folder / f"{number}.parquet")
            name = "direct" if number == systems - 1 else f"system {number}"
            evaluate(replace(Nothing(spoilt(right, number)), name=name), asked, walk, files[-1], clock)
            with clock.on("judging"):
                run = read_system_run(files[-1])
            with clock.on("figures"):
                system_row(run.name, [run])
        for clock in together:
            with clock.on("again"):
                runs = [read_system_run(path) for path in files]
            with clock.on("comparing"):
                render_side_by_side(side_by_side(group_runs(runs)))
        asking = Nothing(right, DirectInstruction(read_prompts()))
        called = [Clock() for _ in range(REPEATS)]
        for clock in called:
            evaluate(asking, asked, walk, folder / "asking.parquet", clock)
    return {
        "questions": len(asked),
        "answers": sum(len(one.answers) for one in right.values()) / len(right),
        "ms": least(clocks, len(asked)) | least(together, len(asked) * systems),
        "called": least(called, len(asked)),
    }


def least(clocks: Sequence[Clock], num: int) -> dict[str, float]:
    """Return for each part the least that a clock shows, all having timed equal work, in milliseconds over ``num``."""
    return {part: 1000 * min(clock.spent[part] for clock in clocks) / num for part in clocks[0].spent}


def spoilt(right: dict[str, Prediction], number: int) -> dict[str, Prediction]:
    """Return predictions of which a tenth are lost."""
    chance = random.Random(number)
    return {id: Prediction(id, (), (), ()) if chance.random() < 0.1 else one for id, one in right.items()}


def evaluate(system: Nothing, questions: Sequence[Question], walk: SearchGraph, path: Path, clock: Clock) -> None:
    """Answer questions chunk by chunk and write what came of them, as a stage does."""
    meter = Meter()
    model = Metered(Instant(), meter=meter, system=system.name)
    source = SystemSource("graph", system.name, 0, "lm", "instant")
    bench, parts = Bench(system, walk, model, (meter,), source), list[Path]()
    for start in range(0, len(questions), CHUNK):
        with clock.on("running"):
            done = bench.answer(questions[start : start + CHUNK])
        parts.append(path.with_name(f"{path.stem}-{start}.parquet"))
        with clock.on("writing"):
            write_answered(parts[-1], done, walk.entities, source)
            write_calls(parts[-1].with_suffix(".calls"), done.answered)
    with clock.on("merging"):
        merge_parts(parts, path)
        merge_parts([part.with_suffix(".calls") for part in parts], path.with_suffix(".calls"))
