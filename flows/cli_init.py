"""``kgqa init``: from triples and questions to a run file, with settings that fit them and a line of why for each."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import say
from flows.cli_session import working
from kgqa_core.errors import ConfigError, InputError, shorten

if TYPE_CHECKING:
    from kgqa_core.graph.kg import KnowledgeGraph
    from kgqa_core.run.pipeline import Pipeline
    from kgqa_core.types import Question

TRIED = 3  # relations of a path that are tried; one more where these explain less than FAR percent of the answers,
FAR, FAR_GAIN = 90.0, 5.0  # and so many points of F1 are gained by it
NUM_WORDINGS, NUM_FEW = 60, 15  # masked texts of a kind whose best relation path is searched,
NUM_ALIKE = 5  # by so many questions of each: one alone may be explained by chance
ENOUGH = 1.0  # points of F1 that a longer path must bring
MOST_REJECTED = 0.2  # share of lines that cannot be used and yet stop nothing, where there are any
FEW, MANY = 1_000, 5_000  # training questions: small batches below; from there on dev chooses
FORMAT_OF = {"\t": "tsv", "|": "wikimovies", ",": "csv", ";": "csv"}  # by the sign between the fields of a line
SEPARATOR_OF = {"tsv": "\t", "wikimovies": "|", "csv": ","}
LINES_TRIED = 99  # of a CSV file, whose delimiter is looked for
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}

Names = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Names of entities and relations, where triples use ids.")
]


@dataclass(frozen=True, slots=True)
class Walk:
    """How far answers are, measured by the relation path that serves each question best."""

    num_questions: int  # looked at
    f1: tuple[float, ...]  # mean in percent of the best path of at most 1, 2, ... relations
    steps: int
    num_own_topic: int  # questions, of all, of whose answers one is their own topic
    num_asked: int  # of all
    reenter_topic: bool

    def settings(self) -> dict[str, tuple[int | bool, str]]:
        """Return setting -> its value and why."""
        return {
            "explorer.steps": (self.steps, self.why_steps),
            "dataset.reenter_topic": (self.reenter_topic, self.why_reenter),
        }

    @property
    def why_steps(self) -> str:
        """Say why so many steps."""
        found = " / ".join(f"{value:.0f}" for value in self.f1)
        counts = " / ".join(str(length + 1) for length in range(len(self.f1)))
        return f"the best paths of at most {counts} relations have F1 {found} on {self.num_questions} questions"

    @property
    def why_reenter(self) -> str:
        """Say why paths may come back to a topic, or may not."""
        if not self.num_own_topic:
            return "no question has its own topic among its answers"
        found = f"{self.num_own_topic} of {self.num_asked} questions have their own topic among their answers"
        return found if self.reenter_topic else f"{found}, but paths that never come back fit the answers better"


def init(
    triples: Annotated[
        Path,
        typer.Argument(metavar="TRIPLES", help="The graph: TSV, CSV, Parquet or RDF, or a folder of such; or a|r|b."),
    ],
    questions: Annotated[
        Path, typer.Argument(metavar="QUESTIONS", help="JSON lines, split 80/10/10; or a folder with train.jsonl, ...")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The run file to write.")] = Path("my.yaml"),
    names: Names = None,
    max_rejected: Annotated[
        float, typer.Option(min=0, max=1, help="The share of lines that may be unusable, where some are.")
    ] = MOST_REJECTED,
    force: Annotated[bool, typer.Option("--force", help="Write the run file even if there is one.")] = False,
) -> None:
    """Write a run file for a graph and questions of your own, and say why it is as it is.

    Reads both, links the questions, and measures how far the answers are. What it builds is kept for kgqa run.

    \b
    Example:
      kgqa init triples.tsv questions.jsonl
      kgqa run my.yaml
    """
    from kgqa_core.config_file import home_here
    from kgqa_core.graph.input_files import require_file

    if out.suffix not in (".yaml", ".yml"):  # by which other commands know a run file
        raise ConfigError(f"--out {out}: give the run file a name that ends in .yaml")
    if out.exists() and not force:
        raise ConfigError(f"{out} is there already: give --force to write it anew, or --out another name")
    for path, what in ((triples, "triples"), (questions, "questions"), (names, "names")):
        if path is not None and not path.is_dir():
            require_file(path, what=what)
    if past := _read_past(questions):
        say(f"! {questions}: not read: {', '.join(past)}. A file is called train, dev, valid or test.jsonl", err=True)
    with working("looking at your files"):
        text = run_file(triples, questions, names, out, max_rejected=max_rejected)
    if not out.exists() and (home_here() / "runs" / "accepted" / f"{out.stem}.json").exists():
        mixed = "builds, changes and what kgqa gc keeps go by the name. Give --out another one to keep them apart"
        say(f"! {home_here()} has another run called {out.stem}: {mixed}", err=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    named = shlex.quote(str(out))
    say(f"{text}\nWritten:     {out}\nDoubts:      kgqa lint {named}")
    say(f'Untrained:   kgqa ask {named} "QUESTION" --system rog\nTrain it:    kgqa run {named}')


def run_file(triples: Path, questions: Path, names: Path | None, out: Path, *, max_rejected: float) -> str:
    """Return the text of a run file to be written to ``out``; raises what building graph and questions raises."""
    graph = {"format": graph_format(triples), "path": _path(triples, out)}
    graph |= {"names": _path(names, out)} if names else {}
    graph |= header_of(triples, graph["format"], ids=names is not None)
    for doubt in _doubts(triples, graph, has_names=names is not None):
        say(f"! {triples}: {doubt}", err=True)
    data = {"graph": graph, "questions": {"format": "jsonl", "path": _path(questions, out)}}
    try:
        run = build_draft(data, out)
        why: dict[str, str] = {}
    except InputError:  # too many lines that cannot be used, or something worse
        run = build_draft({kind: {**one, "max_reject_ratio": max_rejected} for kind, one in data.items()}, out)
        why = {kind: reasons for kind in data if (reasons := _rejected(run, kind))}
        for kind in why:
            data[kind]["max_reject_ratio"] = max_rejected
    from kgqa_core.questions.build import read_questions
    from kgqa_core.run.open import graph_of

    linked = read_questions(run.artifact("questions").folder)
    sizes = Counter(one.split for one in linked)
    return render(out, data, why, propose_walk(graph_of(run), linked), sizes)


def build_draft(data: dict[str, Any], out: Path, *keys: str) -> Pipeline:
    """Build graph and questions, or the stages ``keys``, for a run that is not written yet."""
    from kgqa_core.config import RunConfig
    from kgqa_core.config_file import machine_paths, validated
    from kgqa_core.run.pipeline import Pipeline

    draft = {
        "name": out.stem,
        "dataset": {"name": out.stem, "source": "files", **data},
        "encoder": {"kind": "minilm"},
        "explorer": {"steps": TRIED},
        "runtime": {"home": "${KGQA_HOME}"},
    }
    run = Pipeline(validated(RunConfig, draft, out, machine_paths(out.parent)))
    try:
        for key in run.needed_for(keys or ("graph", "questions")):
            run.make(key)
    except InputError as problem:  # its advice is for commands that take settings of a run file
        raise InputError(re.sub(r"--set \S+\.max_reject_ratio=", "--max-rejected ", str(problem))) from problem
    return run


def graph_format(path: Path) -> str:
    """Return the format of triples, a file or a folder, by name or else first line; ConfigError where nothing fits."""
    from kgqa_core.graph.formats import first_fields
    from kgqa_core.graph.header import guess_columns
    from kgqa_core.graph.input_files import require_file
    from kgqa_core.profiles import SYNTAXES

    def named(one: Path) -> str:
        last = Path(one.name.lower().removesuffix(".gz")).suffix
        return SUFFIXES.get(last, "rdf" if last in SYNTAXES else "")

    parts, unclear = (path.iterdir(), {""}) if path.is_dir() else ([path], {"", "tsv"})  # a .tsv may have other signs
    found = {named(part) for part in parts} - unclear
    found = found & {"parquet", "rdf"} or found  # a table beside files of these may be a note
    if len(found) == 1:
        return found.pop()
    require_file(path, what="triples")
    lines = first_fields(path, "\t", quotes=False)
    if not lines:
        return "tsv"  # the file is empty, and building the graph says so
    first = lines[0].text
    may_be_fields = not first.startswith(('{"', '["', "[{"))  # JSON has commas, too
    for separator, form in FORMAT_OF.items():
        if may_be_fields and (first.count(separator) == 2 or guess_columns(first.split(separator))):
            return form
    cure = "a line is to hold head, relation and tail, with TABs between them. docs/own-data.md shows all formats"
    if first.startswith(("{", "[")):
        cure = "JSON is for questions, which come second. Make lines of head, relation and tail of it, or N-Triples"
    elif re.match(r"<\S+> <|@?(prefix|base)\b", first, re.IGNORECASE):
        cure = f"RDF is known by its suffix: {', '.join(SYNTAXES)}"
    raise ConfigError(f"{path}: what format is this? Its first line is {shorten(first, 80)}; {cure}")


def header_of(path: Path, form: str, *, ids: bool = False) -> dict[str, Any]:
    """Return settings of the layout: for a first line that names the columns, and for a CSV file without commas.

    Empty where the first line is a triple, or as the format expects. ``ids``: as of ``guess_columns``.
    """
    from kgqa_core.graph.formats import TRIPLE_COLUMNS, first_fields, open_parquet
    from kgqa_core.graph.header import ends_empty, guess_columns, num_alike

    found, lines = dict[str, Any](), list[list[str]]()
    path = _first_part(path, form)
    if form == "parquet":
        lines = [open_parquet(path).schema_arrow.names]
    elif form == "csv":
        cut = {sign: [line.fields for line in first_fields(path, sign, True, LINES_TRIED)] for sign in ",;\t|"}
        delimiter = max(cut, key=lambda sign: num_alike(cut[sign]))  # the comma, where several fit equally well
        lines = cut[delimiter]
        if delimiter != ",":
            found["delimiter"] = delimiter
    elif form in SEPARATOR_OF:
        lines = [line.fields for line in first_fields(path, SEPARATOR_OF[form], False, 2)]
    names = lines[0] if lines else []
    places = guess_columns(names, ids=ids)
    if places is None or names == list(TRIPLE_COLUMNS):
        return found | ({"columns": [1, 2, 3]} if ends_empty(lines) else {})
    alike = [[re.sub(r"\d+", "0", field) for field in line] for line in lines[:2]]
    if len(alike) == 2 and any("0" in above and above == below for above, below in zip(*alike, strict=False)):
        return found | {"header": False}  # "Node 1" above "Node 7" is no header
    if places == tuple(range(len(names))) and form != "parquet":
        return found | {"header": True}
    if len(set(names)) < len(names) and form != "parquet":  # columns of one name are told apart by their place
        return found | {"header": True, "columns": [place + 1 for place in places]}
    return found | {"columns": [names[place] for place in places]}


def _first_part(path: Path, form: str) -> Path:
    """Return a file of triples or, of a folder of them, the first that is not empty."""
    from kgqa_core.config_base import DumpSection, GraphSection
    from kgqa_core.run.stages.data import triple_files

    is_rdf = form == "rdf"
    parts = triple_files(DumpSection(format="rdf", path=path) if is_rdf else GraphSection(format=form, path=path))
    return next((part for part in parts if part.stat().st_size), parts[0])


def _doubts(path: Path, graph: Mapping[str, Any], *, has_names: bool) -> Iterator[str]:
    """Yield what a user should know of how a graph file is read: as plain RDF, by names and not ids, with blanks."""
    from kgqa_core.graph.formats import first_fields
    from kgqa_core.profiles import PROFILES

    form, path = graph["format"], _first_part(path, graph["format"])
    for name in ("wikidata", "freebase") if form == "rdf" else ():
        starts = tuple(f"<{one}" for one in PROFILES[name].namespaces)
        if any(line.text.startswith(starts) for line in first_fields(path, "\t", False, LINES_TRIED)):
            yield f"the dump is of {name}: format: {name} and hops: null in dataset.graph read it as it is meant"
    read, by_id = graph.get("columns"), header_of(path, form, ids=True).get("columns")
    if read != by_id and not has_names:
        of_names = ", ".join(map(str, read))
        of_ids = ", ".join(str(column) for column in by_id if column not in read)
        yield (
            f"read are the names in the columns {of_names}, not the ids in {of_ids}. Entities of one name "
            "become one. If they must not, give --names FILE, with lines of id and name: then the ids are read"
        )
    separator = graph.get("delimiter") or SEPARATOR_OF.get(form)
    lines = first_fields(path, separator, form == "csv", LINES_TRIED) if separator else []
    below = [line.fields for line in lines[1:] or lines]  # the first may be a header
    padded = [[field for field in fields if field.strip() not in ("", field)] for fields in below]
    if padded and all(padded) and (one := padded[0][0]):
        yield f"blanks around a field count: {one!r} is not {one.strip()!r}. Remove those that you do not mean"
    if form == "tsv" and (quoted := [one for fields in below for one in fields if re.fullmatch('".+"', one)]):
        yield f'quotes count in TSV: {quoted[0]}. If they only enclose fields: format: csv, delimiter: "\\t"'


def propose_walk(graph: KnowledgeGraph, questions: Sequence[Question]) -> Walk:
    """Return how far an explorer has to walk, and whether it may come back to a topic, by what training asks.

    Measured is the relation path that serves the questions of one wording best: a shortest path to a gold says little
    where a hub, such as a year or a genre, makes everything near.
    """
    known = [replace(one, answers=(one.claim,)) if one.verdict and not one.answers else one for one in questions]
    usable = [one for one in known if one.topics and one.answers]
    own = {one.id for one in usable if not set(one.topics).isdisjoint(one.answers)}
    wordings: dict[str, list[Question]] = {}
    for one in (one for one in usable if one.split == "train"):
        wordings.setdefault(one.masked, []).append(one)
    num_train = max(sum(map(len, wordings.values())), 1)
    kinds = []  # share of training questions, and those looked at: of wordings whose answers hold a topic, of others
    for has_own in (True, False):
        texts = sorted(text for text, group in wordings.items() if has_own != own.isdisjoint(one.id for one in group))
        drawn = random.Random(0).sample(texts, min(NUM_WORDINGS, len(texts)))
        share = sum(len(wordings[text]) for text in texts) / num_train
        kinds.append((share, [wordings[text][:NUM_ALIKE] for text in drawn]))

    def mean_f1(most: int, *, reenter_topic: bool, num: int = NUM_WORDINGS) -> list[float]:
        found = [(share, _best_f1(graph, groups[:num], most, reenter_topic=reenter_topic)) for share, groups in kinds]
        return [sum(share * f1[length] for share, f1 in found) for length in range(most)]

    f1, reenter = mean_f1(TRIED, reenter_topic=False), False
    if own and (back := mean_f1(TRIED, reenter_topic=True))[-1] > f1[-1]:
        f1, reenter = back, True
    if f1[-1] < FAR:  # longer paths cost more to find: of fewer questions
        *_, shorter, longer = mean_f1(TRIED + 1, reenter_topic=reenter, num=NUM_FEW)
        f1 += [f1[-1] + longer - shorter] if longer - shorter > FAR_GAIN else []
    steps = next(length for length, value in enumerate(f1, 1) if value >= f1[-1] - ENOUGH)
    num_looked_at = sum(len(group) for _, groups in kinds for group in groups)
    return Walk(num_looked_at, tuple(f1), steps, len(own), len(usable), reenter)


def _best_f1(
    graph: KnowledgeGraph, groups: Sequence[Sequence[Question]], most: int, *, reenter_topic: bool
) -> list[float]:
    """Return the mean F1, in percent, of each group's best relation path of at most 1..``most`` steps."""
    from kgqa_core.graph.search_graph import SearchGraph
    from kgqa_core.systems.controls import follow_topics, score_paths

    total, search = [0.0] * most, SearchGraph(graph, graph, None, most, reenter_topic)
    for group in groups:
        best = 0.0
        ranked = score_paths(search, group)
        for length in range(1, most + 1):
            if path := next((one.path for one in ranked if len(one.path) == length), None):
                found = 0.0
                for one in group:
                    golds = set(one.answers)  # all: coming back to a topic is to count where it is one
                    reached = set(follow_topics(search, one.topics, path).tolist())
                    found += 2 * len(reached & golds) / (len(reached) + len(golds))
                best = max(best, found)
            total[length - 1] += best
    return [100.0 * value / max(sum(map(len, groups)), 1) for value in total]


def _rejected(run: Pipeline, kind: str) -> str:
    """Return which lines of a stage are not used; empty where they all are."""
    from flows.cli_lint import count_rejects

    kinds = [key for key in run.specs if key == kind or (kind == "graph" and key.startswith("dump-"))]
    counts = sum((Counter(count_rejects(run.artifact(key).folder)) for key in kinds), Counter[str]())
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def render(out: Path, data: dict[str, Any], rejected: dict[str, str], walk: Walk, sizes: Mapping[str, int]) -> str:
    """Return a run file as text, with a comment beside each choice."""
    import yaml

    def value(given: Any) -> str:
        text = yaml.safe_dump(given, allow_unicode=True, width=10**6, default_flow_style=True)
        return text.removesuffix("\n").removesuffix("\n...")

    num_train = sizes.get("train", 0)
    told = "few: small batches give more steps" if num_train < FEW else "enough for batches of the usual size"
    lines = [
        f"# Written by kgqa init; every setting is yours to change. Then: kgqa run {shlex.quote(out.name)}",
        "dataset:",
        f"  name: {value(out.stem)}",
        "  source: files",
        f"  reenter_topic: {value(walk.reenter_topic)} # {walk.why_reenter}",
    ]
    for kind, section in data.items():
        lines += [f"  {kind}:", *(f"    {key}: {value(given)}" for key, given in section.items())]
        lines[-1] += f" # not used: {rejected[kind]}" if kind in rejected else ""
    lines += [
        "",
        "encoder:",
        "  kind: minilm # the text encoder in the box",
        "",
        "explorer: # no epochs: 15, or 1,800 steps if these are more, and about 2 CPU minutes at most",
        f"  steps: {walk.steps} # {walk.why_steps}",
        f"  batch_size: {8 if num_train < FEW else 32} # {num_train} training questions are {told}",
    ]
    if sizes.get("test") and sizes.get("dev") and num_train < MANY:
        lines += [f"  learn_dev: true # dev questions ({sizes['dev']}) teach more than they tell; false: they choose"]
    if sizes.get("dev") and not sizes.get("test"):
        lines += ["", "evaluation:", "  split: dev # no questions to test with: what dev says is too good"]
    elif not sizes.get("test"):
        lines += ["", "# There are neither dev nor test questions: add some for kgqa run to score."]
    return "\n".join(lines) + "\n"


def _read_past(folder: Path) -> list[str]:
    """Return the names of the files of a folder that are like those of questions, and no split's."""
    from kgqa_core.config_base import QuestionSection
    from kgqa_core.questions.formats import list_files

    try:
        read = [file.path for file in list_files(QuestionSection(format="jsonl", path=folder))]
    except InputError:  # whoever builds them says so
        return []
    others = {*folder.iterdir()} - {*read} if folder.is_dir() else ()
    return sorted(other.name for other in others if ".json" in other.name.lower() and other.is_file())


def _path(path: Path, out: Path) -> str:
    """Return a path as the run file has it: relative where the file lies below the run file's folder."""
    folder, full = out.absolute().parent, Path(os.path.abspath(path))
    return full.relative_to(folder).as_posix() if full.is_relative_to(folder) else str(full)
