"""FiSKE's parts: where branches start, how they merge and split, how many relations and paths a prompt shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import read_prompts
from kgqa_core.systems.answering import list_paths
from kgqa_core.systems.fiske import Branch, Fiske, FiskeSection, look_up, merge_branches, split_branches
from kgqa_core.types import Question
from tests.forty_triples import Forty
from tests.loading import graph_of_text
from tests.scripted import script
from tests.systems.asking import answer_all
from tests.systems.following import lines_under
from tests.systems.test_fiske import PUBLISHED


def test_branches_of_equal_state_merge_and_split(forty: Forty) -> None:
    def branch(mapped: set[int], path: tuple[int, ...], *layers: list[int]) -> Branch:
        return Branch(0, frozenset(mapped), path, tuple(np.array(layer) for layer in layers))

    merged = merge_branches(
        [branch({0, 1}, (3,), [7], [1, 4]), branch({0, 2}, (3,), [7], [4]), branch({0, 1}, (3,), [8], [2, 4])]
    )
    assert [(sorted(one.mapped), [layer.tolist() for layer in one.layers]) for one in merged] == [
        ([0, 1], [[7, 8], [1, 2, 4]]),
        ([0, 2], [[7], [4]]),
    ]
    split = split_branches([branch({0, 1}, (3,), [7], [1, 4, 5]), branch({0, 1}, (3,), [7], [4])], most=2)
    assert [one.frontier.tolist() for one in split] == [[1], [4]]


def test_paths_are_listed_in_turns_up_to_so_many_triples(forty: Forty) -> None:
    graph = forty.graph
    relation = graph.num_relations + graph.step_ids["genre"]  # the films of a genre
    films = [np.array(graph.neighbors(forty.id_of(genre), relation)) for genre in ("comedy", "drama")]
    branches = [
        ((relation,), (np.array([forty.id_of(genre)]), own))
        for genre, own in zip(("comedy", "drama"), films, strict=True)
    ]
    starts = [forty.graph.label_of(path[0].tail) for path in list_paths(graph, branches, max_triples=3)]
    assert starts == ["comedy", "drama", "comedy"]
    assert len(list_paths(graph, branches, max_triples=30)) == 4
    assert len(list_paths(graph, branches, max_triples=1)) == 1


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> SearchGraph:
    """Return a graph with twelve things called "film", one "Film", and an entity with 45 relations."""
    folder: Path = tmp_path_factory.mktemp("crowded")
    triples = [f"Hub\trel {number:02}\tEnd {number:02}" for number in range(45)]
    triples += [f"thing {number:02}\tkind\tthings" for number in range(13)]
    names = [f"thing {number:02}\t{'film' if number < 12 else 'Film'}" for number in range(13)]
    graph = graph_of_text(folder, "\n".join(triples) + "\n", "\n".join(names) + "\n")
    return SearchGraph(graph, graph, None, 3, False)


def test_relations_are_asked_about_in_batches(crowded: SearchGraph) -> None:
    model = script(
        ("extract_clues", "", "Hub\nwhat"),
        ("map_relations", "rel 00\n", "none"),
        ("map_relations", "rel 20\n", "not to be read"),
        ("map_relations", "rel 40\n", "what -> rel 43 = 7"),
        ("map_entities", "End 43", "what -> End 43"),
        ("reason", "Hub → rel 43:\nEnd 43", "End 43"),
    )
    system = Fiske(crowded, read_prompts(), FiskeSection.model_validate(PUBLISHED))
    (answered,) = answer_all(system, [Question("q", "what?", "what?", (), (), "test")], crowded, model)
    model.check_done()
    assert crowded.graph.name_of(answered.answer.prediction.answers[0]) == "End 43"
    sizes = [len(lines_under(prompt, "Relations:", "none")) for prompt in model.prompts_of("map_relations")]
    assert sizes == [20, 20, 5]
    assert [call.round for call in answered.calls] == [1, 2, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("texts", "settings", "mapped"),
    [
        (["film", "Hub"], {"max_starts": 4, "starts": "all"}, [0, 0, 0, 1]),  # names that many things bear come last
        (["film", "Hub"], {}, [1]),
        (["hub", "Film"], {"starts": "all"}, [1]),  # where some clue is a name as it is written, case counts
        (["hub", "FILM"], {"starts": "all", "max_starts": 50}, [0] + [1] * 13),
    ],
)
def test_starts(crowded: SearchGraph, texts: list[str], settings: dict[str, object], mapped: list[int]) -> None:
    clues = look_up(crowded, "q", texts, FiskeSection.model_validate(settings))
    assert [min(branch.mapped) for branch in clues.starts] == mapped
    assert len(merge_branches(clues.starts)) == len(set(mapped))
    assert clues.num_left_out == (9 if settings.get("max_starts") == 4 else 0)
