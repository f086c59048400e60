"""A webhook is told of each decision once, and whatever it does, the decision stands and its address stays secret."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tasks import webhook
from tasks.release import Releases
from tasks.webhook import announce
from tests.processes import Replies

SECRET = "T0psecretPath"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replies]:
    replies = Replies()
    with replies.served() as address:
        monkeypatch.setenv("KGQA_WEBHOOK", f"{address}/{SECRET}")
        yield replies


def told(hook: Replies) -> list[dict[str, Any]]:
    """Return what a webhook was told."""
    assert {path for path, _, _ in hook.asked} <= {f"/{SECRET}"}
    return [json.loads(body) for _, _, body in hook.asked]


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path, "kgqa-tiny")


def test_each_move_is_told_once(hook: Replies, releases: Releases) -> None:
    announce(releases)  # there is none yet
    releases.move("promoted", "a", "better")
    releases.move("promoted", "a", "replayed")
    for _ in range(3):
        announce(releases)
    releases.move("refused", "b", "worse")
    releases.move("rolled back", "c", "wrong since Tuesday")
    announce(releases)
    first, second, third = told(hook)
    assert (first["kind"], first["from"], first["to"]) == ("promoted", None, "a")
    assert (second["kind"], second["from"], second["to"]) == ("refused", "a", "b")
    assert (third["kind"], third["from"], third["to"]) == ("rolled back", "a", "c")
    assert third["text"] == "kgqa-tiny: rolled back to c (before: a): wrong since Tuesday"
    assert releases.moves()[2].when == third["when"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "HTTPError 500"),
        (f"http://127.0.0.1:9/{SECRET}", "ConnectionRefusedError"),
        (f"file:///etc/{SECRET}", "ValueError"),
        (f"http://127.0.0.1:9/ {SECRET}\x07", "InvalidURL"),
    ],
)
def test_a_webhook_that_fails_stops_no_move_and_its_address_is_nowhere(
    hook: Replies,
    releases: Releases,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: str,
    said: str,
) -> None:
    hook.status = 500
    if given:
        monkeypatch.setenv("KGQA_WEBHOOK", given)
    releases.move("promoted", "a", "better")
    announce(releases)
    announce(releases)
    assert caplog.text.count(f"the webhook was not told: {said}") == 1
    assert SECRET not in caplog.text
    assert not [path for path in releases.home.rglob("*.json") if SECRET in path.read_text(encoding="utf-8")]
    assert releases.moves()[0].to_release == "a"


def test_what_was_decided_while_prefect_was_away_is_told_later(
    hook: Replies, releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    releases.move("promoted", "a", "better")
    with monkeypatch.context() as broken:
        broken.setattr(webhook, "address", Mock(side_effect=OSError(SECRET)))
        announce(releases)
    assert "no webhook was told of kgqa-tiny: OSError" in caplog.text and SECRET not in caplog.text
    assert told(hook) == []
    for _ in range(2):
        announce(releases)
    assert [one["to"] for one in told(hook)] == ["a"]


def test_a_prefect_that_hangs_is_asked_for_the_address_once(
    releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """kgqa rollback took seven minutes then: a minute each of six tries."""
    monkeypatch.setattr(webhook, "SECONDS", 0.1)
    releases.move("promoted", "a", "better")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/api")
        began = time.monotonic()
        announce(releases)
    assert time.monotonic() - began < 20
    assert "no webhook was told of kgqa-tiny: ReadTimeout" in caplog.text
    assert not releases.moves()[0].announced


def test_a_webhook_that_hangs_is_not_waited_for(
    hook: Replies, releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "SECONDS", 0.2)
    hook.seconds = 3.0
    releases.move("promoted", "a", "better")
    began = time.monotonic()
    announce(releases)
    assert time.monotonic() - began < hook.seconds
    assert caplog.records[-1].levelno == logging.WARNING


def test_moves_of_before_and_moves_that_nobody_wanted_to_know_of_are_not_told_later(
    hook: Replies, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.move("promoted", "a", "better")
    path = releases.folder / "moves.json"
    (old,) = json.loads(path.read_text(encoding="utf-8"))
    del old["announced"]  # as an earlier version wrote it
    path.write_text(json.dumps([old]), encoding="utf-8")
    announce(releases)
    with monkeypatch.context() as without:
        without.delenv("KGQA_WEBHOOK")
        releases.move("promoted", "b", "better")
        announce(releases)
    announce(releases)
    assert told(hook) == []
