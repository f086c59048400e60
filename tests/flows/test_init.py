"""``kgqa init``: the run file that it writes for a stranger's files, and the settings that it proposes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli_init import graph_format, header_of, propose_walk
from kgqa_core.config_file import read_config
from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from tests.conftest import kgqa, write_jsonl
from tests.loading import graph_of_text, load_question_file

PEOPLE, CLUBS, TOWNS = 21, 5, 3
TRIPLES = [
    line
    for person in range(PEOPLE)
    for line in (f"Person {person}\tplays_for\tClub {person % CLUBS}", f"Person {person}\taged\t{20 + person % 7}")
] + [f"Club {club}\tlies_in\tTown {club % TOWNS}" for club in range(CLUBS)]


def mates(person: int) -> list[int]:
    """All who play for the club of a person, the person too."""
    return [other for other in range(PEOPLE) if other % CLUBS == person % CLUBS]


def clubs(person: int) -> dict[str, object]:
    return {"question": f"Which club has Person {person}?", "answers": [f"Club {person % CLUBS}"]}


def towns(person: int) -> dict[str, object]:
    return {"question": f"Where is the club of Person {person}?", "answers": [f"Town {person % CLUBS % TOWNS}"]}


def squad(person: int) -> dict[str, object]:
    return {"question": f"Who is beside Person {person}?", "answers": [f"Person {one}" for one in mates(person)]}


def others(person: int) -> dict[str, object]:
    answers = [f"Person {one}" for one in mates(person) if one != person]
    return {"question": f"Who plays with Person {person}?", "answers": answers}


def claims(person: int) -> dict[str, object]:
    town, is_right = person % CLUBS % TOWNS, person % 3 > 0
    claimed = f"Town {town if is_right else (town + 1) % TOWNS}"
    question = f"Is the club of Person {person} in {claimed}?"
    return {"question": question, "topics": [f"Person {person}"], "claim": claimed, "verdict": is_right}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with triples.tsv and a question about each person's club, and a home of its own."""
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triples.tsv").write_text("\n".join(TRIPLES) + "\n", encoding="utf-8")
    write_jsonl(tmp_path / "questions.jsonl", map(clubs, range(PEOPLE)))
    return tmp_path


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("clubs")
    return graph_of_text(folder, "\n".join(TRIPLES) + "\n")


def init(*arguments: str, code: int = 0) -> Any:
    """Let the command write a run file, or end with another code."""
    done = kgqa("init", *arguments)
    assert done.exit_code == code, done.stderr
    return done


@pytest.mark.parametrize(
    ("asked", "steps"),
    [([clubs], 1), ([clubs, towns], 2), ([others], 2), ([squad, clubs], 2), ([claims], 2)],
)
def test_the_walk_is_the_one_whose_paths_explain_the_answers(
    graph: KnowledgeGraph,
    tmp_path: Path,
    asked: Sequence[Callable[[int], dict[str, object]]],
    steps: int,
) -> None:
    path = tmp_path / "questions.jsonl"
    write_jsonl(path, [ask(person) for person in range(PEOPLE) for ask in asked])
    questions, rejects = load_question_file(path, format="jsonl", graph=graph, split="train")
    walk = propose_walk(graph, questions)
    assert not rejects
    assert (walk.steps, walk.reenter_topic) == (steps, squad in asked)
    assert walk.f1[steps - 1] == pytest.approx(100)
    assert walk.num_own_topic == (PEOPLE if squad in asked else 0)


def test_the_run_file_says_why_and_is_never_overwritten_unasked(files: Path) -> None:
    write_jsonl(files / "questions.jsonl", [ask(person) for person in range(PEOPLE) for ask in (clubs, squad)])
    done = init("triples.tsv", "questions.jsonl")
    text = (files / "my.yaml").read_text(encoding="utf-8")
    assert text in done.stdout
    config = read_config(files / "my.yaml")
    assert config.dataset.reenter_topic and config.explorer.steps == 2 and config.explorer.epochs is None
    assert config.dataset.graph.path == files / "triples.tsv"
    assert re.search(r"steps: 2 # .* 1 / 2 / 3 relations have F1 \d+ / 100 / 100 on \d+ questions", text)
    assert "21 of 42 questions have their own topic among their answers" in text
    (files / "my.yaml").write_text("mine", encoding="utf-8")
    assert "--force" in init("triples.tsv", "questions.jsonl", code=2).stderr
    assert (files / "my.yaml").read_text(encoding="utf-8") == "mine"
    init("triples.tsv", "questions.jsonl", "--force", "--out", "runs/towns.yaml")
    assert read_config(files / "runs" / "towns.yaml").dataset.graph.path == files / "triples.tsv"


def test_what_it_says_to_do_next_names_the_file_that_was_written(files: Path) -> None:
    done = init("triples.tsv", "questions.jsonl", "--out", "of clubs.yml")
    assert "kgqa run 'of clubs.yml'" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-3:] == [
        "Doubts:      kgqa lint 'of clubs.yml'",
        "Untrained:   kgqa ask 'of clubs.yml' \"QUESTION\" --system rog",
        "Train it:    kgqa run 'of clubs.yml'",
    ]
    for out, code in (("clubs", 2), ("triples.tsv/clubs.yaml", 5)):  # other commands know a run file by its suffix
        assert init("triples.tsv", "questions.jsonl", "--out", out, code=code).stdout == ""


@pytest.mark.slow
def test_a_second_run_of_one_name_in_a_home_is_told_apart_by_its_user(files: Path) -> None:
    """Builds and notes are kept by name, and every folder's first run file is my.yaml."""
    assert "another run" not in init("triples.tsv", "questions.jsonl").stderr
    built = kgqa("lint", "my.yaml")
    assert built.exit_code == 0, built.stderr
    assert "another run" not in init("triples.tsv", "questions.jsonl", "--force").stderr  # it is the same
    (files / "my.yaml").rename("old.yaml")
    second = init("triples.tsv", "questions.jsonl")
    assert "another run called my" in second.stderr, second.stderr


def test_lines_that_cannot_be_used_are_counted_and_allowed(files: Path) -> None:
    strange = {"question": "Which club has Nobody?", "answers": ["Club 1"]}
    write_jsonl(files / "questions.jsonl", [*map(clubs, range(PEOPLE)), strange])
    init("triples.tsv", "questions.jsonl")
    text = (files / "my.yaml").read_text(encoding="utf-8")
    assert "max_reject_ratio: 0.2 # not used: 1 no entity name in the text" in text
    read_config(files / "my.yaml")
    write_jsonl(files / "questions.jsonl", [strange] * 9 + [*map(clubs, range(3))])
    hopeless = init("triples.tsv", "questions.jsonl", "--force", code=3)
    assert "no entity name in the text" in hopeless.stderr
    advice = re.findall(r"allow more: (--\S+ [\d.]+)", " ".join(hopeless.stderr.split()))
    assert len(advice) == 1, hopeless.stderr
    init("triples.tsv", "questions.jsonl", "--force", *advice[0].removesuffix(".").split())
    assert read_config(files / "my.yaml").dataset.questions.max_reject_ratio == 0.75


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("g.txt", "a\tr\tb\n", "tsv"),
        ("g.kb", "\na|r|b\n", "wikimovies"),
        ("g.data", "a,r,b\n", "csv"),
        ("g.csv", "", "csv"),
        ("g.nt.gz", "", "rdf"),
        ("g.parquet", "", "parquet"),
        ("g.tsv", "", "tsv"),
        ("weights.tsv", "head\trelation\ttail\tweight\n", "tsv"),
        ("g.txt", "Ada;born in;London\n", "csv"),
    ],
)
def test_the_format_of_triples_is_found(tmp_path: Path, name: str, content: str, format: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert graph_format(tmp_path / name) == format


@pytest.mark.parametrize(
    ("name", "line", "setting"),
    [
        ("g.csv", "subject,predicate,object", {"header": True}),
        ("g.csv", '"from","to","type"', {"columns": ["from", "type", "to"]}),
        ("g.csv", "id,head,relation,tail", {"columns": ["head", "relation", "tail"]}),
        ("g.tsv", "head\trelation\ttail", {}),
        ("g.tsv", "Ada\tborn in\tLondon", {}),
        ("g.nt", "<a> <b> <c> .", {}),
        ("g.csv", "head;relation;tail", {"delimiter": ";"}),
        ("g.csv", "Subject;Predicate;Object", {"delimiter": ";", "header": True}),
        ("g.csv", '"from"|"to"|"type"', {"delimiter": "|", "columns": ["from", "type", "to"]}),
        ("g.txt", "Ada;height;1,70", {"delimiter": ";"}),
        ("g.csv", "head\trelation\ttail", {"delimiter": "\t"}),
        ("g.csv", 'Ada,"says; loudly; this",London', {}),
        ("g.csv", "Ada, Countess;born in;London, England\nAda;height;1,70", {"delimiter": ";"}),
        ("g.csv", "a;b,r,c;d", {}),
        ("g.tsv", "Node 1\tedge\tNode 2\nNode 1\tedge\tNode 3", {"header": False}),
        ("g.tsv", "source\ttype\ttarget\nNode 1\tedge\tNode 3", {"header": True}),
        ("g.csv", "subject_id,subject,predicate,object_id,object", {"columns": ["subject", "predicate", "object"]}),
        ("g.csv", "head,headLabel,rel,relLabel,tail,tailLabel", {"columns": ["headLabel", "relLabel", "tailLabel"]}),
        ("g.csv", "node1_id,node1_name,type,node2_id,node2_name", {"columns": ["node1_name", "type", "node2_name"]}),
        ("g.csv", "subject,predicate,object,object_label", {"columns": ["subject", "predicate", "object"]}),
        ("g.csv", "subject_id,subject_type,verb,object_id", {"columns": ["subject_id", "verb", "object_id"]}),
        ("g.csv", "entity,entity_type,relation,value", {"columns": ["entity", "relation", "value"]}),
        ("g.csv", "entity,relation,entity", {"header": True}),
        ("g.csv", "id,entity,relation,entity", {"header": True, "columns": [2, 3, 4]}),
        ("g.csv", "entity,entity_id,relation,entity,entity_id", {"header": True, "columns": [1, 3, 4]}),
        ("g.csv", "id,name,relation,id,name", {"header": True, "columns": [2, 3, 5]}),
        ("g.csv", "node_id,node_name,type,node_id,node_name", {"header": True, "columns": [2, 3, 5]}),
        ("g.csv", "item,itemLabel,propLabel,valueLabel", {"columns": ["itemLabel", "propLabel", "valueLabel"]}),
        ("g.csv", "item,itemLabel,p,pLabel,o,oLabel", {"columns": ["itemLabel", "pLabel", "oLabel"]}),
    ],
)
def test_a_first_line_that_names_the_columns_is_a_setting(
    tmp_path: Path, name: str, line: str, setting: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(f"\ufeff{line}\n", encoding="utf-8")
    assert header_of(tmp_path / name, graph_format(tmp_path / name)) == setting


def test_a_packed_file_and_a_folder_are_looked_into(tmp_path: Path) -> None:
    for name, text in (("a.txt.gz", "\ufeffa|r|b\n"), ("b.tsv.gz", "from\tto\ttype\nb\tr\ta\n")):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    assert graph_format(tmp_path / "a.txt.gz") == "wikimovies"
    assert header_of(tmp_path / "b.tsv.gz", "tsv") == {"columns": ["from", "type", "to"]}
    table = pa.table({"subject": ["a"], "predicate": ["r"], "object": ["b"]})
    for suffix, form in ((".parquet", "parquet"), (".nt.gz", "rdf")):
        (folder := tmp_path / form).mkdir()
        (folder / "README").touch()
        pq.write_table(table, folder / f"part{suffix}")
        assert graph_format(folder) == form
    assert header_of(tmp_path / "parquet", "parquet") == {"columns": ["subject", "predicate", "object"]}
    (folder / "part.nt.gz").rename(folder / "PART.PARQUET")
    assert header_of(folder, "parquet") == {"columns": ["subject", "predicate", "object"]}
    (folder / "part.csv").touch()
    assert graph_format(folder) == "parquet"
    (folder / "PART.PARQUET").rename(folder / "part.tsv")
    with pytest.raises(InputError, match="Name the file inside it"):  # of two formats
        graph_format(folder)


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ";"), (".tsv.gz", "\t")])
def test_a_folder_of_lines_is_read_as_one_file_is(files: Path, suffix: str, mark: str) -> None:
    """As Spark writes it: each part has the header, and may be empty; notes lie beside them."""
    (folder := files / "triples").mkdir()
    rows = [mark.join((tail, head, relation)) for head, relation, tail in (line.split("\t") for line in TRIPLES)]
    for part in range(3):
        text = "\n".join([mark.join(("object", "subject", "predicate")), *rows[part::3], ""]).encode()
        (folder / f"part-{part}{suffix}").write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    for name in ("_SUCCESS", ".part-1.csv.crc", f"part-{suffix.removesuffix('.gz')}"):
        (folder / name).touch()
    done = init("triples", "questions.jsonl")
    assert "have F1 100" in " ".join(done.stdout.split()), done.stderr
    graph = read_config(files / "my.yaml").dataset.graph
    assert graph.columns == ("subject", "predicate", "object") and graph.delimiter == (mark if mark == ";" else None)


def test_names_are_read_where_a_file_has_ids_beside_them_and_ids_where_names_come_in_a_file(files: Path) -> None:
    rows, people = ["subject_id,subject,predicate,object_id,object"], [line.split("\t") for line in TRIPLES]
    rows += [f"id {head},{head},{relation},id {tail},{tail}" for head, relation, tail in people]
    (files / "triples.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    done = init("triples.csv", "questions.jsonl")
    assert "in the columns subject, predicate, object, not the ids in subject_id, object_id" in " ".join(
        done.stderr.split()
    )
    ends = {end for head, _, tail in people for end in (head, tail)}
    (files / "names.tsv").write_text("".join(f"id {end}\t{end}\n" for end in ends), encoding="utf-8")
    done = init("triples.csv", "questions.jsonl", "--names", "names.tsv", "--force")
    assert "columns" not in done.stderr, done.stderr
    assert read_config(files / "my.yaml").dataset.graph.columns == ("subject_id", "predicate", "object_id")


@pytest.mark.parametrize(
    ("first", "line", "read"),
    [
        ("\ufeffHead;Relation;Tail\r\n", "{};{};{}\r\n", (";", True, ())),
        ("", "{};{};{};\n", (";", None, (1, 2, 3))),  # an empty column behind the last separator
        ("id,entity,relation,entity\n", "7,{},{},{}\n", (None, True, (2, 3, 4))),  # columns that are called alike
    ],
)
def test_a_csv_is_read_however_it_is_laid_out(files: Path, first: str, line: str, read: tuple[object, ...]) -> None:
    rows = [line.format(*triple.split("\t")) for triple in TRIPLES]
    (files / "triples.csv").write_bytes("".join([first, *rows]).encode())
    done = init("triples.csv", "questions.jsonl")
    graph = read_config(files / "my.yaml").dataset.graph
    assert (graph.format, graph.delimiter, graph.header, graph.columns) == ("csv", *read)
    assert "have F1 100" in " ".join(done.stdout.split()), done.stderr


@pytest.mark.parametrize(("between", "end"), [(", ", ""), (",", " "), (" | ", ""), ("\t ", "")])
def test_blanks_around_fields_are_told_since_they_make_other_entities(files: Path, between: str, end: str) -> None:
    (files / "g.txt").write_text(
        "".join(line.replace("\t", between) + f"{end}\n" for line in TRIPLES), encoding="utf-8"
    )
    told = " ".join(kgqa("init", "g.txt", "questions.jsonl").stderr.split())
    assert "! g.txt: blanks around a field count" in told and "Remove those that you do not mean" in told
    rest = [f"Person {n}, the {n}th ,is a,Person " for n in range(PEOPLE)]  # as text only, and not everywhere
    (files / "g.txt").write_text("\n".join([*(line.replace("\t", ",") for line in TRIPLES), *rest]), encoding="utf-8")
    assert "blanks" not in kgqa("init", "g.txt", "questions.jsonl", "--force").stderr


def test_quotes_around_fields_of_a_tsv_are_told_and_the_advice_reads_them(files: Path) -> None:
    rows = [[f'"{field}"' for field in line.split("\t")] for line in TRIPLES]
    (files / "g.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    told = kgqa("init", "g.tsv", "questions.jsonl").stderr
    assert f"! g.tsv: quotes count in TSV: {rows[1][0]}." in told and 'format: csv, delimiter: "\\t"' in told
    assert init("triples.tsv", "questions.jsonl").stderr == ""
    text = (files / "my.yaml").read_text("utf-8").replace("triples.tsv", "g.tsv")
    (files / "my.yaml").write_text(text.replace("format: tsv", 'format: csv\n    delimiter: "\\t"'), encoding="utf-8")
    assert kgqa("build", "my.yaml").exit_code == 0


def test_files_that_are_read_past_are_named_and_nothing_is_scored_on_a_split_without_questions(files: Path) -> None:
    (files / "questions").mkdir()
    for name, people in (("train", range(12)), ("Test", range(12, 16))):
        write_jsonl(files / "questions" / f"{name}.jsonl", map(clubs, people))
    done = init("triples.tsv", "questions")
    assert "not read: Test.jsonl" in " ".join(done.stderr.split()), done.stderr
    text = (files / "my.yaml").read_text(encoding="utf-8")
    assert "split: dev" not in text and "neither dev nor test" in text
    write_jsonl(files / "questions" / "val.jsonl", map(clubs, range(16, PEOPLE)))
    (files / "questions" / "Test.jsonl").unlink()
    done = init("triples.tsv", "questions", "--force")
    assert "not read" not in done.stderr, done.stderr
    assert "split: dev" in (files / "my.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("namespace", "format"),
    [
        ("http://www.wikidata.org/entity/", "wikidata"),
        ("http://rdf.freebase.com/ns/", "freebase"),
        ("http://own.org/", ""),
    ],
)
@pytest.mark.parametrize("name", ["dump.nt", "dump"])
def test_rdf_of_a_known_source_is_told_its_format(files: Path, namespace: str, format: str, name: str) -> None:
    """As ``rdf`` its relations would be called P54, and labels that are given three times be three entities."""
    (path := files / name / "part.nt.gz" if name == "dump" else files / name).parent.mkdir(exist_ok=True)
    text = "<http://wikiba.se/ontology#Dump> <http://own.org/of> <http://www.wikidata.org/entity/Q1> .\n"
    for head, relation, tail in (line.split("\t") for line in TRIPLES):
        text += f'<{namespace}{head.replace(" ", "-")}> <http://own.org/{relation}> "{tail}" .\n'
        text += f'<{namespace}{head.replace(" ", "-")}> <http://www.w3.org/2000/01/rdf-schema#label> "{head}" .\n'
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    done = init(name, "questions.jsonl")
    told = f"! {name}: the dump is of {format}: format: {format} and hops: null in dataset.graph"
    assert (told in " ".join(done.stderr.split())) is bool(format), done.stderr


def test_what_is_no_graph_is_said(files: Path) -> None:
    (files / "questions.jsonl").write_text(json.dumps(clubs(1)) + "\n", encoding="utf-8")
    assert "what format is this" in init("questions.jsonl", "questions.jsonl", code=2).stderr
    triple = {"head": "a", "relation": "r", "tail": "b"}
    for line in (triple, [triple], ["a", "r", "b"]):  # their commas are no columns
        (files / "triples.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        as_json = init("triples.jsonl", "questions.jsonl", code=2)
        assert "JSON is for questions, which come second" in " ".join(as_json.stderr.split())
    for line in ("<a:b> <a:c> <a:d> .", "@prefix a: <a:> .", "PREFIX a: <a:>", "# RDF"):
        (files / "graph.n3").write_text(f"{line}\n", encoding="utf-8")
        said = " ".join(kgqa("init", "graph.n3", "questions.jsonl").stderr.split())
        assert ("RDF is known by its suffix: .nt, .nq, .ttl," in said) is (line[0] != "#"), said
    (files / "g.xlsx").write_bytes(b"PK\x03\x04\x14\0\x08\x08\x08\0")
    assert "g.xlsx is a spreadsheet. Export its sheet as CSV" in kgqa("init", "g.xlsx", "questions.jsonl").stderr
    (files / "triples.tsv.zst").write_bytes(b"(\xb5/\xfd\x24\n")
    (files / "empty.txt").touch()
    for name, said in (("triples.tsv.zst", "triples.tsv.zst is Zstandard"), ("empty.txt", "holds no triple")):
        assert said in init(name, "questions.jsonl", code=3).stderr
    for given in (("triple.tsv", "questions.jsonl"), ("triples.tsv", "question.jsonl")):
        assert "does not exist. Check this path; did you mean" in init(*given, code=3).stderr


def test_the_document_shows_what_is_written(files: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", document, re.MULTILINE | re.DOTALL))
    for name, text in shown.items():
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_text(text, encoding="utf-8")
    init("triples.tsv", "questions", "--force")
    assert (files / "my.yaml").read_text(encoding="utf-8") == shown["my.yaml"]
