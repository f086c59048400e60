"""What the stages of planning and tuning are made of: their order, what each setting shapes, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from kgqa_core.lm.types import EndpointLmSection
from tests.run.specs import PLANS_ONLY, TAUGHT, TUNED_RUN, another, assert_in_order, changed, specs_of

SCORED = {f"plans-{planner}-seed0" for planner in ("generator", "dense")}
GROUND = {"questions", "explorer-seed0", "controls"}
MODEL, TUNED, DENSE = "lm", "reasoner-seed0", "dense-seed0"


def test_planning_comes_after_graph_and_questions_and_only_what_the_planners_need_is_trained(tuned: Path) -> None:
    specs = specs_of(tuned)
    planning = ["supervision", TAUGHT, MODEL, TUNED, DENSE, *(f"plans-{one}-seed0" for one in ("generator", "dense"))]
    assert list(specs)[-7:] == planning
    assert_in_order(specs)
    assert not {MODEL, TUNED} & set(specs["plans-dense-seed0"].needs)
    assert DENSE not in specs_of(tuned, "plans.planners=[generator]")
    assert not {TAUGHT, TUNED} & specs_of(tuned, "plans.planners=[dense]").keys()
    read = specs_of(tuned, "plans.planners=[dense]", "systems={run: [rog], rog: {plans: dense}}")
    assert {TAUGHT, MODEL, TUNED, DENSE} <= read.keys()  # the model only reads
    assert {TUNED, DENSE} <= set(read["system-rog-seed0"].needs)


def test_given_plans_need_neither_graph_nor_explorer(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "given.yaml").write_text(PLANS_ONLY, encoding="utf-8")
    specs = specs_of(tmp_path / "given.yaml")
    assert " ".join(specs) == "supervision dense-seed0 dense-seed1 plans-dense-seed0 plans-dense-seed1"
    assert sorted(specs["supervision"].files) == ["plans/dev", "plans/train"]
    assert specs["dense-seed1"].needs == ("supervision",)
    with pytest.raises(ConfigError, match="has no explorer: its dataset holds plans"):
        _ = read_config(tmp_path / "given.yaml").exploration


EXAMPLES = ("paths_per_question", "wrong_plans", "max_paths", "answers", "num_candidates")
OF_PLANNING: dict[str, set[str]] = {
    "plans.supervision": {TAUGHT, DENSE},
    "plans.precision_threshold": {TAUGHT, DENSE},
    "plans.num_plans": SCORED,
    # What plans are followed in, and how: where paths are the same, nothing that they read says it.
    "dataset.reenter_topic": {*GROUND, "supervision", TAUGHT, *SCORED},
    "reasoner.objective": {TAUGHT, TUNED},
    **{f"reasoner.{name}": {TAUGHT} for name in EXAMPLES},
    "reasoner.shares={reason: 0.5}": {TAUGHT},
    "reasoner.instructions={plan: 2.0}": {TAUGHT, TUNED},
    "reasoner.instructions={plan: 2.0, reason: 1.0}": {TAUGHT},  # the rest follows from the examples' weights
}


@pytest.mark.parametrize("setting", OF_PLANNING)
def test_a_setting_of_planning_changes_the_stages_that_it_shapes(tuned: Path, setting: str) -> None:
    assert changed(tuned, setting if "=" in setting else another(tuned, setting)) == OF_PLANNING[setting]


@pytest.mark.parametrize(("section", "stage"), [("reasoner", TUNED), ("dense", DENSE)])
def test_every_number_of_a_training_shapes_it(tuned: Path, section: str, stage: str) -> None:
    config = getattr(read_config(tuned), section)
    of_others = {name.partition(".")[2] for name in OF_PLANNING if name.startswith(section)}
    names = [name for name, value in config if isinstance(value, int | float) and not 0 <= value <= 1]
    assert names
    for name in set(names) - of_others - {"folds"}:  # of choose alone
        given = getattr(config, name)
        assert stage in changed(tuned, f"{section}.{name}={given * 2 if given * 2 != given else given + 1}"), name


def test_weights_and_adapters_of_a_local_model_count_by_content_and_not_by_place(tuned: Path) -> None:
    model = tuned.parent / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (model / name).write_text("{}", encoding="utf-8")
    specs = specs_of(tuned, "lm={kind: local, path: model}")
    files = {"lm/config.json", "lm/model.safetensors", "lm/tokenizer.json"}
    assert MODEL not in specs
    assert set(specs[TUNED].files) == set(specs["plans-generator-seed0"].files) == files
    assert str(model) not in str(specs[TUNED].section)
    with pytest.raises(ConfigError, match=r"lm.path: .*modle is no folder; did you mean 'model'"):
        specs_of(tuned, "lm={kind: local, path: modle}")


def test_of_an_endpoint_only_what_changes_its_answers_counts(tuned: Path) -> None:
    endpoint = "lm={kind: endpoint, url: 'http://127.0.0.1:8000/v1', model: m"
    tuned.write_text(TUNED_RUN.replace("reasoner: {}\n", ""), encoding="utf-8")
    before = specs_of(tuned, endpoint + "}")["plans-generator-seed0"]
    assert specs_of(tuned, endpoint + ", concurrency: 3, read_timeout: 5.0}")["plans-generator-seed0"] == before
    assert specs_of(tuned, endpoint + ", api: completions}")["plans-generator-seed0"] != before
    assert {"url", "key_variable", "attempts"} <= set(EndpointLmSection.model_fields) - EndpointLmSection.ANSWERS


def test_choose_learns_from_explorers_that_did_not_see_the_question(tuned: Path) -> None:
    choose = "reasoner.instructions={plan: 1.0, choose: 1.0}"
    specs = specs_of(tuned, choose)
    assert "candidates" in specs[TAUGHT].needs
    assert "encodings" in specs["candidates"].needs
    assert "explorer-seed0" not in specs["candidates"].needs
    assert changed(tuned, "reasoner.folds=3", base=(choose,)) == {"candidates"}


def test_an_objective_names_its_instructions_and_the_papers_values_are_defaults(tuned: Path) -> None:
    def reasoner(*overrides: str) -> Any:
        return read_config(tuned, overrides).reasoner

    assert reasoner().mixture == {"plan": 1.0, "reason": 1.0}  # RoG Eq. 7
    found = reasoner("reasoner.variant=eperm").mixture.keys()
    assert found == {"plan", "reason_scored", "score_relations", "score_entities"}  # Eq. 8
    assert reasoner("reasoner.instructions={direct: 0.5}").mixture == {"direct": 0.5}
    rog = reasoner("reasoner={variant: rog, epochs: 1.0}")
    assert (rog.tuning, rog.learning_rate, rog.warmup, rog.batch_size, rog.epochs) == ("full", 2e-5, 0.03, 4, 1.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lm=null", "reasoner=null"], "a generator needs a language model: give 'lm'"),
        (["dense=null"], "give 'dense'"),
        (["plans=null"], "missing key 'plans'"),
        (["lm={kind: endpoint, url: 'http://127.0.0.1:1/v1'}"], "lm.kind packaged or local"),
        (["runtime.sharded=true", "reasoner.tuning=full"], "runtime.processes 2 or more"),
        (["runtime.sharded=true", "runtime.processes=2", "reasoner.tuning=lora"], "give reasoner.tuning full"),
        (["lm={kind: endpoint, url: 'http://u:p@host/v1'}"], "lm.url holds a user, a password"),
        (["lm={kind: endpoint, url: 'http://host/v1', concurrency: 0}"], "lm.concurrency = 0"),
        (["lm={kind: endpoint, url: 'http://host/v1', extra: {messages: []}}"], "lm.extra = .*without messages"),
        (["explorer=null"], "missing key 'explorer'"),
        (["explorer.learn_dev=true", "evaluation.split=dev"], "explorer.learn_dev: dev questions teach"),
        (["lm.kind=packagd"], "did you mean 'packaged'"),
        (["lm.kind=embedded"], "lm.kind = 'embedded': legal are packaged, local, endpoint"),
    ],
)
def test_sections_of_planning_that_do_not_fit_together_are_named(
    tuned: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(tuned, overrides)
