"""What the benchmarks measure with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import gate, measure, plain, report_size, scaling, small_files
from benchmarks.child import run_child
from benchmarks.inference import distinct
from benchmarks.linking import misspell
from benchmarks.memory import descendants, name_of
from benchmarks.scaling import Curve, draw
from benchmarks.scatter import Case, Size, differences
from benchmarks.scatter import measure as measure_scatter
from benchmarks.small_files import draw_file, table_rows
from benchmarks.workload import interleaved, ratio_of
from kgqa_core.explorer.batch import has_torch_scatter
from tests.conftest import Start
from tests.explorer.worlds import make_question
from tests.processes import assert_nothing_runs


def test_calls_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def call(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleaved({"a": lambda: call("a"), "b": lambda: call("b")}, repeats=2)
    assert calls == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert ratio_of([30.0, 20.0, 11.0], [2.0, 2.0, 1.0]) == "11.0 (10.0-15.0)"  # of each round


def test_an_exponent_is_the_slope_in_logarithms(tmp_path: Path) -> None:
    curve = Curve("n", [1.0, 2.0, 4.0], {"square": [3.0, 12.0, 48.0], "same": [7.0, 7.0, 7.0]})
    assert curve.slopes() == pytest.approx({"square": 2.0, "same": 0.0}, abs=1e-9)
    draw([curve, curve], tmp_path / "images" / "curves.png")
    assert (tmp_path / "images" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_benchmark_replaces_the_section_that_tells_of_it() -> None:
    """All but two sections tell of one run; else an old table would stay, and the new one stand at the end."""
    sections = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    for title, text in sections.findall(measure.RESULTS.read_text(encoding="utf-8")):
        for name in re.findall(r"`python -m benchmarks (\w+)`", text):
            source = (Path(measure.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
            assert title in ("The redesign", "A real language model") or f'"{title}"' in source, title


def test_without_predictions_the_size_of_a_report_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["report_size", "folder"])
    with pytest.raises(SystemExit) as ended:
        report_size.main()
    assert ended.value.code == 2


def test_the_first_questions_that_are_answered_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = list[int]()
    monkeypatch.setattr(scaling, "cpu_seconds", lambda call: call() or float(len(answered)))
    workload = SimpleNamespace(
        questions=lambda split, count=100: [None] * count,
        options=lambda: None,
        explorer=lambda: None,
        train=lambda sample, options, model=None: 1.0,
        answer=lambda model, sample, options: answered.append(len(sample)),
    )
    found = scaling.measure_questions(workload, [10, 20])  # type: ignore[arg-type]
    assert answered[1:] == [10, 20] and found.lines["inference"] == [2.0, 3.0]  # what compiles comes before


def test_a_section_replaces_the_one_of_its_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results.md")
    for title, body in (("One", "first"), ("Two", "second"), ("One", "third")):
        measure.write_section(title, body, "command")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text.count("## One") == text.count("## Two") == 1
    assert "first" not in text and text.index("third") < text.index("second")


def test_a_benchmark_on_a_home_that_is_not_there_yet_writes_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "count_passed", lambda *_: (97.0, 40))
    monkeypatch.setattr(gate, "LOSS", 7.0)
    monkeypatch.setattr(measure, "RESULTS", measure.RESULTS)  # --small names another
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--small", "--home", str(tmp_path / "kgqa" / "bench"), "gate"])
    command.main()
    text = (tmp_path / "kgqa" / "bench" / "results-small.md").read_text(encoding="utf-8")
    assert "## The gate" in text and "| 7 points worse is refused |" in text


def test_a_section_says_whether_the_commit_is_all_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(measure, "PROJECT", tmp_path)
    git("init", "--quiet")
    for name in ("core.py", "docs/results.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    (tmp_path / "docs" / "results.md").write_text("# Results\n", encoding="utf-8")
    assert re.search(r"; commit [0-9a-f]{7,}; ", measure.describe_machine())
    (tmp_path / "core.py").write_text("x = 1\n", encoding="utf-8")
    assert re.search(r"; commit [0-9a-f]{7,} with changes; ", measure.describe_machine())


def test_the_results_stay_as_they_were_where_a_section_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.md"
    results.write_text("# Results\n", encoding="utf-8")
    monkeypatch.setattr(measure, "RESULTS", results)
    with pytest.raises(UnicodeEncodeError):
        measure.write_section("One", "half a character: \ud83d", "command")
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [
        ("results.md", "# Results\n")
    ]


def test_every_misspelt_question_differs_from_what_was_asked() -> None:
    graph = SimpleNamespace(name_of={0: "Aaaaab", 1: "See", 2: "Bess Lloyd"}.get)
    for topic in (0, 2):
        for number in range(40):
            asked = make_question([topic], [], id=str(number))
            asked = replace(asked, text=f"who knew {graph.name_of(topic)}?")
            assert misspell(asked, graph).text != asked.text  # type: ignore[arg-type]
    short = replace(make_question([1], []), text="who knew See?")
    assert misspell(short, graph) == short  # type: ignore[arg-type]


def test_an_interval_of_few_batches_is_as_wide_as_students_t_says() -> None:
    assert plain.half_width([1.0, 3.0]) == pytest.approx(12.706 * 1.0, rel=1e-4)  # 1 degree of freedom
    assert plain.half_width([1.0, 2.0] * 5) == pytest.approx(2.2622 * 0.527046 / 10**0.5, rel=1e-4)


def test_questions_that_the_explorer_cannot_tell_apart_count_once() -> None:
    one, same, other = make_question([1], [2], id="1"), make_question([1], [2], id="2"), make_question([3], [2])
    assert distinct([one, other, same]) == [one, other]


def test_what_is_asked_after_a_small_file_has_no_text_of_its_own() -> None:
    lines = [f'{{"id": "{number}", "question": "q{number % 7}"}}' for number in range(29)]
    drawn, rest = draw_file(lines, 3, draw=1)
    assert len(set(drawn)) == 3
    texts = {line.split('"question"')[1] for line in drawn}
    assert rest == [line for line in lines if line.split('"question"')[1] not in texts] != []
    rows = table_rows("few", {"": [(90.0, 80.0), (92.0, 80.0)], "width=7": [(91.0, 80.0), (95.0, 80.0)]}, [10.0, 20.0])
    assert rows[0] == "| few | 2 | as init writes | 91.00 ± 1.00 | 80.00 ± 0.00 |  | 15 |"
    assert rows[1] == "| few | 2 | `width=7` | 93.00 ± 2.00 | 80.00 ± 0.00 | +2.00 ± 1.00 |  |"


def test_the_note_on_small_files_counts_the_questions_that_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results.md")
    monkeypatch.setattr(small_files, "kgqa", lambda *_: measure.Cost("", 1.0, 1.0))
    monkeypatch.setattr(small_files, "kgqa_json", lambda *_: ({"hits1": 90.0, "f1": 80.0}, None))
    small_files.run(tmp_path, small_files.SMALL)
    assert "asked afterwards (3,972 to 3,972)" in measure.RESULTS.read_text(encoding="utf-8")


def test_memory_is_that_of_a_process_and_those_it_started(start: Start) -> None:
    code = "import sys, time; held = bytearray(50_000_000); print('held', flush=True); time.sleep(60)"
    child = start(code)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    assert child.pid in descendants(os.getpid())
    assert name_of(child.pid) == Path(sys.executable).name
    assert 50 < measure.peak_megabytes(child.pid) < 90
    child.kill()
    child.wait()
    with pytest.raises((OSError, ValueError)):
        measure.peak_megabytes(child.pid)


def test_a_fresh_process_has_memory_of_its_own() -> None:
    held = bytearray(500_000_000)
    held[::4096] = b"x" * len(held[::4096])
    assert run_child(measure.peak_megabytes).peak < 200
    assert measure.peak_megabytes() > 500


def test_back_ends_that_differ_are_no_result() -> None:
    one, other = torch.ones(3), torch.tensor([1.0, 1.0, 1.001])
    assert differences((one, one), (one, one)) == (0.0, 0.0)
    with pytest.raises(AssertionError, match="differ by"):
        differences((one, one), (one, other))


@pytest.mark.skipif(not has_torch_scatter(), reason="the optional extra torch-scatter is not installed")
@pytest.mark.parametrize(
    ("rows", "names"),
    [(None, ["**torch**", "torch-scatter"]), (5, ["**compiled**", "torch", "torch-scatter"])],
    ids=["scatter", "spread"],
)
def test_a_sum_is_timed_with_every_back_end(rows: int | None, names: list[str]) -> None:
    found = measure_scatter(Case("some", 31, 7, 3, rows=rows), torch.device("cpu"), Size(repeats=1, calls=1))
    assert [row.split(" | ")[3] for row in found] == names


SLEEPS = """
import runpy, subprocess, sys
from types import SimpleNamespace

def run(home):
    words = "import time; print('asleep', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", words]) as child:
        child.wait()

sys.modules["benchmarks.metaqa"] = SimpleNamespace(run=run)
sys.argv[1:1] = ["metaqa", "--home"]
runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
"""


def test_what_a_benchmark_started_ends_with_it(tmp_path: Path) -> None:
    started = [sys.executable, "-c", SLEEPS, str(tmp_path)]
    environment = {**os.environ, "KGQA_HOME": str(tmp_path), "PYTHONPATH": str(measure.PROJECT)}
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, env=environment, cwd=measure.PROJECT) as process:
        assert process.stdout is not None and process.stdout.readline() == "asleep\n"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert_nothing_runs(tmp_path)
