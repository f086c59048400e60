"""The embedded model as a planner on MetaQA: hits, plans that exist, what training and constraints cost."""

from __future__ import annotations

import random
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
from kgqa_core.graph.supervision import read_supervision, write_supervision
from kgqa_core.instructions.example_cases import ExampleSettings, read_path_rows
from kgqa_core.instructions.examples import make_examples, write_examples
from kgqa_core.instructions.path_constraint import PathConstraints, RelationConstraint, all_steps
from kgqa_core.instructions.plan import END, SEPARATOR, START, PlanCase, PlanInstruction
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import Decoding
from kgqa_core.planners.evaluate import BATCH, Ground, ask_planner, score_plans
from kgqa_core.planners.generator import GeneratorPlanner
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.subset import take_subset
from kgqa_core.types import SPLITS, Question

MAX_HOPS = 3
HOPS = (1, 2, 3)
ASKED = {1: 99, 2: 99, 3: 97}  # hit@1, percent
HELD_OUT = 0.2  # of the masked texts
NOTHING, KNOWN, AROUND = "nothing", "known relations", "paths around the topics"
FIGURES = ("hit@3", "as good", "gold", "valid", "f1")  # beside hit@1
ROUNDS = 3  # of timing


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    seeds: tuple[int, ...]
    draws: tuple[int, ...]  # of held-out wordings
    steps: int | None  # of training; None: as the settings say
    test: int | None  # test questions per number of hops; None: all
    pools: int  # questions per number of hops whose plans are weighed


FULL = Size(seeds=(0, 1, 2), draws=(0, 1), steps=None, test=None, pools=100)
SMALL = Size(seeds=(0,), draws=(0,), steps=3, test=20, pools=3)


def run(home: Path, size: Size = FULL) -> None:
    """Train and ask, each seed in a process of its own, and write the section."""
    graph, questions = build_folders(home)
    folders: dict[str, Any] = {"graph": graph, "questions": questions, "work": home / "embedded-planner"}
    run_child(supervise, **folders)
    whole = [
        run_child(learn, **folders, seed=seed, steps=size.steps, test=size.test, pools=size.pools).result
        for seed in size.seeds
    ]
    held = [run_child(learn, **folders, draw=draw, steps=size.steps, test=size.test).result for draw in size.draws]
    write_section("Embedded planner", report(whole, held), "python -m benchmarks embedded_planner")


def report(whole: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> str:
    """Return the section."""
    table = [
        "| hops | asked | hit@1 by seed | hit@1 | reached | hit@3 | as good | gold chain | valid | F1 of first |",
        "|---|---:|---|---:|---|---:|---:|---:|---:|---:|",
        *(_row(hops, whole) for hops in HOPS),
    ]
    wordings = [
        "| hops | questions | hit@1 | as good | gold chain | valid | F1 of the first plan |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {hops} | {_mean(held, hops, 'n'):.0f} | "
            + " | ".join(f"{_mean(held, hops, name):.1f}" for name in ("hit@1", "as good", "gold", "valid", "f1"))
            + " |"
            for hops in HOPS
        ),
    ]
    times = [
        "| beam search of 3 plans, held to | questions per CPU s: median (least to most) | of the speed without |",
        "|---|---:|---:|",
        *(_speed_row(name, [*whole, *held]) for name in whole[0]["speed"]),
    ]
    unseen = (
        f"Unseen wordings: {HELD_OUT:.0%} of the masked texts are asked by the test split alone; "
        f"mean of {len(held)} draws."
    )
    parts = [_facts(whole), _terms(whole[0]), table, unseen, wordings, times, _weighed(whole)]
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts)


def _speed_row(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return a row over all rounds of all runs; the shares are of the same round's speed without a constraint."""
    values = [value for run in runs for value in run["speed"][name]]
    pairs = [zip(run["speed"][name], run["speed"][NOTHING], strict=True) for run in runs]
    shares = [100 * own / free for pair in pairs for own, free in pair]
    return (
        f"| {name} | {median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f}) | "
        f"{median(shares):.0f} % ({min(shares):.0f} to {max(shares):.0f}) |"
    )


def _facts(whole: Sequence[dict[str, Any]]) -> str:
    one, spent = whole[0], " / ".join(f"{run['cpu_seconds']:.0f}" for run in whole)
    return (
        f"One model for all hops, {one['num_parameters']:,} parameters, {one['num_tokens']:,} tokens. It reads "
        f"{one['num_examples']:,} distinct pairs of a masked wording and a best-executing shortest path, all that "
        f"{one['num_questions']:,} training questions hold, in {one['num_steps']} steps. Making it took {spent} CPU s "
        f"(asked: at most 120), tokenizer included: {one['flops'] / 1e12:.2f} TFLOP of matrix products, "
        f"{one['flops'] / one['cpu_seconds'] / 1e9:.0f} GFLOP/s."
    )


def _terms(one: dict[str, Any]) -> str:
    shares = " / ".join(f"{one['gold is shortest'][str(hops)]:.1f}" for hops in HOPS)
    return (
        "Percent of the test questions, mean over the seeds. hit@1: the first plan is one of the question's "
        f"best-executing shortest paths. The gold chain is one of them for {shares} % of the questions of 1 / 2 / 3 "
        "hops; of the others an answer happens to lie nearer to the topic. As good, which the asked figures do not "
        "speak of: what the first plan reaches has an F1 as high as the best of those paths has, or higher. CPU "
        "seconds are without those of supervision and instruction data, which are stages of their own."
    )


def _weighed(whole: Sequence[dict[str, Any]]) -> str:
    pools = " / ".join(f"{_mean(whole, hops, 'pool'):.1f}" for hops in HOPS)
    return (
        "Plans weighed, the gold chain and up to two others of its length from random walks around the topic: the "
        f"likeliest is the gold chain for {pools} % of the first questions of 1 / 2 / 3 hops. Random plans are easy to "
        "tell from it."
    )


def _row(hops: int, runs: Sequence[dict[str, Any]]) -> str:
    each = " / ".join(f"{run['hops'][str(hops)]['hit@1']:.1f}" for run in runs)
    hit = _mean(runs, hops, "hit@1")
    rest = " | ".join(f"{_mean(runs, hops, name):.1f}" for name in FIGURES)
    return f"| {hops} | >= {ASKED[hops]} | {each} | {hit:.1f} | {'yes' if hit >= ASKED[hops] else 'no'} | {rest} |"


def _mean(runs: Sequence[dict[str, Any]], hops: int, name: str) -> float:
    values = [float(run["hops"][str(hops)][name]) for run in runs if str(hops) in run["hops"]]
    return sum(values) / len(values)


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
    pools: int = 0,
) -> dict[str, Any]:
    """Make a model and let it plan for the test questions; ``draw``: for wordings that training never has."""
    from kgqa_core.config_lm import EmbeddedLmSection
    from kgqa_core.lm.embedded import make_embedded
    from kgqa_core.lm.local import open_local

    opened, prompts, folder = open_graph(Path(graph)), read_prompts(), Path(work)
    every = [question for split in SPLITS for question in read_questions(Path(questions), split)]
    if draw is not None:
        every, _ = take_subset(every, hold_out_templates=HELD_OUT, draw=draw)
    name = f"seed{seed}" if draw is None else f"draw{draw}"
    taught = [question for question in every if question.split == "train"]
    settings = ExampleSettings(weights={"plan": 1.0})
    examples = make_examples(
        opened, taught, read_path_rows(folder / "paths.parquet"), prompts=prompts, settings=settings
    )
    write_examples(examples, folder / f"{name}.parquet")
    shape = EmbeddedLmSection(kind="embedded", seed=seed, **({"steps": steps} if steps else {}))
    shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier run: the first to get there would stay
    made = make_embedded(
        [folder / f"{name}.parquet"],
        shape,
        folder / name,
        steps=all_steps(opened.relation_labels),
        markers=(START, SEPARATOR, END),
        names=opened.entity_names,
    )
    asked = [question for hops in HOPS for question in _some(every, hops, test)]
    cases = [PlanQuestion(question.id, question.masked, question.topics) for question in asked]
    model, around = open_local(folder / name), PathConstraints(opened, max_hops=MAX_HOPS)
    best = read_supervision(folder / "paths.parquet", best_only=True)
    speed = speeds(folder / name, PlanInstruction(prompts), cases[:: max(1, len(cases) // 600)], opened)
    planner = GeneratorPlanner(model, prompts, space=around)
    plans = ask_planner(planner, cases, num_plans=3)
    found = figures(opened, asked, plans, best)
    for hops in HOPS if pools else ():
        found[hops]["pool"] = weigh(opened, planner, [one for one in asked if one.hops == hops][:pools])
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
    ground = Ground(graph, max_hops=MAX_HOPS)
    f1 = ground.f1_of_first(asked, plans)
    rows = defaultdict(list)
    for at, question in enumerate(asked):
        rows[question.hops or 0].append(at)
    reachable = ground.f1_of_first(asked, [[Plan(best[one.id][0], 0.0)] if one.id in best else [] for one in asked])
    found: dict[int, dict[str, float]] = {}
    for hops, own in rows.items():
        scored = score_plans(
            [PlanQuestion(asked[at].id, "", asked[at].topics, best.get(asked[at].id, ())) for at in own],
            [plans[at] for at in own],
            signed=True,
            is_valid=ground.is_valid(),
        ).summary()
        gold = [
            bool(plans[at])
            and asked[at].chain is not None
            and plans[at][0].path == to_labels(graph, asked[at].chain or ())
            for at in own
        ]
        found[hops] = {
            **scored,
            "as good": 100 * sum(f1[at] >= reachable[at] - 1e-9 for at in own) / len(own),
            "gold": 100 * sum(gold) / len(own),
            "f1": sum(f1[at] for at in own) / len(own),
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
            known = RelationConstraint(all_steps(graph.relation_labels), max_hops=MAX_HOPS)
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


def weigh(graph: KnowledgeGraph, planner: GeneratorPlanner, asked: Sequence[Question]) -> float:
    """Return how often, in percent, the gold chain is likelier than two others of its length around the topic."""
    space = PathConstraints(graph, max_hops=MAX_HOPS)
    pools = []
    for question in asked:
        gold = to_labels(graph, question.chain or ())
        others = walks(space, question, len(gold), random.Random(question.id)) - {gold}
        pools.append([gold, *random.Random(question.id).sample(sorted(others), min(2, len(others)))])
    cases = [PlanQuestion(question.id, question.masked, question.topics) for question in asked]
    scores = planner.weigh(cases, pools)
    return 100 * sum(own[0] == max(own) for own in scores) / len(scores)


def walks(
    space: PathConstraints, question: Question, hops: int, draw: random.Random, tries: int = 30
) -> set[LabelPath]:
    """Return some relation paths of ``hops`` steps around a question's topics, each step drawn evenly."""
    around, found = space.around(question.topics), set()
    for _ in range(tries):
        path: tuple[int, ...] = ()
        while len(path) < hops:
            ending, going_on = around.next_relations(path)
            options = ending if len(path) == hops - 1 else going_on
            if not len(options):
                break
            path = (*path, int(draw.choice(options.tolist())))
        else:
            found.add(to_labels(space.graph, path))
    return found
