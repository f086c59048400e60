"""WorldCup2014 files: columns, gold paths over given inverses, repeated questions, splits by distinct question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions
from kgqa_core.questions.closed_domains import read_wc2014
from kgqa_core.questions.formats import Fault, QuestionFile, RawQuestion
from kgqa_core.questions.link import load_question_file

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
    (folder / "kb.txt").write_text(kb, encoding="utf-8")
    build_graph(folder / "kb.txt", format="tsv", out_dir=folder / "graph", inverse_suffix="_inverse")
    return open_graph(folder / "graph")


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
        return build_questions(wanted, graph=cup, max_steps=2, reenter_topic=False, out_dir=tmp_path / "out")

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
    assert parse(TWO_HOP[0]) == RawQuestion(
        id="wc2014-2-hop-7",
        text="name a club of a player from Scotland ?",
        answers=("Reds",),
        topics=("Scotland",),
        hops=2,
        chain=("plays_for_country_inverse", "plays_in_club"),
    )
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
    for_country, in_club = (cup.relation_labels.index(label) for label in ("plays_for_country", "plays_in_club"))
    assert questions[0].chain == (for_country + cup.num_relations, in_club)
    assert questions[0].masked == "name a club of a player from [topic] ?"


def test_own_chains_may_name_a_given_inverse_and_walk_it_backwards(tmp_path: Path, cup: KnowledgeGraph) -> None:
    line = '{"question": "Where does Ann_ALM play?", "answers": ["Reds"], "chain": ["~plays_in_club_inverse"]}'
    (tmp_path / "own.jsonl").write_text(line + "\n", encoding="utf-8")
    questions, _ = load_question_file(tmp_path / "own.jsonl", format="jsonl", graph=cup)
    assert questions[0].chain == (cup.relation_labels.index("plays_in_club"),)


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
