"""The generated dataset of seed 0, read back from its files without any of the generator's code."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.embedded import generate

Record = dict[str, Any]
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Files:
    """What the files say."""

    folder: Path
    triples: list[tuple[str, str, str]]
    names: dict[str, str]  # label -> name
    questions: dict[str, list[Record]]  # split -> records
    masked: dict[str, str] = field(default_factory=dict)  # id -> masked text, filled by mask()

    @cached_property
    def by_relation(self) -> dict[str, list[tuple[str, str]]]:
        """Heads and tails of each relation's triples."""
        found: dict[str, list[tuple[str, str]]] = {}
        for head, relation, tail in self.triples:
            found.setdefault(relation, []).append((head, tail))
        return found

    @property
    def all_questions(self) -> list[Record]:
        return [record for split in SPLITS for record in self.questions[split]]

    def mask(self, record: Record) -> str:
        """The text with topic and claim names replaced, longest name first; unmarked topics too."""
        if record["id"] in self.masked:
            return self.masked[record["id"]]
        text: str = record["question"]
        spans = [(self.names[label], "[topic]") for label in self.topics(record)]
        if "claim" in record:
            spans.append((self.names[record["claim"]], "[claim]"))
        for name, placeholder in sorted(spans, key=lambda span: -len(span[0])):
            assert name in text, f"{record['id']}: {name!r} is not in {text!r}"
            text = text.replace(name, placeholder, 1)
        self.masked[record["id"]] = text
        return text

    def topics(self, record: Record) -> list[str]:
        """The topic labels: as marked, else the one entity whose name is the longest in the text."""
        if "topics" in record:
            return list(record["topics"])
        text = record["question"].casefold()
        found = [label for label, name in self.names.items() if name.casefold() in text]
        longest = max(len(self.names[label]) for label in found)
        return [label for label in found if len(self.names[label]) == longest]

    def follow(self, topics: list[str], chain: list[str]) -> set[str]:
        """What the chain leads to from every topic, by scanning all triples of the relation at every step."""
        reached_from_all = []
        for topic in topics:
            reached = {topic}
            for step in chain:
                if step.startswith("~"):
                    ends = {head for head, tail in self.by_relation[step[1:]] if tail in reached}
                else:
                    ends = {tail for head, tail in self.by_relation[step] if head in reached}
                reached = ends - set(topics)
            reached_from_all.append(reached)
        return set.intersection(*reached_from_all)


def read_files(folder: Path) -> Files:
    def lines(name: str) -> list[str]:
        return (folder / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")

    triples = [tuple(line.split("\t")) for line in lines("triples.tsv")]
    assert {len(triple) for triple in triples} == {3}
    return Files(
        folder=folder,
        triples=[(triple[0], triple[1], triple[2]) for triple in triples],
        names=dict(line.split("\t") for line in lines("names.tsv")),  # type: ignore[misc]
        questions={split: [json.loads(line) for line in lines(f"questions/{split}.jsonl")] for split in SPLITS},
    )


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("embedded")
    generate(folder, seed=0)
    return read_files(folder)
