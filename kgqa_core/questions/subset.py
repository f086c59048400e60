"""Fewer questions on purpose: a random part of the training questions, or wordings that training never sees.

Both are drawn by hash, so a draw depends on the questions and its seed alone: not on the order of the files, and a
smaller training sample lies inside a larger one of the same draw.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import NOT_UTF8, line_blocks, require_file
from kgqa_core.questions.formats import QuestionSource, Variant, list_files, read_file
from kgqa_core.questions.records import RawQuestion
from kgqa_core.types import SPLITS, Question, RelationPath

ChainType = RelationPath | int | None  # the gold chain, else the number of hops, where the dataset says


@dataclass(frozen=True, slots=True)
class Subset:
    """Which part of the questions to use; by default all."""

    train_size: int | None = None  # training questions, drawn at random
    hold_out_templates: float | None = None  # share of the distinct masked texts that only the test split asks
    draw: int = 0  # the seed of both

    def __bool__(self) -> bool:
        """Is anything left out at all?"""
        return self.train_size is not None or self.hold_out_templates is not None


ALL = Subset()


@dataclass(frozen=True, slots=True)
class SubsetReport:
    """What a subset left, as subset.json holds it."""

    draw: int
    num_masked: int  # distinct masked texts before
    num_masked_held_out: int  # of them: asked by the test split alone
    num_held_out_wanted: int  # what the share asked for; more than held out where a chain type would lose its last text
    num_before: dict[str, int]  # split -> questions
    num_left: dict[str, int]


def take_subset(questions: Sequence[Question], subset: Subset) -> tuple[list[Question], SubsetReport]:
    """Return the questions of ``subset``, in their order: first wordings are held out, then training is sampled.

    Raises InputError where a split would be left empty, or training has fewer questions than asked for.
    """
    num_masked = len({question.masked for question in questions})
    wanted = round((subset.hold_out_templates or 0) * num_masked)
    held = hold_out(questions, wanted, draw=subset.draw)
    kept = list(questions)
    if subset.hold_out_templates is not None:
        kept = [question for question in questions if (question.masked in held) == (question.split == "test")]
        _check_splits(questions, kept, subset.hold_out_templates)
    if subset.train_size is not None:
        kept = sample_train(kept, subset.train_size, draw=subset.draw)
    report = SubsetReport(
        draw=subset.draw,
        num_masked=num_masked,
        num_masked_held_out=len(held),
        num_held_out_wanted=wanted,
        num_before=_sizes(questions),
        num_left=_sizes(kept),
    )
    return kept, report


def hold_out(questions: Iterable[Question], count: int, *, draw: int) -> set[str]:
    """Return ``count`` masked texts, or fewer, such that every chain type keeps a masked text in training.

    Chain type: the gold chain, where there is none the number of hops. A text that training asks with several chains
    counts for each; one whose chain type training does not have is never held out.
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
        if len(held) == count:
            break
        if all(trained[chain_type] - {masked} for chain_type in types[masked]):
            held.add(masked)
            for chain_type in types[masked]:
                trained[chain_type].discard(masked)
    return held


def sample_train(questions: Sequence[Question], size: int, *, draw: int) -> list[Question]:
    """Return the questions with only ``size`` of the training ones; InputError where there are fewer."""
    train = [question.id for question in questions if question.split == "train"]
    if size > len(train):
        raise InputError(
            f"dataset.questions.train_size is {size}, but there are only {len(train)} training questions. "
            "Ask for fewer, or leave it out to use all."
        )
    chosen = set(sorted(train, key=lambda id: _rank(draw, "train", id))[:size])
    return [question for question in questions if question.split != "train" or question.id in chosen]


def _rank(draw: int, what: str, key: str) -> bytes:
    return hashlib.sha256("\x1f".join([str(draw), what, key]).encode()).digest()


def _sizes(questions: Iterable[Question]) -> dict[str, int]:
    sizes = Counter(question.split for question in questions)
    return {split: sizes[split] for split in SPLITS}


def _check_splits(before: Sequence[Question], after: Sequence[Question], share: float) -> None:
    left = _sizes(after)
    empty = [split for split, count in _sizes(before).items() if count and not left[split]]
    if empty:
        raise InputError(
            f"dataset.questions.hold_out_templates = {share:g} leaves no {' and no '.join(empty)} question: there are "
            f"{len({question.masked for question in before})} distinct masked texts, and every chain type keeps one in "
            "training. Hold out another share, or try another dataset.questions.draw."
        )


# ------ The question sets that papers made of WebQSP and ComplexWebQuestions, with the questions ...


NUM_DEV = 250
DEV_SHARE = 0.1  # of the training questions, at most
NO_ANSWER_GIVEN = "the file gives no answer"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A question that a variant leaves out."""

    id: str
    split: str
    reason: str


@dataclass(frozen=True, slots=True)
class VariantReport:
    """What a variant changed, as variant.json holds it."""

    variant: Variant
    dev: str  # where the dev questions come from
    seed: int  # of the draw, where they are drawn
    num_before: dict[str, int]  # split -> questions that can be read
    num_left: dict[str, int]
    dev_ids: tuple[str, ...]  # training questions that became the dev split
    dropped: tuple[Dropped, ...]


def plan_variant(source: QuestionSource) -> VariantReport:
    """Read the question files and return what the source's variant changes.

    Raises InputError where the files have no splits, or ``source.dev_ids`` lists an id that no training question has.
    """
    listed = [
        (parsed.id, split, bool(parsed.answers))
        for path, split, hops in list_files(source)
        for _, _, parsed in read_file(path, format=source.format, split=split, hops=hops)
        if isinstance(parsed, RawQuestion)
    ]
    if any(split is None for _, split, _ in listed):
        raise InputError(
            f"dataset.questions.variant {source.variant!r} needs a file per split: name the folder of the official "
            "files as dataset.questions.path, or each file under dataset.questions.files."
        )
    moved: set[str] = set()
    how = "their own file" if any(split == "dev" for _, split, _ in listed) else "there are none"
    train = [id for id, split, _ in listed if split == "train"]
    if source.variant != "official" and source.dev_ids is not None:
        moved, how = _listed(source.dev_ids, train), f"listed in {source.dev_ids.name}"
    elif source.variant != "official" and "dev" not in {split for _, split, _ in listed}:
        moved, how = draw_dev(train, seed=source.split_seed), "drawn by hash of the ids"
    placed = [(id, "dev" if id in moved else str(split), answered) for id, split, answered in listed]
    drops = source.variant == "rog"
    return VariantReport(
        variant=source.variant,
        dev=how,
        seed=source.split_seed,
        num_before=_variants_sizes(str(split) for _, split, _ in listed),
        num_left=_variants_sizes(split for _, split, answered in placed if answered or not drops),
        dev_ids=tuple(sorted(moved)),
        dropped=tuple(Dropped(id, split, NO_ANSWER_GIVEN) for id, split, answered in placed if drops and not answered),
    )


def draw_dev(ids: Sequence[str], *, seed: int) -> set[str]:
    """Return the ids of the dev split: those whose hash with the seed comes first."""
    count = min(NUM_DEV, int(DEV_SHARE * len(ids)))
    return set(sorted(ids, key=lambda id: hashlib.sha256(f"{seed}\x1fdev\x1f{id}".encode()).digest())[:count])


def read_ids(path: Path) -> list[str]:
    """Return the ids that a file lists: one per line, or as ``id`` of a JSON object per line.

    Raises InputError, naming the line, where one is neither.
    """
    require_file(path, what="list of dev questions")
    ids: list[str] = []
    number = 0
    for lines, _ in line_blocks(path):
        for line in lines:
            number += 1
            if isinstance(line, bytes):
                raise InputError(f"{path}:{number}: {NOT_UTF8}")
            if line.strip():
                ids.append(_id_of(line.strip(), f"{path}:{number}"))
    return ids


def _id_of(line: str, place: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        found = json.loads(line).get("id")
    except ValueError as error:
        raise InputError(f"{place}: neither an id nor a JSON object with one ({shorten(str(error))})") from error
    if not isinstance(found, str):
        raise InputError(f"{place}: the object has no field 'id' with a text: {shorten(line)}")
    return found


def _listed(path: Path, train: Sequence[str]) -> set[str]:
    listed, known = read_ids(path), set(train)
    unknown = [id for id in listed if id not in known]
    if unknown:
        raise InputError(
            f"{path}: {len(unknown)} of its {len(listed)} ids are no training question's, {shorten(unknown[0])} first. "
            "dataset.questions.dev_ids lists training questions that are to be the dev split."
        )
    return set(listed)


def _variants_sizes(splits: Iterable[str]) -> dict[str, int]:
    sizes = Counter(splits)
    return {split: sizes[split] for split in SPLITS}
