"""The demo's dataset keeps its bytes, and the promises that docs/datasets.md makes of it."""

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

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
TRIPLES = [tuple(line.split("\t")) for line in (DATA / "triples.tsv").read_text("utf-8").splitlines()]
NAMES = dict(line.split("\t") for line in (DATA / "names.tsv").read_text("utf-8").splitlines())
QUESTIONS: dict[str, list[dict[str, Any]]] = {
    split: [json.loads(line) for line in (DATA / f"questions/{split}.jsonl").read_text("utf-8").splitlines()]
    for split in SPLITS
}
ALL = [record for records in QUESTIONS.values() for record in records]


def topics_of(record: dict[str, Any]) -> list[str]:
    """The topics as given, else the one entity with the longest name in the text."""
    if "topics" in record:
        return list(record["topics"])
    text = record["question"].casefold()
    (label,) = (label for label, name in NAMES.items() if name.casefold() in text and len(name) == longest(text))
    return [label]


@cache
def longest(text: str) -> int:
    return max(len(name) for name in NAMES.values() if name.casefold() in text)


@cache
def edges(step: str) -> dict[str, list[str]]:
    found = defaultdict(list)
    for head, relation, tail in TRIPLES:
        if relation == step.removeprefix("~"):
            found[tail if step[0] == "~" else head].append(head if step[0] == "~" else tail)
    return found


def follow(topics: list[str], chain: list[str]) -> set[str]:
    """What the chain leads to from every topic, no step arriving at a topic."""
    reached_from = [{topic} for topic in topics]
    for step in chain:
        reached_from = [{end for label in ends for end in edges(step)[label]} - {*topics} for ends in reached_from]
    return set.intersection(*reached_from)


def mask(record: dict[str, Any]) -> str:
    text: str = record["question"]
    spans = [(NAMES[label], "[topic]") for label in topics_of(record)]
    spans += [(NAMES[record["claim"]], "[claim]")] if "claim" in record else []
    for name, placeholder in sorted(spans, key=lambda span: -len(span[0])):
        assert name in text, record
        text = text.replace(name, placeholder, 1)
    return text


@pytest.fixture(scope="module")
def masked() -> dict[str, str]:
    return {record["id"]: mask(record) for record in ALL}


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


def test_the_graph_has_homonyms_parallel_edges_hubs_and_names_in_many_scripts() -> None:
    assert (len(NAMES), len(TRIPLES), len({relation for _, relation, _ in TRIPLES})) == (3004, 14_961, 10)
    assert sorted(set(TRIPLES)) == TRIPLES and list(NAMES) == sorted({end for h, _, t in TRIPLES for end in (h, t)})
    assert sum(count == 2 for count in Counter(NAMES.values()).values()) == 26
    pairs = Counter((head, tail) for head, _, tail in TRIPLES)
    assert sum(count > 1 for count in pairs.values()) > 120
    films_of = sorted(Counter(head for head, relation, _ in TRIPLES if relation == "acted_in").values())
    assert films_of[-1] > 50 and films_of[len(films_of) // 2] <= 4
    scripts = Counter(unicodedata.name(letter).split()[0] for letter in "".join(NAMES.values()) if letter.isalpha())
    assert all(scripts[script] >= 20 for script in ("CYRILLIC", "GREEK", "KATAKANA", "HANGUL"))
    assert all(name == unicodedata.normalize("NFC", name) == name.strip() for name in NAMES.values())


def test_golds_are_exactly_what_the_chain_leads_to() -> None:
    for record in ALL:
        assert record["answers"] == sorted(follow(topics_of(record), record["chain"])), record
        assert 1 <= len(record["answers"]) <= 60 and record["hops"] == len(record["chain"])
    assert Counter(len(topics_of(record)) for record in ALL)[2] == 3 * (72 + 10 + 14)
    assert all(sum("topics" not in record for record in records) >= 20 for records in QUESTIONS.values())


def test_a_fact_is_asked_in_one_split_only_and_every_question_once() -> None:
    facts = [
        {(record["id"].split("-", 2)[2], *sorted(topics_of(record))) for record in QUESTIONS[split]} for split in SPLITS
    ]
    assert not any(one & other for one, other in combinations(facts, 2))
    assert [len(records) for records in QUESTIONS.values()] == [3024, 420, 588]
    assert len({record["id"] for record in ALL}) == len(ALL)
    assert len({(record["question"], *topics_of(record)) for record in ALL}) == len(ALL)
    assert len({kind for split in facts for kind, *_ in split}) == 42


def test_half_of_dev_and_test_is_asked_in_wordings_of_their_own(masked: dict[str, str]) -> None:
    train, dev, test = ({masked[record["id"]] for record in QUESTIONS[split]} for split in SPLITS)
    assert (len(dev - train), len(test - train), len((dev & test) - train)) == (42, 84, 0)
    unseen = [masked[record["id"]] not in train for record in QUESTIONS["test"]]
    assert 0.4 < sum(unseen) / len(unseen) < 0.6
    chains = defaultdict(set)
    for record in ALL:
        chains[masked[record["id"]]].add(tuple(record["chain"]))
    assert {len(found) for found in chains.values()} == {1}


def test_the_wording_of_a_true_or_false_question_does_not_give_the_verdict_away(masked: dict[str, str]) -> None:
    verdicts = defaultdict(list)
    for record in ALL:
        if "claim" in record:
            verdicts[masked[record["id"]]].append(record["verdict"])
            assert record["verdict"] == (record["claim"] in record["answers"])
            homonyms = {NAMES[answer] for answer in record["answers"]}
            assert record["verdict"] or NAMES[record["claim"]] not in homonyms
    every = [verdict for found in verdicts.values() for verdict in found]
    assert len(every) >= 400 and sum(every) == len(every) / 2
    assert all(0.15 < sum(found) / len(found) < 0.85 for found in verdicts.values() if len(found) > 13)
