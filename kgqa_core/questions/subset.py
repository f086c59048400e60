"""Other questions than the files hold: a part of them, wordings that training never sees, and the splits of papers.

All draws are by hash, so a draw depends on the questions and its seed alone: not on the order of the files, and a
smaller training sample lies inside a larger one of the same draw.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import NOT_UTF8, line_blocks, require_file
from kgqa_core.questions.formats import RawQuestion, list_files, open_format
from kgqa_core.types import SPLITS, Question, RelationPath

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


def take_subset(
    questions: Sequence[Question],
    *,
    train_size: int | None = None,
    hold_out_templates: float | None = None,
    draw: int = 0,
) -> tuple[list[Question], SubsetReport | None]:
    """Return a part of the questions, in their order, and what was left; None where nothing was to be left out.

    Args:
        questions: all of them.
        train_size: training questions to keep, drawn at random; None: all.
        hold_out_templates: share of the distinct masked texts that only the test split shall ask. They are held out
            before training is sampled.
        draw: the seed of both.

    Raises:
        InputError: a split would be left empty, or training has fewer questions than asked for.
    """
    kept, share = list(questions), hold_out_templates
    if train_size is None and share is None:
        return kept, None
    num_masked = len({question.masked for question in questions})
    wanted = round((share or 0) * num_masked)
    held = hold_out(questions, wanted, draw=draw)
    if share is not None:
        kept = [question for question in questions if (question.masked in held) == (question.split == "test")]
        left = _sizes(kept)
        empty = [split for split, count in _sizes(questions).items() if count and not left[split]]
        if empty:
            raise InputError(
                f"dataset.questions.hold_out_templates = {share:g} leaves no {' and no '.join(empty)} question: there "
                f"are {num_masked} distinct masked texts, and every chain type keeps one in training. Hold out another "
                "share, or try another dataset.questions.draw."
            )
    if train_size is not None:
        kept = sample_train(kept, train_size, draw=draw)
    return kept, SubsetReport(draw, num_masked, len(held), wanted, _sizes(questions), _sizes(kept))


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
    return hashlib.sha256(f"{draw}\x1f{what}\x1f{key}".encode()).digest()


def _sizes(questions: Iterable[Question]) -> dict[str, int]:
    return _count_splits(question.split for question in questions)


def _count_splits(splits: Iterable[str | None]) -> dict[str, int]:
    sizes = Counter(splits)
    return {split: sizes[split] for split in SPLITS}


# ------ The question sets that papers made of WebQSP and ComplexWebQuestions, by the variant's name.


NUM_DEV = 250
DEV_SHARE = 0.1  # of the training questions, at most
DEV_SEED = 0
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

    variant: str  # etd: with dev questions; rog: also without those that have no answer
    dev: str  # where the dev questions come from
    seed: int  # of the draw, where they are drawn
    num_before: dict[str, int]  # split -> questions that can be read
    num_left: dict[str, int]
    dev_ids: tuple[str, ...]  # training questions that became the dev split
    dropped: tuple[Dropped, ...]


def plan_variant(section: QuestionSection) -> VariantReport | None:
    """Read the question files and return what the section's variant changes, None where it is the official one.

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
        (parsed.id, file.split, bool(parsed.answers))
        for file in files
        for _, _, parsed in read(file)
        if isinstance(parsed, RawQuestion)
    ]
    train = [id for id, split, _ in listed if split == "train"]
    moved: set[str] = set()
    how = "their own file"
    if section.dev_ids is not None:
        moved, how = _listed(section.dev_ids, train), f"listed in {section.dev_ids.name}"
    elif not any(split == "dev" for _, split, _ in listed):
        moved, how = draw_dev(train), "drawn by hash of the ids"
    placed = [(id, "dev" if id in moved else str(split), answered) for id, split, answered in listed]
    drops = section.variant == "rog"
    return VariantReport(
        variant=section.variant,
        dev=how,
        seed=DEV_SEED,
        num_before=_count_splits(split for _, split, _ in listed),
        num_left=_count_splits(split for _, split, answered in placed if answered or not drops),
        dev_ids=tuple(sorted(moved)),
        dropped=tuple(Dropped(id, split, NO_ANSWER_GIVEN) for id, split, answered in placed if drops and not answered),
    )


def draw_dev(ids: Sequence[str]) -> set[str]:
    """Return the ids of the dev split: those whose hash comes first."""
    count = min(NUM_DEV, int(DEV_SHARE * len(ids)))
    return set(sorted(ids, key=lambda id: _rank(DEV_SEED, "dev", id))[:count])


def _listed(path: Path, train: Sequence[str]) -> set[str]:
    """Return the ids that a file lists: one per line, or as ``id`` of a JSON object per line."""
    require_file(path, what="list of dev questions")
    lines = [line for block, _ in line_blocks(path) for line in block]
    ids = [_id_of(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    known = set(train)
    unknown = [id for id in ids if id not in known]
    if unknown:
        raise InputError(
            f"{path}: {len(unknown)} of its {len(ids)} ids are no training question's, {shorten(unknown[0])} first. "
            "dataset.questions.dev_ids lists training questions that are to be the dev split."
        )
    return set(ids)


def _id_of(line: str | bytes, place: str) -> str:
    if isinstance(line, bytes):
        raise InputError(f"{place}: {NOT_UTF8}")
    line = line.strip()
    if not line.startswith("{"):
        return line
    try:
        found = json.loads(line).get("id")
    except ValueError as error:
        raise InputError(f"{place}: neither an id nor a JSON object with one ({shorten(str(error))})") from error
    if not isinstance(found, str):
        raise InputError(f"{place}: the object has no field 'id' with a text: {shorten(line)}")
    return found
