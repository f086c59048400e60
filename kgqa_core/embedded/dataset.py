"""Writing the embedded dataset: the files that a user with a graph of their own would bring."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from kgqa_core.embedded.graph import make_graph
from kgqa_core.embedded.questions import make_questions, to_record
from kgqa_core.errors import ArtifactError
from kgqa_core.types import SPLITS


def generate(out_dir: Path, *, seed: int) -> None:
    """Write ``triples.tsv``, ``names.tsv`` and ``questions/{train,dev,test}.jsonl`` into ``out_dir``.

    The same seed gives the same bytes everywhere. Triples are head, relation and tail label; names are label and name,
    and several labels may share a name; questions are in the own-data format, with hops and gold chain.
    Raises ArtifactError when the folder cannot be written.
    """
    graph = make_graph(seed)
    questions = make_questions(graph, seed)
    files = {
        "triples.tsv": ["\t".join(triple) for triple in graph.triples],
        "names.tsv": [f"{label}\t{name}" for label, name in graph.names.items()],
    }
    for split in SPLITS:
        files[f"questions/{split}.jsonl"] = [
            json.dumps(to_record(graph, asked, f"{split}-{number:04d}-{asked.type.kind}"), ensure_ascii=False)
            for number, asked in enumerate(questions[split], start=1)
        ]
    try:
        for name, lines in files.items():
            _write_lines(out_dir / name, lines)
    except OSError as error:
        raise ArtifactError(
            f"the embedded dataset cannot be written to {out_dir}: {error}; free some space or give another folder"
        ) from error


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write UTF-8 lines with ``\\n`` under a temporary name and rename: a killed run leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes("".join(f"{line}\n" for line in lines).encode())
    temporary.replace(path)
