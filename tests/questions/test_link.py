"""Topics by name: the longest one, words whole, capitals first; else an error with the nearest names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import process

from kgqa_core.errors import LinkError
from kgqa_core.graph.csr import SortedIndex
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link import find_mention, link_question, mask_spans, mask_topics, nearest_names
from tests.loading import graph_of_text

NAMES = ["Up", "Up in the Air", "film", "director", "Zoë", "M", "300", "C++", "[REC]", "rock", "Rock", "Straße", "the"]
Ids = Callable[..., tuple[int, ...]]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """A graph whose entities bear tricky names."""
    folder = tmp_path_factory.mktemp("named")
    return graph_of_text(folder, "".join(f"{name}\tr\thub\n" for name in [*NAMES, "राम", "?", "-"]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Who directed Up in the Air?", ["Up in the Air"]),  # the longest
        ("Who directed Up?", ["Up"]),
        ("Is Up a film by its director?", ["Up"]),  # a capital before longer common words
        ("who directed up in the air", ["Up in the Air"]),  # without a capital case does not count
        ("who is zoë", ["Zoë"]),
        ("Was 300 shot in one take?", ["300"]),
        ("Is C++ a language?", ["C++"]),
        ("What is [REC] about?", ["[REC]"]),
        ("Which film?", ["film"]),
        ("what is rock", ["Rock", "rock"]),
        ("Who is Rock?", ["Rock"]),
        ("WHERE IS STRASSE", ["Straße"]),
        ("M: who made it?", ["M"]),
        ("राम कौन है?", ["राम"]),
        ("Who played in \u2764\ufe0fRock?", ["Rock"]),
    ],
)
def test_a_name_in_the_text_is_the_topic(named: KnowledgeGraph, text: str, found: list[str]) -> None:
    assert [named.name_of(topic) for topic in link_question(text, named).topics] == found


@pytest.mark.parametrize(
    "text", ["Upper case", "Mother", "1300 men", "", "filmic", "Is Ava well-known?", "रामायण", "Is M\u0301 known?"]
)
def test_part_of_a_word_or_a_mere_mark_is_no_name(named: KnowledgeGraph, text: str) -> None:
    assert find_mention(text, named) is None


def test_an_unknown_name_gives_the_five_nearest(films: KnowledgeGraph) -> None:
    with pytest.raises(LinkError) as failed:
        link_question("Who directed Vertgo?", films)
    message = str(failed.value)
    assert "'Who directed Vertgo?'" in message
    assert message.split("Nearest names in the graph: ")[1].startswith("'Vertigo'")
    assert message.count("'") == 2 * 6  # the question and five names
    assert "--topic NAME" in message


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("Alein", ["Alien", "Aliens", "Resident Alien"]),
        ("alien", ["Alien", "Aliens", "Resident Alien"]),  # not the longer one, which has as much in common
        ("Noland", ["Poland", "Mongolian"]),
        ("Matrx", ["Matrix", "Max", "Amateur"]),
        ("Ronaldo", ["Cristiano RONALDO", "BERNARD"]),  # a long name that holds all that was typed is near
    ],
)
def test_a_short_name_is_nearer_than_a_long_one_that_looks_like_it(
    tmp_path: Path, typed: str, nearest: list[str]
) -> None:
    names = ["Alien", "Aliens", "Resident Alien", "Mongolian", "Poland", "Amateur", "Matrix", "Max", "BERNARD"]
    graph = graph_of_text(tmp_path, "".join(f"{name}\tr\tCristiano RONALDO\n" for name in names))
    assert [name for name in nearest_names(typed, graph) if name in nearest] == nearest


def slow_longest(text: str, names: Iterable[str]) -> int:
    """The oracle: length of the longest name, capitals first, by trying every name at every place."""

    def at(place: int, name: str) -> bool:
        end = place + len(name)
        inside = [0 < edge < len(text) and text[edge - 1].isalnum() and text[edge].isalnum() for edge in (place, end)]
        return not any(inside)

    found = [
        (text[i : i + len(n)], n)
        for n in names
        for i in range(len(text))
        if text[i:].lower().startswith(n.lower()) and at(i, n)
    ]
    exact = [name for piece, name in found if piece == name and name != name.lower()]
    return max((len(name) for name in exact or [name for _, name in found]), default=0)


ASCII_NAMES = [name for name in NAMES if name.isascii()] + ["hub"]


@given(
    words=st.lists(
        st.sampled_from(["Up", "up", "in", "the", "Air", "film", "C++", "M", "x", "300", "rocks"]), max_size=7
    )
)
def test_linking_agrees_with_trying_every_name(named: KnowledgeGraph, words: list[str]) -> None:
    text = " ".join(words)
    mention = find_mention(text, named)
    assert (mention[0][1] - mention[0][0] if mention else 0) == slow_longest(text, ASCII_NAMES)


def test_masking_replaces_every_mention_longest_first() -> None:
    assert mask_topics("Up or Up in the Air, uptown?", ["Up", "Up in the Air"]) == "[topic] or [topic], uptown?"
    assert mask_topics("who made vertigo", ["Vertigo"]) == "who made [topic]"
    assert mask_topics("Is M by Lang?", ["M"], claims=["Lang"]) == "Is [topic] by [claim]?"
    assert mask_topics("nothing here", ["Vertigo"]) == "nothing here"
    assert mask_topics("Who directed [REC]?", ["[REC]"]) == "Who directed [topic]?"
    assert mask_spans("abcdef", [((1, 3), "x"), ((2, 6), "y")]) == "aby"


def test_a_person_asks(films: KnowledgeGraph, ids: Ids) -> None:
    asked = link_question("Who directed Vertigo?", films)
    assert (asked.topics, asked.masked, asked.answers) == (ids("f2"), "Who directed [topic]?", ())
    assert link_question("Who directed Rear Window?", films).topics == ids("f1", "f3")  # all who share the name
    named = link_question("Who directed the film of 1958?", films, topics=["1958"])
    assert (named.topics, named.masked) == (ids("1958"), "Who directed the film of [topic]?")
    with pytest.raises(LinkError, match=r"'vertigo' is no entity .* Nearest names in the graph: 'Vertigo'"):
        link_question("Who directed it?", films, topics=["vertigo"])


def test_a_topic_of_any_length_is_compared_with_the_names_by_its_beginning(
    films: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, extract = set[int](), process.extract

    def counted(window: str, *args: object, **kwargs: object) -> object:
        compared.add(len(window))
        return extract(window, *args, **kwargs)

    monkeypatch.setattr(process, "extract", counted)
    with pytest.raises(LinkError, match="is no entity of the graph"):
        link_question("Who directed it?", films, topics=["Vertigo" * 1_000_000])
    assert compared == {300}
    assert nearest_names("Vertigo " * 5_000, films)[0] == "Vertigo"  # of a file of questions, too
    assert max(compared) == 300


@pytest.mark.parametrize("words", [["nothing"], ["up", "in", "the"]])
def test_looking_for_names_takes_as_many_look_ups_as_there_are_words(
    named: KnowledgeGraph, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, starts_with = [0], SortedIndex.starts_with

    def counted(index: SortedIndex, row: int, prefix: bytes) -> bool:
        counts[0] += 1
        return starts_with(index, row, prefix)

    monkeypatch.setattr(SortedIndex, "starts_with", counted)
    spent = []
    for repeats in (100, 200):
        counts[0] = 0
        find_mention(" ".join(words * repeats), named)
        spent.append(counts[0])
    assert 0 < spent[1] <= 2 * spent[0] + 9
