"""A trained explorer at rest, and what is said of one that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kgqa_core.errors import ArtifactError
from kgqa_core.explorer.explore import ExploreOptions, explore
from kgqa_core.explorer.model import Card, Explorer, Texts, load_explorer, save_explorer, start_from
from tests.explorer.worlds import make_batch, make_graph, make_question, unit_vectors

CARD = Card(
    encoder="hash-v1-d13",
    encoding_dim=13,
    width=5,
    steps=2,
    edge_budget=7,
    reenter_topic=True,
    answer_threshold=0.3,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with an explorer of random weights."""
    torch.manual_seed(0)
    save_explorer(tmp_path, Explorer(encoding_dim=13, width=5, steps=2), CARD)
    return tmp_path


def edit_card(folder: Path, **changes: object) -> None:
    """Change fields of the stored card; None removes one."""
    card = json.loads((folder / "model.json").read_text()) | changes
    (folder / "model.json").write_text(json.dumps({name: value for name, value in card.items() if value is not None}))


def test_what_was_saved_is_loaded_bit_by_bit(saved: Path) -> None:
    torch.manual_seed(0)
    original = Explorer(encoding_dim=13, width=5, steps=2)
    model, card = load_explorer(saved, encoder="hash-v1-d13")
    assert card == CARD
    assert not model.training
    for (name, weight), wanted in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(weight, wanted), name


def test_the_same_explorer_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    save_explorer(again, *load_explorer(saved, encoder="hash-v1-d13"))
    for path in again.iterdir():
        assert path.read_bytes() == (saved / path.name).read_bytes()
    assert sorted(path.name for path in again.iterdir()) == ["model.json", "model.safetensors"]


def test_another_encoder_is_refused_by_name(saved: Path) -> None:
    with pytest.raises(ArtifactError, match=r"encoded by 'hash-v1-d13', not 'minilm-abc'.*train again"):
        load_explorer(saved, encoder="minilm-abc")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_a_missing_or_cut_off_file_is_an_artifact_error(saved: Path, name: str, damage: str) -> None:
    content = (saved / name).read_bytes()
    if damage == "missing":
        (saved / name).unlink()
    else:
        (saved / name).write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    with pytest.raises(ArtifactError, match=r"no readable explorer.*train it again"):
        load_explorer(saved, encoder="hash-v1-d13")


@pytest.mark.parametrize(
    "changes",
    [
        {"width": "5"},
        {"steps": 2.5},
        {"width": 0},
        {"answer_threshold": "high"},
        {"edge_budget": None},
        {"heads": 3},
        {"reenter_topic": 1},
    ],
    ids=str,
)
def test_a_card_with_a_wrong_missing_or_unknown_field_is_refused(saved: Path, changes: dict[str, object]) -> None:
    edit_card(saved, **changes)
    with pytest.raises(ArtifactError, match=rf"no readable explorer: model\.json\.{next(iter(changes))}: .*, given "):
        load_explorer(saved, encoder="hash-v1-d13")


@pytest.mark.parametrize("changes", [{"width": 11}, {"encoding_dim": 17}, {"steps": 3}, {"steps": 1}], ids=str)
def test_weights_of_another_shape_than_the_card_says_are_refused(saved: Path, changes: dict[str, int]) -> None:
    edit_card(saved, **changes)
    with pytest.raises(ArtifactError, match=r"model\.safetensors does not fit model\.json"):
        load_explorer(saved, encoder="hash-v1-d13")


def test_error_messages_are_bounded(saved: Path) -> None:
    edit_card(saved, steps=97)  # hundreds of missing tensors
    with pytest.raises(ArtifactError) as caught:
        load_explorer(saved, encoder="hash-v1-d13")
    assert len(str(caught.value)) < 300 + len(str(saved))


def test_no_weight_belongs_to_an_entity_or_a_relation(saved: Path) -> None:
    """Weights carry to any graph: other entities, other relations, other questions."""
    model, card = load_explorer(saved, encoder="hash-v1-d13")
    sizes = {size for weight in model.parameters() for size in weight.shape}
    assert sizes == {card.encoding_dim, card.width, card.steps, 1}
    for num_entities, num_relations in ((7, 3), (101, 19)):
        triples = [(entity - 1, entity % num_relations, entity) for entity in range(1, num_entities)]
        found = explore(
            model,
            make_graph(triples, num_entities=num_entities, num_relations=num_relations),
            make_batch([make_question([3])], {"what of [topic]": 0}),
            texts=Texts(
                unit_vectors(1, dim=13, dtype=torch.float32), unit_vectors(num_relations, dim=13, dtype=torch.float32)
            ),
            options=ExploreOptions(card.edge_budget, card.reenter_topic),
        )
        assert sorted(found.entity.tolist()) == [1, 2, 3, 4, 5]
        assert found.log_probability(1).isfinite().all()


def start(saved: Path, *, width: int = 5, steps: int = 2, dim: int = 13, encoder: str = "hash-v1-d13") -> tuple:
    """Start a fresh explorer from the saved one; return it, its weights before, and the names of the fresh ones."""
    torch.manual_seed(7)
    model = Explorer(encoding_dim=dim, width=width, steps=steps)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    return model, before, start_from(model, saved, encoder=encoder)


def test_a_start_from_as_many_steps_takes_every_weight(saved: Path) -> None:
    model, _, fresh = start(saved)
    trained, _ = load_explorer(saved, encoder="hash-v1-d13")
    assert fresh == []
    for (name, weight), wanted in zip(model.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(weight, wanted), name


def test_attention_is_taken_over_at_a_part_of_its_strength_and_all_else_as_it_is(saved: Path) -> None:
    model = Explorer(encoding_dim=13, width=5, steps=2)
    start_from(model, saved, encoder="hash-v1-d13", attention=0.25)
    trained, _ = load_explorer(saved, encoder="hash-v1-d13")
    for (name, weight), wanted in zip(model.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(weight, 0.25 * wanted if name.startswith("attend_") else wanted), name


def test_steps_beyond_those_of_the_start_are_fresh_and_listed(saved: Path) -> None:
    model, before, fresh = start(saved, steps=3)
    trained, _ = load_explorer(saved, encoder="hash-v1-d13")
    per_step = ("attend_head", "attend_relation", "attend_question", "attend_both")
    assert sorted(fresh) == sorted([*(f"{name}[2]" for name in per_step), "propagate.2.weight"])
    for name in per_step:
        weight = model.get_parameter(name)
        assert torch.equal(weight[:2], trained.get_parameter(name))
        assert torch.equal(weight[2], before[name][2])
    assert torch.equal(model.project.weight, trained.project.weight)


def test_fewer_steps_take_the_first_ones(saved: Path) -> None:
    model, _, fresh = start(saved, steps=1)
    trained, _ = load_explorer(saved, encoder="hash-v1-d13")
    assert fresh == []
    assert torch.equal(model.attend_head, trained.attend_head[:1])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"width": 6}, "has width 5, this one 6"),
        ({"encoder": "minilm"}, "has encoder 'hash-v1-d13', this one 'minilm'"),
        ({"dim": 17}, "has encoding_dim 13, this one 17"),
    ],
)
def test_a_start_of_another_encoder_or_width_is_refused(saved: Path, changed: dict, said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        start(saved, **changed)


def test_a_start_that_is_no_explorer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no readable explorer"):
        start(tmp_path)
