"""Dense ids of the closure's nodes, in byte order of their labels.

Codes of MIDs are in that order already. The other labels are sorted, and each is put where it belongs among the MIDs:
before all of them, between "g." and "m.", after all, or, where it begins like a MID, by comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgqa_core.graph.closure.files import read_arrow, save_array, write_arrow
from kgqa_core.graph.closure.names import NameTask, distinct_types
from kgqa_core.graph.closure.options import ClosureLimits
from kgqa_core.graph.closure.parts import Parts
from kgqa_core.graph.closure.tables import I32, I64, number_table, numbers_of
from kgqa_core.graph.closure.texts import EMPTY, Texts, find_texts
from kgqa_core.graph.closure.walk import Reached
from kgqa_core.graph.csr import open_array, sorted_distinct
from kgqa_core.graph.dump.codes import KIND_BIT, label_of, labels_of
from kgqa_core.graph.string_sort import sort_strings
from kgqa_core.graph.strings import string_buffers
from kgqa_core.types import Reject


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which code has which id."""

    codes: I64  # [N] code of each entity id
    text_ids: I64  # [T] ids of the entities that are no MIDs, ascending
    texts: pa.LargeStringArray  # [T] their labels, so ascending too


def number_nodes(mids: I64, codes: I64, texts: pa.LargeStringArray) -> Numbering:
    """Number the nodes of a closure.

    Args:
        mids: codes of the MIDs, ascending.
        codes: of the other nodes.
        texts: their labels.
    """
    order = sort_strings(*string_buffers(texts))
    texts = texts.take(pa.array(order))
    text_ids = np.arange(len(order)) + mids_below(texts, mids)
    numbered = np.empty(len(mids) + len(order), np.int64)
    is_mid = np.ones(len(numbered), np.bool_)
    is_mid[text_ids] = False
    numbered[is_mid], numbered[text_ids] = mids, codes[order]
    return Numbering(numbered, text_ids, texts)


def mids_below(texts: pa.LargeStringArray, mids: I64) -> I64:
    """Return how many of the MIDs (codes, ascending) have a label below each text (ascending)."""
    num_g = int(np.searchsorted(mids, 1 << KIND_BIT))
    below = np.empty(len(texts), np.int64)
    begin = 0
    for prefix, count in (("g.", 0), ("g/", num_g), ("m.", num_g), ("m/", len(mids))):  # "/" follows "." in ASCII
        end = bisect_left(range(len(texts)), prefix.encode(), key=lambda row: texts[row].as_py().encode())
        if prefix.endswith("/"):
            for row in range(begin, end):
                below[row] = bisect_left(mids, texts[row].as_py().encode(), key=lambda code: label_of(code).encode())
        else:
            below[begin:end] = count
        begin = end
    below[begin:] = len(mids)
    return below


@dataclass(frozen=True, slots=True)
class Nodes:
    """The numbered nodes: ``codes.npy``, ``numbers.npy`` and ``leave.npy`` in the work folder, and what was dropped."""

    num_entities: int
    work: Path
    collisions: tuple[Reject, ...]

    def ids_of(self, codes: I64) -> I32:
        """Return entity ids, -1 for a code that is not in the closure."""
        return numbers_of(open_array(self.work / "numbers.npy"), open_array(self.work / "codes.npy"), codes)

    def labels_of(self, ids: I32) -> pa.LargeStringArray:
        """Return the labels of a few entities."""
        codes, text_ids = open_array(self.work / "codes.npy")[ids], open_array(self.work / "text_ids.npy")
        texts = read_arrow(self.work / "texts.arrow")["text"]
        of_texts = texts.take(pa.array(np.searchsorted(text_ids, ids[codes < 0])))
        joined = pa.concat_arrays([EMPTY, *of_texts.chunks])
        return pc.replace_with_mask(labels_of(codes), pa.array(codes < 0), joined)


def number_closure(parts: Parts, reached: Reached, work: Path, limits: ClosureLimits) -> Nodes:
    """Give the nodes their ids; write what later passes look them up in."""
    codes = np.sort(reached.codes)
    num_texts = int(np.searchsorted(codes, 0))
    types = _type_codes(parts, work, limits)
    wanted = sorted_distinct(np.concatenate([codes[:num_texts], types[types < 0]]))
    found = find_texts(parts.texts, wanted, work, limits)
    of_nodes = pa.array(np.searchsorted(wanted, codes[:num_texts]))
    numbering = number_nodes(codes[num_texts:], codes[:num_texts], found.texts.take(of_nodes))
    del codes
    save_array(work / "codes.npy", numbering.codes)
    save_array(work / "numbers.npy", number_table(numbering.codes))
    save_array(work / "text_ids.npy", numbering.text_ids)
    write_arrow(pa.table({"text": numbering.texts}), work / "texts.arrow")
    nodes = Nodes(len(numbering.codes), work, found.collisions)
    leave = np.empty(nodes.num_entities, np.int8)
    leave[nodes.ids_of(reached.codes)] = reached.leave
    save_array(work / "leave.npy", leave)
    _write_types(types, found, work)
    return nodes


def _type_codes(parts: Parts, work: Path, limits: ClosureLimits) -> I64:
    """Return the distinct codes of types, ascending; few, so they are not held against the closure first."""
    tasks = [
        NameTask(path, work, work / f"type-codes-{number:05d}.npy", limits.batch_rows)
        for number, path in enumerate(parts.types)
    ]
    found = [np.load(out, allow_pickle=False) for out in limits.map_tasks(distinct_types, tasks)]
    return sorted_distinct(np.concatenate([*found, np.empty(0, np.int64)]))


def _write_types(types: I64, found: Texts, work: Path) -> None:
    """Write type_codes.npy, ascending, type_ranks.npy (places in byte order) and type_labels.arrow in that order."""
    texts = found.texts.take(pa.array(np.searchsorted(found.codes, types[types < 0])))
    labels = pa.concat_arrays([texts, labels_of(types[types > 0])])
    order = sort_strings(*string_buffers(labels))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    save_array(work / "type_codes.npy", types)
    save_array(work / "type_ranks.npy", ranks)
    write_arrow(pa.table({"text": labels.take(pa.array(order))}), work / "type_labels.arrow")
