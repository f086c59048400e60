"""From question files to a questions artifact: load, link to the graph, split, lint, write; and reading it back.

A section may ask for other questions than the files hold: a part of them, wordings that training never sees, or the
splits of papers. All draws are by hash, so a draw depends on the questions and its seed alone: not on the order of the
files, and a smaller training sample lies inside a larger one of the same draw.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph import input_files
from kgqa_core.graph.build import write_facts
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.questions.coverage import LintReport, lint_questions
from kgqa_core.questions.formats import Fault, Loaded, RawQuestion, list_files, open_format
from kgqa_core.questions.link import HELD_SHARE, Resolver, hash_share, link_file, nearest_names, spell
from kgqa_core.types import EVERY_SPLIT, SPLITS, Question, Reject, RelationPath, Split

NUM_DEV = 250  # questions of a variant's dev split, at most
DEV_SHARE = 0.1  # of the training questions, at most
DEV_SEED = 0
NO_ANSWER_GIVEN = "the file gives no answer"

ChainType = RelationPath | int | None  # the gold chain, else the number of hops, where the dataset says


@dataclass(frozen=True, slots=True)
class SubsetReport:
    """What a subset left, as subset.json holds it."""

    draw: int
    num_masked: int  # distinct masked texts before
    num_masked_held_out: int  # of them: asked by the test split alone
    num_held_out_wanted: int  # what the share asked for; more than held out where a chain type would lose its last text
    num_before: dict[str, int]  # split -> questions
    num_left: dict[str, int]


@dataclass(frozen=True, slots=True)
class VariantReport:
    """What a variant changed, as variant.json holds it."""

    variant: str  # etd: with dev questions; rog: also without those that have no answer
    dev: str  # where the dev questions come from
    seed: int  # of the draw, where they are drawn
    num_before: dict[str, int]  # split -> questions that can be read
    num_left: dict[str, int]
    dev_ids: tuple[str, ...]  # training questions that became the dev split
    dropped: tuple[dict[str, str], ...]  # id, split and reason of each question that is left out


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """What a build found."""

    num_questions: int
    num_rejects: int
    num_missing: int  # topics, answers and claims that the graph has not, of all questions
    per_split: dict[str, int]  # split -> questions
    lint: LintReport
    subset: SubsetReport | None = None  # None: all questions are used


def build_questions(
    section: QuestionSection, *, search: SearchGraph, out_dir: Path, gate_share: float = 0.0
) -> QuestionReport:
    """Build questions, rejects, missing and coverage.parquet, and lint.json in ``out_dir``.

    Where not all questions are used, variant.json and subset.json say which. Questions are linked to the entities of
    ``search``, and coverage is about what it searches; ``gate_share`` as in ``take_gate``. Raises InputError where a
    file is missing, holds no usable question, has too large a share of rejected lines, or the section asks for more
    questions than there are.
    """
    files, variant, format = list_files(section), plan_variant(section), open_format(section.format)
    left_out = variant.dropped if variant else ()
    to_dev, dropped = set(variant.dev_ids) if variant else set(), {one["id"] for one in left_out}
    loaded, resolver = Loaded(), Resolver(search.entities)
    for file in files:
        found = link_file(file, loaded, read=format.read, resolver=resolver, to_dev=to_dev, dropped=dropped)
        loaded.questions.extend(found)
    try:
        _check_rejects(loaded.rejects, len(loaded.questions), section, loaded.unknown)
    except InputError as error:
        shown = [(reject.file, reject.line) for reject in loaded.rejects[: input_files.NUM_SHOWN]]
        unknown = list(dict.fromkeys(loaded.unknown[place] for place in shown if place in loaded.unknown))
        if not unknown:
            raise
        spelt = ((one, [spell(name, one) for name in nearest_names(one, search.entities)]) for one in unknown)
        near = (f"nearest to {shorten(one, 60)}: {', '.join(names)}" for one, names in spelt)
        raise InputError(f"{error}. Not in the graph: {'; '.join(near)}") from error
    for one in left_out:
        loaded.note("dropped_by_variant", one["split"], f"{one['id']}: {one['reason']}")
    if format.finish:
        format.finish(loaded, search.entities, search.reenter_topic)
    questions = fill_splits(loaded) if all(file.split is None for file in files) else loaded.questions
    questions, subset = take_subset(take_gate(questions, gate_share), section)
    lint = lint_questions(questions, search, loaded.notes)
    tables = {
        "questions": input_files.records_table(questions, schemas.QUESTIONS),
        "rejects": input_files.records_table(loaded.rejects, schemas.REJECTS),
        "coverage": input_files.records_table(lint.reach, schemas.COVERAGE),
        "missing": input_files.texts_table(loaded.missing, schemas.MISSING.names).cast(schemas.MISSING),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, out_dir / f"{name}.parquet", compression="zstd")
    for name, part in (("lint", lint), ("subset", subset), ("variant", variant)):
        if part is not None:
            write_facts(part, out_dir / f"{name}.json")
    return QuestionReport(
        num_questions=len(questions),
        num_rejects=len(loaded.rejects),
        num_missing=len(loaded.missing),
        per_split=dict(Counter(question.split for question in questions)),
        lint=lint,
        subset=subset,
    )


def read_topics(section: QuestionSection) -> list[str]:
    """Return the distinct topics that the question files name (labels, or names), in byte order, without a graph.

    Questions of every variant and split count. Raises InputError as ``build_questions`` does.
    """
    rejects, topics, num_questions = list[Reject](), set[str](), 0
    for file in list_files(section):
        for number, text, parsed in open_format(section.format).read(file):
            if isinstance(parsed, Fault):
                rejects.append(Reject(file.shown, number, parsed.reason, text[: input_files.MAX_REJECT_TEXT]))
            else:
                topics.update(parsed.topics)
                num_questions += 1
    _check_rejects(rejects, num_questions, section)
    return sorted(topics)  # the order of code points is that of bytes in UTF-8


def _check_rejects(
    rejects: Sequence[Reject], num_questions: int, section: QuestionSection, unknown: Container[tuple[str, int]] = ()
) -> None:
    """Raise InputError for too many; ``unknown``: places of those of which the graph lacks something, and few may."""
    num_rows = len(rejects) + num_questions
    faults = [one for one in rejects if (one.file, one.line) not in unknown]
    few_miss = num_questions and len(rejects) - len(faults) <= section.max_missing_ratio * num_rows
    counted = faults if few_miss else rejects
    input_files.check_rejects(
        [input_files.records_table(counted[: input_files.NUM_SHOWN], schemas.REJECTS)],
        num_rejects=len(counted),
        num_rows=num_rows,
        max_ratio=section.max_reject_ratio if num_questions else 0,
        section="dataset.questions",
    )
    if not num_questions:
        raise InputError("questions: the files hold no question. docs/own-data.md shows what a line looks like.")


def fill_splits(loaded: Loaded) -> list[Question]:
    """Return the questions with no split empty: few are split by the order of their hashes; InputError below three."""
    questions = loaded.questions
    if {question.split for question in questions} == set(SPLITS):
        return questions
    keys = [loaded.split_keys[question.id] for question in questions]
    order = sorted(set(keys), key=hash_share)
    if len(order) < len(SPLITS):
        raise InputError(
            f"a file without splits needs at least {len(SPLITS)} different questions, one each for train, dev and "
            f"test, and this one has {len(order)}. Add some, or name a file for each split: dataset.questions.files"
        )
    held = max(1, round(HELD_SHARE * len(order)))
    tests, others = set(order[-held:]), set(order[: -2 * held])

    def split_of(key: str) -> Split:
        return "test" if key in tests else "train" if key in others else "dev"

    return [replace(question, split=split_of(key)) for question, key in zip(questions, keys, strict=True)]


# ------ A part of the questions.


def take_gate(questions: Sequence[Question], share: float) -> list[Question]:
    """Return the questions with a share of those that are not for testing in the split ``gate``.

    The hash of the id decides, or of the text where the id may count lines: whatever else comes or goes, a question of
    the gate stays one, and no release ever learned from it. Of repeats of a text the first decides for all.
    """
    keys: dict[str, str] = {}

    def is_held(one: Question) -> bool:
        key = keys.setdefault(one.text, one.text if re.search(r"-\d+$", one.id) else one.id)
        return one.split != "test" and hash_share(f"{key}\x1fgate") < share

    return [replace(one, split="gate") if is_held(one) else one for one in questions]


def take_subset(questions: Sequence[Question], section: QuestionSection) -> tuple[list[Question], SubsetReport | None]:
    """Return a part of the questions, in their order, and what was left; None where nothing was to be left out.

    The share ``hold_out_templates`` of distinct masked texts is held out, for the test split alone; of the training
    questions left ``train_size`` are drawn. ``draw`` seeds both. Raises InputError where a split would be left empty,
    or training has fewer questions than asked for.
    """
    kept, train_size, share, draw = list(questions), section.train_size, section.hold_out_templates, section.draw
    if train_size is None and share is None:
        return kept, None
    before = _count_splits(question.split for question in questions)
    num_masked = len({question.masked for question in questions})
    wanted = round((share or 0) * num_masked)
    held = _hold_out(questions, wanted, draw=draw)
    if share is not None:
        kept = [question for question in questions if (question.masked in held) == (question.split == "test")]
        left = _count_splits(question.split for question in kept)
        empty = [split for split, count in before.items() if count and not left.get(split)]
        if empty:
            raise InputError(
                f"dataset.questions.hold_out_templates = {share:g} leaves no {' and no '.join(empty)} question: there "
                f"are {num_masked} distinct masked texts, and every chain type keeps one in training. Hold out another "
                "share, or try another dataset.questions.draw."
            )
    if train_size is not None:
        train = [question.id for question in kept if question.split == "train"]
        if train_size > len(train):
            raise InputError(
                f"dataset.questions.train_size is {train_size}, but there are only {len(train)} training questions. "
                "Ask for fewer, or leave it out to use all."
            )
        chosen = set(sorted(train, key=lambda id: _rank(draw, "train", id))[:train_size])
        kept = [question for question in kept if question.split != "train" or question.id in chosen]
    after = _count_splits(question.split for question in kept)
    return kept, SubsetReport(draw, num_masked, len(held), wanted, before, after)


def _hold_out(questions: Iterable[Question], count: int, *, draw: int) -> set[str]:
    """Return ``count`` masked texts, or fewer, such that every chain type keeps a masked text in training.

    A text that training asks with several chains counts for each; one of a chain that it lacks is never held out.
    """
    types: dict[str, set[ChainType]] = defaultdict(set)  # masked text -> its chain types
    trained: dict[ChainType, set[str]] = defaultdict(set)  # chain type -> masked texts that training asks
    for question in questions:
        chain_type = question.chain or question.hops
        types[question.masked].add(chain_type)
        if question.split == "train":
            trained[chain_type].add(question.masked)
    held: set[str] = set()
    for masked in sorted(types, key=lambda masked: _rank(draw, "template", masked)):
        if len(held) < count and all(trained[chain_type] - {masked} for chain_type in types[masked]):
            held.add(masked)
            for chain_type in types[masked]:
                trained[chain_type].discard(masked)
    return held


def _rank(draw: int, what: str, key: str) -> bytes:
    return hashlib.sha256(f"{draw}\x1f{what}\x1f{key}".encode()).digest()


def _count_splits(splits: Iterable[str | None]) -> dict[str, int]:
    sizes = Counter(splits)
    return {split: sizes[split] for split in EVERY_SPLIT if split in SPLITS or sizes[split]}


# ------ The question sets that papers made of WebQSP and ComplexWebQuestions, by the variant's name.


def plan_variant(section: QuestionSection) -> VariantReport | None:
    """Return what the section's variant changes, None where it is the official one.

    Raises InputError where the files have no splits, or ``section.dev_ids`` lists an id that no training question has.
    """
    if section.variant == "official":
        return None
    files, read = list_files(section), open_format(section.format).read
    if any(file.split is None for file in files):
        raise InputError(
            f"dataset.questions.variant {section.variant!r} needs a file per split: name the folder of the official "
            "files as dataset.questions.path, or each file under dataset.questions.files."
        )
    listed = [
        (one.id, file.split, bool(one.answers))
        for file in files
        for _, _, one in read(file)
        if isinstance(one, RawQuestion)
    ]
    train = [id for id, split, _ in listed if split == "train"]
    moved: set[str] = set()
    how = "their own file"
    if section.dev_ids is not None:
        moved, how = _read_ids(section.dev_ids, train), f"listed in {section.dev_ids.name}"
    elif not any(split == "dev" for _, split, _ in listed):
        count = min(NUM_DEV, int(DEV_SHARE * len(train)))
        moved = set(sorted(train, key=lambda id: _rank(DEV_SEED, "dev", id))[:count])
        how = "drawn by hash of the ids"
    placed = [(id, "dev" if id in moved else str(split), answered) for id, split, answered in listed]
    drops = section.variant == "rog"
    return VariantReport(
        variant=section.variant,
        dev=how,
        seed=DEV_SEED,
        num_before=_count_splits(split for _, split, _ in listed),
        num_left=_count_splits(split for _, split, answered in placed if answered or not drops),
        dev_ids=tuple(sorted(moved)),
        dropped=tuple(
            {"id": id, "split": split, "reason": NO_ANSWER_GIVEN}
            for id, split, answered in placed
            if drops and not answered
        ),
    )


def _read_ids(path: Path, train: Sequence[str]) -> set[str]:
    """Return the ids that a file lists: one per line, or as ``id`` of a JSON object per line."""
    input_files.require_file(path, what="list of dev questions")
    ids = list[str]()
    for number, line in enumerate(path.read_text("utf-8-sig", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            ids.append(json.loads(line)["id"].strip() if line.lstrip().startswith("{") else line.strip())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}:{number}: neither an id nor an object with one: {shorten(line)}") from error
    known = set(train)
    unknown = [id for id in ids if id not in known]
    if unknown:
        raise InputError(
            f"{path}: {len(unknown)} of its {len(ids)} ids are no training question's, {shorten(unknown[0])} first. "
            "dataset.questions.dev_ids lists training questions that are to be the dev split."
        )
    return set(ids)


def read_questions(folder: Path, split: Split | None = None) -> list[Question]:
    """Return the questions of an artifact, all or one split, in file order; ArtifactError where there are none."""
    try:
        table = pq.read_table(folder / "questions.parquet", schema=schemas.QUESTIONS)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(
            f"{folder} holds no usable questions ({error}). Build them again: kgqa build CONF"
        ) from error
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    columns = {name: table[name].to_pylist() for name in schemas.QUESTIONS.names}
    for name in ("topics", "answers", "chain"):
        columns[name] = [None if ids is None else tuple(ids) for ids in columns[name]]
    return [Question(*row) for row in zip(*(columns[field.name] for field in fields(Question)), strict=True)]
