"""The embedded model as a planner on MetaQA: hits, plans that exist, what training and constraints cost."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import run_child
from benchmarks.measure import write_section
from benchmarks.path_cases import build_folders
from kgqa_core.graph.kg import KnowledgeGraph, open_graph, to_labels
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.supervision import read_supervision, write_supervision
from kgqa_core.instructions.examples import Source, make_examples, write_examples
from kgqa_core.instructions.plan import (
    END,
    SEPARATOR,
    START,
    PathConstraints,
    Plan,
    PlanCase,
    PlanInstruction,
    PlanQuestion,
    RelationConstraint,
    all_steps,
)
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import Decoding
from kgqa_core.planners.evaluate import BATCH, ask_planner, f1_of_first, leads_somewhere, score_plans
from kgqa_core.planners.generator import GeneratorPlanner
from kgqa_core.questions.build import read_questions, take_subset
from kgqa_core.types import SPLITS, LabelPath, Question

MAX_HOPS = 3
HOPS = (1, 2, 3)
ASKED = {1: 99, 2: 99, 3: 97}  # hit@1, percent
HELD_OUT = 0.2  # of the masked texts
NOTHING, KNOWN, AROUND = "nothing", "known relations", "paths around the topics"
FIGURES = ("hit@1", "hit@3", "as good", "gold chain", "valid", "F1 of first")
ROUNDS = 3  # of timing


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    seeds: tuple[int, ...]
    draws: tuple[int, ...]  # of held-out wordings
    steps: int | None  # of training; None: as the settings say
    test: int | None  # test questions per number of hops; None: all


FULL = Size(seeds=(0, 1, 2), draws=(0, 1), steps=None, test=None)
SMALL = Size(seeds=(0,), draws=(0,), steps=3, test=20)


def run(home: Path, size: Size = FULL) -> None:
    """Train and ask, each seed in a process of its own, and write the section."""
    graph, questions = build_folders(home)
    folders: dict[str, Any] = {"graph": graph, "questions": questions, "work": home / "embedded-planner"}
    run_child(supervise, **folders)
    whole = [run_child(learn, **folders, seed=seed, steps=size.steps, test=size.test).result for seed in size.seeds]
    held = [run_child(learn, **folders, draw=draw, steps=size.steps, test=size.test).result for draw in size.draws]
    write_section("Embedded planner", report(whole, held), "python -m benchmarks embedded_planner")


def report(whole: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> str:
    """Return the section."""
    one, spent = whole[0], " / ".join(f"{run['cpu_seconds']:.0f}" for run in whole)
    facts = (
        f"One model for all hops, {one['num_parameters']:,} parameters, {one['num_tokens']:,} tokens. It reads "
        f"{one['num_examples']:,} distinct pairs of a masked wording and a best-executing shortest path, all that "
        f"{one['num_questions']:,} training questions hold, in {one['num_steps']} steps. Making it took {spent} CPU s "
        f"(asked: at most 120), tokenizer included: {one['flops'] / 1e12:.2f} TFLOP of matrix products, "
        f"{one['flops'] / one['cpu_seconds'] / 1e9:.0f} GFLOP/s."
    )
    shares = " / ".join(f"{one['gold is shortest'][str(hops)]:.1f}" for hops in HOPS)
    terms = (
        "Percent of the test questions, mean over the seeds. hit@1: the first plan is one of the question's "
        f"best-executing shortest paths. The gold chain is one of them for {shares} % of the questions of 1 / 2 / 3 "
        "hops; of the others an answer lies nearer to the topic. As good: what the first plan reaches has an F1 as "
        "high as the best of those paths has. CPU seconds are without those of supervision and instruction data."
    )
    hits = [f"| hops | asked | hit@1 by seed | {' | '.join(FIGURES)} |", "|---|---:|---|" + "---:|" * len(FIGURES)]
    unseen = [f"| hops | questions | {' | '.join(FIGURES)} |", "|---|---:|" + "---:|" * len(FIGURES)]
    for hops in HOPS:
        each = " / ".join(f"{run['hops'][str(hops)]['hit@1']:.1f}" for run in whole)
        hits.append(f"| {hops} | >= {ASKED[hops]} | {each} | {_means(whole, hops)} |")
        questions = sum(run["hops"][str(hops)]["n"] for run in held) / len(held)
        unseen.append(f"| {hops} | {questions:.0f} | {_means(held, hops)} |")
    times = ["| beam search of 3 plans, held to | questions per CPU s: median (least to most) |", "|---|---:|"]
    for name in one["speed"]:
        values = [value for run in [*whole, *held] for value in run["speed"][name]]
        times.append(f"| {name} | {median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f}) |")
    wordings = (
        f"Unseen wordings: {HELD_OUT:.0%} of the masked texts are asked by the test split alone; "
        f"mean of {len(held)} draws."
    )
    return "\n\n".join([facts, terms, "\n".join(hits), wordings, "\n".join(unseen), "\n".join(times)])


def _means(runs: Sequence[dict[str, Any]], hops: int) -> str:
    own = [run["hops"][str(hops)] for run in runs]
    return " | ".join(f"{sum(float(one[name]) for one in own) / len(own):.1f}" for name in FIGURES)


def supervise(graph: str, questions: str, work: str) -> None:
    """Find the paths of all questions."""
    out = Path(work) / "paths.parquet"
    out.parent.mkdir(parents=True, exist_ok=True)
    every = [question for split in SPLITS for question in read_questions(Path(questions), split)]
    write_supervision(open_graph(Path(graph)), every, out, max_hops=MAX_HOPS)


def learn(
    graph: str,
    questions: str,
    work: str,
    seed: int = 0,
    draw: int | None = None,
    steps: int | None = None,
    test: int | None = None,
) -> dict[str, Any]:
    """Make a model and let it plan for the test questions; ``draw``: for wordings that training never has."""
    from kgqa_core.config_lm import ReasonerSection
    from kgqa_core.lm.embedded import make_embedded
    from kgqa_core.lm.local import open_local
    from kgqa_core.lm.types import EmbeddedLmSection

    opened, prompts, folder = open_graph(Path(graph)), read_prompts(), Path(work)
    every = [question for split in SPLITS for question in read_questions(Path(questions), split)]
    if draw is not None:
        every, _ = take_subset(every, hold_out_templates=HELD_OUT, draw=draw)
    name = f"seed{seed}" if draw is None else f"draw{draw}"
    taught = [question for question in every if question.split == "train"]
    source = Source(SearchGraph(opened, opened, None, MAX_HOPS, False), prompts, ReasonerSection(objective="plan"))
    examples = make_examples(source, taught, read_supervision(folder / "paths.parquet"))
    write_examples(examples, folder / f"{name}.parquet")
    shape = EmbeddedLmSection(kind="embedded", seed=seed, **({"steps": steps} if steps else {}))
    shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier run: the first to get there would stay
    made = make_embedded(
        [folder / f"{name}.parquet"],
        shape,
        folder / name,
        steps=all_steps(opened.relation_names),
        markers=(START, SEPARATOR, END),
        names=opened.entity_names,
    )
    asked = [question for hops in HOPS for question in _some(every, hops, test)]
    cases = [PlanQuestion(question.id, question.masked, question.topics) for question in asked]
    model, around = open_local(folder / name), PathConstraints(opened, max_hops=MAX_HOPS)
    taught = read_supervision(folder / "paths.parquet", "best")
    best = {question_id: tuple(one.path for one in own) for question_id, own in taught.items()}
    speed = speeds(folder / name, PlanInstruction(prompts), cases[:: max(1, len(cases) // 600)], opened)
    planner = GeneratorPlanner(model, prompts, space=around)
    plans = ask_planner(planner, cases, num_plans=3)
    found = figures(opened, asked, plans, best)
    shares = {
        hops: [to_labels(opened, one.chain) in best.get(one.id, ()) for one in asked if one.hops == hops and one.chain]
        for hops in HOPS
    }
    told = ("num_parameters", "num_tokens", "num_examples", "cpu_seconds", "flops")
    return {
        **{name: getattr(made, name) for name in told},
        "num_steps": len(made.losses),
        "num_questions": len(taught),
        "hops": found,
        "speed": speed,
        "gold is shortest": {hops: 100 * sum(own) / max(1, len(own)) for hops, own in shares.items()},
    }


def _some(questions: Iterable[Question], hops: int, count: int | None) -> list[Question]:
    return [question for question in questions if question.split == "test" and question.hops == hops][:count]


def figures(
    graph: KnowledgeGraph,
    asked: Sequence[Question],
    plans: Sequence[Sequence[Plan]],
    best: dict[str, tuple[LabelPath, ...]],
) -> dict[int, dict[str, float]]:
    """Return the figures by number of hops, percent."""
    search = SearchGraph(graph, graph, None, MAX_HOPS, reenter_topic=False)
    f1 = f1_of_first(search, asked, plans)
    rows = defaultdict(list)
    for at, question in enumerate(asked):
        rows[question.hops or 0].append(at)
    reachable = f1_of_first(search, asked, [[Plan(best[one.id][0], 0.0)] if one.id in best else [] for one in asked])
    found: dict[int, dict[str, float]] = {}
    for hops, own in rows.items():
        scored = score_plans(
            [PlanQuestion(asked[at].id, "", asked[at].topics, best.get(asked[at].id, ())) for at in own],
            [plans[at] for at in own],
            signed=True,
            is_valid=leads_somewhere(search),
        )
        gold = [
            bool(plans[at])
            and asked[at].chain is not None
            and plans[at][0].path == to_labels(graph, asked[at].chain or ())
            for at in own
        ]
        found[hops] = {
            **scored,
            "as good": 100 * sum(f1[at] >= reachable[at] - 1e-9 for at in own) / len(own),
            "gold chain": 100 * sum(gold) / len(own),
            "F1 of first": sum(f1[at] for at in own) / len(own),
        }
    return found


def speeds(
    folder: Path, instruction: PlanInstruction, asked: Sequence[PlanQuestion], graph: KnowledgeGraph
) -> dict[str, list[float]]:
    """Return questions per CPU second of the same beam search under each constraint, by round.

    In every round each constraint is met for the first time, by a model opened anew, and another one comes first.
    """
    from kgqa_core.lm.local import open_local

    names, found = [NOTHING, KNOWN, AROUND], defaultdict(list)
    decoding = Decoding(max_new_tokens=40, method="beam", num_returns=3, num_beams=3)
    for number in range(-1, ROUNDS):  # in the first, which does not count, compiled code is loaded
        for name in names[number % 3 :] + names[: number % 3]:
            model, around = open_local(folder), PathConstraints(graph, max_hops=MAX_HOPS)
            known = RelationConstraint(all_steps(graph.relation_names), max_hops=MAX_HOPS)
            some, started = asked if number >= 0 else asked[:1], time.process_time()
            for start in range(0, len(some), BATCH):
                batch = some[start : start + BATCH]
                held = [
                    around.around(one.topics) if name == AROUND else known if name == KNOWN else None for one in batch
                ]
                cases = [PlanCase(one.text, one.id, paths_allowed=own) for one, own in zip(batch, held, strict=True)]
                model.generate([instruction.render(case) for case in cases], decoding)
            if number >= 0:
                found[name].append(len(some) / (time.process_time() - started))
    return dict(found)
