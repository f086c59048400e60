"""Finding names in texts: runs of words looked up by hash, an Aho-Corasick automaton, and binary search on disk."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import memory_bytes
from kgqa_core import schemas
from kgqa_core.graph.csr import write_string_indexes
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.link import find_mention
from kgqa_core.questions.link_names import NameIndex, named_entities, words_of

WAYS = ("hashes", "automaton", "sorted")
NUM_SYLLABLES = 400  # that drawn words are made of: three each


def measure_way(way: str, graph: str, questions: str, repeats: int) -> dict[str, Any]:
    """Prepare one way and let it look at all test questions; return CPU seconds, megabytes, and how much it found."""
    opened = open_graph(Path(graph)) if (Path(graph) / "graph.json").is_file() else drawn_graph(Path(graph))
    texts = [question.text for question in read_questions(Path(questions), "test")]
    before, started = memory_bytes("VmRSS"), time.process_time()
    find = {"hashes": by_hashes, "automaton": by_automaton, "sorted": by_binary_search}[way](opened)
    made, memory = time.process_time() - started, (memory_bytes("VmRSS") - before) / 1e6
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        found = find(texts)
        spent.append(time.process_time() - started)
    return {"made": made, "memory": memory, "per_text": min(spent) / len(texts), "found": found, "texts": len(texts)}


def by_hashes(graph: KnowledgeGraph) -> Callable[[Sequence[str]], int]:
    """Look up every run of words (``link_names``); returns the number of runs that are names."""
    index = NameIndex(graph)
    return lambda texts: sum(map(len, index.find([words_of(text) for text in texts])))


def by_automaton(graph: KnowledgeGraph) -> Callable[[Sequence[str]], int]:
    """Make an Aho-Corasick automaton of the same names, each as its words between blanks; texts likewise."""
    import ahocorasick

    automaton = ahocorasick.Automaton()
    for entity, name in named_entities(graph):
        if key := spaced(name):
            automaton.add_word(key, entity)
    automaton.make_automaton()
    return lambda texts: sum(1 for text in texts for _ in automaton.iter(spaced(text)))


def by_binary_search(graph: KnowledgeGraph) -> Callable[[Sequence[str]], int]:
    """Search the sorted names on disk, as ``kgqa ask`` does, for the longest; returns the number of texts with one."""
    return lambda texts: sum(find_mention(text, graph) is not None for text in texts)


def spaced(text: str) -> str:
    """Return the words of a text, normalised, each between blanks."""
    words = [word for word, _, _ in words_of(text)]
    return f" {' '.join(words)} " if words else ""


def write_drawn_names(folder: Path, real: KnowledgeGraph, count: int) -> None:
    """Write a graph's name files: those of a real one, and drawn ones of one to four words, ``count`` in all."""
    draw = random.Random(0)
    syllables = ["".join(draw.choices("abcdefghijklmnoprstuvwz", k=draw.choice((2, 3)))) for _ in range(NUM_SYLLABLES)]
    names = list(real.entity_names)[:count]
    while len(names) < count:
        sizes = draw.choices((1, 2, 3, 4), (2, 5, 2, 1), k=1)[0]
        names.append(" ".join("".join(draw.choices(syllables, k=3)).title() for _ in range(sizes)))
    labels = [f"e{row:09d}" for row in range(count)]
    table = pa.table(
        [np.arange(count, dtype=np.int32), labels, names, *[pa.nulls(count, pa.string())] * 3], schema=schemas.ENTITIES
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "entities.parquet")
    write_string_indexes(folder / "entities.parquet", folder)


def drawn_graph(folder: Path) -> KnowledgeGraph:
    """Open what ``write_drawn_names`` wrote, as a graph without triples."""
    number = pq.read_metadata(folder / "entities.parquet").num_rows
    none, ends = np.zeros(0, np.int32), np.zeros(number + 1, np.int64)
    return KnowledgeGraph(folder, number, 0, 0, ends, none, np.zeros(1, np.int64), none)
