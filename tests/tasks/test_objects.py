"""Inputs in object storage, on servers of this machine: fetched once, again where they changed, never half."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest

from kgqa_core.artifacts import exclusive_lock
from kgqa_core.config_file import read_config
from kgqa_core.errors import ArtifactError, ConfigError, InputError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.inputs import local_inputs
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from tasks import objects
from tasks.garbage import Garbage, collect, find_garbage, note_run
from tests.conftest import S3_ENVIRONMENT, Bucket, kgqa

TRIPLES, TRAIN, TEST = "in/triples.tsv", "in/questions/train.jsonl", "in/questions/test.jsonl"
QUESTION = '{"question": "what of a?", "topics": ["a"], "answers": ["b"]}\n'


@pytest.fixture
def conf(bucket: Bucket, tmp_path: Path) -> Path:
    """A run file whose inputs, a file and a folder, are all in a bucket."""
    bucket.put(TRIPLES, b"a\tr\tb\nb\tr\tc\n")
    for key in (TRAIN, TEST):
        bucket.put(key, QUESTION.encode())
    path = tmp_path / "far.yaml"
    path.write_text(
        "dataset:\n  name: far\n  source: files\n"
        f"  graph: {{format: tsv, path: '{bucket.address(TRIPLES)}'}}\n"
        f"  questions: {{format: jsonl, path: '{bucket.address('in/questions/')}'}}\n"
        "  drift: null\nencoder: {kind: hash, dim: 16}\nexplorer: {steps: 1, width: 7, epochs: 1}\n",
        encoding="utf-8",
    )
    return path


def build(conf: Path) -> dict[str, bool]:
    """Make graph and questions; return which stages were made now."""
    pipeline = Pipeline(read_config(conf))
    assert objects.fetch_inputs(pipeline)
    pipeline = Pipeline(pipeline.config)  # files came or went
    return {outcome.key: outcome.built for outcome in ensure(pipeline, ["questions"])}


def fetched(home: Path) -> dict[str, int]:
    """Return the files that were fetched, by what follows the id, with the time of each."""
    files = [path for path in (home / "fetched").glob("*/*/**/*") if path.is_file()]
    return {"/".join(path.relative_to(home / "fetched").parts[2:]): path.stat().st_mtime_ns for path in files}


def test_inputs_are_fetched_once_and_only_what_changed_again(conf: Path, bucket: Bucket, own_home: Path) -> None:
    status = next(one for one in Pipeline(read_config(conf)).status() if one.key == "graph")
    assert status.state == "missing" and f"{bucket.address(TRIPLES)} is not fetched yet" in status.why
    assert build(conf) == {"graph": True, "questions": True}
    before = fetched(own_home)
    assert sorted(before) == sorted(f"{bucket.name}/{key}" for key in (TRIPLES, TRAIN, TEST))
    assert build(conf) == {"graph": False, "questions": False} and fetched(own_home) == before

    bucket.put(TRIPLES, b"a\tr\tb\nb\tr\tc\n")  # another version of the same bytes, and perhaps another ETag
    assert build(conf) == {"graph": False, "questions": False}
    bucket.put(TRIPLES, b"a\tr\tb\nb\tr\td\n")  # of the same size, within the same second
    before = fetched(own_home)
    assert build(conf)["graph"] is True
    after = fetched(own_home)
    assert {name for name in before if before[name] != after[name]} == {f"{bucket.name}/{TRIPLES}"}

    bucket.delete(TEST)
    bucket.put("in/questions/dev.jsonl", QUESTION.encode())
    made = build(conf)
    assert not made["graph"] and made["questions"]
    assert f"{bucket.name}/{TEST}" not in fetched(own_home)


def test_a_file_that_was_changed_here_is_fetched_again(conf: Path, bucket: Bucket, own_home: Path) -> None:
    build(conf)
    (path,) = own_home.glob(f"fetched/*/s3/{bucket.name}/{TRIPLES}")
    path.write_bytes(b"x\tr\ty\n")
    assert build(conf)["graph"] is False
    assert path.read_bytes() == bucket.get(TRIPLES)


def test_a_gzip_stays_as_it_is_and_goes_through_memory_in_blocks(
    bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BLOCK_BYTES", 2**20)
    content = gzip.compress(os.urandom(3 * 2**20 - 999))
    bucket.put("big.nt.gz", content)
    local = place(bucket.address("big.nt.gz"), own_home)
    told: list[tuple[str, int, int]] = []
    objects.fetch(local, own_home, lambda *one: told.append(one))
    assert local.read_bytes() == content and local.name == "big.nt.gz"
    assert told == [(f"fetching {bucket.address('big.nt.gz')} (MiB)", done, 2) for done in (1, 2, 2)]


def test_many_small_objects_share_a_note_which_an_error_does_not_lose(
    bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        bucket.put(f"many/{number}", b"1")
    local, write, copy = place(bucket.address("many"), own_home), Mock(wraps=objects.write_json), objects._copy
    monkeypatch.setattr(objects, "write_json", write)
    breaks = Mock(side_effect=lambda *given: copy(*given) if breaks.call_count < 6 else 1 / 0)
    monkeypatch.setattr(objects, "_copy", breaks)
    with pytest.raises(ZeroDivisionError):
        objects.fetch(local, own_home, lambda *told: None)
    monkeypatch.setattr(objects, "_copy", again := Mock(side_effect=copy))
    objects.fetch(local, own_home, lambda *told: None)
    assert (again.call_count, write.call_count) == (4, 2) and len([*local.iterdir()]) == 9


def place(address: str, home: Path) -> Path:
    """Return where an address is fetched to."""
    given = f"dataset: {{name: d, source: plans, plan_files: {{train: '{address}'}}}}\nplans: {{planners: [dense]}}\n"
    home.mkdir(parents=True, exist_ok=True)
    (home / "plans.yaml").write_text(given + "dense: {}\n", encoding="utf-8")
    config = read_config(home / "plans.yaml")
    (local,) = local_inputs(config)[1]
    assert local_inputs(local_inputs(config)[0])[1] == [local]
    return local


def fails(address: str, home: Path) -> str:
    """Return the one line that is said of an address, after which nothing half is there."""
    local = place(address, home)
    with pytest.raises(InputError) as raised:
        objects.fetch(local, home, lambda *told: None)
    assert not local.is_file() and not [*home.rglob("*.partial")]
    said = str(raised.value)
    assert said.startswith("s3://") and "\n" not in said and len(said) < 400
    assert not [one for one in S3_ENVIRONMENT.values() if one in said and one != "true"]
    return said


def test_what_is_missing_is_said(bucket: Bucket, own_home: Path) -> None:
    assert fails(bucket.address("tokens/x"), own_home).endswith("there is no such object, and none below it")
    assert "there is no such bucket" in fails("s3://no-bucket-of-this-name/x", own_home)


@pytest.mark.slow
def test_a_store_that_is_down_is_said(bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert "does not answer" in fails(bucket.address("tokens/x"), own_home)  # the key is no reason


@pytest.fixture
def locked(bucket: Bucket, s3_server: str) -> Iterator[Bucket]:
    """The bucket, once the server asks who one is."""

    def reset(number: float) -> None:
        plain = {"Content-Type": "text/plain"}
        asked = urllib.request.Request(f"{s3_server}/moto-api/reset-auth", str(number).encode(), plain, method="POST")
        urllib.request.urlopen(asked).close()

    bucket.put("x", b"1")
    reset(0)
    yield bucket
    reset(float("inf"))


def test_access_that_is_denied_is_said(locked: Bucket, own_home: Path) -> None:
    assert "access is denied. Are the credentials" in fails(locked.address("x"), own_home)
    assert "access is denied" in fails(locked.address("folder"), own_home)


@pytest.mark.parametrize("size", [1, 3])
def test_what_changes_while_it_is_fetched_is_not_used(
    bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(objects, "BLOCK_BYTES", 2**20)
    bucket.put("x", os.urandom(2 * 2**20))
    local = place(bucket.address("x"), own_home)

    def change(what: str, done: int, total: int) -> None:
        if done == 1:
            bucket.put("x", os.urandom(size * 2**20))

    with pytest.raises(InputError, match="was changed while it was fetched"):
        objects.fetch(local, own_home, change)
    assert not local.exists() and not [*own_home.rglob("*.partial")]
    objects.fetch(local, own_home, lambda *told: None)
    assert local.read_bytes() == bucket.get("x")


def test_what_a_killed_fetch_left_is_gone_before_the_next_one_needs_the_space(bucket: Bucket, own_home: Path) -> None:
    bucket.put("x", b"12")
    local = place(bucket.address("x"), own_home)
    local.parent.mkdir(parents=True)
    rubble = local.with_name(".x.0123456789ab.partial")
    rubble.write_bytes(b"1")
    objects.fetch(local, own_home, lambda *told: told if not rubble.exists() else pytest.fail("it is there still"))
    assert local.read_bytes() == b"12" and not [*own_home.rglob("*.partial")]


@pytest.mark.parametrize("name", ["../../x", "a/../x"])
def test_a_name_that_can_be_no_files_is_refused(bucket: Bucket, own_home: Path, name: str) -> None:
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    client.put_object(Bucket=bucket.name, Key=f"in/{name}", Body=b"1")
    assert "whose name can be no file's" in fails(bucket.address("in"), own_home)
    assert not [*own_home.glob("fetched/**/x")]


def test_a_disk_that_is_full_is_said(bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("x", b"1")
    local = place(bucket.address("x"), own_home)
    monkeypatch.setattr(objects, "sync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ArtifactError, match="The disk is full"):
        objects.fetch(local, own_home, lambda *told: None)
    assert not local.exists()


def test_the_manifest_says_where_an_input_is_from(conf: Path, bucket: Bucket) -> None:
    build(conf)
    manifest = json.loads((Pipeline(read_config(conf)).artifact("graph").folder / "manifest.json").read_text())
    origin = manifest["origins"]["triples"]
    assert origin["address"] == bucket.address(TRIPLES) and re.fullmatch("[0-9a-f]{32}(-1)?", origin["etag"])
    text = json.dumps(manifest)
    assert not [one for one in S3_ENVIRONMENT.values() if one != "true" and one in text]


def test_gc_deletes_the_inputs_of_which_nothing_needed_was_made(conf: Path, bucket: Bucket, own_home: Path) -> None:
    def unused() -> list[Garbage]:
        return [one for one in find_garbage(own_home, last=1, days=0) if one.kind == "fetched input"]

    def run() -> None:
        build(conf)
        pipeline = Pipeline(read_config(conf))
        note_run(own_home, "far", [StageOutcome(key, pipeline.artifact(key), False) for key in ("graph", "questions")])

    run()
    assert unused() == []
    before = fetched(own_home)
    conf.write_text(conf.read_text().replace(TRIPLES, "moved.tsv"), encoding="utf-8")
    for end in (b"d", b"e"):  # what changed is told against the build before, which is kept for that
        bucket.put("moved.tsv", b"a\tr\tb\nb\tr\t%b\n" % end)
        run()
    bucket.put("copied.tsv", bucket.get("moved.tsv"))  # the same bytes make nothing anew
    conf.write_text(conf.read_text().replace("moved.tsv", "copied.tsv"), encoding="utf-8")
    run()
    (old,) = unused()
    assert [path.name for path in old.path.rglob("*.tsv")] == ["triples.tsv"]
    with exclusive_lock(old.path / "lock"):  # as while it is fetched
        assert unused() == []
    assert collect(own_home, unused()) == old.bytes and unused() == []
    names = {name.rpartition("/")[2]: time for name, time in fetched(own_home).items()}
    kept = {name.rpartition("/")[2]: time for name, time in before.items() if name.endswith("jsonl")}
    assert names == {**kept, **{name: names[name] for name in ("moved.tsv", "copied.tsv")}}


BAD = [
    "dataset.graph.path=https://host/kb.txt",
    "dataset.graph.path=ftp://host/kb.txt",
    "dataset.graph.path=memory://kb.txt",
    "dataset.graph.path=file:///kb.txt",
    "dataset.graph.path=s3://bucket",
    "dataset.graph.path=s3:///kb.txt",
    "dataset.graph.path=s3://Bucket/kb.txt",
    "dataset.graph.path=s3://bucket//kb.txt",
    "dataset.graph.path=s3://bucket/../kb.txt",
    "dataset.graph.path=s3://me:secret@bucket/kb.txt",
    "dataset.graph.path=s3://bucket/kb.txt?X-Amz-Signature=secret",
    "dataset.graph.path=https://me:secret@host/kb.txt",
    "runtime.home=s3://bucket/home",
    "prompts=s3://bucket/prompts",
    "lm={kind: local, path: 's3://bucket/model'}",
    "lm={kind: local, path: model, adapter: 'gs://bucket/adapter'}",
    "cluster.spill_folder=gs://bucket/spill",
    "explorer.init_from=s3://bucket/explorer",
]


@pytest.mark.parametrize("setting", BAD)
def test_an_address_where_there_can_be_none_is_refused(conf: Path, setting: str) -> None:
    done: Any = kgqa("status", str(conf), "--set", setting)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) <= 2
    assert "secret@" not in done.stderr and "=secret" not in done.stderr
    assert re.search(r"must be a path of this machine|must be like s3://BUCKET/KEY|leave them out", done.stderr)


@pytest.mark.parametrize("name", ["KGQA_HOME", "KGQA_DATA"])
def test_an_address_in_the_environment_is_refused(conf: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "s3://bucket/x")
    done: Any = kgqa("status", str(conf))
    assert done.exit_code == 2 and name in done.stderr and "must be a path of this machine" in done.stderr


@pytest.mark.parametrize(
    "endpoint", ["http://me:secret@host", "ftp://host", "http://host/path", "http://host?a=secret"]
)
def test_an_endpoint_that_cannot_be_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL must be like https://HOST:PORT") as raised:
        objects.open_store("s3")
    assert "secret" not in str(raised.value)


# ------ Exports.


def exported(conf: Path, out: str) -> tuple[int, str]:
    done = kgqa("export", str(conf), "--out", out)
    return done.exit_code, done.stdout + done.stderr


@pytest.mark.slow
def test_an_export_is_uploaded_whole_and_named_last(conf: Path, bucket: Bucket, own_home: Path) -> None:
    build(conf)
    code, said = exported(conf, bucket.address("out/"))
    assert code == 0, said
    build_name = bucket.get("out/far/current").decode().strip()
    lineage = json.loads(bucket.get(f"out/far/{build_name}/lineage.json"))
    assert {"entities.parquet", "relations.parquet", "triples.parquet"} <= {*lineage["files"]}
    for name, entry in lineage["files"].items():
        assert hashlib.sha256(bucket.get(f"out/far/{build_name}/{name}")).hexdigest() == entry["sha256"]
    (triples,) = (one for one in lineage["sources"] if one.get("address") == bucket.address(TRIPLES))
    assert triples["etag"]
    assert not [*own_home.glob(".export-*")]
    assert bucket.address(f"out/far/{build_name}") in said.replace("\n", "")

    bucket.put(TRIPLES, b"a\tr\tb\nb\tr\td\n")
    build(conf)
    assert exported(conf, bucket.address("out"))[0] == 0
    other = bucket.get("out/far/current").decode().strip()
    assert other != build_name and bucket.get(f"out/far/{build_name}/lineage.json"), "the one before stays"


def test_an_export_that_breaks_off_is_not_current(
    conf: Path, bucket: Bucket, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(conf)
    put, done = objects._put, list[str]()

    def breaks(store: Any, key: str, file: Path) -> None:
        done.append(key)
        if len(done) == 2:
            raise OSError("AWS Error NETWORK_CONNECTION during PutObject")
        put(store, key, file)

    monkeypatch.setattr(objects, "_put", breaks)
    code, said = exported(conf, bucket.address("out"))
    assert code == 3 and "the store does not answer" in said and len(said.splitlines()) <= 3, said
    with pytest.raises(FileNotFoundError):
        bucket.get("out/far/current")
    monkeypatch.setattr(objects, "_put", put)
    assert exported(conf, bucket.address("out"))[0] == 0 and bucket.get("out/far/current")


@pytest.mark.parametrize("out", ["http://x/y", "s3://", "s3://u:p@b/k", "s3://b/../k"])
def test_an_export_elsewhere_is_refused(conf: Path, bucket: Bucket, own_home: Path, out: str) -> None:
    code, said = exported(conf, out)
    assert code == 2 and len(said.splitlines()) <= 3 and "u:p" not in said, said
