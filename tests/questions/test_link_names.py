"""Names and aliases in texts: whatever their case, accents and punctuation, and never inside a word."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link_names import NameIndex, Run, fold_word, letter_span, words_of
from tests.loading import graph_of_text

NAMES = ["Up", "Up in the Air", "film", "Zoë", "300", "+1", "C++", "[REC]", "Rock", "Alan_PULIDO", "Don't", "rock"]
NAMES += ["日本"]
ALIASES = [("Up", "The Balloon House"), ("Zoë", "Zo"), ("Rock", "Rock")]
PIECES = ["Up", "up", "UP", "in", "the", "Air", "air.", "film", "zoe", "Zoë", "300", "+1", "rec", "[REC]", "rock-rock"]
PIECES += ["alan pulido", "ALAN_pulido", "don t", "dont", "C++", "upin", "balloon house", "The  Balloon House"]
PIECES += ["日本", ""]


def make_graph(folder: Path, names: list[str], aliases: list[tuple[str, str]] | None = None) -> KnowledgeGraph:
    """Build a graph of entities with these names, and give some of them aliases."""
    graph = graph_of_text(folder, "".join(f"{name}\tr\tone hub\n" for name in names))
    if aliases:
        rows = [(graph.ids_of_name(name)[0], alias) for name, alias in aliases]
        table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=schemas.ALIASES)
        pq.write_table(table, folder / "graph" / "aliases.parquet")
    return graph


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> NameIndex:
    return NameIndex(make_graph(tmp_path_factory.mktemp("named"), NAMES, ALIASES))


def found_in(index: NameIndex, text: str) -> set[tuple[int, str]]:
    """Return (number of the first word, name) of all that is found."""
    (found,) = index.find([words_of(text)])
    return {(one.first, index.name_of(row)) for one in found for row in one.rows}


def plain(text: str) -> str:
    """Return a text without case and accents, by another way than the index."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(part for part in parts if unicodedata.category(part) != "Mn")


def search_names(index: NameIndex, text: str) -> set[tuple[int, str]]:
    """The oracle: a regular expression per name, tried at every place of the text."""
    text, found = plain(text), set()
    for _, name in index.names():
        words = re.findall(r"[^\W_]+", plain(name))
        pattern = re.compile(r"(?<![^\W_])" + r"[\W_]+".join(words) + r"(?![^\W_])")
        places = [at for at in range(len(text)) if words and pattern.match(text, at)]
        found |= {(len(re.findall(r"[^\W_]+", text[:at])), name) for at in places}
    return found


@given(st.lists(st.sampled_from(PIECES), max_size=7), st.sampled_from([" ", ", ", " - "]))
def test_the_index_finds_what_a_regular_expression_per_name_finds(
    index: NameIndex, pieces: list[str], blank: str
) -> None:
    text = blank.join(pieces)
    assert found_in(index, text) == search_names(index, text)


def test_many_texts_at_once_are_each_by_themselves(index: NameIndex) -> None:
    texts = ["up in", "the air", "", "Up in the Air", "film"]
    together = index.find([words_of(text) for text in texts])
    assert together == [index.find([words_of(text)])[0] for text in texts]
    assert [len(found) for found in together] == [1, 0, 0, 2, 1]


def test_an_alias_is_a_name_of_its_entity(index: NameIndex) -> None:
    ((found,),) = index.find([words_of("who lives in the balloon house")])
    (row,) = found.rows
    assert index.name_of(row) == "The Balloon House"
    assert index.graph.name_of(index.entity_of(row)) == "Up"


def test_case_accents_and_form_of_letters_do_not_count() -> None:
    folded = ["odon", "strasse", "strasse", "film", "viii"]
    assert [fold_word(word) for word in ("ÖDÖN", "Straße", "STRASSE", "ﬁlm", "Ⅷ")] == folded
    decomposed = unicodedata.normalize("NFD", "Zoë")
    assert [word for word, _, _ in words_of(decomposed)] == ["zoe"]
    assert words_of("a_B-c") == [("a", 0, 1), ("b", 2, 3), ("c", 4, 5)]


def test_the_sign_of_a_vowel_is_part_of_its_word() -> None:
    assert words_of("राम रोम") == [("राम", 0, 3), ("रोम", 4, 7)]  # Rama and Rome differ in nothing else
    assert [word for word, _, _ in words_of("مُحَمَّد")] == ["محمد"]  # these are left out by most writers


def test_the_span_takes_in_the_punctuation_of_the_name() -> None:
    assert letter_span("see [REC] now", (5, 8), "[REC]") == ((4, 9), True)
    assert letter_span("see [rec] now", (5, 8), "[REC]") == ((4, 9), False)
    assert letter_span("see rec now", (4, 7), "[REC]") == ((4, 7), False)
    assert letter_span("1 of them", (0, 1), "+1") == ((0, 1), False)


def test_a_graph_without_usable_names_finds_nothing(tmp_path: Path) -> None:
    graph = make_graph(tmp_path, ["...", "??"])
    assert NameIndex(graph).find([words_of("who directed ??")]) == [[]]


def near(index: NameIndex, found: list[Run]) -> list[tuple[int, int, str]]:
    return sorted((one.first, one.last, index.name_of(row)) for one in found for row in one.rows)


def test_words_written_together_or_apart_or_without_an_article(index: NameIndex) -> None:
    assert near(index, index.find_joined(words_of("who is in upintheair"))) == [(3, 3, "Up in the Air")]
    assert near(index, index.find_joined(words_of("see dont"))) == [(1, 1, "Don't")]
    assert near(index, index.find_joined(words_of("in balloon house"))) == [(1, 2, "The Balloon House")]
    assert near(index, index.find_joined(words_of("up"))) == []  # that is the name itself


def test_one_misspelt_word_of_a_name(index: NameIndex) -> None:
    assert near(index, index.find_misspelt(words_of("see alan puldio"), frozenset({"see"}))) == [(1, 2, "Alan_PULIDO")]
    assert near(index, index.find_misspelt(words_of("alan puldio"), frozenset({"puldio"}))) == []
    assert "pulido" in index.near_words("pluido") and "pulido" not in index.near_words("placido")
