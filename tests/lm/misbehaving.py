"""A real HTTP server on 127.0.0.1 that answers like a model server, and misbehaves in every way that it is told to."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kgqa_core.lm.endpoint import Endpoint

GOOD = "good"
Open = Callable[..., Endpoint]


@dataclass
class Recorded:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Script:
    """What the server does next, and what it was asked."""

    key: str = ""  # that it wants; empty: none
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "tiny", "max_model_len": 211}])
    behaviours: deque[str] = field(default_factory=deque)  # of the next requests for texts; then all are good
    always: dict[str, str] = field(default_factory=dict)  # text of a prompt -> how it is always answered
    flavour: str = "vllm"  # or llama.cpp, plain, a status: how tokens are counted
    retry_after: str = "0.3"
    echoes: bool = True  # does it tell log-probabilities of given texts?
    dies_after: int = 10**6  # requests; then it is there no more
    max_n: int = 99  # texts that one request gets at most
    refuses_n: bool = False  # does it refuse a request for more?
    requests: list[Recorded] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    slow: float = 0.0  # seconds per answer
    guard: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def asked(self) -> list[Recorded]:
        return [request for request in self.requests if request.path.endswith("completions")]

    def prompts(self) -> Counter[str]:
        return Counter(text_of(request.body) for request in self.asked())


def text_of(body: dict[str, Any]) -> str:
    return str(body["prompt"]) if "prompt" in body else str(body["messages"][-1]["content"])


def answer(body: dict[str, Any], script: Script) -> dict[str, Any]:
    """Reply as a good server does: each word is a token of log-probability -0.5, -1, -1.5, …"""
    chat = "messages" in body
    text = text_of(body)
    words = text.split()
    if "prompt_logprobs" in body and script.echoes:  # of all turns, and of the word that a template begins with
        words = ["user:", *(word for turn in body["messages"] for word in turn["content"].split())]
        told = [None, *({str(len(word)): {"logprob": -len(word) / 4, "rank": 1}} for word in words[1:])]
        choice = {"index": 0, "message": {"role": "assistant", "content": "more"}}
        usage = {"prompt_tokens": len(words), "completion_tokens": 1}
        return {"choices": [choice], "usage": usage, "prompt_logprobs": told}
    if body.get("echo") and script.echoes:
        values = [None, *(-len(word) / 4 for word in words[1:]), -9.0]
        choice = {
            "index": 0,
            "text": f"{text} more",
            "logprobs": {"tokens": [*words, "more"], "token_logprobs": values},
        }
        return {"choices": [choice], "usage": {"prompt_tokens": len(words), "completion_tokens": 1}}
    number = min(body.get("n", 1), script.max_n)
    choices = []
    for index in reversed(range(number)):  # out of order, as the API allows
        said = f"{text} -> {body.get('seed', 0)}.{index}"
        values = [-0.5 * (place + 1) for place in range(len(said.split()))]
        choice = {"index": index, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
        if body.get("logprobs") and chat:
            choice["logprobs"] = {"content": [{"token": "x", "logprob": value} for value in values]}
        elif body.get("logprobs"):
            choice["logprobs"] = {"tokens": ["x"] * len(values), "token_logprobs": values}
        choices.append(choice)
    # The end of a text is a token, too, of which no log-probability is told.
    given = sum(1 + len((c.get("message", {}).get("content") or c.get("text", "")).split()) for c in choices)
    return {"choices": choices, "usage": {"prompt_tokens": len(words), "completion_tokens": given}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: tests read what was recorded."""

    def do_GET(self) -> None:
        self.script.requests.append(Recorded(self.path, dict(self.headers), {}))
        if self._is_dead() or not self._has_key():
            return
        if self.path == "/v1/models":
            self._reply(200, {"object": "list", "data": self.script.models})
        elif self.path == "/props" and self.script.flavour == "llama.cpp":
            self._reply(200, {"default_generation_settings": {"n_ctx": 307}})
        else:
            self._reply(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with script.guard:
            script.requests.append(Recorded(self.path, dict(self.headers), body))
            script.in_flight += 1
            script.most_in_flight = max(script.most_in_flight, script.in_flight)
        try:
            if not self._is_dead() and self._has_key():
                self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with script.guard:
                script.in_flight -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        script = self.script
        if not self.path.endswith("completions"):
            self._count(body)
            return
        if body["model"] not in [entry["id"] for entry in script.models]:
            self._reply(404, {"error": {"message": f"The model {body['model']} does not exist", "code": 404}})
            return
        if script.refuses_n and body.get("n", 1) > script.max_n:  # llama.cpp's own words
            self._reply(400, {"error": {"message": "Field 'n': Value must be between 1 <= value <= 1, but got 3"}})
            return
        with script.guard:
            kind = script.always.get(text_of(body)) or (script.behaviours.popleft() if script.behaviours else GOOD)
        script.stop.wait(script.slow)
        self._behave(kind, json.dumps(answer(body, script)).encode())

    def _behave(self, kind: str, good: bytes) -> None:
        if kind.isdigit():
            self._reply(int(kind), {"error": {"message": f"status {kind} as told"}})
        elif kind in CONTENTS:
            self._reply(200, CONTENTS[kind])
        elif kind in REFUSALS:
            self._reply(*REFUSALS[kind])
        elif kind == GOOD:
            self._send(200, good)
        elif kind == "html":
            self._send(200, b"<!DOCTYPE html><html><body>Bad gateway</body></html>")
        elif kind in LEAKS:  # what came in the header stands in the reply
            self._send(LEAKS[kind][0], LEAKS[kind][1].replace("KEY", self.script.key).encode())
        elif kind == "packed twice":  # 1 kB that unpacks to 256 MB
            packer = zlib.compressobj(1, wbits=31)
            once = b"".join([packer.compress(bytes(2**20)) for _ in range(256)]) + packer.flush()
            self._send(200, gzip.compress(once), encoding="gzip, gzip")
        elif kind == "half":
            self._send(200, good[: len(good) // 2])
        elif kind == "silence":
            self.script.stop.wait(5)
            self.close_connection = True
        elif kind == "cut":  # the connection closes inside the body
            self._send(200, good[: len(good) // 2], len(good))
            self.close_connection = True
        elif kind == "reset":  # before anything is said
            self._reset()
        elif kind == "drip":  # a body that never ends
            self._send(200, b"", 10**9)
            self._drip()
        elif kind == "drip headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self._drip()
        else:
            raise AssertionError(kind)

    def _is_dead(self) -> bool:
        dead = len(self.script.requests) > self.script.dies_after
        if dead:
            self._reset()
        return dead

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _drip(self) -> None:
        while not self.script.stop.wait(0.02):
            self.wfile.write(b" ")
            self.wfile.flush()
        self.close_connection = True

    def _count(self, body: dict[str, Any]) -> None:
        if self.script.flavour == "vllm" and self.path == "/tokenize" and ("messages" in body or "prompt" in body):
            thoughts = 5 * bool(body.get("chat_template_kwargs"))
            self._reply(200, {"count": len(text_of(body).split()) + 7 + thoughts, "max_model_len": 211, "tokens": [1]})
        elif self.script.flavour.isdigit():  # of a gateway that refuses what it does not know
            self._reply(int(self.script.flavour), {"error": {"message": "not here"}})
        else:
            self._reply(404, {"error": {"message": "not found"}})

    def _has_key(self) -> bool:
        if self.headers.get("Authorization", "") == (f"Bearer {self.script.key}" if self.script.key else ""):
            return True
        said = self.headers.get("Authorization", "")
        self._reply(401, {"error": {"message": f"Incorrect API key provided: {said}", "code": "invalid_api_key"}})
        return False

    def _reply(self, status: int, content: object) -> None:
        self._send(status, json.dumps(content).encode())

    def _send(self, status: int, raw: bytes, size: int | None = None, encoding: str = "") -> None:
        """Send ``raw`` as a body that says that it has ``size`` bytes."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw) if size is None else size))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        if status in (429, 503) and self.script.retry_after:
            self.send_header("Retry-After", self.script.retry_after)
        self.end_headers()
        self.wfile.write(raw)


CONTENTS: dict[str, object] = {
    "null": None,
    "list": [1, 2],
    "no choices": {"id": "x"},
    "empty choices": {"choices": []},
    "null content": {"choices": [{"index": 0, "message": {"content": None}, "finish_reason": "length"}]},
    "number content": {"choices": [{"index": 0, "message": {"content": 17}}]},
    "choices of text": {"choices": "hello"},
    "broken off": {"choices": [{"index": 0, "message": {"content": "It is"}, "finish_reason": "error"}]},
    "error within": {"error": {"message": "the provider is overloaded", "code": 503}},
    "choice of text": {"choices": ["hello"]},
    "nested nonsense": {"choices": [{"message": [], "index": "a"}], "usage": 3},
    "filtered": {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "content_filter"}]},
    "refusal": {"choices": [{"index": 0, "message": {"content": None, "refusal": "I would rather not"}}]},
    "bare": {"choices": [{"message": {"content": "just this"}}]},
    "odd usage": {
        "choices": [{"message": {"content": "a b"}}],
        "usage": {"prompt_tokens": "7", "completion_tokens": -1},
    },
    "absurd usage": {
        "choices": [{"message": {"content": "a b"}}],
        "usage": {"prompt_tokens": 2**52, "completion_tokens": 2**52},
    },
    "half a character": {"choices": [{"message": {"content": "\ud83d yes"}}]},
    "beyond stop": {"choices": [{"message": {"content": "yes\nand more"}}]},
    "far beyond stop": {"choices": [{"message": {"content": "yes\nand more"}, "finish_reason": "length"}]},
    "still thinking": {
        "choices": [{"message": {"content": None, "reasoning_content": "Well, it"}, "finish_reason": "length"}]
    },
    "parts": {"choices": [{"message": {"content": [{"thinking": [{"text": "Well"}]}, {"text": "a "}, {"text": "b"}]}}]},
    "cut short": {"choices": [{"message": {"content": "because"}, "finish_reason": "length"}]},
}
LEAKS: dict[str, tuple[int, str]] = {
    "leaks 401": (401, '{"error": {"message": "Incorrect key: KEY"}}'),
    "leaks 500": (500, '{"error": {"message": "crashed on KEY", "code": "KEY"}}'),
    "leaks page": (502, f"<html>{'-' * 60} KEY"),  # cut short inside the key
    "leaks parameter": (400, '{"error": {"message": "no such parameter", "param": "stop.KEY"}}'),
    "leaks text": (200, '{"choices": [{"message": {"content": "your key is KEY"}}]}'),
}
REFUSALS: dict[str, tuple[int, object]] = {
    "long error": (400, {"error": {"message": "exceed" * 2_000_000}}),
    "too long": (400, {"error": {"message": "This model's maximum context length is 211 tokens. You requested 999"}}),
    "too long (llama.cpp)": (
        400,
        {"error": {"code": 400, "type": "exceed_context_size_error", "message": "the request is larger than its slot"}},
    ),
    "too long (413)": (413, {"detail": "Payload Too Large"}),
    "too long (TGI)": (
        422,
        {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 211. Given: 300 and 20"},
    ),
    "too long (TGI, alone)": (422, {"error": "Input validation error: `inputs` must have less than 211 tokens."}),
    "policy": (400, {"error": {"message": "flagged as unsafe", "code": "content_policy_violation"}}),
    "no logprobs": (400, {"error": {"message": "logprobs are not supported", "param": "logprobs"}}),
    "no seed": (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]}),
    "no constraint": (422, {"detail": "Unexpected fields in the request: {'structured_outputs'}"}),
    "no limit": (400, {"error": {"message": "unsupported", "param": "max_completion_tokens"}}),
    "bad message": (422, {"detail": [{"type": "value_error", "loc": ["body", "messages", 0], "msg": "a bad word"}]}),
    "quota": (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
    "no credit": (402, {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}}),
    "moved": (308, {}),
    "no prompt_logprobs": (400, {"error": {"message": "Unrecognized request argument supplied: prompt_logprobs"}}),
    "no api": (404, {"detail": "Not Found"}),
}


@contextmanager
def serving() -> Iterator[Script]:
    """Serve until the context ends; every connection is closed then."""
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"script": script}))
    server.daemon_threads = True
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield script
    finally:
        script.stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
