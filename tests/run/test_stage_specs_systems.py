"""What the stages of planning and of the comparison are made of, which a run has, and what is said of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.config_systems import COMPARED, SYSTEMS, OracleSection, SystemsSection, system_type
from kgqa_core.errors import ConfigError
from kgqa_core.run.stages import StageSpec
from tests.run.specs import BARE, PLANNING, PLANS_ONLY, RUN, TAUGHT, another, assert_in_order, changed, specs_of

PLAYED = BARE + "systems:\n  run: [explorer]\n  variants:\n    played: {system: direct, answered_by: [%s]}\n"
ALL = {f"system-{name}-seed0" for name in COMPARED}
POOLED = {f"system-{name}-seed0" for name in ("etd", "dualr", "rog", "eperm")}  # others retrieve what they retrieve
FUSION = "fusion-seed0"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "tiny.yaml"


def systems_in(specs: dict[str, StageSpec]) -> set[str]:
    return {key for key in specs if key.startswith("system-")}


def of(*names: str) -> set[str]:
    return {f"system-{name}-seed0" for name in names}


def test_each_system_is_a_stage_after_all_that_it_stands_on_and_the_comparison_is_the_last(run_file: Path) -> None:
    specs = specs_of(run_file)
    assert systems_in(specs) == ALL
    assert list(specs)[-1] == "comparison"
    assert set(specs["comparison"].needs) == ALL
    assert_in_order(specs)
    run_file.write_text(PLANNING, encoding="utf-8")
    assert not {spec.stage for spec in specs_of(run_file).values()} & {"fusion", "system", "comparison"}


PLAYERS = ("oracle", "random")
NEEDS = {name: {"lm"} for name in ("direct", "cot", "rog", "tog", "fiske", "eperm")}
NEEDS |= {name: {"lm", "encodings", "explorer-seed0"} for name in ("etd", "dualr", "ours")}
NEEDS["explorer"] = NEEDS["etd"] - {"lm"}
NEEDS["kaping"] = {"lm", "encodings"}
NEEDS["ours"] |= {"dense-seed0", FUSION}
OF_PLANS = {name: {"lm"} for name in ("lm", "generator", "random", "none")}
OF_PLANS |= {"dense": {"lm", "dense-seed0"}, "encoder": {"lm", "encodings"}}


@pytest.mark.parametrize("system", NEEDS)
def test_a_system_waits_for_no_more_than_it_needs_wherever_its_plans_come_from(run_file: Path, system: str) -> None:
    specs = specs_of(run_file, f"systems.run=[{system}]")
    assert set(specs[f"system-{system}-seed0"].needs) - {"graph", "questions"} == NEEDS[system]
    assert (FUSION in specs) == (system == "ours")
    for plans, needs in OF_PLANS.items() if system in ("rog", "eperm") else ():
        specs = specs_of(run_file, f"systems.{system}.plans={plans}")
        assert set(specs[f"system-{system}-seed0"].needs) - {"graph", "questions"} == needs, plans


def test_plans_that_are_not_held_to_the_graph_are_others(run_file: Path) -> None:
    held, free = specs_of(run_file), specs_of(run_file, "plans.only_existing=false")
    for key in ("plans-generator-seed0", "system-rog-seed0", FUSION):
        assert {**held[key].section, "only_existing": False} == free[key].section
    assert held["supervision"].section == free["supervision"].section


def test_every_answerer_is_a_stage_of_its_own_and_where_no_model_answers_none_is_needed(run_file: Path) -> None:
    run_file.write_text(BARE + "systems: {run: [explorer]}\n", encoding="utf-8")
    assert systems_in(specs_of(run_file)) == of("explorer")
    run_file.write_text(BARE + "systems: {run: [direct, rog, etd], answered_by: [oracle, random]}\n", encoding="utf-8")
    specs = specs_of(run_file)
    assert systems_in(specs) == of(*(f"{name}-{who}" for name in ("direct", "rog", "etd") for who in PLAYERS))
    assert "lm" not in specs
    assert "supervision" in specs["system-rog-oracle-seed0"].needs  # what is right, an oracle knows
    assert "supervision" not in specs["system-rog-random-seed0"].needs
    run_file.write_text(RUN, encoding="utf-8")
    hard = specs_of(run_file, "systems.pool=hard")  # a wrong path is known by the right ones
    assert {key for key in ALL if hard[key].section["pool"] == "hard"} == POOLED
    assert {key for key in ALL if "supervision" in hard[key].needs} == POOLED
    specs = specs_of(run_file, "systems.run=[explorer, direct]", "systems.answered_by=[lm, oracle, first]")
    assert systems_in(specs) == of("explorer", "direct", "direct-oracle", "direct-first")
    assert "answered_by" not in specs["system-explorer-seed0"].section


def test_seeds_are_stages_those_of_the_explorer_unless_told_and_planners_and_adapters_have_them(run_file: Path) -> None:
    explored = ("systems.run=[etd]", "explorer.seeds=[3, 5]")
    assert systems_in(specs_of(run_file, *explored)) == {"system-etd-seed3", "system-etd-seed5"}
    specs = specs_of(run_file, *explored, "systems.seeds=[5, 7]")
    assert systems_in(specs) == {"system-etd-seed5", "system-etd-seed7"}
    assert "explorer-seed5" in specs["system-etd-seed5"].needs
    assert "explorer-seed3" in specs["system-etd-seed7"].needs  # the first, where there is none of that seed
    assert specs["system-etd-seed5"].section == {**specs["system-etd-seed7"].section, "seed": 5}
    run_file.write_text(RUN + "reasoner: {}\n", encoding="utf-8")
    planned = ("systems={run: [rog], seeds: [0, 1, 2]}", "systems.rog.plans=dense", "plans.seeds=[0, 1]")
    specs = specs_of(run_file, *planned)
    for seed, made in {0: 0, 1: 1, 2: 0}.items():
        assert {f"dense-seed{made}", f"reasoner-seed{made}"} <= set(specs[f"system-rog-seed{seed}"].needs)


def test_a_model_that_only_plans_counts_whoever_answers(run_file: Path) -> None:
    """An endpoint has no stage: what shapes its plans is in the section of whoever follows them."""
    endpoint = "lm={kind: endpoint, url: 'http://127.0.0.1:8000/v1', model: %s}"
    run = ("systems.run=[rog]", "systems.answered_by=[oracle]", "systems.rog.plans=%s")
    for plans, same in (("generator", False), ("lm", True)):
        one, other = (specs_of(run_file, endpoint % model, *run[:2], run[2] % plans) for model in ("m", "n"))
        assert (one["system-rog-oracle-seed0"] == other["system-rog-oracle-seed0"]) == same


def test_a_system_on_an_explorer_of_another_run_reads_it_by_content(run_file: Path) -> None:
    other = run_file.with_name("first_last.yaml")
    other.write_text(BARE.replace("epochs: 1", "epochs: 1, seeds: [4, 0]"), encoding="utf-8")
    specs = specs_of(run_file, "systems.dualr.explorer=first_last.yaml", "systems.seeds=[0, 9]")
    others = {seed: specs[f"system-dualr-seed{seed}"].depends_on_run["dualr"] for seed in (0, 9)}
    assert {seed: one.key for seed, one in others.items()} == {0: "explorer-seed0", 9: "explorer-seed4"}
    assert others[0].conf == other
    assert specs["system-etd-seed0"].depends_on_run == {}
    assert str(run_file.parent) not in str(specs["system-dualr-seed0"].section)


# What shapes them


EXPLORING = of("etd", "dualr", "explorer", "ours")
OWN = [name for name in COMPARED if system_type(name).settings]  # systems that have settings
OTHERS = {
    "run",
    "answered_by",
    "abstain_below",
    "variants",
    "seeds",
    "chunk",
    "max_traces",
    "oracle",
    "choose",
    *SYSTEMS,
}
SHAPING: dict[str, set[str]] = {f"systems.{name}": ALL for name in SystemsSection.legal_keys() if name not in OTHERS}
SHAPING["systems.pool"] = POOLED
SHAPING |= dict.fromkeys(("explorer.steps", "explorer.mask_topics", "dataset.reenter_topic"), ALL | {FUSION})
EXPLORED = ("edge_budget", "attention_threshold", "evidence_paths")
SHAPING |= {"evaluation.split": ALL, **{f"evaluation.{name}": EXPLORING | {FUSION} for name in EXPLORED}}


@pytest.mark.parametrize("setting", SHAPING)
def test_a_setting_changes_the_stages_that_it_shapes(run_file: Path, setting: str) -> None:
    found = changed(run_file, another(run_file, setting))
    assert {key for key in found if key.startswith(("system-", "fusion-"))} == SHAPING[setting]


def test_a_threshold_shapes_the_row_that_it_is_for(run_file: Path) -> None:
    assert changed(run_file, "systems.abstain_below={etd: 0.7}") == of("etd")
    assert changed(run_file, "systems.abstain_below={etd: 0}") == set()
    with pytest.raises(ConfigError, match="abstain_below: 'edt' is no row of this comparison"):
        read_config(run_file, ["systems.abstain_below={edt: 0.7}"])


@pytest.mark.parametrize("system", OWN)
def test_a_systems_own_settings_change_that_system_alone(run_file: Path, system: str) -> None:
    wanted = of(system) | ({FUSION} if system == "ours" else set())
    for name in system_type(system).settings.model_fields.keys() - {"explorer"}:  # type: ignore[union-attr]
        override = another(run_file, f"systems.{system}.{name}")
        assert changed(run_file, override) == wanted, override
    for override in ("systems.chunk=7", "systems.max_traces=0", "systems.run=[tog, ours, etd, rog]"):
        assert changed(run_file, override) <= {"comparison"}, override  # how the work is done


def test_the_oracles_settings_are_its_own(run_file: Path) -> None:
    played = ("systems.run=[rog, direct]", "systems.answered_by=[lm, oracle, random]")
    for name in OracleSection.model_fields:
        override = another(run_file, f"systems.oracle.{name}", *played)
        assert changed(run_file, override, base=played) == of("rog-oracle", "direct-oracle"), override


def test_nothing_is_fused_by_dev_questions_that_the_explorer_learned_from(run_file: Path) -> None:
    assert "fusion-seed0" in specs_of(run_file)
    with pytest.raises(ConfigError, match=r"explorer\.learn_dev: ours is fused"):
        specs_of(run_file, "explorer.learn_dev=true")
    assert "fusion-seed0" not in specs_of(
        run_file, "explorer.learn_dev=true", "systems.run=[rog]", "systems.variants={}"
    )


def test_another_wording_is_another_system_but_only_of_plans_another_fusion(run_file: Path, tuned: Path) -> None:
    own = run_file.parent / "prompts"
    own.mkdir()
    (own / "reason.txt").write_text("Answer {question} by\n{paths}", encoding="utf-8")
    assert changed(run_file, "prompts=prompts") - {"comparison"} == ALL - of("explorer")
    (own / "plan.txt").write_text("Name the relations that answer {question}", encoding="utf-8")
    assert FUSION in changed(run_file, "prompts=prompts")
    for spec in specs_of(run_file, "prompts=prompts").values():  # no spec holds a path of the machine
        assert str(run_file.parent) not in str([spec.key, dict(spec.section), list(spec.files)])
    (own / "reason.txt").unlink()
    assert changed(tuned, "prompts=prompts") == {TAUGHT, "plans-generator-seed0"}


# Variants: rows of their own


def variants(run_file: Path, text: str, run: str = "[rog]") -> dict[str, StageSpec]:
    run_file.write_text(PLANNING + f"systems:\n  run: {run}\n  variants:\n    {text}\n", encoding="utf-8")
    return specs_of(run_file)


def test_a_variant_is_its_system_under_other_settings(run_file: Path) -> None:
    specs = variants(run_file, "RoG without planning: {system: rog, settings: {plans: none, num_plans: 7}}")
    plain, variant = (specs[f"system-{row}-seed0"].section for row in ("rog", "RoG without planning"))
    differing = {name for name in {**plain, **variant} if plain.get(name) != variant.get(name)}
    assert differing == {"row", "settings.plans", "settings.num_plans", "model.plan"}  # nobody is asked to plan
    assert (variant["system"], variant["row"]) == ("rog", "RoG without planning")
    assert set(specs["comparison"].needs) == of("rog", "RoG without planning")


def test_a_variant_may_have_answerers_of_its_own_and_what_they_need_is_made(run_file: Path) -> None:
    assert systems_in(variants(run_file, "a/b: {system: tog, settings: {width: 1}}", "[]")) == of("a/b")
    specs = variants(run_file, "tidy: {system: etd, settings: {paths: false}, answered_by: [oracle, first]}")
    assert systems_in(specs) == of("rog", "tidy-oracle", "tidy-first")
    assert "supervision" in specs["system-tidy-oracle-seed0"].needs
    run_file.write_text(PLAYED % "oracle", encoding="utf-8")
    assert "supervision" in specs_of(run_file)["system-played-oracle-seed0"].needs


def test_a_variant_of_ours_comes_back_from_json_as_a_worker_reads_it(run_file: Path) -> None:
    variants(run_file, "played: {system: ours, answered_by: [oracle]}", "[ours]")
    config = read_config(run_file)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


# What is missing, or wrong


VARIANT = PLANNING + "systems:\n  run: [rog]\n  variants:\n    "
ORACLE = BARE + "systems: {answered_by: [oracle], "
NOT_MADE = r"needs 'dense-seed0', which this run does not make: .*leave the system out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VARIANT + "x: {system: rog, settings: {plan: none}}", r"x.settings.plan: .*Settings of rog: plans, num_plans"),
        (VARIANT + "x: {system: rog, settings: {plans: gold}}", r"x.settings.plans: .*'lm', 'generator', 'dense'"),
        (VARIANT + "x: {system: etd, settings: {num_candidates: 99}}", "x.settings.num_candidates: .*less than or"),
        (VARIANT + "x: {system: rog, settings: {explain: true, reasoning: vote}}", "settings: explain: true goes with"),
        (VARIANT + "x: {system: direct, settings: {width: 1}}", "variants.x.settings: direct has no settings"),
        (VARIANT + "x: {system: rgo}", "legal are etd, dualr, rog.*did you mean 'rog'"),
        (VARIANT + "rog: {system: rog}", "variants.rog: a variant has a name of its own"),
        (VARIANT + "x-seed1: {system: rog}", "variants.x-seed1: a variant has a name of its own"),
        (VARIANT + "dense: {system: rog}", "variants.dense: a variant has a name of its own"),
        (
            VARIANT + "y: {system: rog}\n    y-random: {system: rog}\n  answered_by: [lm, random]\n",
            "variants.y-random: ",
        ),
        (VARIANT + "rog by oracle: {system: rog}\n  answered_by: [oracle]\n", "variants.rog by oracle: a variant has"),
        (VARIANT + "'x: y': {system: rog}", "should match pattern"),
        *(
            (VARIANT + f"'{row}': {{system: rog}}", f"variants.{row}: ")
            for row in ("a//b", "a/", "a/../b", "a  b", "a ")
        ),
        (VARIANT + "x: {system: rog, answered_by: []}", "at least 1"),
        (PLAYED % "lm", "give 'lm', the language model that answers"),
        (BARE + "systems: {}\n", "systems.answered_by: give 'lm', .*systems.answered_by: \\[oracle\\]"),
        (PLANNING + "systems: {run: []}\n", "run: name at least one system"),
        (PLANNING + "systems: {run: [etdd]}\n", "legal are etd, dualr.*did you mean 'etd'"),
        (PLANNING + "systems: {rog: {plan: lm}}\n", "unknown key 'systems.rog.plan'.*did you mean 'plans'"),
        (PLANNING + "systems: {rog: {explain: true, reasoning: none}}\n", "true goes with reasoning: lm; none asks"),
        (PLANNING + "systems: {answered_by: [orakel]}\n", "legal are lm, oracle, random, first"),
        (PLANNING + "systems: {max_calls: 0}\n", "systems.max_calls = 0"),
        (PLANNING + "systems: {oracle: {error: 2}}\n", "systems.oracle.error = 2"),
        (ORACLE + "run: [rog], rog: {plans: dense}}\n", NOT_MADE),
        (ORACLE + "run: [ours], ours: {planner: dense}}\n", NOT_MADE),
        (ORACLE + "run: [etd], etd: {determine: plan, dense_weight: 1}}\n", NOT_MADE),
        (PLANS_ONLY + "systems: {answered_by: [oracle]}\n", "a dataset of plans has no graph to answer from"),
        (PLANS_ONLY + "explorer: {steps: 1, edge_budget: 5, epochs: 1}\n", "has no graph to explore"),
        (PLANS_ONLY.replace("plans: {planners: [dense], seeds: [0, 1]}\n", ""), "missing key 'plans'"),
    ],
)
def test_sections_that_do_not_fit_together_are_named(run_file: Path, text: str, message: str) -> None:
    run_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        specs_of(run_file)
