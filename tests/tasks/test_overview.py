"""`kgqa status` without a run: how the last runs ended, who is champion, what changed, how much disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kgqa_core.artifacts import write_json
from tasks import outbox
from tasks.overview import overview
from tasks.release import Releases
from tasks.run_content import FlowRun
from tests.conftest import kgqa


def flow(name: str, started: int) -> FlowRun:
    return FlowRun(name, f"a run {name}", "d", "c", "0", "", "0", started_ms=started)


def test_a_home_at_a_glance(own_home: Path) -> None:
    with outbox.noted(own_home, flow("one", 1000), tracked=True):
        pass
    with pytest.raises(ValueError), outbox.noted(own_home, flow("two", 2000), tracked=False):
        raise ValueError("too bad")
    outbox.write(own_home, outbox.Note(replace(flow("three", 3000), status="RUNNING"), tracked=False))
    releases = Releases(own_home, "kgqa-c")
    releases.move("promoted", "r1", "better")
    releases.move("refused", "r2", "worse")
    change = {"before": 7, "after": 9, "came": 3, "gone": 1}
    changes = {"graph": {"triples": change, "entities": change}, "questions": change}
    for name, value in (("runs/c.json", {"changes": "f00"}), ("artifacts/changes/f00/changes.json", changes)):
        (own_home / name).parent.mkdir(parents=True, exist_ok=True)
        write_json(own_home / name, value)
    (own_home / "cache").mkdir()
    (own_home / "cache" / "a").write_bytes(bytes(5000))
    os.link(own_home / "cache" / "a", own_home / "cache" / "b")

    found = overview(own_home)
    ended = [(one["name"], one["status"], one["error"]) for one in found["runs"]["last"]]
    assert ended == [("a run one", "FINISHED", ""), ("a run two", "FAILED", "ValueError: too bad")]
    assert (found["runs"]["killed"], found["runs"]["waiting"]) == (["a run three"], ["a run one"])
    (champion,) = found["champions"]
    assert (champion["champion"], champion["last"]["kind"], champion["last"]["why"]) == ("r1", "refused", "worse")
    assert found["drift"] == [{"run": "c", "triples": change, "entities": change, "questions": change}]
    assert found["disk"]["cache"] == 5000
    assert found["services"] == {}

    shown = kgqa("status")
    assert shown.exit_code == 0, shown.stderr
    for word in ("a run two", "too bad", "Runs killed: a run three", "r1", "9 (+3 -1)", "free"):
        assert word in shown.stdout
    assert json.loads(kgqa("status", "--json").stdout)["champions"] == found["champions"]

    assert "Disk:      less than 0.1 MB; free" in shown.stdout
    (own_home / "cache" / "c").write_bytes(bytes(7_000_000))
    assert "Disk:      cache 7.0 MB; free" in kgqa("status").stdout

    assert outbox.end_killed(own_home, lambda _: None) == ["three"]
    assert overview(own_home)["runs"]["last"][-1]["status"] == "KILLED"


def test_a_damaged_list_of_moves_and_a_champion_that_is_gone_are_named_and_the_rest_shown(own_home: Path) -> None:
    releases = Releases(own_home, "kgqa-a")
    for kind, release in (("promoted", "r1"), ("promoted", "r2"), ("rolled back", "r1")):
        releases.move(kind, release, "better")
    damaged = own_home / "releases" / "kgqa-b" / "moves.json"
    damaged.parent.mkdir()
    damaged.write_text("{", encoding="utf-8")
    shown = kgqa("status")
    assert shown.exit_code == 0, shown.stderr
    assert "rolled back to r1" in " ".join(shown.stdout.split())  # who is champion now
    assert "Disk:" in shown.stdout
    assert f"{damaged} is damaged" in " ".join(shown.stdout.split())
    found = json.loads(kgqa("status", "--json").stdout)
    assert [(one["model"], one["champion"]) for one in found["champions"]] == [("kgqa-a", "r1")]
    gone, problem = found["problems"]
    assert gone.startswith(f"the champion r1 of kgqa-a is not in {releases.folder}")
    assert problem.startswith(f"{damaged} is damaged")
