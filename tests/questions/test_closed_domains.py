"""MetaQA files: brackets as they are, both folder layouts, gold chains by type name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions
from kgqa_core.questions.closed_domains import METAQA, chain_of_type, read_brackets, read_wc2014, walk
from kgqa_core.questions.formats import Fault, QuestionFile, RawQuestion
from tests.loading import graph_of_text, load_question_file, searched
from tests.questions.freebase_files import write_json

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
    assert (question.id, question.text) == ("metaqa-2-test-1", "films by the director of Vertigo")
    assert (question.masked, question.hops) == ("films by the director of [topic]", 2)
    assert (question.topics, question.answers) == (ids("f2"), ids("f1", "f3"))  # a shared name: all who bear it
    directed_by = films.relation_names.index("directed_by")
    assert question.chain == (directed_by, directed_by + films.num_relations)


def test_a_chain_file_may_be_missing_but_not_of_other_length(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = METAQA.list_files(write_metaqa(tmp_path, official=False, qtypes=False), (1,))[0].path
    (question,), _ = load_question_file(path, format="metaqa", graph=films, hops=1)
    assert question.chain is None
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
    reasons = {2: "wrong number of fields", 3: "empty field", 4: "no topic in the graph", 5: "no answer in the graph"}
    reasons |= {6: "not UTF-8", 8: "no entity name in the text", 10: "truncated last line"}
    assert {reject.line: reject.reason for reject in rejects} == reasons
    assert all(reject.file == "qa_test.txt" for reject in rejects)
    assert rejects[2].text == "who directed [Vertiga]\tAlfred Hitchcock"


# ------ WorldCup2014 files: columns, gold paths over given inverses, repeated questions, splits by distinct question.


Build = Callable[..., QuestionReport]

TEAM = ["Ann_ALM", "Bob_BIRK", "Cid_CEDAR"]


def inverses(text: str) -> str:
    """Every triple, and behind it the same with the relation's inverse."""
    rows = [line.split("\t") for line in text.splitlines()]
    return "".join(f"{h}\t{r}\t{t}\n{t}\t{r}_inverse\t{h}\n" for h, r, t in rows)


@pytest.fixture(scope="module")
def cup(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """Three players of the club Reds, in England; Bob comes from Scotland."""
    folder = tmp_path_factory.mktemp("cup")
    kb = inverses("".join(f"{player}\tplays_in_club\tReds\n" for player in TEAM) + "Reds\tis_in_country\tEngland\n")
    kb += inverses("Bob_BIRK\tplays_for_country\tScotland\n") + "Ann_ALM\tis_aged\t23\n"
    return graph_of_text(folder, kb, inverse_suffix="_inverse")


ALL = "/".join(TEAM) + "/"
ONE_HOP = [
    f"who plays at Reds ?\t{player}\tReds#plays_in_club_inverse#{player}#<end>#{player}\t{ALL}\tx" for player in TEAM
]
ONE_HOP += [f"where does {player} play ?\tReds\t{player}#plays_in_club#Reds#<end>#Reds\tReds/\tx" for player in TEAM]
ONE_HOP += ["how old is Ann_ALM ?\t23\tAnn_ALM#is_aged#23#<end>#23\t23/\tx"]
TWO_HOP = [
    "name a club of a player from Scotland ?\tReds\t"
    "Scotland#plays_for_country_inverse#Bob_BIRK#plays_in_club#Reds\tReds/\t"
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write the files of a folder, one per number of hops."""

    def write_files(**files: list[str]) -> Path:
        for name, lines in files.items():
            (tmp_path / f"{name[-1]}-hop.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path

    return write_files


@pytest.fixture
def build(tmp_path: Path, cup: KnowledgeGraph) -> Build:
    def build_here(path: Path, **section: Any) -> QuestionReport:
        wanted = QuestionSection(format="wc2014", path=path, **section)
        return build_questions(wanted, search=searched(cup, 2), out_dir=tmp_path / "out")

    return build_here


@pytest.fixture
def parse(tmp_path: Path) -> Callable[[str], RawQuestion | Fault]:
    """What the seventh line of a file says."""

    def parse_line(line: str) -> RawQuestion | Fault:
        (tmp_path / "2-hop.txt").write_text("\n" * 6 + line + "\n", encoding="utf-8")
        ((number, _, said),) = read_wc2014(QuestionFile(tmp_path / "2-hop.txt"))
        assert number == 7
        return said

    return parse_line


def test_a_line_says_topic_chain_and_all_answers(parse: Callable[[str], RawQuestion | Fault]) -> None:
    text, chain = "name a club of a player from Scotland ?", ("plays_for_country_inverse", "plays_in_club")
    assert parse(TWO_HOP[0]) == RawQuestion("wc2014-2-hop-7", text, ("Reds",), ("Scotland",), hops=2, chain=chain)
    one = parse(ONE_HOP[1])
    assert isinstance(one, RawQuestion)
    assert (one.answers, one.chain, one.hops) == (tuple(TEAM), ("plays_in_club_inverse",), 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("q ?\ta\ta#r#a\ta/", "wrong number of fields"),
        ("\ta\tb#r#a\ta/\tx", "empty field"),
        ("q ?\ta\tb#r#a\ta//\tx", "empty field"),
        ("q ?\ta\tb#r#a\tc/\tx", "answer is not among all answers"),
        ("q ?\ta\tb#r\ta/\tx", "gold path is not entity#relation#entity"),
        ("q ?\ta\tb\ta/\tx", "gold path is not entity#relation#entity"),
        ("q ?\ta\tb#<end>#a\ta/\tx", "gold path is not entity#relation#entity"),
        ("q ?\ta\tb##a\ta/\tx", "gold path is not entity#relation#entity"),
    ],
)
def test_a_line_that_is_none_says_why(parse: Callable[[str], RawQuestion | Fault], line: str, reason: str) -> None:
    assert parse(line) == Fault(reason)


def test_an_inverse_in_a_gold_path_is_the_relation_walked_backwards(
    write: Callable[..., Path], cup: KnowledgeGraph
) -> None:
    folder = write(hop_2=TWO_HOP)
    questions, rejects = load_question_file(folder / "2-hop.txt", format="wc2014", graph=cup)
    assert rejects == []
    for_country, in_club = (cup.relation_names.index(label) for label in ("plays_for_country", "plays_in_club"))
    assert questions[0].chain == (for_country + cup.num_relations, in_club)
    assert questions[0].masked == "name a club of a player from [topic] ?"


def test_own_chains_may_name_a_given_inverse_and_walk_it_backwards(tmp_path: Path, cup: KnowledgeGraph) -> None:
    line = '{"question": "Where does Ann_ALM play?", "answers": ["Reds"], "chain": ["~plays_in_club_inverse"]}'
    (tmp_path / "own.jsonl").write_text(line + "\n", encoding="utf-8")
    questions, _ = load_question_file(tmp_path / "own.jsonl", format="jsonl", graph=cup)
    assert questions[0].chain == (cup.relation_names.index("plays_in_club"),)


def doubts(report: QuestionReport, kind: str) -> list[tuple[int, tuple[str, ...]]]:
    return [(finding.count, finding.examples) for finding in report.lint.findings if finding.kind == kind]


@pytest.mark.parametrize("whole", [True, False])
def test_a_repeated_question_is_kept_once_with_the_answers_of_all_its_lines(
    write: Callable[..., Path], build: Build, tmp_path: Path, cup: KnowledgeGraph, whole: bool
) -> None:
    partly = [
        f"who plays at Reds ?\t{player}\tReds#plays_in_club_inverse#{player}#<end>#{player}\t{player}/\tx"
        for player in TEAM[:2]
    ]
    report = build(write(hop_1=ONE_HOP if whole else [*partly, *ONE_HOP[3:]]))
    assert (report.num_questions, report.num_rejects, set(report.per_split)) == (5, 0, {"train", "dev", "test"})
    who = next(question for question in read_questions(tmp_path / "out") if question.text == "who plays at Reds ?")
    assert sorted(map(cup.name_of, who.answers)) == TEAM[: 3 if whole else 2]
    repeats = [f"wc2014-1-hop-1 = wc2014-1-hop-{number}" for number in ((2, 3) if whole else (2,))]
    assert doubts(report, "repeated_question") == [(len(repeats), tuple(repeats))]
    # golds beside what the path leads to are noted
    assert doubts(report, "gold_is_not_its_chain") == ([] if whole else [(1, (who.id,))])


def test_hops_choose_files_and_a_question_keeps_its_split_in_the_mixture(
    write: Callable[..., Path], build: Build, tmp_path: Path
) -> None:
    """Many wordings, so that the splits are those of the hashes."""
    many = [line.replace(" ?", f" {number} ?") for number in range(50) for line in ONE_HOP]
    folder = write(hop_1=many, hop_2=TWO_HOP)
    build(folder, hops=(1,))
    alone = {question.id: question.split for question in read_questions(tmp_path / "out")}
    assert len(alone) == 5 * 50
    assert Counter(alone.values())["train"] == pytest.approx(200, abs=25)
    report = build(folder)
    mixed = {question.id: question.split for question in read_questions(tmp_path / "out")}
    assert report.num_questions == len(alone) + 1
    assert {id: split for id, split in mixed.items() if id in alone} == alone


def test_a_missing_hop_is_named(write: Callable[..., Path], build: Build, tmp_path: Path) -> None:
    folder = write(hop_1=ONE_HOP)
    with pytest.raises(InputError, match=r"has no 2-hop\.txt \(found: 1-hop\.txt\)"):
        build(folder, hops=(1, 2))
    with pytest.raises(InputError, match=r"has no 1-hop\.txt or 2-hop\.txt \(found: none\)"):
        build(tmp_path / "nowhere")


# ------ MOOC Q&A: query and true/false questions with their triples, as an array or line by line.


QUERY = {
    "question": "Who directed the film that Grace Kelly starred in?",
    "answer": "Alfred Hitchcock",
    "triples": [["f1", "starred_actors", "p2"], ["f1", "directed_by", "Alfred Hitchcock"]],
}
LISTED = {"question": "What came out in 1958 or Vertigo?", "answer": ["1958", "Vertigo"], "id": "m7"}
TRUE = {"question": "Did Alfred Hitchcock direct Vertigo?", "answer": True, "triples": [["f2", "directed_by", "p1"]]}
FALSE = {"question": "Did Grace Kelly direct Vertigo?", "answer": "No", "triples": [["f2", "directed_by", "p2"]]}


@pytest.mark.parametrize("as_lines", [False, True])
def test_questions_are_read_as_an_array_or_as_lines(tmp_path: Path, films: KnowledgeGraph, as_lines: bool) -> None:
    items = [QUERY, LISTED, TRUE, FALSE]
    path = tmp_path / "test.json"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in items)) if as_lines else write_json(path, items)
    questions, rejects = load_question_file(path, format="mooc", graph=films)
    assert rejects == []
    query, listed, true, false = questions
    assert [question.id for question in questions] == ["test-1", "m7", "test-3", "test-4"]
    names = [films.relation_names.index(name) for name in ("starred_actors", "directed_by")]
    assert query.chain == (names[0] + films.num_relations, names[1])  # the first triple is walked backwards
    assert [films.label_of(topic) for topic in query.topics] == ["p2"]
    assert [films.label_of(answer) for answer in query.answers] == ["p1"]
    assert [films.label_of(topic) for topic in listed.topics] == ["f2"]  # by the longest name in the text
    assert [films.label_of(answer) for answer in listed.answers] == ["1958", "f2"]
    assert true.claim is not None and false.claim is not None
    assert (films.label_of(true.claim), true.verdict, true.answers) == ("p1", True, (true.claim,))
    assert (films.label_of(false.claim), false.verdict, false.answers) == ("p2", False, ())


def test_a_number_is_an_answer_and_no_verdict(tmp_path: Path, films: KnowledgeGraph) -> None:
    triples = [["f2", "release_year", "1958"]]
    items = [{"question": "When was Vertigo?", "answer": one, "triples": triples} for one in (1958, [1958], 1, 0)]
    questions, rejects = load_question_file(write_json(tmp_path / "all.json", items), format="mooc", graph=films)
    found = [([films.label_of(answer) for answer in one.answers], one.claim, one.verdict) for one in questions]
    assert found == [(["1958"], None, None)] * 2
    assert [(one.line, one.reason) for one in rejects] == [(line, "no answer in the graph") for line in (3, 4)]


def test_a_chain_of_triples_is_walked_from_its_topic() -> None:
    there, back = ("a", "r", "b"), ("c", "s", "b")
    assert walk([there]) == (("a", "b"), ("r",))
    assert walk([there, back]) == (("a", "b", "c"), ("r", "~s"))
    assert walk([("b", "r", "a"), back]) == (("a", "b", "c"), ("~r", "~s"))
    assert walk([("a", "r", "a"), ("a", "s", "b")]) == (("a", "a", "b"), ("r", "s"))
    assert walk([there, ("x", "s", "y")]) is None
    assert walk([]) == ((), ())


BAD: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    ({"answer": "x"}, "field question: Field required"),
    ({"question": "who?"}, "field answer: Field required"),
    ({"question": "who?", "answer": []}, "field answer"),
    ({"question": "who?", "answer": True}, "true/false question without triples"),
    ({"question": "who?", "answer": "p1", "triples": [["a", "b"]]}, "field triples"),
    ({"question": "w?", "answer": "p1", "triples": [["a", "r", "b"], ["c", "r", "d"]]}, "field triples: they do not"),
    ({**QUERY, "answer": "nobody"}, "no answer in the graph"),
    ({"question": "who is it?", "answer": "p1"}, "no entity name in the text"),
]


def test_bad_questions_are_rejects(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = write_json(tmp_path / "all.json", [one for one, _ in BAD])
    questions, rejects = load_question_file(path, format="mooc", graph=films)
    assert questions == []
    for reject, (number, (_, reason)) in zip(rejects, enumerate(BAD, 1), strict=True):
        assert reject.line == number
        assert reject.reason.startswith(reason), reject
