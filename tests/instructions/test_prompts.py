"""Prompt files: ours are complete, and a user's own are checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.errors import ConfigError
from kgqa_core.instructions.render import DEFAULT_FOLDER, PLACEHOLDERS, read_prompts


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name.replace('__', '.')}.txt").write_text(text, encoding="utf-8")
    return folder


def test_every_prompt_of_ours_is_there_and_has_a_version() -> None:
    prompts = read_prompts()
    assert set(prompts.templates) == set(PLACEHOLDERS)
    assert all(prompts.versions.values())
    assert {path.name.split(".")[0] for path in DEFAULT_FOLDER.glob("*.txt")} == set(PLACEHOLDERS)


def test_a_folder_of_ones_own_replaces_single_files(tmp_path: Path) -> None:
    ours = read_prompts()
    mixed = read_prompts(write(tmp_path, plan="Relations for: {question}\n", plan__system="You plan."))
    assert mixed.fill("plan", {"question": "who?"}) == ("Relations for: who?", "You plan.")
    assert {name for name in ours.hashes if ours.hashes[name] != mixed.hashes[name]} == {"plan"}


def test_the_version_line_is_not_part_of_the_prompt(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, direct="# version: 2b\nQ: {question}\nA:"))
    assert prompts.fill("direct", {"question": "x"})[0] == "Q: x\nA:"
    assert prompts.versions["direct"] == "2b"
    assert prompts.hashes == read_prompts(write(tmp_path, direct="Q: {question}\nA:\n")).hashes


def test_other_braces_stand_for_themselves_and_nothing_is_filled_in_twice(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, plan='{ "q": {question}, {0} {} {{num_plans}} }'))
    filled = prompts.fill("plan", {"question": "{relations} {x} {", "relations": "NO", "num_plans": "3"})[0]
    assert filled == '{ "q": {relations} {x} {, {0} {} {3} }'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"plan": "{questoin}"}, r"plan\.txt: unknown placeholder '\{questoin\}'\. Did you mean \{question\}\? Legal:"),
        (
            {"reason": "{question}"},
            r"reason\.txt: the placeholder \{paths\} is missing\. Legal: \{paths\}, \{question\}",
        ),
        ({"plan__system": "{nothing}"}, r"plan\.system\.txt: unknown placeholder"),
        ({"resaon": "{question}"}, r"resaon\.txt belongs to no instruction\. Did you mean reason\.txt\?"),
    ],
)
def test_a_wrong_file_says_what_is_legal(tmp_path: Path, files: dict[str, str], message: str) -> None:
    if "plan__system" in files:
        files = {"plan": "{question}", **files}
    with pytest.raises(ConfigError, match=message):
        read_prompts(write(tmp_path, **files))


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        read_prompts(tmp_path / "nowhere")


def test_a_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_bytes(b"\xff\xfe{question}")
    with pytest.raises(ConfigError, match=r"plan\.txt cannot be read as UTF-8"):
        read_prompts(tmp_path)
