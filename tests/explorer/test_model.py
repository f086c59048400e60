"""What counts as the same text, a trained explorer at rest, and what is said of one that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kgqa_core.errors import ArtifactError
from kgqa_core.explorer.model import Card, Explorer, Texts, load_explorer, save_explorer, start_from, texts_of
from tests.explorer import films
from tests.explorer.worlds import unit_vectors

ENCODER = "hash-v1-d13"
CARD = Card(ENCODER, encoding_dim=13, width=5, steps=2, edge_budget=7, reenter_topic=True, answer_threshold=0.3)


def test_same_text_names_the_first_relation_of_a_text_per_direction() -> None:
    texts = Texts(unit_vectors(1), unit_vectors(3)[[2, 0, 2, 1, 0]])
    assert texts.same_text.tolist() == [0, 1, 0, 3, 1, 5, 6, 5, 8, 6, 10]


def test_an_inverse_with_a_text_of_its_own_is_a_text_like_any_other() -> None:
    vectors = unit_vectors(5)
    texts = Texts(
        unit_vectors(1), vectors[[0, 1, 0]], inverse_of=torch.tensor([0, 2]), inverses=vectors[[3, 1]]
    )  # the inverse of relation 0 says something new, that of 2 what relation 1 says
    assert texts.same_text.tolist() == [0, 1, 0, 3, 4, 1, 6]


def test_the_inverses_that_a_graph_names_are_encoded() -> None:
    graph: Any = SimpleNamespace(relation_names=["play", "win"], inverse_labels=[None, "won_by"])
    texts = texts_of(["who?"], graph, films.ENCODER.encode)
    assert texts.inverse_of is not None and texts.inverse_of.tolist() == [1]
    assert texts.inverses is not None and texts.inverses.tolist() == films.ENCODER.encode(["won_by"]).tolist()
    graph.inverse_labels = [None, None]
    assert texts_of(["who?"], graph, films.ENCODER.encode).inverses is None


def test_noise_moves_the_rows_asked_for_by_its_amount_and_keeps_their_norm() -> None:
    texts = Texts(unit_vectors(50, dim=400), unit_vectors(3, dim=400))
    rows = np.array([3, 7, 41])
    blurred = texts.blurred(rows, 0.75, seed=5)
    still = np.setdiff1d(np.arange(50), rows)
    assert torch.equal(blurred.questions[still], texts.questions[still])
    assert torch.allclose(blurred.questions.norm(dim=1), torch.ones(50, dtype=torch.float64))
    cosine = (blurred.questions[rows] * texts.questions[rows]).sum(dim=1)
    assert torch.allclose(cosine, torch.full((3,), 0.8, dtype=torch.float64), atol=0.05)  # 1 / sqrt(1 + 0.75²)
    assert torch.equal(blurred.questions, texts.blurred(rows, 0.75, seed=5).questions)
    assert not torch.equal(blurred.questions, texts.blurred(rows, 0.75, seed=6).questions)
    assert (blurred.relations is texts.relations) and (blurred.same_text is texts.same_text)


def new_explorer(seed: int = 0, **sizes: int) -> Explorer:
    torch.manual_seed(seed)
    return Explorer(**({"encoding_dim": 13, "width": 5, "steps": 2} | sizes))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_explorer(tmp_path, new_explorer(), CARD)
    return tmp_path


def edit_card(folder: Path, **changes: object) -> None:
    """Change fields of the stored card; None removes one."""
    card = json.loads((folder / "model.json").read_text()) | changes
    (folder / "model.json").write_text(json.dumps({name: value for name, value in card.items() if value is not None}))


def assert_equal(one: Explorer, other: Explorer, attention: float = 1.0) -> None:
    for (name, weight), wanted in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, attention * wanted if name.startswith("attend_") else wanted), name


def test_what_was_saved_is_loaded_bit_by_bit_and_saved_again_to_the_byte(saved: Path, tmp_path: Path) -> None:
    model, card = load_explorer(saved, encoder=ENCODER)
    assert card == CARD
    assert_equal(model, new_explorer())
    again = tmp_path / "again"
    again.mkdir()
    save_explorer(again, model, card)
    for name in ("model.json", "model.safetensors"):
        assert (again / name).read_bytes() == (saved / name).read_bytes()


def test_another_encoder_is_refused_by_name(saved: Path) -> None:
    with pytest.raises(ArtifactError, match=r"encoded by 'hash-v1-d13', not 'minilm-abc'.*train again"):
        load_explorer(saved, encoder="minilm-abc")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_a_missing_or_cut_off_file_is_an_artifact_error(saved: Path, name: str, damage: str) -> None:
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    if damage == "missing":
        (saved / name).unlink()
    for open_it in (load_explorer, lambda folder, encoder: start_from(new_explorer(), folder, encoder=encoder)):
        with pytest.raises(ArtifactError, match=r"no readable explorer.*train it again"):
            open_it(saved, encoder=ENCODER)


@pytest.mark.parametrize(
    "changes",
    [{"width": "5"}, {"steps": 2.5}, {"width": 0}, {"edge_budget": None}, {"heads": 3}, {"reenter_topic": 1}],
    ids=str,
)
def test_a_card_with_a_wrong_missing_or_unknown_field_is_refused(saved: Path, changes: dict[str, object]) -> None:
    edit_card(saved, **changes)
    with pytest.raises(ArtifactError, match=rf"no readable explorer: model\.json\.{next(iter(changes))}: .*, given "):
        load_explorer(saved, encoder=ENCODER)


@pytest.mark.parametrize("changes", [{"width": 11}, {"encoding_dim": 17}, {"steps": 97}, {"steps": 1}], ids=str)
def test_weights_of_another_shape_than_the_card_says_are_refused(saved: Path, changes: dict[str, int]) -> None:
    edit_card(saved, **changes)
    with pytest.raises(ArtifactError, match=r"model\.safetensors does not fit model\.json") as caught:
        load_explorer(saved, encoder=ENCODER)
    assert len(str(caught.value)) < 300 + len(str(saved))  # of hundreds of missing tensors a few are named
    sizes = {name: size for name, size in changes.items() if name != "steps"}
    with pytest.raises(ArtifactError, match=r"model\.safetensors does not fit model\.json"):
        start_from(new_explorer(**sizes), saved, encoder=ENCODER)


def test_no_weight_belongs_to_an_entity_or_a_relation(saved: Path) -> None:
    """Weights carry to any graph: other entities, other relations, other questions."""
    model, card = load_explorer(saved, encoder=ENCODER)
    sizes = {size for weight in model.parameters() for size in weight.shape}
    assert sizes == {card.encoding_dim, card.width, card.steps, 1}


@pytest.mark.parametrize(("steps", "attention"), [(2, 1.0), (2, 0.25), (1, 1.0), (3, 1.0)])
def test_a_start_takes_every_weight_of_the_steps_that_both_have(saved: Path, steps: int, attention: float) -> None:
    model, before = new_explorer(7, steps=steps), new_explorer(7, steps=steps)
    fresh = start_from(model, saved, encoder=ENCODER, attention=attention)
    trained, _ = load_explorer(saved, encoder=ENCODER)
    if steps == 2:
        assert_equal(model, trained, attention)  # attention is taken over at a part of its strength
    per_step = ("attend_head", "attend_relation", "attend_question", "attend_both")
    assert sorted(fresh) == ([] if steps < 3 else sorted([*(f"{name}[2]" for name in per_step), "propagate.2.weight"]))
    for name in per_step:
        shared = min(steps, 2)
        assert torch.equal(model.get_parameter(name)[:shared], attention * trained.get_parameter(name)[:shared])
        assert torch.equal(model.get_parameter(name)[shared:], before.get_parameter(name)[shared:])
    assert torch.equal(model.project.weight, trained.project.weight)


@pytest.mark.parametrize(
    ("sizes", "encoder", "said"),
    [
        ({"width": 6}, ENCODER, "has width 5, this one 6"),
        ({}, "minilm", "has encoder 'hash-v1-d13', this one 'minilm'"),
        ({"encoding_dim": 17}, ENCODER, "has encoding_dim 13, this one 17"),
    ],
)
def test_a_start_of_another_encoder_or_width_is_refused(
    saved: Path, sizes: dict[str, int], encoder: str, said: str
) -> None:
    with pytest.raises(ArtifactError, match=said):
        start_from(new_explorer(**sizes), saved, encoder=encoder)
