"""Opening what a run has built: graph, questions, encodings, the trained explorer. Loads torch only where it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.config import EncoderSection, EvaluationSection, HashEncoderSection, LocalEncoderSection, RunConfig
from kgqa_core.errors import ConfigError, nearest
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.subgraphs import Subgraphs, open_subgraphs
from kgqa_core.run.pipeline import Pipeline

if TYPE_CHECKING:
    from kgqa_core.explorer.model import EncodeTexts
    from kgqa_core.systems.explorer import ExplorerSystem
    from kgqa_core.text.encoder import Encoder

ENCODINGS_FILE = "encodings.parquet"


def folder_files(folder: Path, key: str, name: str) -> dict[str, Path]:
    """Return the files of a transformers folder that decide what it does.

    Args:
        folder: the folder.
        key: the setting that names it, for the error.
        name: what its files are called by.

    Raises:
        ConfigError: there is no such folder.
    """
    from kgqa_core.text.transformer import content_files

    if not folder.is_dir():
        beside = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside)
        raise ConfigError(f"{key}: {folder} is no folder" + (f"; nearest beside it: {near[0]}" if near else ""))
    return {f"{name}/{path.name}": path for path in content_files(folder)}


def make_encoder(config: RunConfig) -> Encoder:
    """Return the text encoder that a configuration names; weights are loaded when it first encodes."""
    return encoder_of(config.encoding)


def encoder_of(section: EncoderSection) -> Encoder:
    """Return the text encoder that a section of a configuration describes."""
    if isinstance(section, HashEncoderSection):
        from kgqa_core.text.encoder import HashEncoder

        return HashEncoder(section.dim)
    if isinstance(section, LocalEncoderSection):
        from kgqa_core.text.transformer import LocalEncoder

        return LocalEncoder(section.path, pooling=section.pooling)
    from kgqa_core.text.transformer import MiniLmEncoder

    return MiniLmEncoder()


def device_of(config: RunConfig) -> str:
    """Return where models are to work: "cpu" or "cuda".

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
    import torch

    wanted, there = config.runtime.device, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("runtime.device is cuda, and torch finds no GPU here; set it to auto or cpu")
    return "cuda" if there and wanted != "cpu" else "cpu"


def cache_folder(pipeline: Pipeline) -> Path:
    """Return where encodings are cached, for all runs of one home."""
    return pipeline.home / "cache" / "encodings"


def encode_all(pipeline: Pipeline, texts: Sequence[str]) -> np.ndarray:
    """Return unit-norm encodings [n, encoding_dim], computing only those never seen before."""
    from kgqa_core.text.cache import encode_cached

    def progress(done: int, total: int) -> None:
        pipeline.progress("encoding texts", done, total)

    encoder = make_encoder(pipeline.config)
    return unit_norm(encode_cached(texts, encoder=encoder, cache_dir=cache_folder(pipeline), progress=progress))


def unit_norm(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length one; a zero row stays zero."""
    norm: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(norm, 1e-12)
    return scaled


def read_encodings(folder: Path) -> dict[str, np.ndarray]:
    """Return text -> vector of an encodings artifact."""
    table = pq.read_table(folder / ENCODINGS_FILE)
    width = len(table["vector"][0])
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    return dict(zip(table["text"].to_pylist(), vectors, strict=True))


def graph_of(pipeline: Pipeline) -> KnowledgeGraph:
    """Open the run's graph.

    Raises:
        ArtifactError: it is not built.
    """
    return open_graph(pipeline.artifact("graph").folder)


def subgraphs_of(pipeline: Pipeline) -> Subgraphs | None:
    """Open the subgraphs of the run's questions; None where all explore one graph.

    Raises:
        ArtifactError: they are not built.
    """
    return open_subgraphs(pipeline.artifact("subgraphs").folder) if "subgraphs" in pipeline.specs else None


def search_graph(pipeline: Pipeline) -> SearchGraph:
    """Open what a run searches: its graph, or the graph of rows in which each question has its subgraph.

    Raises:
        ArtifactError: graph or subgraphs are not built.
    """
    config, whole, subgraphs = pipeline.config, graph_of(pipeline), subgraphs_of(pipeline)
    searched = subgraphs.graph if subgraphs else whole
    return SearchGraph(searched, whole, subgraphs, config.exploration.steps, config.dataset.reenter_topic)


def open_system(pipeline: Pipeline, seed: int | None = None) -> ExplorerSystem:
    """Open the run's trained explorer.

    Args:
        pipeline: the run.
        seed: which of its explorers; the first by default.

    Raises:
        ArtifactError: graph or explorer is not built.
    """
    config = pipeline.config
    chosen = config.exploration.seeds[0] if seed is None else seed
    system = load_system(
        pipeline.artifact(f"explorer-seed{chosen}").folder,
        graph=graph_of(pipeline),
        encoder=make_encoder(config).name,
        encode=lambda texts: encode_all(pipeline, texts),
        evaluation=config.evaluation,
        batch_size=config.runtime.batch_size,
    )
    return replace(system, model=system.model.to(device_of(config)), subgraphs=subgraphs_of(pipeline))


def load_system(
    folder: Path,
    *,
    graph: KnowledgeGraph,
    encoder: str,
    encode: EncodeTexts,
    evaluation: EvaluationSection,
    batch_size: int,
) -> ExplorerSystem:
    """Open a checkpoint over a graph, under the limits of an evaluation.

    Args:
        folder: of the checkpoint.
        graph: what is explored.
        encoder: identity of the text encoder.
        encode: texts to unit-norm vectors.
        evaluation: limits to the walk, and how many evidence paths are kept.
        batch_size: questions that are explored at once.

    Raises:
        ArtifactError: the checkpoint is missing, damaged or of another encoder.
    """
    from kgqa_core.explorer.checkpoint import load_explorer
    from kgqa_core.systems.explorer import ExplorerSystem

    model, card = load_explorer(folder, encoder=encoder)
    system = ExplorerSystem(
        graph=graph,
        model=model,
        card=card,
        encode=encode,
        evidence_paths=evaluation.evidence_paths,
        batch_size=batch_size,
    )
    return system.limited(edge_budget=evaluation.edge_budget, attention_threshold=evaluation.attention_threshold)
