"""A whole file of questions, or a text or RDF to a graph, at once: which only tests want."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.closure import ClosureReport, build_from_dump
from kgqa_core.graph.dump import DumpReport, parse_dump
from kgqa_core.graph.dump_rows import DumpOptions
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph, Subgraphs
from kgqa_core.profiles import PROFILES
from kgqa_core.questions.formats import Loaded, QuestionFile, open_format
from kgqa_core.questions.link import Resolver, link_file
from kgqa_core.types import Question, Reject, Split


def graph_of_text(
    folder: Path, triples: str, names: str = "", *, format: str = "tsv", **options: Any
) -> KnowledgeGraph:
    """Return the graph of triples, and of names where any are given, that is built in ``folder``.

    ``options`` are those of ``build_graph``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, named = folder / f"kb.{format}", folder / "names.tsv" if names else None
    file.write_text(triples, encoding="utf-8")
    if named:
        named.write_text(names, encoding="utf-8")
    build_graph(file, format=format, out_dir=folder / "graph", names=named, **options)
    return open_graph(folder / "graph")


def searched(
    graph: KnowledgeGraph, max_hops: int, *, reenter_topic: bool = False, subgraphs: Subgraphs | None = None
) -> SearchGraph:
    """Return the search of a graph, or of subgraphs of it."""
    return SearchGraph(subgraphs.graph if subgraphs else graph, graph, subgraphs, max_hops, reenter_topic)


def load_question_file(
    path: Path, *, format: str, graph: KnowledgeGraph, split: Split = "test", hops: int | None = None
) -> tuple[list[Question], list[Reject]]:
    """Return the questions of one file, linked to ``graph``, and the lines that could not be used.

    ``hops`` is for MetaQA files, whose lines do not say.
    """
    loaded, file = Loaded(), QuestionFile(path, split, hops)
    return [*link_file(file, loaded, read=open_format(format).read, resolver=Resolver(graph))], loaded.rejects


def build_rdf(
    path: Path, folder: Path, *, format: str = "rdf", max_reject_ratio: float = 0.001, block_bytes: int = 2**21
) -> tuple[DumpReport, ClosureReport]:
    """Build all of a file of RDF in ``folder``: the parts in dump, the graph in graph."""
    profile = PROFILES[format]
    options = DumpOptions(profile, max_reject_ratio=max_reject_ratio, block_bytes=block_bytes)
    (folder / "dump").mkdir(parents=True)
    parsed = parse_dump(path, folder / "dump", journal=folder / "journal", options=options)
    named = {"names_relations": profile.names_relations, "names_iris": format == "rdf"}
    return parsed, build_from_dump([folder / "dump"], [], folder / "graph", hops=None, **named)


def write_bert(folder: Path, words: Sequence[str], *, seed: int, **sizes: int) -> Path:
    """Write a random BERT that knows some words, in the ordinary folder layout, and return its folder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(seed)
    BertModel(BertConfig(vocab_size=len(words), num_attention_heads=2, **sizes)).save_pretrained(folder)
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    return folder
