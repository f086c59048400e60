"""Broken input by the CPU minute: what readers, queries and configurations do with good samples that were spoilt.

    python -m benchmarks.drills.fuzz triples questions dump sql configuration replies --minutes 3 --corpus /tmp/corpus

An error of ours is right; any other exception is a crash, ends the target, and stays in the corpus, which is tried
first the next time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from benchmarks.drills.fuzz_replies import model_servers, replies
from kgqa_core.errors import KgqaError
from kgqa_core.lm.call_store import CallStore

Check = Callable[[bytes], str]  # what became of an input: a word that is counted
TARGETS = ("triples", "questions", "dump", "sql", "configuration", "replies")
TRIPLES = {
    "kb.tsv": (b"head\trelation\ttail\na\tr\tb\n\xc3\xa9\tr\tb\r\n", b"Head\tRelation\tTail\na\tr\tb\n"),
    "kb.csv": (b'a,r,"b, ""c"""\nd,r,e\n', b"source,target,type\na,b,c\n"),
    "kb.txt": (b"a|r|b\nc|r|d\n",),
    "kb.nt": (b'<http://a> <http://b> "c"@en .\n_:x <http://b> <http://c> .\n# x\n',),
    "kb.nq": (b'<http://a> <http://b> "1"^^<http://d> <http://g> .\n',),
    "kb.ttl": (b'@prefix : <http://x/> .\n:a :p [ :q ( 1 2.5 true ) ], "x"@en ; :r """long""" .\n',),
    "kb.rdf": (
        b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://x/">'
        b'<rdf:Description rdf:about="http://a"><p rdf:resource="http://b"/></rdf:Description></rdf:RDF>',
    ),
    "kb.csv.gz": (gzip.compress(b"a,r,b\nc,r,d\n", mtime=0),),
}
QUESTIONS = {
    "jsonl": b'{"id": "q", "question": "Who made?", "topics": ["a"], "answers": ["b", 7], "hops": 2, "chain": ["~"]}\n',
    "metaqa": b"what films did [Grace Kelly] act in\tRear Window|High Noon\n",
    "nsm": b'{"id": 1, "question": "q", "entities": [0, "m.1"], "answers": [{"kb_id": "m.2", "text": "x"}], '
    b'"subgraph": {"tuples": [["m.1", "r", {"kb_id": "m.2"}]], "entities": ["m.1"]}}\n',
    "rog": b'{"question": "q", "q_entity": ["a"], "a_entity": [], "answer": "b", "graph": [["a", "r", "b"]]}\n',
    "paths": b'{"question": "q", "answers": ["b"], "paths": [["a", "r", "b"], "a -> r -> c"], "scores": [1, 0.5]}\n',
    "webqsp": b'{"Questions": [{"QuestionId": "WebQTest-1", "RawQuestion": "q", "ProcessedQuestion": "q", "Parses": [{'
    b'"TopicEntityMid": "m.1", "TopicEntityName": "a", "InferentialChain": ["r"], "PotentialTopicEntityMention": "a", '
    b'"Answers": [{"AnswerArgument": "m.2", "AnswerType": "Entity", "EntityName": "b"}]}]}]}',
    "cwq": b'[{"ID": "1", "question": "q", "answers": [{"answer": "b", "answer_id": "m.2", "aliases": []}], "sparql": '
    b'"SELECT ns:m.1", "composition_answer": "x", "webqsp_ID": "WebQTrn-1"}]',
    "webquestions": b'[{"url": "http://f/view/en", "targetValue": "(list (description \\"b\\"))", "utterance": "q?"}]',
    "mooc": b'[{"question": "q", "answer": "b", "triples": [["a", "r", "b"]]}]',
}
DUMP = (
    b'<http://rdf.freebase.com/ns/m.01>\t<http://rdf.freebase.com/ns/a.b.c>\t"x\\u00e9"@en\t.\n'
    b"<http://rdf.freebase.com/ns/m.01>\t<http://rdf.freebase.com/ns/type.object.name>\t<http://rdf.freebase.com/ns/m.02>\t.\n"
)
CONFIGURATION = b"""\
dataset:
  name: towns
  source: files
  graph: {format: csv, path: kb.csv, columns: [a, b, c], delimiter: ";"}
  questions: {format: jsonl, path: questions.jsonl, max_missing_ratio: 0.1}
  subgraphs: {method: expand, hops: 2}
encoder: {kind: hash, dim: 16}
explorer: {steps: 2, seeds: [0, 1], epochs: 1}
plans: {planners: [generator]}
lm: {kind: endpoint, url: "http://127.0.0.1:9/v1", model: m}
systems: {run: [rog, ours], rog: {plan_mass: 0.5}}
runtime: {memory_limit: 2GB}
"""
QUERIES = (
    b"select relation, count(*) as n from facts group by all order by n desc",
    b"from facts where head_name like '%a%' limit 3",
    b"with x as (select unnest(topics) t from questions) select * from x join entities on t = entity_id",
    b"pivot (from facts) on relation using count(*)",
    b"select json_execute_serialized_sql(json_serialize_sql('copy entities to ''x.csv'''))",
)
TOKENS = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n", b"\t", b",", b'"', b"'", b"\\", b"\\ud800"]
TOKENS += [b"{", b"}", b"[", b"]", b"[" * 3000, b"null", b"NaN", b"-1e999", b"9" * 400, b"1e30", b": ", b"#"]
TOKENS += [b"&a ", b"*a", b"<", b">", b"<http://x>", b"_:b", b"^^", b"@en", b"|", b";", b"--", b"/*", b"copy "]
TOKENS += [b"attach ", b"read_csv(", b"!!python/none", b"${KGQA_HOME}", b"x" * 20_000, "İ\u2028漢".encode()]


@st.composite
def broken(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw a sample with up to eight of its parts replaced, left out, doubled or turned round."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        part = data[start:end]
        new = draw(st.one_of(st.sampled_from([*TOKENS, b"", part * 2, part[::-1]]), st.binary(max_size=4)))
        data = data[:start] + new + data[end:]
    return data


def read_triples(folder: Path, name: str, data: bytes) -> str:
    """Cut and parse a file of triples."""
    from kgqa_core.graph.dump import parse_dump
    from kgqa_core.graph.formats import TRIPLE_COLUMNS, list_chunks, open_format

    forms = {"tsv": "tsv", "csv": "csv", "txt": "wikimovies", "parquet": "parquet"}
    form, path, parts = forms.get(name.split(".")[1], "rdf"), folder / name, folder / "parts"
    path.write_bytes(data)
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    if form == "rdf":
        return "rejects" if parse_dump(path, parts, journal=parts / "journal").rejects else "read"
    chunks = list_chunks(path, format=form, columns=TRIPLE_COLUMNS, parts=parts, chunk_bytes=64)
    return "rejects" if sum(sum(open_format(form).parse(chunk).rejects.values()) for chunk in chunks) else "read"


def read_questions(folder: Path, form: str, data: bytes) -> str:
    """Read all questions of a file."""
    from kgqa_core.questions.formats import Fault, QuestionFile, open_format

    path = folder / ("qa_train.txt" if form == "metaqa" else "train.json")
    path.write_bytes(data)
    found = [parsed for _, _, parsed in open_format(form).read(QuestionFile(path, "train"))]
    return "rejects" if any(isinstance(one, Fault) for one in found) else "read"


def read_dump(data: bytes) -> str:
    """Read a block of a dump: each line has one outcome."""
    from kgqa_core.graph.dump_rows import DumpOptions, read_rows

    rows = read_rows(data, DumpOptions()) if data else None
    if rows and sum(rows.counts["lines"].values()) != rows.counts["text"]["lines"]:
        raise AssertionError(f"{rows.counts['text']['lines']} lines, outcomes {rows.counts['lines']}")
    return "rejects" if rows and rows.rejects else "read"


def read_configuration(folder: Path, data: bytes) -> str:
    """Read a run configuration."""
    from kgqa_core.config_file import read_config

    (folder / "run.yaml").write_bytes(data)
    read_config(folder / "run.yaml")
    return "read"


@contextmanager
def queries(folder: Path) -> Iterator[Check]:
    """Yield what asks the tables of a small run; afterwards no byte of them may have changed."""
    from flows.sql_views import open_views
    from kgqa_core.artifacts import hash_file
    from kgqa_core.config_file import read_config
    from kgqa_core.run.ensure import ensure
    from kgqa_core.run.pipeline import Pipeline

    conf = folder / "run.yaml"
    text = "dataset: {name: d, source: embedded}\nencoder: {kind: hash}\nexplorer: {steps: 2}\n"
    conf.write_text(text, encoding="utf-8")
    run = Pipeline(read_config(conf, [f"runtime.home={folder / 'home'}"]))
    ensure(run, ["questions"])
    artifacts = {key: found for key in run.specs if (found := run.find(key))}
    before = {path: hash_file(path) for path in folder.rglob("*") if path.is_file()}
    (folder / "spill").mkdir()

    def ask(data: bytes) -> str:
        with open_views(artifacts, memory_limit="1GB", temp_directory=folder / "spill") as views:
            views.read(data.decode("utf-8", "replace"), limit=100)
        return "read"

    yield ask
    after = {path: hash_file(path) for path in folder.rglob("*") if path.is_file() and "spill" not in path.parts}
    if before != after:
        raise RuntimeError("a query changed a file")


def drill(name: str, check: Check, samples: Sequence[bytes], seconds: float, corpus: Path) -> None:
    """Try broken samples for some CPU seconds; the first is good as it is, else little is tried."""
    check(samples[0])
    tried(name, check, broken(samples), seconds, corpus)


def tried(name: str, check: Callable[[Any], str], inputs: st.SearchStrategy[Any], seconds: float, corpus: Path) -> None:
    """Try inputs for some CPU seconds, and print how they ended."""
    ends = Counter[str]()
    until = time.process_time() + seconds
    slowest = 0.0
    settled = settings(
        max_examples=200,
        deadline=None,
        database=DirectoryBasedExampleDatabase(corpus / name),
        suppress_health_check=list(HealthCheck),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )

    @settled
    @given(inputs)
    def once(data: Any) -> None:
        nonlocal slowest
        began = time.monotonic()
        try:
            ends[check(data)] += 1
        except KgqaError as error:
            if len(str(error).splitlines()) > 3:
                raise AssertionError(f"a message of more than three lines: {error}") from error
            ends[type(error).__name__] += 1
        slowest = max(slowest, time.monotonic() - began)

    while time.process_time() < until:
        once()
    print(json.dumps({"target": name, "inputs": ends.total(), "slowest_s": round(slowest, 2), **ends}), flush=True)


def main() -> None:
    """Fuzz the targets that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=3.0, help="of CPU, for each target")
    parser.add_argument("--corpus", type=Path, default=Path("corpus"))
    given_now = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    seconds = 60 * given_now.minutes
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"head": ["a", "b"], "relation": ["r", "r"], "tail": [1, None]}), sink)
        triples = {**TRIPLES, "kb.parquet": (sink.getvalue().to_pybytes(),)}
        for target in given_now.targets:
            run = partial(drill, corpus=given_now.corpus)
            if target == "triples":
                for name, samples in triples.items():
                    run(name, partial(read_triples, folder, name), samples, seconds / len(triples))
            elif target == "questions":
                for form, sample in QUESTIONS.items():
                    run(form, partial(read_questions, folder, form), [sample], seconds / len(QUESTIONS))
            elif target == "dump":
                run(target, read_dump, [DUMP], seconds)
            elif target == "configuration":
                run(target, partial(read_configuration, folder), [CONFIGURATION], seconds)
            elif target == "replies":
                with CallStore(folder) as store, model_servers(store) as check:
                    tried(target, check, replies(), seconds, given_now.corpus)
            else:
                with queries(Path(tempfile.mkdtemp(dir=folder))) as ask:
                    run(target, ask, QUERIES, seconds)


if __name__ == "__main__":
    sys.exit(main())
