"""The recipe of the shipped adapter: relations get other names, words of a question do not; pools are what they say."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import shipped_adapter
from benchmarks.adapter_pools import PLANNED, RETRIEVED, Asked, Names, draw_pool, webqsp_examples, world_pools
from benchmarks.measure import data_folder
from benchmarks.orders import draw_lines
from benchmarks.shipped_adapter import SYNONYMS, renamed
from benchmarks.worlds import draw_world, read_worlds
from kgqa_core.graph.given import parse_given
from kgqa_core.instructions.answers import ABSTENTION
from kgqa_core.instructions.render import read_prompts
from kgqa_core.instructions.types import Example

PROMPT = """Example line: wrote -> author = 9

Question: who directed films that were produced in Rome
Clues:
directed
produced
Entity: Rome
Relations:
^directed
^produced"""


def test_relations_are_renamed_alike_in_prompt_and_target_and_words_of_the_question_stay() -> None:
    seen = set()
    for number in range(60):
        example = Example("map_relations", f"q{number}", "train", "", PROMPT, "directed -> ^directed = 9", 1.0)
        made = renamed(example)
        head, options = made.prompt.split("Relations:\n")
        assert head == PROMPT.split("Relations:\n")[0]  # question and clues
        shown = options.split("\n")
        clue, _, right = made.target.partition(" -> ")
        assert clue == "directed" and right.removesuffix(" = 9") == shown[0]
        assert shown[0].removeprefix("^") in {"directed", *SYNONYMS["directed"].split(",")}
        seen.add(shown[0])
    assert len(seen) > 3
    clues = Example("extract_clues", "q", "train", "", PROMPT, "directed\nproduced", 1.0)
    assert renamed(clues) == clues


def test_a_pool_shows_the_right_chain_among_others_and_calls_no_end_of_a_wrong_one_right() -> None:
    names = Names({"a.b.c": ["Ada", "Bo"], "a.b.d": ["Cy", "Di"]}, {"a.b.e"}, ["Ada", "Bo", "Cy", "Di", "Ed"])
    asked = Asked("q", "who?", "Topic", ("a.b.e", "a.b.c"), (("a.b.d",),))
    chains = [("a.b.e", "a.b.c"), ("~a.b.d",), ("x.y.z",), ("a.b.q",)]
    abstained = 0
    for seed in range(200):
        shape = (PLANNED, RETRIEVED)[seed % 2]
        walks, right = draw_pool(asked, chains, names, random.Random(seed), shape)
        assert 0 < len(walks) <= shape.max_paths
        own = {walk.nodes[-1] for walk in walks if walk.steps == asked.chain}
        assert own == right or not own or (own < right and shape.spread)  # else others of its chains lead to the rest
        assert all(walk.steps != ("~a.b.d",) for walk in walks)  # backward or not, it is known to reach the answers
        assert all(walk.nodes[1].startswith("m.0") for walk in walks if len(walk.nodes) == 3)  # an n-ary fact
        abstained += not right
    assert 0 < abstained < 20


@pytest.mark.realdata
def test_pools_read_in_several_orders_are_of_questions_that_taught_nothing() -> None:
    lines = list(islice(draw_lines(RETRIEVED), 50))
    shares = {"reason": 1.0, "choose": 1.0, "plan": 1.0}
    teaching = {
        one.question_id for one in webqsp_examples(data_folder(), read_prompts(None), shares) if one.split == "train"
    }
    assert len(teaching) > 2_000 and teaching.isdisjoint(line["id"] for line in lines)
    for line in lines:
        read = parse_given(line)
        assert not isinstance(read, str) and set(read.answers) <= {path[-1] for path, _ in read.paths}


def test_pools_of_a_world_say_one_thing_by_several_labels_of_a_relation() -> None:
    relations = read_worlds()["vines"]
    world = draw_world(relations, "vines", 60)
    asked = {row["id"]: row for row in world.questions[6:]}  # the first tenth is dev
    several = 0
    for example in world_pools(world, read_prompts(None), 1.0):
        row = asked.pop(example.question_id)
        blocks = dict[str, list[str]]()  # chain -> the names that it leads to
        for block in example.prompt.split("Paths:\n")[1].split("\n\nQuestion:")[0].split("\n\n"):
            path, *names = block.split("\n")
            blocks[path.removeprefix(row["topics"][0]).rstrip(":")] = names
        last = row["chain"][-1]
        every = [last.lstrip("~"), *world.alike[last.lstrip("~")]]
        last_steps = {("^" if last.startswith("~") else "") + name for name in every}
        told = [names for chain, names in blocks.items() if chain.rsplit(" → ", 1)[1] in last_steps]
        if example.target != ABSTENTION:
            right = set(example.target.split("\n"))
            assert right and right <= {name for names in told for name in names}
            several += sum(not right.isdisjoint(names) for names in told) > 1
    assert not asked and several > 20


WEIGHTS = "adapter_model.safetensors"


def write_adapter(folder: Path, value: float) -> Path:
    """Write an adapter of one weight."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"w": torch.tensor([value])}, folder / WEIGHTS)
    for name in ("adapter_config.json", "recipe.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_a_tuning_goes_on_from_the_adapter_that_is_shipped_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made-up tuning adds one, half of which is taken; the second is killed, and SHIPPED is written over."""
    started, data = list[float](), tmp_path / "data"

    def tune(job: Any, on_point: Any) -> Any:
        started.append(float(load_file(job.adapter / WEIGHTS)["w"]))
        if len(started) == 2:
            raise KeyboardInterrupt
        told = SimpleNamespace(folder=write_adapter(tmp_path / "tuned", started[-1] + 1))
        told.model_dump = lambda **_: {}
        return told

    for name in shipped_adapter.TAUGHT_BY:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    monkeypatch.setenv("KGQA_DATA", str(data))
    monkeypatch.setattr(shipped_adapter, "SHIPPED", write_adapter(tmp_path / "shipped", 0.0))
    monkeypatch.setattr(shipped_adapter, "find_packaged", lambda: tmp_path)
    monkeypatch.setattr(shipped_adapter, "write_folder", lambda packaged, base: base.mkdir())
    monkeypatch.setattr(shipped_adapter, "write_data", lambda data, out: {})
    monkeypatch.setattr(shipped_adapter, "tune", tune)
    home = tmp_path / "home"
    home.mkdir()
    shipped_adapter.run(home)
    with pytest.raises(KeyboardInterrupt):
        shipped_adapter.run(home)
    shipped_adapter.run(home)
    assert started == [0.0, 0.5, 0.5]
    assert float(load_file(tmp_path / "shipped" / WEIGHTS)["w"]) == 1.0
    recipe = json.loads((tmp_path / "shipped" / "recipe.json").read_text(encoding="utf-8"))
    assert "started_from" in recipe["started_from"]["recipe"]
