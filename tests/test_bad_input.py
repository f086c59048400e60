"""What is wrong in a configuration, or is no file at all: one short message, the right exit code, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from kgqa_core.config_file import read_config
from kgqa_core.errors import KgqaError
from kgqa_core.lm.types import EndpointLmSection
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import TOWNS

RUN = TOWNS + 'plans: {planners: [generator]}\nlm: {kind: endpoint, url: "http://127.0.0.1:9/v1"}\n'
HUGE = ("1e12", "10**12", str(10**12), str(2**64), str(10**30), "-1", "1.5", "[]", "{}", "null", "''", "yes", ".nan")
NUMBERS = ("explorer.width", "explorer.steps", "explorer.epochs", "encoder.dim", "runtime.threads", "cluster.workers")
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{n}: &{n} [{', '.join(['*' + p] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = {
    "a bomb": BOMB,
    "itself": "a: &a [*a]",
    "itself as a mapping": "a: &a {b: *a}",
    "a merge": "a: &a {b: 1}\nc: {<<: *a}",
    "deep lists": "a: " + "[" * 2000 + "]" * 2000,
    "deep mappings": "a: " + "{a: " * 2000 + "}" * 2000,
    "deep and open": "[" * 100_000,
    "a tag": "a: !!python/object/apply:os.system [id]",
    "a binary tag": "a: !!binary '!'",
    "a date": "a: 2026-13-45",
    "a number of digits": "a: 0x",
    "a long number": "explorer: {width: " + "9" * 5000 + "}",
    "a null byte": "a: \0",
    "an escape": "a: \x1b[2J",
    "several documents": "a: 1\n---\nb: 2",
    "a tab": "a:\n\tb: 1",
    "half": RUN[:120],
    "too long": "# " + "x" * 300_000,
    "a list": "- 1",
    "a word": "word",
    "nothing": "",
    "a list as a key": "? [1, 2]\n: 3",
    "a mapping as a key": "? {a: 1}\n: 3",
    "numbers as keys": "1: 2",
    "twice": RUN + "lm: {kind: packaged}\n",
}
SETTINGS = [
    *(f"{key}={value}" for key in NUMBERS for value in HUGE if (key, value) != ("explorer.epochs", "null")),
    *(f"explorer.seeds=[{seed}]" for seed in (2**64, 10**30, -1, "1.0", "true", "''")),
    *(f"name={name}" for name in ("''", "a/b", "..", "'\x1b[2J'", "'" + "漢" * 100 + "'", "x" * 300, "[a]")),
    *(f"lm.url={url}" for url in ("'http://me:secret@x/v1'", "'http://x/v1?key=secret'", "file:///etc/passwd", "x")),
    *(f"lm.extra={{{key}: secret}}" for key in ("api_key", "API-Key", "token", "Authorization", "password", "model")),
    *(f"lm.extra={{{key}: 1}}" for key in ("temperature", "top_p", "seed", "stop", "max_tokens")),
    "lm.extra={headers: {Authorization: secret}}",
    "lm.extra={x: [{y: 'Bearer secret'}]}",
    "lm.key_variable=sk-secret",
    "cluster.tls_ca=ca.pem",
    "cluster={address: 'tcp://x:1', tls_ca: a, tls_cert: b, tls_key: c}",
    "runtime.memory_limit=9999999999999999999999XB",
    "runtime.home=~nobody-of-that-name/x",
    "dataset.graph.path=${HOME}/x",
    "dataset.drift.max_questions_moved=-1",
    "dataset=" + "[" * 3000,
    "a" * 10_000 + "=1",
    "=",
    "..=1",
]  # fmt: skip


def kgqa(*arguments: object) -> tuple[int, str, float]:
    began = time.monotonic()
    done: Any = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr, time.monotonic() - began


def assert_short(said: str) -> None:
    assert said.startswith("error: ") and "Traceback" not in said
    assert len(said.splitlines()) <= 3 and len(said) < 3000
    assert not any(ord(sign) < 32 and sign != "\n" for sign in said)
    assert "secret@" not in said and "=secret" not in said and ": secret" not in said and "Bearer secret" not in said


def test_without_a_mistake_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    assert kgqa("status", tmp_path / "run.yaml")[0] == 0


@pytest.mark.parametrize(
    ("text", "options"),
    [*((RUN, ["--set", setting]) for setting in SETTINGS), *((text, []) for text in TEXTS.values())],
    ids=[*SETTINGS, *TEXTS],
)
def test_what_cannot_be_is_one_message(tmp_path: Path, text: str, options: list[str]) -> None:
    (tmp_path / "run.yaml").write_text(text)
    code, said, seconds = kgqa("status", tmp_path / "run.yaml", *options)
    assert code == 2, said
    assert_short(said)
    assert seconds < 5


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "folder"])
@pytest.mark.parametrize(
    "place", ["CONF", "FILE", "dataset.graph.path", "dataset.graph.names", "dataset.questions.path"]
)
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, place: str, kind: str) -> None:
    bad = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "folder":
        bad.mkdir()
    conf = tmp_path / "run.yaml"
    conf.write_text(RUN.partition("plans:")[0])
    (tmp_path / "triples.tsv").write_text("a\tr\tb\n")
    (tmp_path / "questions.jsonl").write_text('{"question": "what of a?", "answers": ["b"]}\n')
    if place in ("CONF", "FILE"):
        code, said, _ = kgqa("status", bad) if place == "CONF" else kgqa("score", bad)
        assert code == (2 if place == "CONF" else 3), said
        assert_short(said)
    else:
        with pytest.raises(KgqaError) as raised:
            pipeline = Pipeline(read_config(conf, [f"{place}={bad}"]))
            ensure(pipeline, ["questions"])
        assert raised.value.exit_code in (2, 3) and str(bad) in str(raised.value)


def test_what_a_server_is_asked_beside_may_hold_tokens_that_are_no_secrets() -> None:
    extra = {"max_tokens_per_step": 3, "stop_token_ids": [2], "chat_template_kwargs": {"skip_special_tokens": True}}
    assert EndpointLmSection(kind="endpoint", url="http://x/v1", extra=extra).extra == extra


@pytest.mark.parametrize("key", ["nope", "explorer.nope", "evaluation.limit"])
def test_a_key_that_is_like_none_gets_no_hint(tmp_path: Path, key: str) -> None:
    """Not even at a setting of another section: only a name that is all but equal is one that moved."""
    (tmp_path / "towns.yaml").write_text(RUN, encoding="utf-8")
    with pytest.raises(KgqaError, match=rf"unknown key '{key}' \(value 3\); legal keys: [a-z_, ]*$"):
        read_config(tmp_path / "towns.yaml", [f"{key}=3"])
    with pytest.raises(KgqaError, match=r"unknown key 'explorer.beam' .*did you mean 'lm.beams'"):
        read_config(tmp_path / "towns.yaml", ["explorer.beam=3"])
