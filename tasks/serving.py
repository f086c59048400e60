"""One HTTP process that answers by the champion of a run configuration, and changes over without losing a request.

The new champion is opened beside the old one, and asked once, before it takes over. A request keeps the one that it
began with; when the last of these is answered, the old champion is freed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from kgqa_core.errors import InputError
from kgqa_core.run.ask import Answerer, Asked, open_served
from tasks.release import CHAMPION, Release, Releases, champion_of

if TYPE_CHECKING:
    from fastapi import FastAPI

POLL_SECONDS = 1.0  # between two looks at who is champion
RETRY_SECONDS = 30.0  # after one that could not be opened, or not be seen
MAX_ROWS = 1000  # of a request
MAX_BODY = 8 * 2**20  # bytes of a request
SLOW_SECONDS = 30.0  # that a client may send nothing of its request, or read nothing of the reply
BODY_SECONDS = 120.0  # that it may take to send all of it, or to read all of the reply
LAST_SECONDS = 120  # that requests which have begun may take once the server is to end
HERE = ("127.0.0.1", "localhost")  # names of this machine for itself
_log = logging.getLogger(__name__)


class Row(BaseModel):
    """A question, and its topic entity where it is known."""

    question: str
    topic: str | None = None


class Request(BaseModel):
    """What MLflow's own server takes, too."""

    inputs: list[Row] = Field(max_length=MAX_ROWS)


@dataclass(frozen=True)
class OpenRelease:
    """A release that answers."""

    release: Release
    answerer: Answerer

    def answer(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Answer questions; one that cannot be asked says why in its ``error``."""
        return [asdict(answer) for answer in self.answerer.ask_all([Asked(row.question, row.topic) for row in rows])]


def open_release(releases: Releases, name: str = CHAMPION) -> OpenRelease:
    """Open a release by its id, or the champion, and ask it once; InputError where there is none.

    What it needs of the artifact store is put back if it was lost.
    """
    release = releases.champion() if name == CHAMPION else releases.read(name)
    if release is None:
        raise InputError(f"{releases.model} has no champion yet: a run of a configuration with a gate makes one")
    releases.restore(release)
    answerer = open_served(release.served, releases.home)
    answerer.ask("ready?", answerer.system.graph.label_of(0))  # loads or compiles the walk, for seconds
    return OpenRelease(release, answerer)


class ChampionServer:
    """Answers by whoever is champion now."""

    def __init__(self, releases: Releases) -> None:
        self._releases = releases
        self.now = open_release(releases)
        self._failed, self._wait_until = "", 0.0

    def look(self) -> None:
        """Change over to another champion, if there is one that can be opened; else the old one goes on."""
        champion = champion_of(self._releases.moves())
        waits = champion == self._failed and time.monotonic() < self._wait_until
        if champion in (None, self.now.release.id) or waits:
            return
        began = time.monotonic()
        try:
            following = open_release(self._releases, str(champion))
        except Exception as problem:  # whatever is wrong with it, the old one answers
            _log.error("release %s cannot be opened, %s goes on: %s", champion, self.now.release.id, problem)
            self._failed, self._wait_until = str(champion), time.monotonic() + RETRY_SECONDS
            return
        _log.info("release %s answers after %.1f s", following.release.id, time.monotonic() - began)
        self.now = following

    def keep_looking(self) -> None:
        """Look for a new champion now and then, for ever."""
        while True:
            time.sleep(POLL_SECONDS)
            try:
                self.look()
            except Exception as problem:  # a damaged note of moves
                _log.error("cannot see who is champion, %s goes on: %s", self.now.release.id, problem)
                time.sleep(RETRY_SECONDS)


class BoundedBody:
    """Refuses a body of more than ``MAX_BODY`` bytes as it comes: FastAPI would read all of it into memory.

    Also one that stops coming, or comes too slowly: it would hold its connection, and the end of the server, for ever.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[dict[str, Any]]], send: Any) -> None:
        """Pass a request on."""
        from fastapi import HTTPException

        size, clock = 0, asyncio.get_running_loop().time
        until = clock() + BODY_SECONDS

        async def counted() -> dict[str, Any]:
            nonlocal size
            try:
                message = await asyncio.wait_for(receive(), min(SLOW_SECONDS, until - clock()))
            except TimeoutError:
                late = f"nothing of the request came for {SLOW_SECONDS:.0f} s, or not all of it in {BODY_SECONDS:.0f}"
                raise HTTPException(408, late) from None
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise HTTPException(413, f"a request has {MAX_BODY} bytes at most")
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)


def make_app(server: ChampionServer, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """Return the web application: ``/invocations`` answers, ``/health`` says which release does.

    ``hosts``: names by which it may be asked. A page elsewhere may have a name of its own lead here (DNS rebinding).
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from fastapi.responses import JSONResponse, Response

    async def health() -> dict[str, str]:  # of no thread: those may all wait for answers
        return {"status": "ok", "release": server.now.release.id}

    def invocations(asked: Request) -> Any:
        now = server.now  # one release for the whole request
        reply = json.dumps({"predictions": now.answer(asked.inputs)})  # ASCII, as a question may be no UTF-8
        return Response(reply, headers={"X-Kgqa-Release": now.release.id}, media_type="application/json")

    async def refuse(asked: Any, problem: Exception) -> Response:
        told = problem.errors() if isinstance(problem, RequestValidationError) else ()
        if "json" not in asked.headers.get("content-type", ""):  # FastAPI then takes the body for a text
            missing = "the body is read as JSON only with the header Content-Type: application/json"
            told = [{"type": "missing", "loc": ("header", "content-type"), "msg": missing}]
        # Without the input: it may be large, or no JSON (NaN).
        return JSONResponse({"detail": [{key: one[key] for key in ("type", "loc", "msg")} for one in told]}, 422)

    app = FastAPI(title="kgqa", docs_url=None, redoc_url=None)  # its pages would load scripts from elsewhere
    app.add_api_route("/health", health)
    app.add_api_route("/invocations", invocations, methods=["POST"])
    app.add_exception_handler(RequestValidationError, refuse)
    app.add_middleware(BoundedBody)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return app


def serve(releases: Releases, *, host: str, port: int) -> None:
    """Serve the champion of a model until SIGTERM or Ctrl-C; requests that have begun are answered first.

    What is not answered, or not read, after ``LAST_SECONDS`` is given up.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        """Closes a connection whose client begins a request and does not go on, or does not read the reply."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._look((None, -1), 0)

        def _look(self, before: tuple[object, int], waited: int) -> None:
            now = self.cycle, self.transport.get_write_buffer_size()
            waits = self.cycle is None or self.cycle.response_complete  # else it is being answered, or BoundedBody's
            waited = waited + 1 if waits and now[0] is before[0] else 0
            if waits and (now == before or waited * SLOW_SECONDS > BODY_SECONDS):
                self.transport.abort()
            elif self in self.connections:
                self.loop.call_later(SLOW_SECONDS, self._look, now, waited)

    server = ChampionServer(releases)
    threading.Thread(target=server.keep_looking, daemon=True).start()
    _log.info("release %s answers on http://%s:%d/invocations", server.now.release.id, host, port)
    hosts = HERE if host in HERE else ("*",)
    how: Any = {"http": Impatient, "timeout_graceful_shutdown": LAST_SECONDS, "log_level": "warning"}
    uvicorn.run(make_app(server, hosts), host=host, port=port, **how)
