"""Paths and triples as prompts show them, and answers matched to a graph's entities."""

from __future__ import annotations

from typing import Any

from kgqa_core.graph.follow import reasoning_paths
from kgqa_core.instructions.answers import match_answers
from kgqa_core.instructions.evidence import gather_evidence
from kgqa_core.instructions.render import neighbour_triples, render_triples, show_path
from kgqa_core.types import Step


class Odd:
    """Names that would break a prompt's lines."""

    relation_labels = ("^line\nbreak",)

    def name_of(self, entity_id: int) -> str:
        return (" a", "b\n")[entity_id]

    def relation_text(self, relation: int) -> str:
        return self.relation_labels[relation]


def test_odd_names_and_relations_stay_on_their_line() -> None:
    path = (Step(0, 0, 1, reverse=True),)
    odd: Any = Odd()
    assert show_path(odd, path).text == "b\\u{a} → ^\\^line\\u{a}break → \\u{20}a"
    assert show_path(odd, path, signed=False).text == "b\\u{a} → ^line\\u{a}break → \\u{20}a"
    assert render_triples(odd, path) == "(\\u{20}a, ^line\\u{a}break, b\\u{a})"


def test_paths_to_every_end_come_before_second_ways_to_one(world: Any) -> None:
    graph, labels = world.graph, world.graph.relation_labels
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
    evidence = gather_evidence(world.graph, topics, plans, max_paths=2)
    assert [path.text.split(" → ")[-1] for path in evidence.paths] == ["Dawn", "Snake"]
    assert [path.score for path in evidence.paths] == [0.75, 0.25]
    assert evidence.num_left_out == 1
    whole = gather_evidence(world.graph, topics, plans, max_paths=9)
    assert sum(path.score for path in whole.paths) == 1.0
    assert whole.num_left_out == 0


def test_neighbours_show_every_relation_before_a_second_triple_of_one(world: Any) -> None:
    moon = world.id_of("Ida Moon")
    assert neighbour_triples(world.graph, world.graph, moon, limit=2) == (
        "(Dawn, made_by, Ida Moon)",
        "(Dusk, made_by, Ida Moon)",
    )
    dawn = neighbour_triples(world.graph, world.graph, world.id_of("Dawn"), limit=9)
    assert set(dawn) == {"(Dawn, made_by, Ida Moon)", "(Dawn, year, 1989)"}


def test_names_that_no_candidate_has_are_looked_up_in_the_graph(world: Any) -> None:
    dawn, snake = world.id_of("Dawn"), world.id_of("Snake")
    matched = match_answers(["dawn", "SNAKE", "nobody"], {dawn: "Dawn"}, world.graph)
    assert (matched.entities, matched.unsupported, matched.unmatched) == ((dawn, snake), (snake,), ("nobody",))
