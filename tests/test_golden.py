"""An output that moved while its VERSION did not: artifacts of before and after the change would pass for the same.

``golden.json`` holds, for each deterministic stage on the embedded dataset or a small dump, the VERSION, the
fingerprint of its recipe and the hash of its content. Where a change of yours makes a stage write other bytes from the
same input, raise that stage's version (kgqa_core/run/stages), then write the new hashes:

    python tests/test_golden.py --update

which refuses what was not raised. The hashes are those of the locked pyarrow and DuckDB; another release of theirs may
write other bytes, and then counts as a change too. Training is left out: its last digits depend on the processor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import PROJECT

GOLDEN = Path(__file__).with_name("golden.json")
RUN = """\
dataset: {name: golden, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, edge_budget: 5, epochs: 1}
plans: {planners: [generator]}
lm: {kind: packaged}
reasoner: {objective: eperm, paths_per_question: 2, max_paths: 7}
"""

DUMP_RUN = """\
dataset:
  name: golden-dump
  source: files
  graph: {format: freebase, path: golden.nt, hops: 2, hub_cap: 7, max_reject_ratio: 0.1}
  questions: {format: nsm, path: golden.jsonl}
  subgraphs: {method: expand, hops: 1, group_cap: 5}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, edge_budget: 5, epochs: 1}
"""

TRAINED = {"explorer", "evaluation", "candidates", "lm", "reasoner", "dense", "plans"}  # stages, and what follows them
TRAINED |= {"fusion", "choice", "system", "comparison"}

Golden = dict[str, dict[str, str | int]]


def build_golden(home: Path) -> Golden:
    """Build the deterministic stages and return what golden.json would hold."""

    from kgqa_core.config_file import read_config
    from kgqa_core.run.ensure import ensure
    from kgqa_core.run.pipeline import Pipeline
    from kgqa_core.run.stages import known_stages

    home.mkdir(parents=True, exist_ok=True)
    write_dump(home)
    made, goals_of = {}, {RUN: ["encodings", "controls", "instructions"], DUMP_RUN: ["subgraphs"]}
    for name, (text, goals) in enumerate(goals_of.items()):
        (home / f"{name}.yaml").write_text(text, encoding="utf-8")
        pipeline = Pipeline(read_config(home / f"{name}.yaml", [f"runtime.home={home}"]))
        for outcome in ensure(pipeline, goals):
            stage = outcome.artifact.recipe.stage
            made.setdefault("graph of a dump" if stage == "graph" and stage in made else stage, outcome.artifact)
    versions = {stage: spec.version for stage, spec in known_stages().items()}
    return {
        name: {"version": versions[one.recipe.stage], "recipe": one.fingerprint, "content": one.content}
        for name, one in made.items()
    }


def write_dump(folder: Path) -> None:
    """Write a few hundred lines of every use, and questions about some of their subjects."""

    def iri(label: str) -> str:
        return f"<http://rdf.freebase.com/ns/{label}>"

    lines, topics = [], []
    for number in range(97):
        mid, other = f"m.0{number:03d}".replace("e", "f"), f"m.0{number * number % 89:03d}"
        relation = f"film.film.r{number % 5}"
        lines += [
            f"{iri(mid)}\t{iri(relation)}\t{iri(other)}\t.",
            f'{iri(mid)}\t{iri("film.film.date")}\t"{1900 + number % 31}-01-01"^^<http://www.w3.org/2001/XMLSchema#date>\t.',
            f"{iri(mid)}\t{iri('type.object.type')}\t{iri('film.film')}\t.",
            f"{iri(mid)}\t{iri('common.topic.image')}\t{iri(other)}\t.",
        ]
        if number % 3:
            lines.append(f'{iri(mid)}\t{iri("type.object.name")}\t"F\u00fcr {number}"@en\t.')
        if number % 13 == 0:
            topics.append((mid, other))
            lines.append("no triple")
    (folder / "golden.nt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with (folder / "golden.jsonl").open("w", encoding="utf-8") as stream:
        for number, (mid, other) in enumerate(topics):
            row = {"id": f"q{number}", "question": f"what of {mid}", "entities": [mid]}
            row |= {"answers": [{"kb_id": other, "text": None}], "subgraph": {"tuples": [], "entities": []}}
            stream.write(f"{json.dumps(row)}\n")


def moved(golden: Golden, found: Golden) -> list[str]:
    """Return the stages that make something else of the same recipe."""
    same = [stage for stage in found if stage in golden and golden[stage]["recipe"] == found[stage]["recipe"]]
    return [stage for stage in same if golden[stage]["content"] != found[stage]["content"]]


def what_to_do(golden: Golden, found: Golden) -> str:
    """Return how to mend the difference, empty where there is none."""
    if stages := moved(golden, found):
        return (
            f"the output of {', '.join(stages)} moved and its VERSION did not: artifacts made before would pass for "
            "new ones. Undo the change, or raise the stage's version (kgqa_core/run/stages) and then run: "
            "python tests/test_golden.py --update"
        )
    outdated = [stage for stage in {**golden, **found} if golden.get(stage) != found.get(stage)]
    if outdated:
        return f"golden.json is of another recipe of {', '.join(outdated)}; run: python tests/test_golden.py --update"
    return ""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return build_golden(tmp_path_factory.mktemp("golden"))


@pytest.mark.slow
def test_no_stage_writes_other_bytes_than_its_version_promises(found: Golden) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    problem = what_to_do(golden, found)
    assert not problem, problem


@pytest.mark.slow
def test_another_process_locale_hash_seed_and_number_of_threads_give_the_same_bytes(
    found: Golden, tmp_path: Path
) -> None:
    code = (
        "import json, sys; from pathlib import Path; sys.path[:0] = sys.argv[1:3]; "
        "from test_golden import build_golden; found = build_golden(Path(sys.argv[3])); "
        "assert 'torch' not in sys.modules; print(json.dumps(found))"
    )
    other = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "OMP_NUM_THREADS": "3", "TZ": "Asia/Tokyo", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", code, str(PROJECT), str(PROJECT / "tests"), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | other, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == found


def test_the_changelog_tells_which_version_of_each_stage_is_made_anew() -> None:
    from kgqa_core.run.ensure import CHANGES
    from kgqa_core.run.ensure import VERSION as CHANGES_VERSION
    from kgqa_core.run.stages import known_stages
    from tasks.gate import GATE, GATE_VERSION

    versions = {name: stage.version for name, stage in known_stages().items()}
    versions |= {CHANGES: CHANGES_VERSION, GATE: GATE_VERSION}
    changelog = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    told = changelog.partition("makes these stages anew")[2].partition(". All others are at 1.")[0]
    assert {name: int(number) for name, number in re.findall(r"`(\w+)`\s+(\d+)", told)} == {
        name: version for name, version in versions.items() if version > 1
    }


@pytest.mark.parametrize(
    ("version", "recipe", "content", "advice"),
    [
        (1, "r", "c", ""),
        (1, "r", "other", "raise the stage's version"),
        (2, "r2", "other", "is of another recipe of graph; run: python"),
    ],
)
def test_what_moved_and_what_only_followed_are_told_apart(version: int, recipe: str, content: str, advice: str) -> None:
    golden: Golden = {"graph": {"version": 1, "recipe": "r", "content": "c"}}
    said = what_to_do(golden, {"graph": {"version": version, "recipe": recipe, "content": content}})
    assert (advice in said) if advice else not said


def test_every_stage_but_training_and_its_scores_is_in_the_golden_file() -> None:
    from kgqa_core.run.stages import known_stages

    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert golden.keys() - {"graph of a dump"} == known_stages().keys() - TRAINED


def update() -> str | None:
    """Write golden.json anew, unless an output moved and its VERSION did not; return why not."""
    with tempfile.TemporaryDirectory() as home:
        made = build_golden(Path(home))
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if moved(golden, made):
        return what_to_do(golden, made)
    GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(update() if sys.argv[1:] == ["--update"] else __doc__)
