"""The demo's dataset keeps its bytes, and its golds are what its chains lead to."""

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from kgqa_core.demo import DATA, copy_demo
from kgqa_core.errors import ArtifactError
from kgqa_core.run.stages import known_stages
from kgqa_core.types import SPLITS

GOLDEN = {
    "names.tsv": "89524df6132c142460d3bfb3b85a9d0886ca6875ae5ac62168ed8bd0dbc11ebb",
    "questions/dev.jsonl": "73ad2b67d4d3006a6c2d4144f05c2a68c9273cfe5af4c344f968055ab26c8499",
    "questions/test.jsonl": "74e99fc1695fe6ef9adb04d79390f56ba8fc3a785b16910372b65c1859fbaaa2",
    "questions/train.jsonl": "a901e5b3c3a991796da2143af43c6c6e89df79a7dbc199314d1f4cc97cdd8f56",
    "triples.tsv": "36aa1af0e7cdbd47edd6372fff6a5839aa9eb9fd0f2644b8d6a87ef99b7227ef",
}


def test_the_files_are_those_of_this_version_wherever_they_are_copied(tmp_path: Path) -> None:
    copy_demo(tmp_path)
    copy_demo(tmp_path)  # again: the files are replaced
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert known_stages()["dataset"].version == 1  # other bytes are another version
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == GOLDEN


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(ArtifactError, match="taken"):
        copy_demo(tmp_path / "taken")


def test_golds_are_what_the_chain_leads_to_from_all_topics_and_wordings_give_no_verdict_away() -> None:
    edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for head, relation, tail in (line.split("\t") for line in (DATA / "triples.tsv").read_text("utf-8").splitlines()):
        edges[relation][head].add(tail)
        edges[f"~{relation}"][tail].add(head)
    lines = [line for split in SPLITS for line in (DATA / f"questions/{split}.jsonl").read_text("utf-8").splitlines()]
    questions = [json.loads(line) for line in lines]
    for question in questions:
        topics = question.get("topics", [])  # without any the topic is linked by name
        reached = [{topic} for topic in topics]
        for step in question["chain"]:
            reached = [{end for label in ends for end in edges[step][label]} - {*topics} for ends in reached]
        assert not topics or question["answers"] == sorted(set.intersection(*reached)), question
        assert question["hops"] == len(question["chain"])
    verdicts = [question["verdict"] for question in questions if "claim" in question]
    assert len(verdicts) >= 400 and sum(verdicts) == len(verdicts) / 2


def test_the_film_that_help_and_docs_ask_about_is_in_the_demo() -> None:
    root = Path(__file__).parents[2]
    shown = [*root.glob("flows/*.py"), *root.glob("docs/*.md"), root / "README.md"]
    told = "\n".join(path.read_text("utf-8") for path in shown)
    asked = {*re.findall(r'conf/demo\.yaml [^\n]*?"who directed (.+?)\?"', told)} - {"it"}
    asked |= {*re.findall(r'conf/demo\.yaml [^\n]*--topic "(.+?)"', told), *re.findall(r"head_name = '(.+?)'", told)}
    names = {line.partition("\t")[2] for line in (DATA / "names.tsv").read_text("utf-8").splitlines()}
    assert asked and asked <= names
