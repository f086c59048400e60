"""No call is paid twice: whatever is killed, torn, damaged or done at the same time."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import ArtifactError
from kgqa_core.lm import call_journal
from kgqa_core.lm.call_cache import MAX_PARTS, CallCache
from kgqa_core.lm.call_journal import Journal
from kgqa_core.lm.call_record import CallRecord, from_line, from_table, to_line, to_table
from kgqa_core.schemas import CALLS

PROJECT = Path(__file__).resolve().parents[2]


def record(text: str) -> CallRecord:
    return CallRecord(text, -1.5, 3, True, 7, 0.25)


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start ``code`` in a real process that sees the same modules."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def test_what_was_put_is_found_by_the_next_process_and_lies_in_one_file(tmp_path: Path) -> None:
    with CallCache(tmp_path, "model") as cache:
        cache.put({"a": record("1"), "b": record("2")})
        cache.put({"c": record("3")})
        assert len(files(tmp_path, "journal-*")) == 1
    assert files(tmp_path, "journal-*") == []
    (path,) = files(tmp_path, "calls-*.parquet")
    assert pq.read_table(path).schema.equals(CALLS)
    again = CallCache(tmp_path, "model")
    assert {key: again.get(key) for key in "abc"} == {"a": record("1"), "b": record("2"), "c": record("3")}


def test_models_share_nothing(tmp_path: Path) -> None:
    with CallCache(tmp_path, "a/model") as one, CallCache(tmp_path, "a_model") as other:
        one.put({"key": record("1")})
        assert one.folder != other.folder
        assert other.get("key") is None
    assert CallCache(tmp_path, "a_model").get("key") is None


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    with CallCache(tmp_path, "model") as cache:
        cache.put({"a": record("1")})
    before = {path: path.stat().st_mtime_ns for path in files(tmp_path, "calls-*")}
    with CallCache(tmp_path, "model") as cache:
        cache.put({"a": record("another text")})
        assert cache.get("a") == record("1")
    assert {path: path.stat().st_mtime_ns for path in files(tmp_path, "calls-*")} == before


def test_a_torn_last_line_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = CallCache(tmp_path, "model").folder
    whole, torn = to_line("a", record("1")), to_line("b", record("2"))
    for cut in range(1, len(torn) - 1):
        (folder / f"journal-x-1-{cut:03}.jsonl").write_bytes(whole + torn[:cut])
    cache = CallCache(tmp_path, "model")
    assert cache.get("a") == record("1")
    assert cache.get("b") is None
    assert cache.num_torn == len(torn) - 2


def test_equal_journals_compact_to_equal_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("x", "y"):
        with CallCache(tmp_path / name, "model") as cache:
            for key in ("a", "b") if name == "x" else ("b", "a"):
                cache.put({key: record(key)})
        contents.append([(path.name, path.read_bytes()) for path in files(tmp_path / name, "calls-*")])
    assert contents[0] == contents[1]


def test_many_files_become_one(tmp_path: Path) -> None:
    for number in range(MAX_PARTS + 1):
        with CallCache(tmp_path, "model") as cache:
            cache.put({f"key {number}": record(f"{number}")})
    assert len(files(tmp_path, "calls-*.parquet")) == 1
    assert len(CallCache(tmp_path, "model")) == MAX_PARTS + 1


def test_of_a_call_that_two_paid_one_text_stays_for_good(tmp_path: Path) -> None:
    first, second = CallCache(tmp_path, "model"), CallCache(tmp_path, "model")
    first.put({"a": record("first")})
    second.put({"a": record("second")})
    assert (first.get("a"), second.get("a")) == (record("first"), record("second"))
    second.close()
    kept = CallCache(tmp_path, "model").get("a")
    assert kept == record("second")
    first.close()
    for number in range(MAX_PARTS + 2):
        with CallCache(tmp_path, "model") as cache:
            cache.put({f"{number}": record("")})
            assert cache.get("a") == kept


def test_a_living_process_keeps_its_journal(tmp_path: Path) -> None:
    first = CallCache(tmp_path, "model")
    first.put({"a": record("1")})
    (journal,) = files(tmp_path, "journal-*")
    with CallCache(tmp_path, "model") as second:
        assert second.get("a") == record("1")
        second.put({"b": record("2")})
    assert files(tmp_path, "journal-*") == [journal]
    first.put({"c": record("3")})
    first.close()
    assert files(tmp_path, "journal-*") == []
    assert len(CallCache(tmp_path, "model")) == 3


def test_a_forked_child_begins_a_journal_of_its_own(tmp_path: Path) -> None:
    code = """
    import os, sys
    from pathlib import Path
    from kgqa_core.lm.call_cache import CallCache
    from kgqa_core.lm.call_record import CallRecord

    with CallCache(Path(sys.argv[1]), "model") as cache:
        cache.put({"parent": CallRecord("p", None, 1, True, 1, 0.0)})
        child = os.fork()
        cache.put({f"both {child == 0}": CallRecord("b", None, 1, True, 1, 0.0)})
        if child == 0:
            cache.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    child = start(code, tmp_path)
    child.communicate()
    assert child.returncode == 0
    cache = CallCache(tmp_path, "model")
    assert (len(cache), cache.num_torn) == (3, 0)


@pytest.mark.parametrize("damage", [b"", b"no parquet at all", None])
def test_a_damaged_file_is_set_aside_and_its_calls_are_paid_again(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with CallCache(tmp_path, "model") as cache:
        cache.put({"a": record("1")})
    (path,) = files(tmp_path, "calls-*.parquet")
    if damage is None:
        pq.write_table(pq.read_table(path).drop_columns(["seconds"]), path)
    else:
        path.write_bytes(damage)
    with CallCache(tmp_path, "model") as cache:
        assert (cache.get("a"), cache.num_damaged) == (None, 1)
        cache.put({"a": record("again")})
    assert "paid again" in caplog.text
    assert CallCache(tmp_path, "model").get("a") == record("again")


def test_a_full_disk_is_said_and_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CallCache(tmp_path, "model")
    cache.put({"a": record("1")})
    write = os.write
    with monkeypatch.context() as patched:

        def full(handle: int, content: bytes) -> int:
            write(handle, bytes(content)[:9])
            raise OSError(28, "No space left on device")

        patched.setattr(call_journal.os, "write", full)
        with pytest.raises(ArtifactError, match="disk is full"):
            cache.put({"b": record("2")})
    assert cache.get("b") is None
    cache.put({"c": record("3")})
    cache.close()
    again = CallCache(tmp_path, "model")
    assert (len(again), again.num_torn) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "half"])
def test_a_kill_at_any_system_call_loses_at_most_the_call_in_flight(tmp_path: Path, how: str) -> None:
    program = PROJECT / "tests" / "lm" / "crash_points.py"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, program, tmp_path, how], env=environment, capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)
    assert len(results) > 15  # so many system calls there are to be killed at
    assert results[0]["acknowledged"] == []
    assert results[-1]["acknowledged"] == ["one", "two"]
    for result in results:
        assert {"old", "left", *result["acknowledged"]} <= set(result["found"])
        assert all(key == text for key, text in result["found"].items())
        assert len(result["found"]) - 2 - len(result["acknowledged"]) <= 1  # on the disk, not yet told
        assert result["torn"] <= 2  # the one that was there, and the one in flight
        assert (result["journals"], result["rubble"]) == (0, 0)
        assert result["rows"] == len(result["found"])


WORKER = """
import os, sys, time
from pathlib import Path
from kgqa_core.lm.call_cache import CallCache
from kgqa_core.lm.meter import Meter
from kgqa_core.lm.metered import Metered
from kgqa_core.lm.answers import Answer
from kgqa_core.lm.types import Generation, Prompt

folder, log, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Slow:
    name, context = "slow", 99
    def count_tokens(self, prompts):
        return [1 for _ in prompts]
    def generate(self, prompts, decoding):
        raise AssertionError("a model that streams is not asked for batches")
    def score(self, prompts, options):
        raise AssertionError
    def stream(self, prompts, decoding):
        for index, prompt in enumerate(prompts):
            os.write(out, f"{prompt.text}\\n".encode())
            time.sleep(0.01)
            yield Answer(index, [Generation(f"{prompt.text} by {name}", num_tokens=1)], 1, 0.01)

with CallCache(folder, "slow") as cache:
    texts = Metered(Slow(), meter=Meter(), cache=cache).generate([Prompt(f"p{n}") for n in range(40)])
print("|".join(own[0].text for own in texts))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_pays_each_call_once_and_those_in_flight_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    num_kills = 2
    for number in range(num_kills):
        before = len(log.read_text().split()) if log.exists() else 0
        worker = start(WORKER, tmp_path / "cache", log, f"run{number}")
        while worker.poll() is None and len(log.read_text().split() if log.exists() else []) < before + 4 + number:
            time.sleep(0.005)
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    last = start(WORKER, tmp_path / "cache", log, "last")
    texts = last.communicate()[0].strip().split("|")
    assert [text.split(" by ")[0] for text in texts] == [f"p{n}" for n in range(40)]
    asked = log.read_text().split()
    assert set(asked) == {f"p{n}" for n in range(40)}
    assert len(asked) <= 40 + num_kills


@pytest.mark.slow
def test_two_at_once_never_mix(tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [start(WORKER, tmp_path / "cache", log, name) for name in ("left", "right")]
    said = [worker.communicate()[0].strip().split("|") for worker in both]
    third = start(WORKER, tmp_path / "cache", tmp_path / "third", "third").communicate()[0].strip().split("|")
    assert (tmp_path / "third").read_text() == ""
    for number, texts in enumerate(zip(*said, third, strict=True)):
        assert all(re.fullmatch(rf"p{number} by (left|right)", text) for text in texts)
        assert texts[2] in texts[:2]
    assert files(tmp_path / "cache", "journal-*") == []


RECORDS = st.builds(
    CallRecord,
    st.text(),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**40),
    st.booleans(),
    st.integers(0, 2**40),
    st.floats(0, 1e9),
)


@given(st.text(), RECORDS)
def test_a_line_and_a_row_hold_what_they_were_made_of(key: str, kept: CallRecord) -> None:
    line = to_line(key, kept)
    assert line.count(b"\n") == 1
    assert from_line(line) == (key, kept)
    assert dict(from_table(to_table({key: kept}))) == {key: kept}


@given(st.binary() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_no_line_whatsoever_breaks_the_reader(line: bytes) -> None:
    assert from_line(line) is None


def test_the_journal_of_a_process_says_whose_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert f"-{os.getpid()}-" in journal.path.name
    assert journal.path.stat().st_mode & 0o077 == 0
    journal.close()
