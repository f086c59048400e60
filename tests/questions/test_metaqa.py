"""MetaQA files: brackets as they are, both folder layouts, gold chains by type name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.closed_domains import METAQA, chain_of_type, read_brackets
from kgqa_core.questions.link import load_question_file

Ids = Callable[..., tuple[int, ...]]


@pytest.mark.parametrize(
    ("marked", "text", "topics"),
    [
        ("who directed [Vertigo]", "who directed Vertigo", ["Vertigo"]),
        ("[Vertigo]", "Vertigo", ["Vertigo"]),
        ("[Grace Kelly] and [Vertigo] have what", "Grace Kelly and Vertigo have what", ["Grace Kelly", "Vertigo"]),
        ("what is [[REC]] about", "what is [REC] about", ["[REC]"]),
        ("what is [REC about", "what is [REC about", []),  # never closed: ordinary text
        ("no topic", "no topic", []),
        ("a ] b [ c", "a ] b [ c", []),
    ],
)
def test_brackets_mark_topics(marked: str, text: str, topics: list[str]) -> None:
    read, mentions = read_brackets(marked)
    assert read == text
    assert [read[start:end] for start, end in mentions] == topics


@pytest.mark.parametrize(
    ("qtype", "chain"),
    [
        ("movie_to_imdbrating", ("has_imdb_rating",)),
        ("movie_to_imdbvotes", ("has_imdb_votes",)),
        ("movie_to_tags", ("has_tags",)),
        ("tag_to_movie", ("~has_tags",)),
        ("actor_to_movie_to_language", ("~starred_actors", "in_language")),
        ("movie_to_writer_to_movie_to_year\n", ("written_by", "~written_by", "release_year")),
        ("director_to_movie_to_director", ("~directed_by", "directed_by")),
        ("movie_to_actor_to_movie_to_genre", ("starred_actors", "~starred_actors", "has_genre")),
        ("actor_to_director", None),  # no such relation
        ("movie", None),
        ("", None),
    ],
)
def test_type_names_give_the_chain(qtype: str, chain: tuple[str, ...] | None) -> None:
    assert chain_of_type(qtype) == chain


def write_metaqa(folder: Path, *, official: bool, qtypes: bool = True) -> Path:
    """One question per split and hop."""
    for hop, question, qtype in (
        (1, "who directed [Vertigo]\tAlfred Hitchcock", "movie_to_director"),
        (2, "films by the director of [Vertigo]\tRear Window", "movie_to_director_to_movie"),
    ):
        texts = folder / f"{hop}-hop" / ("vanilla" if official else ".")
        texts.mkdir(parents=True)
        for split in ("train", "dev", "test"):
            (texts / f"qa_{split}.txt").write_text(question + "\n", encoding="utf-8")
            if qtypes:
                (folder / f"{hop}-hop" / f"qa_{split}_qtype.txt").write_text(qtype + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("official", [True, False])
def test_both_layouts_give_the_same_questions(tmp_path: Path, films: KnowledgeGraph, ids: Ids, official: bool) -> None:
    folder = write_metaqa(tmp_path, official=official)
    files = METAQA.list_files(folder, None)
    assert [(file.split, file.hops) for file in files] == [(s, h) for h in (1, 2) for s in ("train", "dev", "test")]
    assert METAQA.list_files(folder, (2,)) == files[3:]
    last = files[5]
    (question,), rejects = load_question_file(last.path, format="metaqa", graph=films, split="test", hops=last.hops)
    assert rejects == []
    assert question.id == "metaqa-2-test-1"
    assert question.text == "films by the director of Vertigo"
    assert question.masked == "films by the director of [topic]"
    assert question.topics == ids("f2")
    assert question.answers == ids("f1", "f3")  # a shared name: all who bear it
    assert question.hops == 2
    directed_by = films.relation_labels.index("directed_by")
    assert question.chain == (directed_by, directed_by + films.num_relations)


def test_without_a_chain_file_there_is_no_chain(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = METAQA.list_files(write_metaqa(tmp_path, official=True, qtypes=False), (1,))[0].path
    (question,), _ = load_question_file(path, format="metaqa", graph=films, hops=1)
    assert question.chain is None


def test_a_chain_file_of_other_length_is_refused(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = METAQA.list_files(write_metaqa(tmp_path, official=False), (1,))[0].path
    path.with_name("qa_train_qtype.txt").write_text("movie_to_director\nmovie_to_year\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"qa_train_qtype\.txt has 2 lines, .*qa_train\.txt has 1"):
        load_question_file(path, format="metaqa", graph=films)


def test_a_missing_hop_or_file_is_named(tmp_path: Path) -> None:
    folder = write_metaqa(tmp_path, official=False)
    with pytest.raises(InputError, match=r"has no 3-hop folder \(found: 1-hop, 2-hop\)"):
        METAQA.list_files(folder, (1, 3))
    with pytest.raises(InputError, match=r"has no 1-hop, 2-hop or 3-hop folder \(found: none\)"):
        METAQA.list_files(tmp_path / "nowhere", None)
    (folder / "2-hop" / "qa_dev.txt").unlink()
    with pytest.raises(InputError, match=r"qa_dev\.txt does not exist"):
        METAQA.list_files(folder, None)


def test_bad_lines_are_rejected_with_their_reason(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = tmp_path / "qa_test.txt"
    lines = [
        b"who directed [Vertigo]\tAlfred Hitchcock",
        b"who directed [Vertigo]",
        b"who directed [Vertigo]\tAlfred Hitchcock||Grace Kelly",
        b"who directed [Vertiga]\tAlfred Hitchcock",
        b"who directed [Vertigo]\tNobody|No one",
        b"who directed [V\xe9rtigo]\tAlfred Hitchcock",
        b"",
        b"who directed this\tAlfred Hitchcock",
        b"who directed Vertigo\tAlfred Hitchcock",  # not marked, but named
        b"who directed [Ver",
    ]
    path.write_bytes(b"\n".join(lines))
    questions, rejects = load_question_file(path, format="metaqa", graph=films)
    assert [question.id for question in questions] == ["metaqa-test-1", "metaqa-test-9"]
    assert questions[0].masked == questions[1].masked
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (2, "wrong number of fields"),
        (3, "empty field"),
        (4, "no topic in the graph"),
        (5, "no answer in the graph"),
        (6, "not UTF-8"),
        (8, "no entity name in the text"),
        (10, "truncated last line"),
    ]
    assert all(reject.file == "qa_test.txt" for reject in rejects)
    assert rejects[2].text == "who directed [Vertiga]\tAlfred Hitchcock"
