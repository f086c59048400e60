"""Prompt files, and paths and triples as prompts show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import ConfigError
from kgqa_core.graph.follow import reasoning_paths
from kgqa_core.instructions.plan import PlanCase, PlanInstruction
from kgqa_core.instructions.reason import DirectInstruction, ReasonCase, ReasonInstruction, gather_evidence
from kgqa_core.instructions.render import (
    DEFAULT_FOLDER,
    PLACEHOLDERS,
    ScoredPath,
    neighbour_triples,
    read_prompts,
    render_paths,
    render_triples,
    show_path,
)
from kgqa_core.instructions.types import Instruction
from kgqa_core.types import Step


class Odd:
    """Names that would break a prompt's lines."""

    relation_names = ("^line\nbreak",)

    def name_of(self, entity_id: int) -> str:
        return (" a", "b\n")[entity_id]


def test_odd_names_and_relations_stay_on_their_line() -> None:
    path = (Step(0, 0, 1, reverse=True),)
    odd: Any = Odd()
    assert show_path(odd, path).text == "b\\u{a} → ^\\^line\\u{a}break → \\u{20}a"
    assert render_triples(odd, path) == "(\\u{20}a, ^line\\u{a}break, b\\u{a})"


def test_paths_of_the_same_relations_are_one_with_a_line_for_each_end(world: Any) -> None:
    plans = [(("made_by", "^made_by"), 0.5), (("about", "^about"), 0.3), (("about",), 0.2)]
    paths = gather_evidence(world.search, [world.id_of("Nightfall")], plans, max_paths=9).paths
    assert render_paths(paths)["groups"] == (
        "Nightfall → made_by → ^made_by:\nDawn\nDusk\n\nNightfall → about → ^about:\nSnake\n\nNightfall → about:\ncats"
    )
    # A search from several things is often answered by what joins them, so that may be shown, too.
    both = render_paths(paths, stations=True)
    assert "Nightfall → made_by:\nIda Moon\n\nNightfall → made_by → ^made_by:\nDawn\nDusk" in both["groups"]
    assert both["paths"] == render_paths(paths)["paths"]
    assert render_paths(()) == {"paths": "(none)", "groups": "(none)"}


def test_what_several_topics_lead_to_stands_under_all_of_them_and_first(world: Any) -> None:
    films = [world.id_of("Nightfall"), world.id_of("Dusk")]
    paths = gather_evidence(world.search, films, [(("about",), 0.5), (("made_by",), 0.5)], max_paths=9).paths
    assert render_paths(paths)["groups"] == ("Dusk and Nightfall → made_by:\nIda Moon\n\nNightfall → about:\ncats")


def test_paths_to_every_end_come_before_second_ways_to_one(world: Any) -> None:
    graph, labels = world.search.graph, world.search.graph.relation_names
    year, made_by, about = (labels.index(name) for name in ("year", "made_by", "about"))
    topics = [world.id_of(name) for name in ("Dawn", "Dusk", "Nightfall")]
    both_ways = (made_by, made_by + graph.num_relations)
    found = list(reasoning_paths(graph, topics, both_ways, reenter_topic=True))
    ends = [graph.name_of(path[-1].head) for path in found]
    assert ends == ["Dawn", "Dusk", "Nightfall"] * 3  # from each topic to each
    assert list(reasoning_paths(graph, topics, both_ways)) == []
    assert [graph.name_of(path[-1].tail) for path in reasoning_paths(graph, topics, (year,))] == ["1989", "1992"]
    assert len(list(reasoning_paths(graph, topics, (about,)))) == 1


def test_a_cap_on_paths_starves_no_plan(world: Any) -> None:
    topics = [world.id_of("Nightfall")]
    plans = [(("made_by", "^made_by"), 0.75), (("about", "^about"), 0.25), (("no such relation",), 9.0)]
    evidence = gather_evidence(world.search, topics, plans, max_paths=2)
    assert [path.text.split(" → ")[-1] for path in evidence.paths] == ["Dawn", "Snake"]
    assert [path.score for path in evidence.paths] == [0.75, 0.25]
    assert evidence.num_left_out == 1
    one = gather_evidence(world.search, topics, plans, max_paths=1)
    assert one.num_left_out == 2  # the second plan's first path has no room either
    whole = gather_evidence(world.search, topics, plans, max_paths=9)
    assert sum(path.score for path in whole.paths) == 1.0
    assert whole.num_left_out == 0


def test_neighbours_show_every_relation_before_a_second_triple_of_one(world: Any) -> None:
    moon = world.id_of("Ida Moon")
    assert neighbour_triples(world.search, moon, limit=2) == ("(Dawn, made_by, Ida Moon)", "(Dusk, made_by, Ida Moon)")
    dawn = neighbour_triples(world.search, world.id_of("Dawn"), limit=9)
    assert set(dawn) == {"(Dawn, made_by, Ida Moon)", "(Dawn, year, 1989)"}


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name.replace('__', '.')}.txt").write_text(text, encoding="utf-8")
    return folder


def filled(instruction: Instruction[Any, Any], case: Any) -> tuple[str, str]:
    prompt = instruction.render(case)
    return prompt.text, prompt.system


def test_every_prompt_of_ours_is_there_and_has_a_version() -> None:
    prompts = read_prompts()
    assert set(prompts) == set(PLACEHOLDERS)
    assert all(prompt.version for prompt in prompts.values())
    assert {path.name.split(".")[0] for path in DEFAULT_FOLDER.glob("*.txt")} == set(PLACEHOLDERS)


def test_a_folder_of_ones_own_replaces_single_files(tmp_path: Path) -> None:
    ours = read_prompts()
    mixed = read_prompts(write(tmp_path, plan="Relations for: {question}\n", plan__system="You plan."))
    assert filled(PlanInstruction(mixed), PlanCase("who?")) == ("Relations for: who?", "You plan.")
    assert {name for name, one in ours.items() if one.sha256 != mixed[name].sha256} == {"plan"}


def test_the_version_line_is_not_part_of_the_prompt(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, direct="# version: 2b\nQ: {question}\nA:"))
    assert filled(DirectInstruction(prompts), ReasonCase("x"))[0] == "Q: x\nA:"
    assert prompts["direct"].version == "2b"
    unversioned = read_prompts(write(tmp_path, direct="Q: {question}\nA:\n"))
    assert prompts["direct"].sha256 == unversioned["direct"].sha256


def test_other_braces_stand_for_themselves_and_nothing_is_filled_in_twice(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, reason='{ "q": {question}, {0} {} {{paths}} }'))
    case = ReasonCase("{paths} {x} {", (ScoredPath("3"),))
    assert filled(ReasonInstruction(prompts), case)[0] == '{ "q": {paths} {x} {, {0} {} {3} }'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"plan": "{questoin}"}, r"plan\.txt: unknown placeholder '\{questoin\}'; did you mean 'question'\?\. Legal:"),
        ({"reason": "{question}"}, r"reason\.txt: missing placeholder .\{groups\|paths\}.\. Legal: \{groups"),
        ({"plan__system": "{nothing}"}, r"plan\.system\.txt: unknown placeholder"),
        ({"resaon": "{question}"}, r"resaon\.txt belongs to no instruction; did you mean 'reason\.txt'\?"),
    ],
)
def test_a_wrong_file_says_what_is_legal(tmp_path: Path, files: dict[str, str], message: str) -> None:
    if "plan__system" in files:
        files = {"plan": "{question}", **files}
    with pytest.raises(ConfigError, match=message):
        read_prompts(write(tmp_path, **files))


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        read_prompts(tmp_path / "nowhere")
    (tmp_path / "plan.txt").write_bytes(b"\xff\xfe{question}")
    with pytest.raises(ConfigError, match=r"plan\.txt cannot be read as UTF-8"):
        read_prompts(tmp_path)
