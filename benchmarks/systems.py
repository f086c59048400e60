"""Ten systems side by side on MetaQA; what an erring model costs each; hard pools; linked topics; sweeps of N and K."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import data_folder, kgqa_json, markdown, with_settings, write_section

CONF = "conf/metaqa-joint.yaml"
ERRORS = (0.0, 0.1, 0.2, 0.3)  # e of the oracle
ERRING = "etd,rog,eperm,fiske,tog"
POOLED = "etd,rog,eperm"
# Calls per question that papers print: EtD Table 3, FiSKE Tables 4-6 (other datasets, other models).
PUBLISHED_CALLS = {"etd": "1", "rog": "2", "tog": "15 / 22, 8.1-26.2", "fiske": "4.7-9.5", "eperm": ""}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    questions: int | None  # of the main table; None: all of test
    few: int  # of each of the others
    seeds: str


FULL = Size(questions=None, few=600, seeds="[0,1,2]")
SMALL = Size(questions=60, few=30, seeds="[0]")


def run(home: Path, size: Size = FULL) -> None:
    """Measure and write the sections, one after the other: the first is there when the last fails."""
    data_folder()
    main = evaluate(home, size.questions, "systems.seeds=[0]")
    seeds = [f"systems.seeds={size.seeds}", "systems.run=[explorer,ours]", "systems.variants={}"]
    trained = evaluate(home, size.questions, *seeds)
    write_section("Systems side by side", "\n".join(main_body(main, trained)), "python -m benchmarks systems")
    write_section("Systems with an erring model", "\n".join(erring_body(home, size)), "python -m benchmarks systems")
    write_section("Systems on hard pools", "\n".join(pool_body(home, size)), "python -m benchmarks systems")
    write_section("Systems with linked topics", "\n".join(linked_body(home, size)), "python -m benchmarks systems")
    write_section("Sweeps of N and K", "\n".join(sweep_body(home, size)), "python -m benchmarks systems")


def evaluate(home: Path, questions: int | None, *settings: str, conf: str = CONF) -> dict[str, Any]:
    """Evaluate systems; return the comparison: tables, sentences, rows."""
    given = [*settings, "tracking.enabled=false"]
    if questions is not None:
        given.append(f"systems.num_questions={questions}")
    found, _ = kgqa_json(["evaluate", conf, *with_settings(given)], home)
    (folder,) = (Path(stage["folder"]) for stage in found["stages"] if stage["key"] == "comparison")
    comparison: dict[str, Any] = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    fusions = [Path(stage["folder"]) for stage in found["stages"] if stage["key"].startswith("fusion-")]
    comparison["fusions"] = [json.loads((one / "fusion.json").read_text(encoding="utf-8")) for one in fusions]
    return comparison


def main_body(found: Mapping[str, Any], trained: Mapping[str, Any]) -> list[str]:
    """Return the main tables, those of several seeds where training has one, and what ours was chosen by on dev."""
    lines = [
        f"{found['num_questions']} test questions, seed 0. Rows by oracle: an oracle that knows the right answers and "
        "says only what its prompt shows (e = 0). `rog without reasoning` is what the dense planner's first plan "
        "reaches. `ours` fuses the explorer with the dense planner; weight and decider were chosen on dev, below.",
        "",
        *table_of(found["tables"][0]),
        "",
        *by_hops(found["rows"]),
        "",
        "Mean of the seeds:",
        "",
        *by_hops(trained["rows"]),
        "",
        "| ours on dev, seed | weight | decided by | entities tie | "
        + " | ".join(trained["fusions"][0]["on_dev"])
        + " | beats its parts |",
        "|---:|---:|---|---|" + "---:|" * len(trained["fusions"][0]["on_dev"]) + "---|",
    ]
    for seed, fusion in enumerate(trained["fusions"]):
        parts = " | ".join(f"{one['hits1']:.2f} / {one['f1']:.2f}" for one in fusion["on_dev"].values())
        chosen = fusion["chosen"]
        how = " | ".join(str(chosen[name]) for name in ("weight", "decided_by", "equal"))
        lines.append(f"| {seed} | {how} | {parts} | {fusion['beats_its_parts']} |")
    return lines


def by_hops(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return Hits@1, F1, calls and support by hops."""
    hops = list(rows[0]["by_hops"])
    names = ["system", *(f"{hop}-hop Hits@1 / F1 / calls / supported" for hop in hops)]
    lines = []
    for row in rows:
        cells = [row["system"]]
        for own in (row["by_hops"][hop] for hop in hops):
            supported = f"{own['supported_answers']:.1f}" if "supported_answers" in own else "–"
            cells.append(f"{own['hits1']:.2f} / {own['f1']:.2f} / {own['calls_per_question']:.2f} / {supported}")
        lines.append(cells)
    return markdown(names, lines, len(names))


def erring_body(home: Path, size: Size) -> list[str]:
    """Return calls and accuracy against the oracle's error."""
    lines = [
        "The oracle errs with probability e at each call. Per hop: Hits@1 / F1 / calls per question. Published calls "
        "are of other datasets and models.",
        "",
        "| system | e | 1-hop | 2-hop | 3-hop | published calls |",
        "|---|---:|---|---|---|---|",
    ]
    for error in ERRORS:
        found = evaluate(
            home,
            size.few,
            f"systems.run=[{ERRING}]",
            "systems.variants={}",
            "systems.seeds=[0]",
            f"systems.oracle.error={error}",
        )
        for row in found["rows"]:
            cells = [
                f"{own['hits1']:.1f} / {own['f1']:.1f} / {own['calls_per_question']:.2f}"
                for own in row["by_hops"].values()
            ]
            name = row["system"].split()[0]
            lines.append(f"| {name} | {error} | {' | '.join(cells)} | {PUBLISHED_CALLS[name]} |")
    return lines


def pool_body(home: Path, size: Size) -> list[str]:
    """Return what the models add on hard pools; systems that search by themselves have no pool to be given."""
    pooled = ["systems.variants={}", "systems.seeds=[0]", "systems.answered_by=[oracle,random,first]"]
    found = evaluate(home, size.few, f"systems.run=[{POOLED}]", "systems.pool=hard", *pooled)
    open_ = evaluate(home, size.few, "systems.run=[fiske,tog]", *pooled)
    lines = ["The right plan and two wrong ones that exist (for EtD: an end of each), in random order."]
    for one in (found, open_):
        lines += ["", *table_of(one["tables"][0]), "", *(f"- {sentence}" for sentence in one["sentences"])]
        if one is found:
            lines += ["", "FiSKE and Think-on-Graph search by themselves; theirs is no pool:"]
    return lines


def linked_body(home: Path, size: Size) -> list[str]:
    """Return all systems where topics are found in the text alone."""
    found = evaluate(home, size.few, "systems.topics=linked", "systems.variants={}", "systems.seeds=[0]")
    return ["Topics are hidden and linked by the text alone, for every system.", "", *by_hops(found["rows"])]


def sweep_body(home: Path, size: Size) -> list[str]:
    """Return who overruled whom by N (an oracle that errs in a fifth of its calls), and retrieval by K."""
    etd = {f"etd N {n}": {"system": "etd", "settings": {"num_candidates": n}} for n in (3, 4, 5, 6)}
    rog = {
        f"rog K {k}": {"system": "rog", "settings": {"plans": "dense", "num_plans": k, "reasoning": "none"}}
        for k in (1, 2, 3, 4, 5)
    }
    eperm = {
        f"eperm s {s} S {top}": {"system": "eperm", "settings": {"num_plans": s, "top_entities": top}}
        for s, top in ((1, 4), (3, 4), (5, 4), (5, 1), (5, 2), (5, 8))
    }
    found = evaluate(
        home,
        size.few,
        "systems.run=[]",
        "systems.seeds=[0]",
        "systems.oracle.error=0.2",
        f"systems.variants={json.dumps({**etd, **rog, **eperm})}",
    )
    lines = [
        "Oracle with e = 0.2; `rog K` by the dense planner's plans, all that they reach (RoG Fig. 3); `eperm` by s "
        "weighted plans and S entities per hop (EPERM Fig. 3).",
        "",
    ]
    lines += ["| row | Hits@1 | F1 | coverage | paths per question | calls |", "|---|---:|---:|---:|---:|---:|"]
    for row in found["rows"]:
        own = row["overall"]
        paths = own.get("count.num_paths")
        shown = "–" if paths is None else f"{paths:.1f}"
        lines.append(
            f"| {row['system']} | {own['hits1']:.2f} | {own['f1']:.2f} | {own['coverage']:.2f} | {shown} | "
            f"{own['calls_per_question']:.2f} |"
        )
    for table in found["tables"]:
        if "overruled" in table["header"]:
            lines += ["", *table_of(table)]
    return lines


def table_of(table: Mapping[str, Any]) -> list[str]:
    """Return a table of a comparison."""
    return markdown(table["header"], table["rows"], table["figures_from"])
