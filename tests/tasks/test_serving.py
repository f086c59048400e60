"""`kgqa serve`: eight clients ask while the champion changes again and again, and each request is answered by one."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from benchmarks.drills.load import ask
from kgqa_core.config import RunConfig
from kgqa_core.errors import InputError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tasks.release import Release, Releases
from tasks.serving import HERE, ChampionServer, Row, make_app, open_release
from tests.conftest import PROJECT, TINY_RUN, kgqa
from tests.processes import free_port, serving

QUESTION = "who directed The Drowned Harbour?"
CLIENTS, MOVES = 8, 6


@pytest.fixture
def releases(tiny_copy: RunConfig) -> tuple[Releases, Release, Release]:
    """Two releases of one run, one of which is champion."""
    found = Releases(tiny_copy.runtime.home, "kgqa-tiny")
    made = []
    for width in (7, 5):
        explorer = tiny_copy.exploration.model_copy(update={"width": width})
        pipeline = Pipeline(tiny_copy.model_copy(update={"explorer": explorer}))
        ensure(pipeline, ["explorer-seed0"])
        made.append(found.make(pipeline.config, pipeline, None, "test"))
    found.move("promoted", made[0].id, "a test")
    return found, made[0], made[1]


@pytest.mark.slow
def test_no_request_is_lost_while_the_champion_changes(
    releases: tuple[Releases, Release, Release], tmp_path: Path
) -> None:
    found, *both = releases
    expected = {one.id: open_release(found, one.id).answer([Row(question=QUESTION)])[0] for one in both}
    assert expected[both[0].id] != expected[both[1].id]
    (tmp_path / "tiny.yaml").write_text(TINY_RUN, encoding="utf-8")
    port, stop, answered = free_port(), threading.Event(), Counter[str]()
    command = [sys.executable, "-m", "flows.cli", "serve", str(tmp_path / "tiny.yaml"), "--port", str(port)]
    environment = os.environ | {"KGQA_HOME": str(found.home), "PYTHONPATH": str(PROJECT)}

    def client(_: int) -> list[tuple[str, Any]]:
        replies = []
        while not stop.is_set():
            replies.append(ask(port, QUESTION))
            answered[replies[-1][0]] += 1
        return replies

    with serving(command, port, tmp_path / "log.txt", env=environment), ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(client, number) for number in range(CLIENTS)]
        try:
            for number in range(MOVES):
                to = both[(number + 1) % 2].id
                found.move("promoted", to, "a test")
                before, until = answered[to], time.monotonic() + 120
                while answered[to] < before + CLIENTS and time.monotonic() < until:
                    time.sleep(0.05)
                assert answered[to] >= before + CLIENTS, (tmp_path / "log.txt").read_text()
        finally:
            stop.set()
        replies = [reply for one in asking for reply in one.result()]  # raises where one was refused or cut off
    assert len(replies) >= MOVES * CLIENTS
    assert all(answer == json.loads(json.dumps(expected[release])) for release, answer in replies)
    print(f"{len(replies)} requests, {MOVES} changes of the champion, 0 lost")


def test_a_champion_that_cannot_be_opened_leaves_the_old_one_answering(
    releases: tuple[Releases, Release, Release], tiny_copy: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    found, first, second = releases
    server = ChampionServer(found)
    assert server.now.release.id == first.id
    (second.served / "model.safetensors").unlink()
    found.move("promoted", second.id, "a test")
    server.look()
    assert server.now.release.id == first.id
    assert f"{second.id} cannot be opened" in caplog.text
    assert server.now.answer([Row(question="")])[0]["error"] == "the question is empty"
    pipeline = Pipeline(tiny_copy)
    limits = tiny_copy.evaluation.model_copy(update={"evidence_paths": 1})
    third = found.make(tiny_copy.model_copy(update={"evaluation": limits}), pipeline, None, "test")
    found.move("promoted", third.id, "on call: at once, though the broken one is tried again later")
    server.look()
    assert server.now.release.id == third.id


def test_others_are_answered_while_names_near_an_unknown_topic_are_looked_for(
    releases: tuple[Releases, Release, Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, found, looked = threading.Event(), threading.Event(), list[bool]()

    def look(value: str, _: object) -> list[str]:
        looked.append(found.is_set())
        looks.set()
        assert found.wait(60)
        return ["a name"]

    monkeypatch.setattr("kgqa_core.questions.link.nearest_names", look)
    opened = open_release(releases[0])
    with ThreadPoolExecutor(3) as pool:
        unknown = [pool.submit(opened.answer, [Row(question="zzqx?")]) for _ in range(2)]
        assert looks.wait(60)
        try:
            assert pool.submit(opened.answer, [Row(question=QUESTION)]).result(20)[0]["candidates"]
        finally:
            found.set()
        assert all(one.result()[0]["nearest"] == ("a name",) for one in unknown)
    assert looked == [False, True]  # one at a time: a look copies all names


@pytest.mark.slow
def test_the_health_is_told_while_more_requests_wait_than_there_are_threads() -> None:
    free, num_requests = threading.Event(), 60

    def answer(rows: list[Row]) -> list[dict[str, Any]]:
        assert free.wait(60)
        return []

    now = SimpleNamespace(release=SimpleNamespace(id="r1"), answer=answer)
    asked = {"inputs": [{"question": QUESTION}]}
    with (
        TestClient(make_app(cast("ChampionServer", SimpleNamespace(now=now)))) as client,
        ThreadPoolExecutor(num_requests + 1) as clients,
    ):
        waiting = [clients.submit(client.post, "/invocations", json=asked) for _ in range(num_requests)]
        time.sleep(1)
        try:
            health = clients.submit(client.get, "/health").result(timeout=10)
        finally:
            free.set()
        assert health.json() == {"status": "ok", "release": "r1"}
        assert {one.result().status_code for one in waiting} == {200}


def hostile_client(**options: Any) -> TestClient:
    """Return a client of a server that answers nothing."""
    now = SimpleNamespace(release=SimpleNamespace(id="r1"), answer=lambda rows: [])
    app = make_app(cast("ChampionServer", SimpleNamespace(now=now)), **options)
    return TestClient(app, raise_server_exceptions=False)


def test_a_body_that_does_not_end_is_refused_before_it_is_read_whole() -> None:
    def body() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 2**20

    reply = hostile_client().post("/invocations", content=body(), headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()) == (413, {"detail": "a request has 8388608 bytes at most"})
    assert hostile_client().post("/invocations", json={"inputs": [{"question": "q" * 10**6}]}).status_code == 200


def test_a_body_that_is_not_said_to_be_json_is_refused_by_the_header_that_lacks() -> None:
    """``curl -d`` sends the kind of a form, and a page elsewhere may send no other."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = hostile_client().post("/invocations", content='{"inputs": []}', headers=form)
    assert reply.status_code == 422 and "Content-Type: application/json" in reply.json()["detail"][0]["msg"]
    reply = hostile_client().post("/invocations", json=["who?"])
    assert reply.status_code == 422 and "Content-Type" not in reply.text


@pytest.mark.parametrize("sent", ["NaN", r'"\ud800"', "[" + "[1]," * 400_000 + "1]"])
def test_a_body_that_is_refused_is_not_repeated(sent: str) -> None:
    begun = time.process_time()
    kind = {"Content-Type": "application/json"}
    reply = hostile_client().post("/invocations", content=f'{{"inputs": {sent}}}', headers=kind)
    assert reply.status_code == 422 and reply.json()["detail"][0]["loc"][:2] == ["body", "inputs"]
    assert len(reply.content) < 1000 and time.process_time() - begun < 3


SLOW = """\
import sys
from types import SimpleNamespace
from tasks import serving
now = SimpleNamespace(release=SimpleNamespace(id="r1"), answer=lambda rows: [{"long": "x" * 30_000_000}] * len(rows))
serving.ChampionServer = lambda _: SimpleNamespace(now=now, keep_looking=lambda: None)
serving.SLOW_SECONDS, serving.BODY_SECONDS, serving.LAST_SECONDS = 1.0, 3.0, 3
serving.serve(None, host="127.0.0.1", port=int(sys.argv[1]))
"""


@contextmanager
def impatient_server(folder: Path) -> Iterator[int]:
    """A server that soon gives up whoever is slow, and has no trouble with that; gives its port."""
    port, log = free_port(), folder / "log.txt"
    with serving([sys.executable, "-c", SLOW, str(port)], port, log, cwd=PROJECT):
        yield port
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with impatient_server(tmp_path_factory.mktemp("impatient")) as port:
        yield port


def request(length: int) -> bytes:
    """Return the head of a request whose body has so many bytes."""
    about = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"POST /invocations HTTP/1.1\r\n{about}\r\n\r\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"POST /inv", request(9)[:-2], request(9) + b"{"])
def test_who_sends_no_whole_request_is_given_up(sent: bytes, impatient: int) -> None:
    with socket.create_connection(("127.0.0.1", impatient), timeout=20) as client:
        client.sendall(sent)
        assert (b"408" in client.recv(1000)) is sent.endswith(b"{")  # and nobody waits for ever


@pytest.mark.slow
def test_who_sends_a_body_byte_by_byte_is_given_up_too(impatient: int) -> None:
    with socket.create_connection(("127.0.0.1", impatient), timeout=0.3) as client:
        client.sendall(request(999))
        for _ in range(40):
            client.sendall(b" ")
            with suppress(TimeoutError):
                assert b"408" in client.recv(1000)
                break
        else:
            pytest.fail("it is still waited for")


@pytest.mark.slow
def test_who_reads_the_reply_bit_by_bit_is_given_up_too(impatient: int) -> None:
    body = json.dumps({"inputs": [{"question": QUESTION}] * 4}).encode()
    with socket.create_connection(("127.0.0.1", impatient), timeout=20) as client:
        client.sendall(request(len(body)) + body)
        until = time.monotonic() + 25  # all of it takes a minute
        with suppress(ConnectionError):
            while client.recv(200_000):
                assert time.monotonic() < until, "it is still waited for"
                time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1])
def test_a_client_that_stops_does_not_hold_the_end_of_the_server(rows: int, tmp_path: Path) -> None:
    body = json.dumps({"inputs": [{"question": QUESTION}] * rows}).encode()
    with socket.socket() as client, impatient_server(tmp_path) as port:  # the client is open until the server has ended
        client.connect(("127.0.0.1", port))  # it sends no end, or reads nothing
        client.sendall(request(len(body) + (rows == 0)) + body)
        time.sleep(0.5)


def test_a_page_elsewhere_whose_name_leads_here_gets_no_answer() -> None:
    client = hostile_client(hosts=HERE)
    asked = {"json": {"inputs": []}}
    assert client.post("/invocations", headers={"Host": "elsewhere.example:8000"}, **asked).status_code == 400
    for host in ("127.0.0.1:8000", "localhost"):
        assert client.post("/invocations", headers={"Host": host}, **asked).status_code == 200


def test_a_note_of_moves_that_stays_damaged_is_not_logged_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited = list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) > 120:
            raise KeyboardInterrupt

    releases = Releases(tmp_path, "kgqa-x")
    releases.folder.mkdir(parents=True)
    (releases.folder / "moves.json").write_text("{")
    monkeypatch.setattr("tasks.serving.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr("tasks.serving.open_release", lambda _: SimpleNamespace(release=SimpleNamespace(id="r1")))
    with pytest.raises(KeyboardInterrupt):
        ChampionServer(releases).keep_looking()
    assert 1 <= caplog.text.count("cannot see who is champion, r1 goes on") <= 5


def test_a_question_that_is_no_text_costs_the_others_no_answer(releases: tuple[Releases, Release, Release]) -> None:
    half = {"question": "\ud83c who directed The Drowned Harbour?", "topic": "The Drowned Harbour"}
    rows = [half, {"question": QUESTION}, {"question": QUESTION, "topic": "\udc9f"}]
    client = TestClient(make_app(ChampionServer(releases[0])))
    kind = {"Content-Type": "application/json"}
    reply = client.post("/invocations", content=json.dumps({"inputs": rows}), headers=kind)
    assert (reply.status_code, reply.headers["X-Kgqa-Release"]) == (200, releases[1].id)
    first, second, third = reply.json()["predictions"]
    assert "half a character" in first["error"] and "half a character" in third["error"]
    assert second["candidates"] and not second["error"]


def test_a_release_is_asked_from_the_command_line_and_without_a_champion_there_is_none(
    releases: tuple[Releases, Release, Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, first, second = releases
    (tmp_path / "tiny.yaml").write_text(TINY_RUN, encoding="utf-8")
    monkeypatch.setenv("KGQA_HOME", str(found.home))
    asked = ["ask", str(tmp_path / "tiny.yaml"), QUESTION, "--json"]
    champion, by_id, other = (
        json.loads(kgqa(*asked, "--release", name).stdout)["candidates"] for name in ("champion", first.id, second.id)
    )
    assert champion == by_id != other
    assert kgqa(*asked, "--release", "champion", "--system", "rog").exit_code == 2
    with pytest.raises(InputError, match="no champion yet"):
        open_release(Releases(tmp_path, "kgqa-tiny"))
