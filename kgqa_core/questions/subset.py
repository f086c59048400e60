"""Fewer questions on purpose: a random part of the training questions, or wordings that training never sees.

Both are drawn by hash, so a draw depends on the questions and its seed alone: not on the order of the files, and a
smaller training sample lies inside a larger one of the same draw.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgqa_core.errors import InputError
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
