"""A webhook is told of each decision once, and whatever it does, the decision stands and its address stays secret."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tasks import webhook
from tasks.release import Releases
from tasks.webhook import announce

SECRET = "T0psecretPath"


class Hook(ThreadingHTTPServer):
    """A web server that notes what is posted, and answers with ``status`` after ``delay`` seconds."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told, self.status, self.delay = list[dict[str, Any]](), 200, 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{SECRET}"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == f"/{SECRET}"
        self.server.told.append(json.loads(content))
        time.sleep(self.server.delay)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *given: object) -> None:
        """Say nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    server = Hook()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("KGQA_WEBHOOK", server.url)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path, "kgqa-tiny")


def test_each_move_is_told_once(hook: Hook, releases: Releases) -> None:
    announce(releases)  # there is none yet
    releases.move("promoted", "a", "better")
    releases.move("promoted", "a", "replayed")
    for _ in range(3):
        announce(releases)
    releases.move("refused", "b", "worse")
    releases.move("rolled back", "c", "wrong since Tuesday")
    announce(releases)
    assert [(told["kind"], told["from"], told["to"]) for told in hook.told] == [
        ("promoted", None, "a"),
        ("refused", "a", "b"),
        ("rolled back", "a", "c"),
    ]
    assert hook.told[2]["text"] == "kgqa-tiny: rolled back c (before: a): wrong since Tuesday"
    assert releases.moves()[2].when == hook.told[2]["when"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "HTTPError 500"),
        (f"http://127.0.0.1:9/{SECRET}", "URLError"),
        (f"file:///etc/{SECRET}", "ValueError"),
        (f"http://127.0.0.1:9/ {SECRET}\x07", "InvalidURL"),
    ],
)
def test_a_webhook_that_fails_stops_no_move_and_its_address_is_nowhere(
    hook: Hook,
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
    hook: Hook, releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_: Path) -> str:
        raise OSError(SECRET)

    releases.move("promoted", "a", "better")
    with monkeypatch.context() as broken:
        broken.setattr(webhook, "address", away)
        announce(releases)
    assert "no webhook was told of kgqa-tiny: OSError" in caplog.text and SECRET not in caplog.text
    assert hook.told == []
    for _ in range(2):
        announce(releases)
    assert [told["to"] for told in hook.told] == ["a"]


def test_a_webhook_that_hangs_is_not_waited_for(
    hook: Hook, releases: Releases, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "SECONDS", 0.2)
    hook.delay = 3.0
    releases.move("promoted", "a", "better")
    began = time.monotonic()
    announce(releases)
    assert time.monotonic() - began < hook.delay
    assert caplog.records[-1].levelno == logging.WARNING


def test_moves_of_before_and_moves_that_nobody_wanted_to_know_of_are_not_told_later(
    hook: Hook, releases: Releases, monkeypatch: pytest.MonkeyPatch
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
    assert hook.told == []
