"""A trained explorer away from its run: what it needs where it is served, and opening it there, offline.

Its weights travel with it. The graph does not: it is named by its content hash and found in the artifact store of the
serving machine. The text encoder is named by its identity, and comes from the installed package or a local folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from kgqa_core.artifacts import Artifact, ArtifactStore, write_json
from kgqa_core.config import EncoderSection, EvaluationSection, LocalEncoderSection
from kgqa_core.config_base import Section
from kgqa_core.config_file import explain
from kgqa_core.errors import ArtifactError
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.run.ask import Answerer
from kgqa_core.run.open import encoder_of, load_system, relation_texts, unit_norm
from kgqa_core.text.encoder import Encoder, RememberedEncodings

CARD = "served.json"
EXPLORER_FILES = ("model.safetensors", "model.json")  # of explorer.model, which is not imported here: it loads torch


class ServedCard(Section):
    """What a served explorer was made of, and what it needs."""

    kgqa: str  # version that wrote it
    run: str  # name of the run configuration
    config_hash: str
    dataset: str
    seed: int
    fingerprint: str  # of the explorer's artifact
    graph: str  # content hash of the graph that it was trained on
    graph_fingerprint: str  # the folder of that graph in the artifact store where it was trained
    encoder: Annotated[EncoderSection, Field(discriminator="kind")]
    encoder_name: str  # identity of the text encoder, weights hash included
    evaluation: EvaluationSection  # limits to the walk, evidence paths
    batch_size: int  # questions that are explored at once


def read_encoder_name(explorer: Artifact) -> str:
    """Return the identity of the text encoder that an explorer was trained with."""
    return str(json.loads((explorer.folder / "model.json").read_text(encoding="utf-8"))["encoder"])


def write_served(folder: Path, card: ServedCard, explorer: Artifact) -> None:
    """Write into ``folder``, which is made, all that travels: weights, their card and what they need."""
    folder.mkdir(parents=True)
    for name in EXPLORER_FILES:
        shutil.copyfile(explorer.folder / name, folder / name)
    write_json(folder / CARD, card.model_dump(mode="json"))


def read_card(folder: Path) -> ServedCard:
    """Read what ``write_served`` wrote; ArtifactError where it is missing, damaged or of another version of kgqa."""
    path = folder / CARD
    try:
        return ServedCard.model_validate_json(path.read_bytes())
    except OSError as problem:
        raise ArtifactError(f"{folder} holds no served explorer: {problem}; register it again") from None
    except ValidationError as problem:
        raise ArtifactError(f"{explain(problem, str(path), ServedCard)}\nRegister it again") from None


def open_served(folder: Path, home: Path, *, encoder_path: Path | None = None) -> Answerer:
    """Open what ``write_served`` wrote over the graph that it was trained on, which is in ``home`` (``KGQA_HOME``).

    ``encoder_path`` is the folder of a local text encoder, where it is not the one of the training machine. Where
    graph, encoder or weights are missing or others, ArtifactError says where they were looked for and what helps.
    """
    card = read_card(folder)
    graph, encoder = _find_graph(card, home), _find_encoder(card, encoder_path)
    system = load_system(
        folder,
        graph=graph,
        encoder=encoder.name,
        encode=RememberedEncodings(lambda texts: unit_norm(encoder.encode(texts)), relation_texts(graph)),
        evaluation=card.evaluation,
        batch_size=card.batch_size,
    )
    return Answerer(system)


def _find_graph(card: ServedCard, home: Path) -> KnowledgeGraph:
    root = home / "artifacts"
    found = ArtifactStore(root).find_content("graph", card.graph)
    if found is None:
        raise ArtifactError(
            f"the graph with the content hash {card.graph}, on which this explorer was trained, is not in "
            f"{root / 'graph'}. Build it there with kgqa build CONF, CONF being the run configuration {card.run!r}; or "
            f"copy artifacts/graph/{card.graph_fingerprint} from where it was trained; or set KGQA_HOME to a folder "
            "that has it"
        )
    return open_graph(found.folder)


def _find_encoder(card: ServedCard, path: Path | None) -> Encoder:
    section = card.encoder
    if isinstance(section, LocalEncoderSection):
        section = section.model_copy(update={"path": path or section.path})
        if not section.path.is_dir():
            raise ArtifactError(
                f"the text encoder {card.encoder_name} is not in {section.path}: there is no such folder. Copy it from "
                "where the explorer was trained, and name it: model_config={'encoder_path': FOLDER}"
            )
    encoder = encoder_of(section)
    if encoder.name != card.encoder_name:
        raise ArtifactError(
            f"this explorer was trained on texts encoded by {card.encoder_name}, and here is {encoder.name}: bring the "
            f"encoder that it was trained with, or train the run configuration {card.run!r} again"
        )
    return encoder
