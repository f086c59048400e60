"""No call is paid twice: whatever is killed, torn, damaged or done at the same time."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgqa_core import addresses
from kgqa_core.errors import ArtifactError
from kgqa_core.lm import call_store
from kgqa_core.lm.call_store import CallStore, Kept
from kgqa_core.lm.types import Generation
from tests.conftest import Start

FIRST = "calls-1.sqlite"
IMPORTS = """
import os, resource, sys, time
from pathlib import Path
from kgqa_core.errors import ArtifactError
from kgqa_core.lm.call_store import CallStore, Kept
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.types import Answer, Generation, Prompt
"""


def kept(text: str) -> Kept:
    return Kept(Generation(text, -1.5, 3), 7, 0.25)


def test_a_mount_whose_name_holds_a_blank_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a store on NFS had a write-ahead log, which machines do not share."""
    (tmp_path / "mounts").write_text(f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path}/my\\040share nfs4 rw 0 0\n")
    monkeypatch.setattr(addresses, "MOUNTS", tmp_path / "mounts")
    assert addresses.mount_of(tmp_path / "my share" / "home") == ("host:/x", f"{tmp_path}/my share", "nfs4")
    assert addresses.mount_of(tmp_path)[2] == "ext4"


def filled(folder: Path, *keys: str) -> Path:
    """Leave a store in ``folder`` and return its file."""
    with CallStore(folder) as store:
        store.put({key: kept(key) for key in keys})
    return folder / FIRST


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2)  # SQLite's JSON ends a text at a null
KEPT = st.builds(
    Kept,
    st.builds(
        Generation,
        st.text(),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.integers(0, 2**40),
        st.booleans(),
    ),
    st.integers(0, 2**40),
    st.floats(0, 1e9),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.dictionaries(KEYS, KEPT, max_size=4)), max_size=6))
def test_what_was_put_first_is_what_everybody_gets(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, dict[str, Kept]]]
) -> None:
    """Three connections put in turns, the third of them anew each time; a dictionary is the oracle."""
    folder, oracle = tmp_path_factory.mktemp("store"), dict[str, Kept]()
    with CallStore(folder) as first, CallStore(folder) as second:
        for who, calls in puts:
            oracle = calls | oracle
            with CallStore(folder) as third:
                assert (first, second, third)[who].put(calls) == {key: oracle[key] for key in calls}
        for store in (first, second):
            assert store.get([*oracle, "not there"]) == oracle
    with CallStore(folder) as again:
        assert again.get(oracle) == oracle


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@example(place=3840, flip=128, cut=False)  # in the table's definition: SQLite's message is no UTF-8 then
@given(place=st.integers(0), flip=st.integers(1, 255), cut=st.booleans())
def test_a_store_with_any_byte_damaged_never_gives_a_wrong_text(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int, cut: bool
) -> None:
    folder, keys = tmp_path_factory.mktemp("store"), [f"key {number}" for number in range(40)]
    path = filled(folder, *keys)
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] ^= flip
    path.write_bytes(content[:place] if cut else content)
    try:
        with CallStore(folder) as store:
            found = store.get(keys)
            assert all(found[key] == kept(key) for key in found)
            assert store.put({key: kept(key) for key in keys}).keys() == set(keys)
    except ArtifactError as problem:
        assert place == 18 and "readonly" in str(problem)  # the header now says that nobody may write
        return
    with CallStore(folder) as store:
        assert store.get(keys) == {key: kept(key) for key in keys}


def test_a_damaged_call_is_counted_and_paid_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path, "a", "b")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE calls SET text = 'something else' WHERE key = 'a'")
    database.close()
    with CallStore(tmp_path) as store:
        assert store.get(["a", "b"]) == {"b": kept("b")}
        assert "1 calls damaged and left out; what is lost is paid again" in caplog.text
        store.put({"a": kept("a")})
        assert store.get(["a"]) == {"a": kept("a")}


def test_a_damaged_store_is_set_aside_while_others_use_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = [f"{number}" for number in range(1000)]
    path = filled(tmp_path, *keys)
    with CallStore(tmp_path) as store:
        assert len(store.get(keys[::-1] * 2)) == len(keys)
        damaged = path.read_bytes()[:5000]
        path.write_bytes(damaged)  # while it is used
        with pytest.raises(ArtifactError, match="Run again: a damaged store is set aside"):
            store.get(keys)
    with CallStore(tmp_path) as store, CallStore(tmp_path) as other:
        assert store.get(["1"]) == {}
        store.put({"1": kept("again")})
        assert other.get(["1"]) == {"1": kept("again")}
    assert "calls-1.sqlite damaged and left out" in caplog.text
    assert path.read_bytes() == damaged


def test_a_store_that_another_process_holds_for_too_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_store, "PATIENCE", 0.05)
    path = filled(tmp_path, "a")
    holder = sqlite3.connect(path, isolation_level=None)
    with CallStore(tmp_path) as store:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArtifactError, match="Another process writes for longer"):
            store.put({"b": kept("b")})
        holder.close()
        assert store.put({"b": kept("b")}) and store.get(["a", "b"]).keys() == {"a", "b"}


def test_a_folder_on_a_network_has_no_log_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_store, "NETWORK", tuple("abcdefghijklmnopqrstuvwxyz"))  # every kind of mount
    with CallStore(tmp_path) as store, CallStore(tmp_path) as other:
        store.put({"a": kept("a")})
        assert other.put({"a": kept("b"), "b": kept("b")}) == {"a": kept("a"), "b": kept("b")}
        assert [path.name for path in tmp_path.glob("*.sqlite*")] == [FIRST]


def test_a_full_disk_is_said_and_leaves_the_store_as_it_was(tmp_path: Path, start: Start) -> None:
    code = """
    with CallStore(Path(sys.argv[1])) as store:
        store.put({"a": Kept(Generation("1"), 1, 0.0)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, 2**17))
        try:
            store.put({f"b {n}": Kept(Generation("x" * 1000), 1, 0.0) for n in range(1000)})
        except ArtifactError as problem:
            print(problem)
        assert store.get(["a", "b 0"]).keys() == {"a"}
    """
    child = start(IMPORTS + textwrap.dedent(code), tmp_path)
    assert "cannot be used: disk I/O error. Check the disk" in child.communicate()[0]
    assert child.returncode == 0
    with CallStore(tmp_path) as store:
        assert store.get(["a", "b 0"]).keys() == {"a"}


def test_a_copy_that_somebody_keeps_beside_a_store_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CallStore(tmp_path):
        pass
    kept = shutil.copy(tmp_path / "calls-1.sqlite", tmp_path / "calls-1-before.sqlite")
    with CallStore(tmp_path):
        assert "damaged" not in caplog.text
    assert {path.name for path in tmp_path.glob("*.sqlite")} == {"calls-1.sqlite", Path(kept).name}


@pytest.mark.parametrize("name", ["calls-1f.parquet", "journal-host-1-2.jsonl"])
def test_calls_of_an_earlier_version_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).touch()
    with pytest.raises(ArtifactError, match=r"model holds calls as an earlier version kept them.*delete that folder"):
        CallStore(tmp_path)


# Kills


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and not holds() and time.monotonic() < until:
        time.sleep(0.002)


WORKER = (
    IMPORTS
    + """
folder, log, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Slow:
    name, context = "slow", 99
    def stream(self, prompts, decoding):
        for index, prompt in enumerate(prompts):
            os.write(out, f"{prompt.text}\\n".encode())
            time.sleep(0.01)
            yield Answer(index, [Generation(f"{prompt.text} by {name}", num_tokens=1)], 1, 0.01)
    def stream_scores(self, prompts, options):
        raise NotImplementedError

with CallStore(folder) as store:
    texts = Metered(Slow(), meter=Meter(), store=store).generate([Prompt(f"p{n}") for n in range(40)])
print("|".join(own[0].text for own in texts))
"""
)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_pays_each_call_once_and_those_in_flight_twice(
    tmp_path: Path, start: Start
) -> None:
    log = tmp_path / "log"
    log.touch()
    num_kills = 3
    for number in range(num_kills):
        before = len(log.read_text().split())
        worker = start(WORKER, tmp_path / "store", log, f"run{number}")
        wait_until(lambda least=before + 4 + number: len(log.read_text().split()) >= least, worker)
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    texts = start(WORKER, tmp_path / "store", log, "last").communicate()[0].strip().split("|")
    assert [text.split(" by ")[0] for text in texts] == [f"p{n}" for n in range(40)]
    asked = log.read_text().split()
    assert set(asked) == {f"p{n}" for n in range(40)}
    assert len(asked) <= 40 + num_kills


@pytest.mark.slow
def test_two_at_once_go_on_with_the_same_texts(tmp_path: Path, start: Start) -> None:
    both = [start(WORKER, tmp_path / "store", tmp_path / "log", name) for name in ("left", "right")]
    left, right = (worker.communicate()[0].strip().split("|") for worker in both)
    third = start(WORKER, tmp_path / "store", tmp_path / "third", "third").communicate()[0].strip().split("|")
    assert (tmp_path / "third").read_text() == ""
    assert left == right == third
    assert all(re.fullmatch(rf"p{number} by (left|right)", text) for number, text in enumerate(third))
