"""``kgqa builds``: the history of accepted and refused builds, and going back to an earlier one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import pipeline
from kgqa_core.artifacts import write_json
from kgqa_core.config_file import read_config
from kgqa_core.errors import DriftError
from kgqa_core.run.pipeline import Pipeline
from tasks.outbox import read_ended
from tests.conftest import kgqa
from tests.run.test_ensure import NO_FLOOR, TRIPLES, build, towns, write_triples

__all__ = ["towns"]


def listed(conf: Path) -> list[tuple[str, int | None, bool]]:
    found = json.loads(kgqa("builds", "list", str(conf), "--json").stdout)["builds"]
    return [(one["what"], one.get("triples"), one["current"]) for one in found]


def triples_of(conf: Path) -> int:
    answer = kgqa("sql", str(conf), "select count(*) from triples", "--json").stdout
    return int(json.loads(answer)["rows"][0][0])


def hashes(conf: Path) -> dict[str, str]:
    files = sorted((Pipeline(read_config(conf)).home / "artifacts").rglob("*"))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def test_readers_get_an_earlier_accepted_build_and_no_artifact_changes(towns: Path) -> None:
    assert listed(towns) == []
    assert kgqa("builds", "rollback", str(towns)).exit_code == 2  # nothing to go back to
    build(towns)
    write_triples(towns, TRIPLES[:6])
    build(towns)
    write_triples(towns, [line for line in TRIPLES if "flows_into" not in line])
    for _ in range(2):  # a refusal is noted once
        with pytest.raises(DriftError):
            build(towns, NO_FLOOR)
    assert listed(towns) == [("accepted", 7, False), ("accepted", 6, True), ("refused", 4, False)]
    assert triples_of(towns) == 6
    before = hashes(towns)
    back = kgqa("builds", "rollback", str(towns))
    assert "no longer" in back.stdout
    assert listed(towns)[-1] == ("rolled back", 7, True)
    assert triples_of(towns) == 7
    assert json.loads(kgqa("lint", str(towns), "--json").stdout)["graph"]["num_triples"] == 7
    assert "graph is not the accepted one" in kgqa("status", str(towns)).stdout
    unknown = kgqa("builds", "rollback", str(towns), "--to", "zzz")
    assert unknown.exit_code == 2 and "none of them begin with 'zzz'" in unknown.stderr
    assert hashes(towns) == before

    write_triples(towns, TRIPLES[:6])  # the build that was left is taken for no new one
    with pytest.raises(DriftError, match=r"taken back from it at .* --accept"):
        build(towns)
    with pytest.raises(DriftError, match="taken back from it"):  # nor the same data under another recipe
        build(towns, "dataset.questions.max_reject_ratio=0.2")
    assert triples_of(towns) == 7
    assert "(rolled back from)" in kgqa("builds", "rollback", str(towns)).stderr
    build(towns, accept=True)
    assert (triples_of(towns), listed(towns)[-1]) == (6, ("accepted", 6, True))
    build(towns)


def test_what_a_deployed_run_advises_names_the_file_of_its_configuration(
    towns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **how: object) -> None:
        raise DriftError("kgqa build CONF --accept")

    monkeypatch.setattr(pipeline, "ensure", refuse)
    with pytest.raises(DriftError, match=f"^kgqa build {towns} --accept$"):
        pipeline.build_graph.fn(towns)
    (ended,) = read_ended(Pipeline(read_config(towns)).home)
    assert ended["error"] == f"DriftError: kgqa build {towns} --accept"


def test_where_the_accepted_build_is_gone_nobody_gets_a_refused_one_unasked(towns: Path) -> None:
    """Half of the accepted build and half of the refused one would be answers about other entities."""
    build(towns)
    graph = Pipeline(read_config(towns)).artifact("graph").folder
    write_triples(towns, [line for line in TRIPLES if "flows_into" not in line])
    with pytest.raises(DriftError):
        build(towns, NO_FLOOR)
    shutil.rmtree(graph)
    count = "select count(*) from triples"
    for command in (("sql", str(towns), count), ("lint", str(towns)), ("export", str(towns), "--out", "unused")):
        told = kgqa(*command)
        assert (told.exit_code, "graph of the accepted one is gone" in told.stderr) == (5, True), command
    said = " ".join(kgqa("status", str(towns)).stdout.split())
    assert "gone or damaged" in said and "CONF" not in said
    assert [what for what, _, current in listed(towns) if current] == ["accepted"]
    assert "readers had this" in kgqa("builds", "list", str(towns)).stdout
    with pytest.raises(DriftError, match=r"not to be used: it was refused at .* --accept"):
        build(towns, NO_FLOOR)  # it was compared once, and cannot be again
    answer = json.loads(kgqa("sql", str(towns), count, "--refused", "--json").stdout)
    assert answer["rows"] == [[4]]
    build(towns, NO_FLOOR, accept=True)
    assert triples_of(towns) == 4


def test_a_build_by_other_settings_is_no_refused_one(towns: Path) -> None:
    build(towns)
    build(towns, "explorer.steps=3")
    assert "not accepted" not in kgqa("status", str(towns)).stdout
    assert "not accepted" not in kgqa("sql", str(towns), "from coverage").stderr


def test_a_build_that_was_left_stays_left_where_the_rollback_was_killed(
    towns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(towns)
    write_triples(towns, TRIPLES[:6])
    build(towns)

    def write(path: Path, note: Any) -> None:
        if path.parent.name == "accepted":
            raise KeyboardInterrupt
        write_json(path, note)

    with monkeypatch.context() as killed:
        killed.setattr("kgqa_core.run.pipeline.write_json", write)
        with pytest.raises(KeyboardInterrupt):
            Pipeline(read_config(towns)).roll_back()
    with pytest.raises(DriftError, match="taken back from it"):
        build(towns)
    assert kgqa("builds", "rollback", str(towns)).exit_code == 0
    assert triples_of(towns) == 7


def test_the_last_accepted_builds_survive_the_collection_of_garbage(towns: Path) -> None:
    for count in (7, 6, 5, 4):
        write_triples(towns, TRIPLES[:count])
        build(towns, NO_FLOOR, accept=True)
    first, second, *_ = json.loads(kgqa("builds", "list", str(towns), "--json").stdout)["builds"]
    assert kgqa("gc", "--all", "--delete", "--days", "0", "--last", "3").exit_code == 0
    assert [triples for _, triples, _ in listed(towns)] == [None, 6, 5, 4]
    assert "gone" in kgqa("builds", "list", str(towns)).stdout
    told = kgqa("builds", "rollback", str(towns), "--to", first["build"][:6])
    assert (told.exit_code, "deleted" in told.stderr, triples_of(towns)) == (5, True, 4)
    assert kgqa("builds", "rollback", str(towns), "--to", second["build"]).exit_code == 0
    assert triples_of(towns) == 6
