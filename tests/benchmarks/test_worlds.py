"""The made-up worlds: whole lines, questions that their graph answers, and worlds that teach nothing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from benchmarks.worlds import FILE, HELD_OUT, MOST_ANSWERS, World, draw_names, draw_world, read_worlds, write_worlds
from kgqa_core.config_file import read_config

WORLDS = read_worlds()
SEEDS = range(4)


def drawn(name: str, seed: int) -> World:
    """Return one draw of a world."""
    return draw_world(WORLDS[name], f"{name} {seed}", 40)


def test_wordings_hold_one_topic_and_no_wording_of_a_held_out_world_is_in_another() -> None:
    wordings = Counter[str]()
    for relations in WORLDS.values():
        for one in relations:
            assert all(text.count("{}") == 1 for text in (*one.asked[0], *one.asked[1], *one.named[0], *one.named[1]))
            assert one.most >= 1 and all(label == label.strip() and label for label in one.labels)
        wordings.update({text for one in relations for texts in one.asked for text in texts})
    assert sum(len(one) for one in WORLDS.values()) == len(FILE.read_text(encoding="utf-8").splitlines()) - 1
    held_out = {text for name in HELD_OUT for one in WORLDS[name] for texts in one.asked for text in texts}
    assert held_out and all(wordings[text] == 1 for text in held_out)
    labels = {name: {label for one in relations for label in one.labels} for name, relations in WORLDS.items()}
    assert not any(labels["software"] & own for name, own in labels.items() if name not in HELD_OUT)


@pytest.mark.parametrize("name", WORLDS)
def test_answers_are_all_that_the_chain_leads_to_in_the_world(name: str) -> None:
    for seed in SEEDS:
        world = drawn(name, seed)
        assert world == drawn(name, seed) != drawn(name, seed + 1)
        edges = defaultdict[tuple[str, str], set[str]](set)
        for head, label, tail in world.triples:
            edges[head, label].add(tail)
            edges[tail, f"~{label}"].add(head)
        assert len({str(row["id"]) for row in world.questions}) == len(world.questions) > 20
        for row in world.questions:
            (topic,) = row["topics"]  # type: ignore[misc]
            reached = {topic}
            for step in row["chain"]:  # type: ignore[attr-defined]
                reached = {end for here in reached for end in edges[here, step]}
            assert row["answers"] == sorted(reached - {topic}) and 1 <= len(reached - {topic}) <= MOST_ANSWERS
            assert str(topic) in str(row["question"]) and "{}" not in str(row["question"])
        assert {row["hops"] for row in world.questions} == {1, 2}


def test_names_of_a_type_are_distinct_and_many() -> None:
    kinds = {kind for relations in WORLDS.values() for one in relations for kind in (one.head, one.tail)}
    for kind in kinds:
        names = draw_names(kind, random.Random(0))
        assert len(set(names)) == len(names) >= 3, kind


def test_a_written_world_is_a_run(tmp_path: Path) -> None:
    (conf,) = write_worlds(tmp_path, iter([("kin-0", drawn("kin", 0))]), "train")
    config = read_config(conf, [f"runtime.home={tmp_path}"])
    assert config.dataset.name == "world-kin-0"
    train, dev = (tmp_path / f"kin-0/questions/{split}.jsonl" for split in ("train", "dev"))
    assert len(train.read_text().splitlines()) == 9 * len(dev.read_text().splitlines()) == 36
