"""What the stages of planning are made of: a setting that shapes an artifact is in its spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from kgqa_core.lm.types import EndpointLmSection
from tests.run.specs import another, assert_in_order, changed, specs_of

RUN = """\
dataset: {name: tiny, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
plans: {planners: [generator, dense, mixture]}
lm: {kind: embedded}
reasoner: {}
dense: {}
"""
PLANS_ONLY = """\
dataset: {name: given, source: plans, plan_files: {train: train.jsonl, dev: dev.jsonl}}
plans: {planners: [dense], seeds: [0, 1]}
dense: {}
evaluation: {split: dev}
"""
SCORED = {f"plans-{planner}-seed0" for planner in ("generator", "dense", "mixture")}
TAUGHT, MODEL, TUNED, DENSE = "instructions", "lm", "reasoner-seed0", "dense-seed0"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "tiny.yaml"


@pytest.fixture
def plans_only(tmp_path: Path) -> Path:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "given.yaml").write_text(PLANS_ONLY, encoding="utf-8")
    return tmp_path / "given.yaml"


def test_planning_comes_after_graph_and_questions_and_each_stage_after_what_it_reads(run_file: Path) -> None:
    specs = specs_of(run_file)
    planning = ["supervision", TAUGHT, MODEL, TUNED, DENSE, *(f"plans-{one}-seed0" for one in ("generator", "dense"))]
    assert list(specs)[-8:] == [*planning, "plans-mixture-seed0"]
    assert_in_order(specs)
    assert set(specs["plans-mixture-seed0"].needs) >= {MODEL, TUNED, DENSE}
    assert not {MODEL, TUNED} & set(specs["plans-dense-seed0"].needs)


def test_a_run_that_does_not_plan_has_no_such_stage(run_file: Path) -> None:
    run_file.write_text("\n".join(RUN.splitlines()[:3]), encoding="utf-8")
    assert list(specs_of(run_file))[-1] == "evaluation-seed0"


def test_given_plans_need_neither_graph_nor_explorer(plans_only: Path) -> None:
    specs = specs_of(plans_only)
    scored = ["plans-dense-seed0", "plans-dense-seed1"]
    assert list(specs) == ["supervision", "dense-seed0", "dense-seed1", *scored]
    assert sorted(specs["supervision"].files) == ["plans/dev", "plans/train"]
    assert specs["dense-seed1"].needs == ("supervision",)


def test_only_what_the_planners_need_is_trained(run_file: Path) -> None:
    assert DENSE not in specs_of(run_file, "plans.planners=[generator]")
    assert not {TAUGHT, MODEL, TUNED} & specs_of(run_file, "plans.planners=[dense]").keys()
    assert {DENSE, MODEL} <= specs_of(run_file, "plans.planners=[mixture]").keys()


SHAPING: dict[str, set[str]] = {
    "plans.supervision": {TAUGHT, DENSE},
    "plans.precision_threshold": {TAUGHT, DENSE},
    "plans.num_plans": SCORED,
    "reasoner.objective": {TAUGHT, TUNED},
}
SHAPING |= {
    f"reasoner.{name}": {TAUGHT}
    for name in ("paths_per_question", "wrong_plans", "max_paths", "answers", "num_candidates")
}
HOW_REACHED = set(EndpointLmSection.model_fields) - EndpointLmSection.ANSWERS


@pytest.mark.parametrize("setting", SHAPING)
def test_a_setting_changes_the_stages_that_it_shapes(run_file: Path, setting: str) -> None:
    assert changed(run_file, another(run_file, setting)) == SHAPING[setting]


def test_instructions_and_their_shares_shape_the_examples(run_file: Path) -> None:
    assert changed(run_file, "reasoner.shares={reason: 0.5}") == {TAUGHT}
    assert changed(run_file, "reasoner.instructions={plan: 2.0}") == {TAUGHT, TUNED}
    # The rest follows from the examples' weights.
    assert changed(run_file, "reasoner.instructions={plan: 2.0, reason: 1.0}") == {TAUGHT}


@pytest.mark.parametrize(("section", "stage"), [("lm", MODEL), ("reasoner", TUNED), ("dense", DENSE)])
def test_every_number_of_a_training_shapes_it(run_file: Path, section: str, stage: str) -> None:
    config = getattr(read_config(run_file), section)
    skipped = SHAPING.keys() | {"reasoner.folds"}  # of choose alone
    names = [
        name
        for name, value in config
        if isinstance(value, int | float) and f"{section}.{name}" not in skipped and not 0 <= value <= 1
    ]
    assert names
    for name in names:
        given = getattr(config, name)
        assert stage in changed(run_file, f"{section}.{name}={given * 2 if given * 2 != given else given + 1}"), name


def test_weights_and_adapters_of_a_local_model_count_by_content_and_not_by_place(run_file: Path) -> None:
    model = run_file.parent / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (model / name).write_text("{}", encoding="utf-8")
    specs = specs_of(run_file, "lm={kind: local, path: model}")
    files = {"lm/config.json", "lm/model.safetensors", "lm/tokenizer.json"}
    assert MODEL not in specs
    assert set(specs[TUNED].files) == set(specs["plans-generator-seed0"].files) == files
    assert str(model) not in str(specs[TUNED].section)
    with pytest.raises(ConfigError, match=r"lm.path: .*modle is no folder; did you mean 'model'"):
        specs_of(run_file, "lm={kind: local, path: modle}")


def test_of_an_endpoint_only_what_changes_its_answers_counts(run_file: Path) -> None:
    endpoint = "lm={kind: endpoint, url: 'http://127.0.0.1:8000/v1', model: m"
    run_file.write_text(RUN.replace("reasoner: {}\n", ""), encoding="utf-8")
    before = specs_of(run_file, endpoint + "}")["plans-generator-seed0"]
    assert specs_of(run_file, endpoint + ", concurrency: 3, read_timeout: 5.0}")["plans-generator-seed0"] == before
    assert specs_of(run_file, endpoint + ", api: completions}")["plans-generator-seed0"] != before
    assert {"url", "key_variable", "attempts"} <= HOW_REACHED


def test_another_wording_of_a_prompt_makes_other_instructions(run_file: Path) -> None:
    own = run_file.parent / "prompts"
    own.mkdir()
    (own / "plan.txt").write_text("Name the relations that answer {question}", encoding="utf-8")
    assert changed(run_file, "prompts=prompts") == {TAUGHT, "plans-generator-seed0", "plans-mixture-seed0"}


def test_choose_learns_from_explorers_that_did_not_see_the_question(run_file: Path) -> None:
    choose = "reasoner.instructions={plan: 1.0, choose: 1.0}"
    specs = specs_of(run_file, choose)
    assert "candidates" in specs[TAUGHT].needs
    assert "encodings" in specs["candidates"].needs
    assert "explorer-seed0" not in specs["candidates"].needs
    assert changed(run_file, "reasoner.folds=3", base=(choose,)) == {"candidates"}


def test_an_objective_names_its_instructions(run_file: Path) -> None:
    def mixture(*overrides: str) -> dict[str, float]:
        reasoner = read_config(run_file, overrides).reasoner
        assert reasoner is not None
        return reasoner.mixture

    assert mixture() == {"plan": 1.0, "reason": 1.0}  # RoG Eq. 7
    assert mixture("reasoner.variant=eperm").keys() == {"plan", "reason", "score_relations", "score_entities"}  # Eq. 8
    assert mixture("reasoner.instructions={explain: 0.5}") == {"explain": 0.5}


def test_the_papers_values_are_defaults_that_a_run_may_change(run_file: Path) -> None:
    reasoner = read_config(run_file, ["reasoner={variant: rog, epochs: 1.0}"]).reasoner
    assert reasoner is not None
    assert (reasoner.tuning, reasoner.learning_rate, reasoner.warmup, reasoner.batch_size) == ("full", 2e-5, 0.03, 4)
    assert reasoner.epochs == 1.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lm=null", "reasoner=null"], "a generator needs a language model: give 'lm'"),
        (["dense=null"], "give 'dense'"),
        (["plans=null"], "missing key 'plans'"),
        (["lm={kind: endpoint, url: 'http://127.0.0.1:1/v1'}"], "lm.kind embedded or local"),
        (["lm={kind: endpoint, url: 'http://u:p@host/v1'}"], "lm.url holds a user, a password"),
        (["lm={kind: endpoint, url: 'http://host/v1', concurrency: 0}"], "lm.concurrency = 0"),
        (["lm={kind: endpoint, url: 'http://host/v1', extra: {messages: []}}"], "lm.extra = .*without messages"),
        (["explorer=null"], "missing key 'explorer'"),
        (["lm.kind=embeded"], "did you mean 'embedded'"),
        (["lm.width=30"], "width 30 must be an even number for each of 4 heads"),
        (["reasoner.phases=[{until: 0.5}]"], r"phases end at \[0.5\]: each must end later"),
        (["reasoner.phases=[{until: 0.6}, {until: 0.5}, {until: 1.0}]"], "each must end later than the one before"),
        (["reasoner.phases=[{until: 1.0, weights: {plan: 0.0}}]"], "must not be all 0"),
    ],
)
def test_sections_that_do_not_fit_together_are_named(run_file: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(run_file, overrides)


def test_a_dataset_of_plans_explores_nothing(plans_only: Path) -> None:
    with pytest.raises(ConfigError, match="has no graph to explore"):
        read_config(plans_only, ["explorer={steps: 1, edge_budget: 5, epochs: 1}"])
    with pytest.raises(ConfigError, match="missing key 'plans'"):
        read_config(plans_only, ["plans=null"])
    with pytest.raises(ConfigError, match="has no explorer: its dataset holds plans"):
        _ = read_config(plans_only).exploration
