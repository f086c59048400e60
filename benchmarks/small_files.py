"""A stranger's small graph: what the run file that ``kgqa init`` writes reaches, beside settings found by hand."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benchmarks.measure import PROJECT, data_folder, kgqa, kgqa_json, write_section

DEMO = PROJECT / "kgqa_core" / "demo" / "data"
HOME = "home"  # of each file its own: nothing is at hand that a stranger has not
SPLITS = ("train", "dev", "test")
BY_HAND = ("learn_dev=false", "question_noise=0.4")  # of the explorer, beside what init writes


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    embedded: dict[int, int]  # questions of a file -> files drawn
    by_hand: tuple[str, ...] = ()
    world_cup: bool = False  # read that as well, from KGQA_DATA


FULL = Size(embedded={300: 5, 3000: 2}, by_hand=BY_HAND, world_cup=True)
SMALL = Size(embedded={60: 1})
Figures = dict[str, list[tuple[float, float]]]  # setting -> (Hits@1, F1) of each file


def run(_home: Path, size: Size = FULL) -> None:
    """Draw files, let ``kgqa init`` and ``kgqa run`` see each alone, and score on all questions that were not drawn."""
    rows = [
        "| questions | files | settings | Hits@1 | F1 | Hits@1 above init's, per file | CPU s of `kgqa run` |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        if size.world_cup:
            rows.append(world_cup(Path(scratch) / "wc2014"))
        files = [DEMO / "questions" / f"{split}.jsonl" for split in SPLITS]
        asked = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        afterwards = list[int]()
        for num, draws in size.embedded.items():
            found, seconds = dict[str, list[tuple[float, float]]](), []
            for draw in range(draws):
                folder, parts = Path(scratch) / f"{num}-{draw}", draw_file(asked, num, draw)
                afterwards.append(len(parts[1]))
                seconds.append(try_file(folder, parts, found, size.by_hand))
            rows += table_rows(f"embedded, {num:,}", found, seconds)
    note = (
        f"Percent, mean and standard error over the files. A file holds questions of the {len(asked):,} embedded "
        "ones, and is split 80/10/10 as any file is; all that have no text of these are asked afterwards "
        f"({min(afterwards):,} to {max(afterwards):,}). Some 40 % of them are in wordings that a file of 300 does not "
        "teach. CPU seconds are those of the whole command, server and tracking included. `learn_dev=false`: dev "
        "chooses epoch and thresholds. WorldCup2014: its triples as TSV, both directions as they are listed, its "
        "questions as JSON lines; its test split is asked."
    )
    write_section("Small question files", "\n".join([*rows, "", note]), "python -m benchmarks small_files")


def draw_file(lines: Sequence[str], num: int, draw: int) -> tuple[list[str], list[str]]:
    """Return the lines that a file holds, and those that are asked afterwards: with no text of these."""
    drawn = random.Random(draw).sample(lines, num)
    texts = {json.loads(line)["question"] for line in drawn}
    return drawn, [line for line in lines if json.loads(line)["question"] not in texts]


def try_file(folder: Path, parts: tuple[list[str], list[str]], found: Figures, by_hand: Sequence[str]) -> float:
    """Run a file as init says, then by hand; add what each setting reaches, and return the CPU s of the run."""
    write(folder, (DEMO / "triples.tsv").read_text(encoding="utf-8"), parts[0])
    conf, rest = init(folder, "--names", str(DEMO / "names.tsv")), folder / "rest.jsonl"
    rest.write_text("\n".join(parts[1]) + "\n", encoding="utf-8")
    seconds = kgqa(["run", conf], folder / HOME).cpu_seconds
    for number, setting in enumerate(("", *by_hand)):
        files = ["--questions", str(rest), "--out", str(folder / f"answers{number}.jsonl")]
        told = ["--set", f"explorer.{setting}"] if setting else []
        scores, _ = kgqa_json(["evaluate", conf, *files, *told], folder / HOME)
        found.setdefault(setting, []).append((scores["hits1"], scores["f1"]))
    return seconds


def world_cup(folder: Path) -> str:
    """Return the row of WorldCup2014, written as a stranger would have it."""
    data, asked = data_folder() / "wc2014", dict[str, str]()
    for name in ("1-hop.txt", "2-hop.txt"):
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            text, _, path, answers, *_ = line.split("\t")
            one = {"question": text, "topics": [path.split("#")[0]], "answers": answers.strip("/").split("/")}
            asked.setdefault(text, json.dumps(one, ensure_ascii=False))
    write(folder, (data / "kb.txt").read_text(encoding="utf-8"), list(asked.values()))
    found, cost = kgqa_json(["run", init(folder)], folder / HOME)
    reached = next(row["overall"] for row in found["results"] if row["role"] in ("seed", "learned"))
    figures = f"{reached['hits1']:.2f} | {reached['f1']:.2f}"
    return f"| WorldCup2014, {len(asked):,} | 1 | as init writes | {figures} |  | {cost.cpu_seconds:.0f} |"


def write(folder: Path, triples: str, questions: Sequence[str]) -> None:
    """Write what a stranger has."""
    folder.mkdir(parents=True)
    (folder / "triples.tsv").write_text(triples, encoding="utf-8")
    (folder / "questions.jsonl").write_text("\n".join(questions) + "\n", encoding="utf-8")


def init(folder: Path, *more: str) -> str:
    """Have a run file written, and return its path."""
    files = [str(folder / name) for name in ("triples.tsv", "questions.jsonl")]
    kgqa(["init", *files, "--out", str(folder / "my.yaml"), *more], folder / HOME)
    return str(folder / "my.yaml")


def table_rows(name: str, found: Figures, seconds: Sequence[float]) -> list[str]:
    """Return a row per setting: means with their standard errors, and the gain over init's settings file by file."""
    rows = []
    for setting, figures in found.items():
        hits, f1 = ([one[at] for one in figures] for at in (0, 1))
        gains = [own - base[0] for own, base in zip(hits, found[""], strict=True)]
        told = f"`{setting}`" if setting else "as init writes"
        beside = spread(gains, "+.2f") if setting else ""
        cost = f"{mean(seconds):.0f}" if not setting else ""
        rows.append(f"| {name} | {len(hits)} | {told} | {spread(hits)} | {spread(f1)} | {beside} | {cost} |")
    return rows


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return a mean with its standard error."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{error}"
