"""The report: a static folder where runs of systems are seen side by side, question by question.

``index.html`` opens from disk as well as from any file server, because browsers load scripts from disk but fetch
nothing there: so data are scripts that call ``kgqa(NAME, DATA)``. The overview comes first, one line per question when
the list is opened, and what a question's systems did in chunks of ``CHUNK`` questions when one of them is.
"""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import isal_zlib

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation.metrics import decides_claim
from kgqa_core.evaluation.predictions import read_predictions, read_source
from tasks.traces import with_tokens

PAGES = Path(__file__).with_name("viewer")
CHUNK = 20  # questions of one data file
MARK = "kgqa-report.json"  # in a folder that may be written over
MOST_SINGLE = 200  # questions of a report in one file
NAMES_KEPT, PATHS_KEPT = 50, 12  # answers or golds of one system on one question, and paths
MOST_EXPLORED = 500  # questions that are explored again, to be drawn
TEXT_KEPT = 20_000  # characters of a prompt or a reply
ASKED = ("question_id", "question", "hops", "ground_truth", "gold_ids")
ANSWERED = ("prediction", "answer_ids", "candidate_ids", "paths")
SPENT = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds", "confidence")
CLAIMED = ("claim", "verdict", "gold_verdict")  # of true/false questions
MORE = (*SPENT, *CLAIMED, "covered", "status", "error", "faithful", "unmatched", "counts", "plans")
CALLED = ("question_id", "round", "number", "instruction", "prompt", "system_prompt", "texts", "problem", "num_tokens")
# What verdicts read.
JUDGED = ("gold_ids", "ground_truth", "answer_ids", "prediction", "verdict", "gold_verdict", "decided")
FROM_MEMORY = ("direct", "cot")  # systems that read no graph
LOST = {
    "no path": "no path of as many steps as are searched leads from what the question names to an answer",
    "not planned": "the plans that were followed lead past it",
    "pruned": "a path leads there, and the search left it",
    "not chosen": "it was among the candidates, and something else was given, or nothing",
    "not searched": "the system reads no graph",
    "failed": "the system raised an error, which stands with the question",
}  # a new one comes last: saved links name a reason by its place


@dataclass
class Shown:
    """One run of a report."""

    name: str
    by: str  # who played the language model
    table: pa.Table  # of predictions, in the order of the question ids
    calls: pa.Table | None  # in the same order; none where no language model was asked
    asked: list[str]  # the question id of each call
    searches: bool = True  # does it read the graph?

    def calls_of(self, first: str, last: str) -> dict[str, list[dict[str, Any]]]:
        """Return the calls of some questions, from the first to the last by id, by the question's id."""
        found: dict[str, list[dict[str, Any]]] = {}
        begin, end = bisect_left(self.asked, first), bisect_right(self.asked, last)
        for call in self.calls.slice(begin, end - begin).to_pylist() if self.calls is not None else ():
            found.setdefault(call["question_id"], []).append(call)
        return found


def read_run(name: str, path: Path) -> Shown:
    """Read one predictions table, with the calls beside it where a language model was asked."""
    with pq.ParquetFile(path) as file:
        has = set(file.schema_arrow.names)
        if missing := sorted({*ASKED, *ANSWERED} - has):
            raise InputError(f"{shorten(str(path))} is no table of predictions: it lacks {missing[0]}")
        table = file.read(columns=[column for column in (*ASKED, *ANSWERED, *MORE) if column in has])
    if "gold_verdict" in has and table["gold_verdict"].null_count < len(table):  # true/false questions
        judged = {
            one.question_id: decides_claim(one) for one, *_ in read_predictions(path) if one.gold_verdict is not None
        }
        decided = [judged.get(id) for id in table["question_id"].to_pylist()]
        table = table.append_column("decided", pa.array(decided, pa.bool_()))
    table = table.set_column(
        table.schema.get_field_index("paths"), "paths", pc.list_slice(table["paths"], 0, PATHS_KEPT)
    )
    table = table.take(pc.sort_indices(table["question_id"])).combine_chunks()
    source = read_source(path)
    about = source.about if source else None
    calls = None
    if (beside := path.with_name("calls.parquet")).is_file():
        calls = pq.read_table(beside, columns=list(CALLED))
        keys = [(column, "ascending") for column in ("question_id", "round", "number")]
        calls = calls.take(pc.sort_indices(calls, keys)).combine_chunks()
    asked = calls["question_id"].to_pylist() if calls is not None else []
    if about is None:
        return Shown(name, "", table, calls, asked)
    return Shown(about.name, about.players, table, calls, asked, about.system not in FROM_MEMORY)


def read_paths(texts: Sequence[str]) -> dict[str, list[list[str]]]:
    """Return the triples of each path. Names may hold commas: then a relation that another triple has tells the parts.

    Of a triple that can be read in several ways, with no such relation, the first comma ends the head.
    """
    parts = {
        text: [part.split(", ") for part in text.removeprefix("(").removesuffix(")").split(") → (")]
        for text in dict.fromkeys(texts)
    }
    known = {cells[1] for path in parts.values() for cells in path if len(cells) == 3}
    found: dict[str, list[list[str]]] = {}
    for text, path in parts.items():
        triples = found[text] = []
        for cells in path:
            if len(cells) > 3:
                at = next((place for place in range(1, len(cells) - 1) if cells[place] in known), 1)
                cells = [", ".join(cells[:at]), cells[at], ", ".join(cells[at + 1 :])]
            if len(cells) == 3:
                triples.append(cells)
    return found


def verdict_of(row: Mapping[str, Any]) -> str:
    """Return R, W or A: the first answer is right, wrong, or there is none; in lower case where one has no evidence.

    The right verdict on a true/false question is wrong where no evidence decides it, as in all figures.
    """
    if row.get("gold_verdict") is not None:
        guess = "w" if row["verdict"] == row["gold_verdict"] else "W"
        letter = "A" if row["verdict"] is None else "R" if row["decided"] else guess
    else:
        answers = row["answer_ids"] or row["prediction"]
        golds = row["gold_ids"] if row["answer_ids"] else row["ground_truth"]
        letter = "A" if not answers else "R" if answers[0] in golds else "W"
    return letter.lower() if False in row.get("faithful", ()) else letter


def lost_at(row: Mapping[str, Any], *, searches: bool = True) -> str:
    """Return where the answers of a question were lost, one of ``LOST``; empty where one was given first."""
    if verdict_of(row) in "Rr":
        return ""
    if row.get("status") == "failed":
        return "failed"
    if not searches:
        return "not searched"
    golds = set(row["gold_ids"])
    is_bare = row.get("gold_verdict") is not None and not golds  # only the claim is known, and no hops to any answer
    if is_bare:
        golds = {row["claim"]} if row["gold_verdict"] else {*row["candidate_ids"]} - {row["claim"]}
    if row.get("covered") or not golds.isdisjoint(row["candidate_ids"]):
        return "not chosen"
    named_none = row.get("status") == "skipped"  # the question names no topic from which to search
    if named_none or not row.get("has_path", row["hops"] is not None or is_bare):
        return "no path"
    return "not planned" if any(name == "num_plans" for name, _ in row.get("counts") or ()) else "pruned"


def f1_of(row: Mapping[str, Any]) -> int:
    """Return the F1 of the answers in percent; of a true/false question all or nothing."""
    if row.get("gold_verdict") is not None:
        return 100 * row["decided"]
    answers, golds = set(row["answer_ids"]), set(row["gold_ids"])
    both = len(answers & golds)
    return round(200 * both / (len(answers) + len(golds))) if both else 0


@dataclass(frozen=True, slots=True)
class Beside:
    """What a report shows beside the answers."""

    overview: Mapping[str, Any]  # tables, sentences, points
    about: Mapping[str, Any] | None = None  # tables about the data, and training curves
    explore: Callable[[Sequence[str]], Mapping[str, Any]] | None = None  # what an explorer walks for questions
    has_path: Callable[[Sequence[str]], Mapping[str, bool]] | None = None  # of questions: does one lead to an answer?


def build(runs: Sequence[tuple[str, Path]], out: Path, *, title: str, beside: Beside, single: bool = False) -> Path:
    """Write the report of some runs, which have answered the same questions, to a folder or (``single``) to one file.

    The same runs give the same bytes. What is at ``out`` is replaced at once, when the new one is whole; a folder that
    is no report is refused.
    """
    shown = [read_run(name, path) for name, path in runs]
    ids = shown[0].table["question_id"].to_pylist() if shown else []
    names = Counter(run.name for run in shown)
    for (name, _), run in zip(runs, shown, strict=True):
        run.name = name if names[run.name] > 1 else run.name  # one system of two configurations
    for run in shown[1:]:
        if run.table["question_id"].to_pylist() != ids:
            raise InputError(f"{run.name} and {shown[0].name} did not answer the same questions: one report each")
    if single and len(ids) > MOST_SINGLE:
        raise InputError(f"one file holds {MOST_SINGLE} questions, these are {len(ids):,}; write a folder")
    out = out.resolve()  # what a link leads to is replaced, and "." has a name
    if out.is_dir() if single else out.exists() and not (out / MARK).is_file():
        raise InputError(f"{shorten(str(out))} is there and is no report; name another place, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = _parts(shown, ids, title, beside)
    partial = out.with_name(f".{out.name}.part{os.getpid()}")
    try:
        if single:
            partial.write_text(_one_file(parts), encoding="utf-8")
            partial.replace(out)
            return out
        (partial / "data").mkdir(parents=True)
        for file in sorted(PAGES.iterdir()):
            shutil.copyfile(file, partial / file.name)
        for name, data in parts:
            (partial / "data" / f"{name}.js").write_text(script(name, data), encoding="utf-8")
        (partial / MARK).write_text(json.dumps({"title": title, "questions": len(ids)}) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
        return out / "index.html"
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)


def script(name: str, data: Any) -> str:
    """Return data as a script; ``</`` would end one that stands in a page."""
    text = (
        json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\u0021--")
    )
    return f"kgqa({json.dumps(name)},{text})\n"


def packed(data: Any) -> str:
    """Return data as deflated JSON in base64: most of it is prompts, which say the same again and again."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b64encode(isal_zlib.compress(text, 2)).decode("ascii")


def _one_file(parts: Iterator[tuple[str, Any]]) -> str:
    page = (PAGES / "index.html").read_text(encoding="utf-8").replace("'self' file:", "'unsafe-inline'")
    style, code = ((PAGES / name).read_text(encoding="utf-8") for name in ("viewer.css", "viewer.js"))
    data = "".join(script(*part) for part in parts)
    page = page.replace('<link rel="stylesheet" href="viewer.css">', f"<style>\n{style}</style>")
    return page.replace('<script src="viewer.js"></script>', f"<script>\n{code}\n{data}</script>")


def _parts(shown: Sequence[Shown], ids: Sequence[str], title: str, beside: Beside) -> Iterator[tuple[str, Any]]:
    """Yield the name and the content of every data file; the list of questions, which needs all chunks, comes last."""
    verdicts, scores, lost = ([[] for _ in shown] for _ in range(3))  # type: list[list[Any]]
    hops, golds, texts = list[int | None](), list[int](), list[str]()
    num_chunks = -(-len(ids) // CHUNK)
    judged = letters_of(shown, ids) if beside.explore or beside.has_path else {}
    explored = beside.explore(worth_exploring(judged)) if beside.explore else {}
    wrong = [id for id, own in judged.items() if own != {"R"}]
    has_path = beside.has_path(wrong) if beside.has_path and wrong else {}
    for number, found in enumerate(explored.values()):
        if "more" in found:  # a file of its own, read when somebody asks for it
            more, found["more"] = found["more"], f"w{number:04}"
            yield found["more"], more
    for chunk in range(num_chunks):
        slices = [run.table.slice(chunk * CHUNK, CHUNK).to_pylist() for run in shown]
        calls = [run.calls_of(ids[chunk * CHUNK], ids[min(len(ids), (chunk + 1) * CHUNK) - 1]) for run in shown]
        for row in (row for rows in slices for row in rows if row["question_id"] in has_path):
            row["has_path"] = has_path[row["question_id"]]
        strings, paths = Strings(), read_paths([text for rows in slices for row in rows for text in row["paths"]])
        for place, rows in enumerate(slices):
            verdicts[place] += map(verdict_of, rows)
            scores[place] += map(f1_of, rows)
            lost[place] += [lost_at(row, searches=shown[place].searches) for row in rows]
        for row in slices[0]:
            hops.append(row["hops"])
            golds.append(len(row["ground_truth"]))
            texts.append(row["question"])
        questions = [
            {
                "id": rows[0]["question_id"],
                "text": rows[0]["question"],
                "golds": rows[0]["ground_truth"][:NAMES_KEPT],
                "hops": rows[0]["hops"],
                "explored": explored.get(rows[0]["question_id"]),
                "runs": [
                    _answered(row, own.get(row["question_id"], ()), strings, paths, run.searches)
                    for row, own, run in zip(rows, calls, shown, strict=True)
                ],
            }
            for rows in zip(*slices, strict=True)
        ]
        yield f"q{chunk:04}", packed({"questions": questions, "strings": strings.all})
    reasons = list(LOST)
    yield (
        "questions",
        {
            "ids": ids,
            "texts": texts,
            "hops": hops,
            "golds": golds,
            "verdicts": ["".join(own) for own in verdicts],
            "f1": scores,
            "lost": [[reasons.index(one) if one else -1 for one in own] for own in lost],
        },
    )
    yield "overview", {**_facts(shown, lost), "title": title, "num_questions": len(ids), "chunk": CHUNK,
                       "about": beside.about is not None, **beside.overview}  # fmt: skip
    if beside.about is not None:
        yield "about", beside.about


def _facts(shown: Sequence[Shown], lost: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return who ran, and how many answers of each run were lost where."""
    counts = [{reason: own.count(reason) for reason in LOST} for own in lost]
    return {"runs": [{"name": run.name, "by": run.by} for run in shown], "lost": counts, "reasons": LOST}


def letters_of(shown: Sequence[Shown], ids: Sequence[str]) -> dict[str, set[str]]:
    """Return of each question the letters, R, W and A, of how all systems answered it."""
    judged = [run.table.select([name for name in JUDGED if name in run.table.column_names]) for run in shown]
    verdicts = zip(*([verdict_of(row).upper() for row in table.to_pylist()] for table in judged), strict=True)
    return {id: set(own) for id, own in zip(ids, verdicts, strict=True)}


def worth_exploring(judged: Mapping[str, set[str]]) -> list[str]:
    """Return the questions that are explored again to be drawn: where systems differ, then where all are wrong."""
    return sorted(judged, key=lambda id: (len(judged[id]) == 1, judged[id] == {"R"}))[:MOST_EXPLORED]


@dataclass
class Strings:
    """Texts of a chunk, each kept once: prompts of one instruction begin alike, and systems ask the same."""

    all: list[str] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    texts: dict[str, list[int]] = field(default_factory=dict)

    def put(self, text: str) -> list[int]:
        """Return the numbers of the pieces of a text, which is cut at its empty lines."""
        if text in self.texts:
            return self.texts[text]
        numbers = self.texts[text] = []
        for piece in text[:TEXT_KEPT].split("\n\n"):
            if piece not in self.known:
                self.known[piece] = len(self.all)
                self.all.append(piece)
            numbers.append(self.known[piece])
        return numbers


def _answered(
    row: Mapping[str, Any],
    calls: Iterable[Mapping[str, Any]],
    strings: Strings,
    paths: Mapping[str, list[list[str]]],
    searches: bool,
) -> dict[str, Any]:
    """Return what one system did with one question."""
    golds, candidates = row["gold_ids"], row["candidate_ids"]
    known = set(candidates)
    ranks = [candidates.index(gold) + 1 for gold in golds[:NAMES_KEPT] if gold in known]
    right = [answer in golds for answer in row["answer_ids"][:NAMES_KEPT]]
    told = [
        {
            "what": call["instruction"],
            "prompt": strings.put(call["prompt"]),
            "system": strings.put(call["system_prompt"]) if call["system_prompt"] else [],
            "texts": [strings.put(text) for text in call["texts"]],
            "problem": call["problem"],
            "read": call["num_prompt_tokens"],
            "tokens": call["num_tokens"],
        }
        for call in with_tokens(row, calls)
    ]
    return {
        "answers": row["prediction"][:NAMES_KEPT],
        "num_answers": len(row["prediction"]),
        "right": right,
        "supported": row.get("faithful", [])[:NAMES_KEPT],
        "unmatched": row.get("unmatched", [])[:NAMES_KEPT],
        "verdict": verdict_of(row),
        "f1": f1_of(row),
        "lost": lost_at(row, searches=searches),
        "ranks": ranks,
        "num_golds": len(golds),
        "num_candidates": len(candidates),
        "paths": [paths[text] for text in row["paths"] if paths[text]],
        "plans": row.get("plans", [])[:PATHS_KEPT],
        "counts": {name: value for name, value in row.get("counts") or () if value},
        "calls": told,
        **{name: row[name] for name in (*SPENT, "status", "error") if row.get(name) is not None},
    }
