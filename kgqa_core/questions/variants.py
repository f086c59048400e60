"""The question sets that papers made of WebQSP and ComplexWebQuestions, with the questions they leave out by name.

official: the files as they are. etd (EtD): where there are no dev questions, 250 of the training questions (at most a
tenth of them) become the dev split, so that WebQSP has 2,848 / 250 / 1,639. rog (RoG, EPERM): the same, and questions
for which the file gives no answer are dropped: 2,826 / 246 / 1,628.

Which 250 they are is drawn by hash of the ids, unless a file lists them: papers use the dev split of GraftNet, whose
ids stand in any of its dev files.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import NOT_UTF8, line_blocks, require_file
from kgqa_core.questions.readers import read_file
from kgqa_core.questions.records import RawQuestion
from kgqa_core.questions.sources import QuestionSource, Variant, list_files
from kgqa_core.types import SPLITS

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
        num_before=_sizes(str(split) for _, split, _ in listed),
        num_left=_sizes(split for _, split, answered in placed if answered or not drops),
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


def _sizes(splits: Iterable[str]) -> dict[str, int]:
    sizes = Counter(splits)
    return {split: sizes[split] for split in SPLITS}
