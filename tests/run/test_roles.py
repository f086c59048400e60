"""Roles of a run: who plays each, what that is in recipes and tables, and that ``direct`` is never the tuned model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.config_base import SHIPPED
from kgqa_core.errors import ConfigError
from kgqa_core.evaluation.predictions import read_source
from kgqa_core.run import open as opening
from kgqa_core.run.ensure import ensure
from kgqa_core.run.stages import StageSpec
from kgqa_core.tracking import read_record
from tests.conftest import TINY_RUN, open_run
from tests.lm.tiny_models import make_adapter, make_llama
from tests.run.specs import specs_of

LOCAL = "lm: {kind: local, path: base}\n"
TUNED = TINY_RUN + LOCAL + "plans: {planners: [generator]}\nreasoner: {}\n"
ENDPOINT = "{kind: endpoint, url: 'http://127.0.0.1:8000/v1', model: chat}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tiny model, two adapters of it, and another model."""
    make_llama(tmp_path / "base")
    make_llama(tmp_path / "other")
    for seed, name in enumerate(("mine", "yours")):
        make_adapter(tmp_path / "base", tmp_path / name, seed=seed)
    return tmp_path


def systems_of(folder: Path, text: str, *overrides: str) -> dict[str, StageSpec]:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    specs = specs_of(folder / "run.yaml", *overrides)
    return {key.removeprefix("system-").removesuffix("-seed0"): one for key, one in specs.items() if "system-" in key}


def models(spec: StageSpec) -> dict[str, Any]:
    return {key.removeprefix("model."): one for key, one in spec.section.items() if key.startswith("model.")}


def test_all_roles_are_the_tuned_model_but_for_direct_which_waits_for_no_tuning(folder: Path) -> None:
    specs = systems_of(folder, TUNED + "systems: {run: [rog, eperm, fiske, tog, etd, direct, cot]}\n")
    assert {name: models(spec) for name, spec in specs.items()} == {
        "rog": {"plan": "base+rog", "reason": "base+rog"},
        "eperm": {"plan": "base+rog", "score": "base+rog", "reason": "base+rog"},
        "fiske": {"reason": "base+rog", "clues": "base+rog", "direct": "base"},
        "tog": {"score": "base+rog", "reason": "base+rog", "direct": "base"},
        "etd": {"reason": "base+rog"},
        "direct": {"direct": "base"},
        "cot": {"direct": "base"},
    }
    assert {name for name, spec in specs.items() if "reasoner-seed0" not in spec.needs} == {"direct", "cot"}
    plain = systems_of(folder, TINY_RUN + LOCAL + "systems: {run: [direct]}\n")  # no tuning at all
    for other in ("reasoner.max_steps=7", "lm.adapter=mine", "roles.plan={adapter: yours}"):
        assert systems_of(folder, TUNED + "systems: {run: [direct]}\n", other)["direct"] == plain["direct"]
    tuned = systems_of(folder, TUNED + "roles: {direct: {adapter: tuned}}\nsystems: {run: [direct]}\n")
    assert "reasoner-seed0" in tuned["direct"].needs


def test_a_tuning_that_starts_from_an_adapter_is_made_of_its_content(folder: Path) -> None:
    (folder / "run.yaml").write_text(TUNED + "systems: {run: [rog]}\n", encoding="utf-8")
    anew, on = (specs_of(folder / "run.yaml", *given) for given in ((), ("lm.adapter=mine",)))
    assert {"adapter/adapter_model.safetensors"} < set(on["reasoner-seed0"].files) - set(anew["reasoner-seed0"].files)
    assert "starts_from" in on["reasoner-seed0"].section.keys() - anew["reasoner-seed0"].section.keys()
    assert models(on["system-rog-seed0"])["plan"] == "base+mine+rog"
    assert set(on["system-rog-seed0"].files) == set(anew["system-rog-seed0"].files)  # the tuned one is a stage


def test_a_row_has_the_models_that_it_names_over_those_of_the_run(folder: Path) -> None:
    rows = (
        "    LLaMA2 and RoG planning: {system: rog, roles: {plan: {adapter: mine}, reason: {adapter: none}}}\n"
        f"    plug and play: {{system: rog, roles: {{reason: {ENDPOINT}}}}}\n"
        "    other reader: {system: rog, roles: {reason: {kind: local, path: other}}}\n"
        "    planned: {system: rog, settings: {plans: generator}, "
        "roles: {plan: {adapter: mine}}, answered_by: [oracle]}\n"
    )
    run = "roles: {plan: {adapter: yours}}\nsystems:\n  run: [rog]\n  variants:\n"
    specs = systems_of(folder, TINY_RUN + LOCAL + "plans: {}\n" + run + rows)
    assert {name: models(spec) for name, spec in specs.items()} == {
        "rog": {"plan": "base+yours", "reason": "base"},
        "LLaMA2 and RoG planning": {"plan": "base+mine", "reason": "base"},
        "plug and play": {"plan": "base+yours", "reason": "chat"},
        "other reader": {"plan": "base+yours", "reason": "other"},
        "planned-oracle": {"plan": "base+mine"},
    }
    assert specs["plug and play"].section["lm.reason"]["model"] == "chat"
    read = {name: {file.partition("/")[0] for file in spec.files} for name, spec in specs.items()}
    assert read["LLaMA2 and RoG planning"] == {"lm", "plan.adapter"}
    assert read["other reader"] == {"lm", "plan.adapter", "reason.lm"}
    mine, yours = (specs[name].files["plan.adapter/adapter_model.safetensors"] for name in ("planned-oracle", "rog"))
    assert (mine, yours) == (folder / "mine/adapter_model.safetensors", folder / "yours/adapter_model.safetensors")
    assert all(str(folder) not in str(dict(spec.section)) for spec in specs.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOCAL + "roles: {plann: {adapter: none}}\n", r"unknown key 'roles.plann'.*did you mean 'plan'"),
        (LOCAL + "roles: {plan: {adaptor: none}}\n", r"unknown key 'roles.plan.adaptor'.*did you mean 'adapter'"),
        (LOCAL + "roles: {plan: {kind: remote}}\n", r"roles.plan.kind = 'remote': legal are"),
        (LOCAL + "roles: {plan: mine}\n", r"roles.plan = 'mine': must be a section"),
        (LOCAL + "roles: {plan: {adapter: mein}}\n", r"roles.plan.adapter: .*mein is no folder; did you mean 'mine'"),
        (LOCAL + "roles: {plan: {adapter: '${KGQA_DAT}/x'}}\n", r"\n  roles.plan.adapter = '\S+': unknown variable"),
        (LOCAL + "roles: {plan: {adapter: shipped}}\n", "the shipped adapter is for lm.kind packaged, not local"),
        (f"lm: {ENDPOINT}\nroles: {{plan: {{adapter: mine}}}}\n", "adapter is put on a model that is here"),
        (LOCAL + "roles: {reason: {kind: packaged}}\n", "roles.reason: a model that a stage makes .* is named by lm"),
    ],
)
def test_what_is_wrong_with_a_role_is_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        systems_of(folder, TINY_RUN + "plans: {}\n" + text + "systems: {run: [rog]}\n")
    row = "systems: {run: [], variants: {x: {system: ours, roles: {plan: {adapter: none}}}}}\n"
    with pytest.raises(ConfigError, match=r"variants.x: what ours fuses is chosen once for a run"):
        systems_of(folder, TINY_RUN + "plans: {}\n" + LOCAL + row)


def test_the_shipped_adapter_is_one_line_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TINY_RUN + "lm: {kind: packaged, adapter: shipped}\nsystems: {run: [tog]}\n"
    monkeypatch.setattr("kgqa_core.lm.gguf.find_packaged", lambda: folder / "base" / "config.json")
    where = "kgqa_core.run.stages.tuning.SHIPPED"
    for found in (folder / "nowhere", folder / "mine"):
        monkeypatch.setattr("kgqa_core.config_base.SHIPPED", found)
        monkeypatch.setattr(where, found)
        if found.is_dir():
            files = systems_of(folder, text)["tog"].files
            assert files["adapter/adapter_config.json"] == folder / "mine" / "adapter_config.json"
            continue
        with pytest.raises(ConfigError, match=r"lm.adapter: this version of kgqa comes without an adapter. Train one"):
            systems_of(folder, text)
    assert SHIPPED.name == "shipped"


@pytest.mark.slow
def test_one_base_answers_all_roles_and_every_table_names_who_played_which(folder: Path) -> None:
    tables = (
        "lm: {kind: local, path: base, adapter: mine}\n"
        "systems:\n  run: [tog, direct]\n  num_questions: 3\n  max_new_tokens: 4\n  tog: {width: 1, depth: 1}\n"
        "  variants:\n    direct tuned: {system: direct, roles: {direct: {adapter: tuned}}}\n"
        "    tog plain: {system: tog, settings: {unsure: reason}, "
        "roles: {score: {adapter: none}, reason: {adapter: none}}}\n"
    )
    run = open_run(folder / "run.yaml", TINY_RUN + tables)
    ensure(run, ["comparison"])
    players = opening.open_players(run, 0, ("score", "reason", "direct"))
    assert players["score"].model is players["reason"].model is not players["direct"].model
    assert players["reason"].model.model is players["direct"].model.model  # type: ignore[attr-defined]
    base, tuned = players["direct"].model.name, players["reason"].model.name
    assert tuned.startswith(f"{base}+")
    told = {}
    for row in ("tog", "direct", "direct tuned", "tog plain"):
        artifact = run.artifact(f"system-{row}-seed0")
        source = read_source(artifact.folder / "predictions.parquet")
        assert source and source.about
        told[row] = source.about
        params = read_record(artifact.folder).params
        played = {f"{name.removeprefix('model.')}: {model}" for name, model in params.items() if "model." in name}
        assert played == {f"{role}: {model}" for role, model in models(run.specs[f"system-{row}-seed0"]).items()}
    assert {row: about.players for row, about in told.items()} == {
        "tog": "score, reason: base+mine, direct: base",
        "direct": "direct: base",
        "direct tuned": "direct: base+mine",
        "tog plain": "score, reason, direct: base",
    }
    assert (told["direct"].model, told["direct tuned"].model) == (base, tuned)
    assert told["tog"].base == told["direct"].base == told["tog plain"].base != told["direct tuned"].base
    usage = pq.read_table(run.artifact("system-tog-seed0").folder / "usage.parquet")
    assert set(zip(usage["instruction"].to_pylist(), usage["model"].to_pylist(), strict=True)) >= {
        ("score_relations", tuned),
        ("chain_of_thought", base),
    }
    document = json.loads((run.artifact("comparison").folder / "comparison.json").read_text("utf-8"))
    shown = {row[0]: row[1] for row in document["tables"][0]["rows"]}
    assert shown == {row: about.players for row, about in told.items()}
    lifted = {row["system"]: bool(row["lift"]) for row in document["rows"]}
    assert lifted == {name: not name.startswith("direct") for name in told}  # over the untuned one
