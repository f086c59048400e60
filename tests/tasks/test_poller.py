"""When the keeper tells of a dump: once, after it was the same at two polls, whatever else goes wrong."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tasks.poller import Poller

CONFIG = """\
dataset:
  name: rivers
  source: files
  graph: {format: tsv, path: dump}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: hash}
explorer: {steps: 1}
"""
DEPLOYMENTS = """\
deployments:
  - {name: other, parameters: {config: missing.yaml}}
  - {name: no configuration, triggers: [{expect: [kgqa.dump.ready]}]}
  - {name: broken, parameters: {config: missing.yaml}, triggers: [{expect: [kgqa.dump.ready]}]}
  - {name: rebuild, parameters: {config: rivers.yaml}, triggers: [{expect: [kgqa.dump.ready]}]}
"""


class Dumps:
    """A poller over a dump of two files; ``emitted`` are its events."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.emitted, self.away = folder, list[dict[str, Any]](), False
        for name, text in (("rivers.yaml", CONFIG), ("prefect.yaml", DEPLOYMENTS), ("questions.jsonl", "{}\n")):
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "dump").mkdir()
        (folder / "dump" / "a.tsv").write_text("a\tb\tc\n", encoding="utf-8")
        self.start_again()

    def start_again(self) -> None:
        self.poller = Poller(self.folder / "home", self.folder / "prefect.yaml", self.emit)

    def emit(self, event: dict[str, Any]) -> None:
        if self.away:
            raise OSError("Prefect is away")
        self.emitted.append(event)

    def polls(self, times: int) -> int:
        return sum(len(self.poller.poll()) for _ in range(times))

    def add(self, name: str, text: str) -> None:
        with (self.folder / "dump" / name).open("a", encoding="utf-8") as stream:
            stream.write(text)


def test_a_dump_is_told_of_once_when_it_was_the_same_at_two_polls(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    assert dumps.polls(3) == 0  # it was there before
    for line in range(3):  # it grows
        dumps.add("b.tsv", f"a\tb\t{line}\n")
        assert dumps.polls(1) == 0
    assert dumps.polls(1) == 1
    assert dumps.polls(3) == 0
    (event,) = dumps.emitted
    assert (event["event"], event["resource"]["prefect.resource.id"]) == ("kgqa.dump.ready", "kgqa.dataset.rivers")
    assert json.loads(json.dumps(event))["payload"]["config"] == str(tmp_path / "rivers.yaml")
    (tmp_path / "dump" / "b.tsv").write_text("same\tsize\t!\n", encoding="utf-8")
    os.utime(tmp_path / "dump" / "b.tsv", ns=(0, 7))  # a time in the past is another time
    assert dumps.polls(3) == 1


def test_two_deployments_of_one_dataset_with_different_files_are_both_told(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    (tmp_path / "other.jsonl").write_text("{}\n", encoding="utf-8")
    (tmp_path / "other.yaml").write_text(CONFIG.replace("questions.jsonl", "other.jsonl"), encoding="utf-8")
    waits = "  - {name: second, parameters: {config: other.yaml}, triggers: [{expect: [kgqa.dump.ready]}]}\n"
    (tmp_path / "prefect.yaml").write_text(DEPLOYMENTS + waits, encoding="utf-8")
    dumps.polls(2)
    dumps.add("b.tsv", "x\ty\tz\n")
    assert dumps.polls(4) == 2
    told = [Path(event["payload"]["config"]).name for event in dumps.emitted]
    assert told == ["rivers.yaml", "other.yaml"]


def test_files_in_object_storage_hold_up_no_dump_that_is_here_and_where_all_are_there_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dumps = Dumps(tmp_path)
    elsewhere = CONFIG.replace("questions.jsonl", "s3://bucket/questions.jsonl")
    (tmp_path / "rivers.yaml").write_text(elsewhere, encoding="utf-8")
    dumps.polls(2)
    dumps.add("b.tsv", "x\ty\tz\n")
    assert dumps.polls(3) == 1
    assert dumps.emitted[0]["payload"]["files"] == [str(tmp_path / "dump")]
    (tmp_path / "rivers.yaml").write_text(elsewhere.replace("path: dump", "path: s3://bucket/dump"), encoding="utf-8")
    assert dumps.polls(2) == 0
    assert caplog.text.count("no dump is watched for rebuild: ") == 1


def test_what_came_while_nobody_polled_is_told_of_and_nothing_twice(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    dumps.polls(2)
    dumps.add("b.tsv", "x\ty\tz\n")
    dumps.start_again()
    assert dumps.polls(3) == 1
    dumps.start_again()
    assert dumps.polls(3) == 0


def test_a_dump_that_is_gone_is_not_ready_and_one_that_prefect_was_not_told_of_is_told_later(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path)
    dumps.polls(2)
    (tmp_path / "dump" / "a.tsv").unlink()
    assert dumps.polls(3) == 0
    dumps.add("a.tsv", "x\ty\tz\n")
    dumps.away = True
    dumps.polls(1)
    with pytest.raises(OSError, match="away"):
        dumps.polls(1)
    dumps.away = False
    assert dumps.polls(2) == 1


def test_a_disk_that_takes_no_note_has_no_dump_told_of_at_each_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a rebuild would start once a minute for as long as the disk is full."""
    dumps = Dumps(tmp_path)
    dumps.polls(2)
    dumps.add("b.tsv", "x\ty\tz\n")
    dumps.polls(1)
    with monkeypatch.context() as broken:
        broken.setattr("tasks.poller.write_json", Mock(side_effect=OSError(errno.ENOSPC, "no space left on device")))
        for _ in range(3):
            with suppress(OSError):
                dumps.polls(1)
    dumps.polls(1)
    dumps.start_again()
    assert dumps.polls(3) == 0
    assert len(dumps.emitted) == 1
