"""The graph has what real graphs have: long tails, hubs, homonyms, parallel edges and names in many scripts."""

import unicodedata
from collections import Counter
from typing import Any

from kgqa_core.embedded.draw import Draw


def kind(label: str) -> str:
    return label.partition("_")[0]


def test_size(files: Any) -> None:
    assert 2900 <= len(files.names) <= 3100
    assert 10_000 <= len(files.triples) <= 20_000
    assert len({relation for _, relation, _ in files.triples}) == 10


def test_names_and_triples_are_sorted_complete_and_without_repetition(files: Any) -> None:
    assert files.triples == sorted(set(files.triples))
    assert list(files.names) == sorted(files.names)
    assert set(files.names) == {label for head, _, tail in files.triples for label in (head, tail)}


def test_every_film_has_every_relation(files: Any) -> None:
    films = {label for label in files.names if kind(label) == "film"}
    for relation in {relation for _, relation, _ in files.triples}:
        ends = {label for head, named, tail in files.triples if named == relation for label in (head, tail)}
        assert films <= ends, relation


def test_homonyms(files: Any) -> None:
    bearers: dict[str, list[str]] = {}
    for label, name in files.names.items():
        bearers.setdefault(name, []).append(kind(label))
    shared = Counter(tuple(sorted(kinds)) for kinds in bearers.values() if len(kinds) > 1)
    assert shared == {("film", "film"): 14, ("person", "person"): 9, ("film", "person"): 3}


def test_parallel_edges(files: Any) -> None:
    relations: dict[tuple[str, str], set[str]] = {}
    for head, relation, tail in files.triples:
        relations.setdefault((head, tail), set()).add(relation)
    both = Counter(frozenset(found) for found in relations.values() if len(found) > 1)
    assert both[frozenset({"directed", "wrote_the_script_for"})] > 100
    assert both[frozenset({"directed", "acted_in"})] > 20


def test_names_are_unicode_in_one_normal_form(files: Any) -> None:
    scripts: Counter[str] = Counter()
    for name in files.names.values():
        assert name == unicodedata.normalize("NFC", name) == name.strip()
        assert "\t" not in name and "\n" not in name
        letters = [letter for letter in name if letter.isalpha()]
        scripts.update({unicodedata.name(letter).partition(" ")[0] for letter in letters})
    for script in ("CYRILLIC", "GREEK", "KATAKANA", "HANGUL"):
        assert scripts[script] >= 20, script
    assert sum(not name.isascii() for name in files.names.values()) > 900


def test_titles_have_punctuation_and_contain_other_names(files: Any) -> None:
    titles = [name for label, name in files.names.items() if kind(label) == "film"]
    places = [name for label, name in files.names.items() if kind(label) == "place"]
    for mark in "'?!.,:":
        assert any(mark in title for title in titles), mark
    assert any(place in title and place != title for title in titles for place in places)


def test_popularity_has_a_long_tail(files: Any) -> None:
    """Most actors have few films while a few have dozens; the first genre is a hub."""
    films_of = Counter(head for head, relation, _ in files.triples if relation == "acted_in")
    ranked = sorted(films_of.values(), reverse=True)
    assert ranked[0] > 50 and ranked[len(ranked) // 2] <= 4
    genres = Counter(tail for _, relation, tail in files.triples if relation == "belongs_to_genre")
    assert genres.most_common(1)[0][1] > 200


def test_draws_by_rank_follow_their_weights() -> None:
    draw = Draw(5, "test")
    counts = Counter(draw.pick_ranked("abc", head_start=1) for _ in range(11_000))
    for letter, expected in (("a", 6000), ("b", 3000), ("c", 2000)):  # 1 : 1/2 : 1/3
        assert abs(counts[letter] - expected) < 200


def test_streams_and_seeds_are_independent() -> None:
    streams = [Draw(5, "one"), Draw(5, "two"), Draw(6, "one")]
    shuffled = [draw.shuffle(range(31)) for draw in streams]
    assert all(sorted(order) == list(range(31)) for order in shuffled)
    assert len({tuple(order) for order in shuffled}) == 3
