"""A miniature of every dataset that the papers' run files read: ``kgqa run CONF --small``.

All are cut out of one small world: some films of the demo's graph and its wordings of questions, asked of these films.
Each is written in its dataset's own form, Freebase's with MIDs and with CVT nodes. The models are in miniature_models.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import written_whole
from kgqa_core.config_file import machine_paths, read_config
from kgqa_core.demo import DATA
from kgqa_core.errors import ConfigError
from kgqa_core.types import Split

VERSION = 1  # of what is written
MARK = "miniature"  # in the names of runs and datasets, so in every table
NUM_FILMS, NUM_QUESTIONS = 40, {"train": 20, "dev": 4, "test": 5}  # questions of each number of hops
TRAIN_SIZE = 10  # where a run draws its training questions
SUBGRAPH_STEPS = 3  # around a topic: what a question of WebQSP and CWQ brings
NS, YEAR = "http://rdf.freebase.com/ns/", "http://www.w3.org/2001/XMLSchema#gYear"
MID_DIGITS = "0123456789bcdfghjklmnpqrstvwxyz_"

# Relation of the demo -> the step, or the steps over a node between, of another graph; "~": walked backwards.
WIKIMOVIES = {
    "directed": ("~directed_by",),
    "acted_in": ("~starred_actors",),
    "wrote_the_script_for": ("~written_by",),
    "belongs_to_genre": ("has_genre",),
    "premiered_in_year": ("release_year",),
    "has_dialogue_in_language": ("in_language",),
}
FREEBASE = {
    "directed": ("~film.film.directed_by",),
    "acted_in": ("~film.performance.actor", "~film.film.starring"),
    "wrote_the_script_for": ("~film.film.written_by",),
    "belongs_to_genre": ("film.film.genre",),
    "premiered_in_year": ("film.film.initial_release_date",),
    "has_dialogue_in_language": ("film.film.language",),
}
Triple = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about the miniature."""

    text: str  # names its topic
    topic: str
    answers: tuple[str, ...]
    chain: tuple[str, ...]  # relations from the topic on
    split: Split
    hops: int  # in the demo's graph, where nothing is a CVT node


@dataclass(frozen=True, slots=True)
class World:
    """Triples of labels, names of the labels, and questions."""

    triples: list[Triple]
    names: dict[str, str]  # no two are equal; CVT nodes have none
    asked: list[Asked]

    def name(self, label: str) -> str:
        """Return a name, of what has none its label."""
        return self.names.get(label, label)

    def named(self) -> World:
        """Return the same with names as labels."""
        triples = [(self.name(head), relation, self.name(tail)) for head, relation, tail in self.triples]
        asked = [
            replace(one, topic=self.name(one.topic), answers=tuple(map(self.name, one.answers))) for one in self.asked
        ]
        return World(triples, {}, asked)

    def around(self, topic: str) -> list[Triple]:
        """Return the triples within ``SUBGRAPH_STEPS`` of a topic."""
        near, found = {topic}, list[Triple]()
        for _ in range(SUBGRAPH_STEPS):
            found = [triple for triple in self.triples if triple[0] in near or triple[2] in near]
            near = {label for head, _, tail in found for label in (head, tail)}
        return found


def enter_miniature(conf: Path, settings: Iterable[str] = ()) -> list[str]:
    """Let this process see the miniature in the place of KGQA_DATA and KGQA_HOME, and write it where it is missing.

    Returns the settings that mark a run of ``conf`` as one of it. Raises ConfigError where its models cannot be had.
    """
    home = Path(machine_paths(conf.parent)["KGQA_HOME"])
    home = home if home.name == MARK else home / MARK
    data = home / f"data-{VERSION}"
    os.environ |= {"KGQA_HOME": str(home), "KGQA_DATA": str(data)}
    config = read_config(conf, settings)
    for kind in [getattr(one, "kind", None) for one in (config.lm, *dict(config.roles).values())]:
        if kind == "endpoint":
            raise ConfigError(
                f"--small: {conf} asks a server, which has no miniature; give lm and roles models of files"
            )
    if not data.is_dir():
        write_miniature(data)
    questions = getattr(config.dataset, "questions", None)
    drawn = [f"dataset.questions.train_size={TRAIN_SIZE}"] if questions and questions.train_size else []
    return [f"name={config.name}-{MARK}", f"dataset.name={config.dataset.name}-{MARK}", *drawn]


def write_miniature(folder: Path) -> None:
    """Write all datasets and models as the run files look for them under KGQA_DATA."""
    from tasks.miniature_models import write_models

    films = cut_world()
    movies, freebase = translate(films, WIKIMOVIES).named(), translate(films, FREEBASE)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(folder) as unfinished:
        _write_metaqa(unfinished / "metaqa", movies)
        _write_wc2014(unfinished / "wc2014", movies)
        _write_mooc(unfinished / "mooc", films.named())
        _write_freebase(unfinished, freebase)
        for name in ("webqsp", "cwq"):
            _write_nsm(unfinished / name, freebase)
            _write_rog(unfinished / f"RoG-{name}", freebase.named())
        texts = [*(one.text for one in films.asked), *(" ".join(triple) for triple in freebase.named().triples)]
        write_models(unfinished / "models", texts)


# ------ The world.


def cut_world() -> World:
    """Return films around the people with most of them, and the demo's wordings asked of whatever they fit."""
    triples, names = [_fields(line) for line in _lines("triples.tsv")], dict(map(_fields, _lines("names.tsv")))
    films_of = defaultdict[str, list[str]](list)
    for head, _, tail in triples:
        if head.startswith("person"):
            films_of[head].append(tail)
    people = sorted(films_of, key=lambda person: (-len(films_of[person]), person))
    films = set(list(dict.fromkeys(film for person in people for film in films_of[person]))[:NUM_FILMS])
    kept, owner = list[Triple](), dict[str, str]()
    for head, relation, tail in triples:
        is_own = all(owner.setdefault(names[label], label) == label for label in (head, tail))  # a name for each label
        if is_own and relation in FREEBASE and films & {head, tail}:
            kept.append((head, relation, tail))
    used = {label for head, _, tail in kept for label in (head, tail)}
    world = World(kept, {label: names[label] for label in sorted(used)}, [])
    world.asked.extend(_ask(world))
    return world


def _ask(world: World) -> Iterator[Asked]:
    """Yield questions of each number of hops, all chains in turns."""
    wordings = defaultdict[tuple[str, ...], list[str]](list)
    names = dict(map(_fields, _lines("names.tsv")))
    for line in _lines("questions/train.jsonl"):
        read = json.loads(line)
        topics, chain = read.get("topics", ()), tuple(read["chain"])
        fits = len(topics) == 1 and "claim" not in read and all(step.strip("~") in FREEBASE for step in chain)
        if fits and read["question"].count(name := names[topics[0]]) == 1:
            wordings[chain].append(read["question"].replace(name, "{}"))
    onward = follower(world.triples)
    for hops in (1, 2, 3):
        chains = sorted(chain for chain in wordings if len(chain) == hops)
        fitting = [[(label, chain) for label in world.names if onward(label, chain)] for chain in chains]
        found = [own[place] for place in range(max(map(len, fitting))) for own in fitting if place < len(own)]
        splits: list[Split] = [split for split, many in NUM_QUESTIONS.items() for _ in range(many)]  # type: ignore[misc]
        for number, (split, (label, chain)) in enumerate(
            zip(splits, found[:: len(found) // len(splits)], strict=False)
        ):
            text = wordings[chain][number % len(wordings[chain])].format(world.names[label])
            yield Asked(text, label, tuple(sorted(onward(label, chain))), chain, split, hops)


def follower(triples: Iterable[Triple]) -> Any:
    """Return what follows a chain of relations from a label, never back to it, and returns where it ends."""
    tails = defaultdict[tuple[str, str], set[str]](set)
    for head, relation, tail in triples:
        tails[head, relation].add(tail)
        tails[tail, f"~{relation}"].add(head)

    def follow(label: str, chain: Iterable[str]) -> set[str]:
        here = {label}
        for step in chain:
            here = {tail for one in here for tail in tails.get((one, step), ())} - {label}
        return here

    return follow


def translate(world: World, table: Mapping[str, tuple[str, ...]]) -> World:
    """Return a world with other relations; where one takes several steps, each triple gets nodes of its own between."""
    triples = list[Triple]()
    for head, relation, tail in world.triples:
        steps = table[relation]
        places = [head, *(f"{head} {tail} {relation} {step}" for step in steps[1:]), tail]
        for (here, there), step in zip(pairwise(places), steps, strict=True):
            triples.append((there, step[1:], here) if step.startswith("~") else (here, step, there))
    asked = [
        replace(one, chain=tuple(new for step in one.chain for new in _walked(step, table))) for one in world.asked
    ]
    return World(triples, world.names, asked)


def _walked(step: str, table: Mapping[str, tuple[str, ...]]) -> list[str]:
    if not step.startswith("~"):
        return list(table[step])
    return [one[1:] if one.startswith("~") else f"~{one}" for one in reversed(table[step[1:]])]


# ------ The forms of the datasets.


def _write_metaqa(folder: Path, movies: World) -> None:
    _write(folder / "kb.txt", ("|".join(triple) for triple in movies.triples))
    for hops in (1, 2, 3):
        for split in NUM_QUESTIONS:
            own = [one for one in movies.asked if (one.hops, one.split) == (hops, split)]
            lines = [f"{one.text.replace(one.topic, f'[{one.topic}]')}\t{'|'.join(one.answers)}" for one in own]
            _write(folder / f"{hops}-hop" / "vanilla" / f"qa_{split}.txt", lines)


def _write_wc2014(folder: Path, movies: World) -> None:
    both = [*movies.triples, *((tail, f"{relation}_inverse", head) for head, relation, tail in movies.triples)]
    _write(folder / "kb.txt", ("\t".join(triple) for triple in both))
    follow = follower(movies.triples)
    for hops in (1, 2):
        lines = []
        for one in (one for one in movies.asked if one.hops == hops):
            steps = [f"{step[1:]}_inverse" if step.startswith("~") else step for step in one.chain]
            for answer in one.answers:  # a line each, with a way to it
                between = [
                    label for label in follow(one.topic, one.chain[:-1]) if answer in follow(label, one.chain[-1:])
                ]
                ends = [*sorted(between)[: hops - 1], answer]
                path = "#".join([one.topic, *(part for pair in zip(steps, ends, strict=True) for part in pair)])
                path += f"#<end>#{answer}" if hops == 1 else ""
                lines.append("\t".join([one.text, answer, path, f"{'/'.join(one.answers)}/", ""]))
        _write(folder / f"{hops}-hop.txt", lines)


def _write_mooc(folder: Path, films: World) -> None:
    """Write query questions, and of every other one a claim: of its answer, or of what is none."""
    _write(folder / "kb.tsv", ("\t".join(triple) for triple in films.triples))
    for split in NUM_QUESTIONS:
        rows = []
        for number, one in enumerate(one for one in films.asked if one.split == split and one.hops == 1):
            step, answer = one.chain[0], one.answers[0]
            triple = (answer, step[1:], one.topic) if step.startswith("~") else (one.topic, step, answer)
            rows.append({"question": one.text, "answer": list(one.answers), "triples": [triple]})
            if number % 2:
                claim = f"Is {answer} the answer to this: {one.text}"
                rows.append({"question": claim, "answer": "true", "triples": [triple]})
        _write(folder / "questions" / f"{split}.jsonl", (json.dumps(row, ensure_ascii=False) for row in rows))


def _write_nsm(folder: Path, freebase: World) -> None:
    mid = _mids(freebase)
    for split in NUM_QUESTIONS:
        rows = []
        for number, one in enumerate(one for one in freebase.asked if one.split == split):
            tuples = [(mid(head), relation, mid(tail)) for head, relation, tail in freebase.around(one.topic)]
            row = {"id": f"{folder.name}-{split}-{number}", "question": one.text, "entities": [mid(one.topic)]}
            answers = [{"kb_id": mid(label), "text": freebase.name(label)} for label in one.answers]
            entities = sorted({label for head, _, tail in tuples for label in (head, tail)})
            rows.append({**row, "answers": answers, "subgraph": {"tuples": tuples, "entities": entities}})
        _write(folder / f"{split}_simple.json", (json.dumps(row, ensure_ascii=False) for row in rows))


def _write_rog(folder: Path, freebase: World) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    mid = _mids(freebase)  # names stay: what has none gets a MID
    folder.mkdir(parents=True)
    for split, file in (("train", "train"), ("dev", "validation"), ("test", "test")):
        rows = []
        for number, one in enumerate(one for one in freebase.asked if one.split == split):
            graph = [
                [_bare(head, mid), relation, _bare(tail, mid)] for head, relation, tail in freebase.around(one.topic)
            ]
            row = {"id": f"{folder.name}-{split}-{number}", "question": one.text, "answer": list(one.answers)}
            rows.append({**row, "q_entity": [one.topic], "a_entity": list(one.answers), "graph": graph, "choices": []})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{file}-00000-of-00001.parquet")


def _bare(label: str, mid: Any) -> str:
    return str(mid(label)) if " film." in label else label


def _write_freebase(folder: Path, freebase: World) -> None:
    """Write a dump, and the questions over it: WebQSP's and WebQuestions' own files."""
    mid, lines = _mids(freebase), list[str]()

    def node(label: str) -> str:
        is_value = label.startswith("year_")
        return f'"{mid(label)}"^^<{YEAR}>' if is_value else f"<{NS}{mid(label)}>"

    for head, relation, tail in freebase.triples:
        lines.append(f"{node(head)}\t<{NS}{relation}>\t{node(tail)}\t.")
    for label, name in freebase.names.items():
        if not label.startswith("year_"):
            lines.append(f"{node(label)}\t<{NS}type.object.name>\t{json.dumps(name, ensure_ascii=False)}@en\t.")
    dump = folder / "freebase" / "freebase-rdf-latest.gz"
    dump.parent.mkdir(parents=True)
    dump.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    good = {"ParseQuality": "Complete", "QuestionQuality": "Good", "Confidence": "Normal"}
    for split, stem in (("train", "WebQTrn"), ("dev", "WebQDev"), ("test", "WebQTest")):
        parsed, plain = [], []
        for number, one in enumerate(one for one in freebase.asked if one.split == split and one.hops < 3):
            answers = [{"AnswerArgument": mid(label), "EntityName": freebase.name(label)} for label in one.answers]
            parse = {"TopicEntityMid": mid(one.topic), "InferentialChain": None, "Answers": answers}
            question = {"QuestionId": f"{stem}-{number}", "RawQuestion": one.text}
            parsed.append({**question, "Parses": [{**parse, "AnnotatorComment": good}]})
            said = " ".join(f'(description "{freebase.name(label)}")' for label in one.answers)
            key = re.sub("[^a-z0-9]+", "_", freebase.name(one.topic).lower()).strip("_")
            url = f"http://www.freebase.com/view/en/{key}"
            plain.append({"utterance": one.text, "targetValue": f"(list {said})", "url": url})
        _write(folder / "webqsp" / f"WebQSP.{split}.json", [json.dumps({"Questions": parsed}, ensure_ascii=False)])
        file = folder / "webquestions" / f"webquestions.examples.{split}.json"
        if split != "dev":  # which WebQuestions has not
            _write(file, [json.dumps(plain, ensure_ascii=False)])


def _mids(world: World) -> Any:
    """Return what turns a label into a MID, of a year into the year."""
    labels = sorted({label for head, _, tail in world.triples for label in (head, tail)})
    base, mids = len(MID_DIGITS), dict[str, str]()
    for number, label in enumerate(labels):
        digits = "".join(MID_DIGITS[number // base**place % base] for place in (2, 1, 0))
        mids[label] = label.removeprefix("year_") if label.startswith("year_") else f"m.0{digits}"
    return mids.__getitem__


def _lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def _fields(line: str) -> Any:
    return tuple(line.split("\t"))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
