"""What the stages of the comparison are made of, which of them a run has, and what is said of one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.config_systems import SYSTEMS, OracleSection, SystemsSection, system_type
from kgqa_core.errors import ConfigError
from kgqa_core.run.stages import StageSpec
from tests.run.specs import another, assert_in_order, changed, specs_of

PLANNING = """\
dataset: {name: tiny, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
plans: {planners: [generator, dense]}
lm: {kind: embedded}
dense: {}
"""
RUN = PLANNING + "systems: {}\n"
BARE = PLANNING.split("plans:", maxsplit=1)[0]  # no model, no plans
ALL = {f"system-{name}-seed0" for name in SYSTEMS}
FUSION = "fusion-seed0"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "tiny.yaml"


def systems_in(specs: dict[str, StageSpec]) -> set[str]:
    return {key for key in specs if key.startswith("system-")}


def of(*names: str) -> set[str]:
    return {f"system-{name}-seed0" for name in names}


# Which stages there are


def test_a_run_that_compares_no_systems_has_no_such_stage(run_file: Path) -> None:
    run_file.write_text(PLANNING, encoding="utf-8")
    assert not {spec.stage for spec in specs_of(run_file).values()} & {"fusion", "system", "comparison"}


def test_each_system_is_a_stage_after_all_that_it_stands_on_and_the_comparison_is_the_last(run_file: Path) -> None:
    specs = specs_of(run_file)
    assert systems_in(specs) == ALL
    assert list(specs)[-1] == "comparison"
    assert set(specs["comparison"].needs) == ALL
    assert_in_order(specs)


@pytest.mark.parametrize(
    ("system", "needs"),
    [
        ("direct", {"lm"}),
        ("cot", {"lm"}),
        ("rog", {"lm"}),
        ("tog", {"lm"}),
        ("fiske", {"lm"}),
        ("eperm", {"lm"}),
        ("etd", {"lm", "encodings", "explorer-seed0"}),
        ("dualr", {"lm", "encodings", "explorer-seed0"}),
        ("explorer", {"encodings", "explorer-seed0"}),
        ("ours", {"lm", "encodings", "explorer-seed0", "dense-seed0", FUSION}),
    ],
)
def test_a_system_waits_for_no_more_than_it_needs(run_file: Path, system: str, needs: set[str]) -> None:
    specs = specs_of(run_file, f"systems.run=[{system}]")
    assert set(specs[f"system-{system}-seed0"].needs) - {"graph", "questions"} == needs
    assert (FUSION in specs) == (system == "ours")


def test_where_no_model_answers_none_is_needed(run_file: Path) -> None:
    run_file.write_text(BARE + "systems: {run: [explorer]}\n", encoding="utf-8")
    assert systems_in(specs_of(run_file)) == of("explorer")
    run_file.write_text(BARE + "systems: {run: [direct, rog, etd], answered_by: [oracle, random]}\n", encoding="utf-8")
    specs = specs_of(run_file)
    assert systems_in(specs) == {
        f"system-{name}-{who}-seed0" for name in ("direct", "rog", "etd") for who in ("oracle", "random")
    }
    assert "lm" not in specs
    assert "supervision" in specs["system-rog-oracle-seed0"].needs  # what is right, an oracle knows
    assert "supervision" not in specs["system-rog-random-seed0"].needs


def test_every_answerer_is_a_stage_of_its_own_but_the_explorer_asks_none(run_file: Path) -> None:
    specs = specs_of(run_file, "systems.run=[explorer, direct]", "systems.answered_by=[lm, oracle, first]")
    assert systems_in(specs) == of("explorer", "direct", "direct-oracle", "direct-first")
    assert "answered_by" not in specs["system-explorer-seed0"].section


def test_seeds_are_stages_those_of_the_explorer_unless_told(run_file: Path) -> None:
    explored = ("systems.run=[etd]", "explorer.seeds=[3, 5]")
    assert systems_in(specs_of(run_file, *explored)) == {"system-etd-seed3", "system-etd-seed5"}
    specs = specs_of(run_file, *explored, "systems.seeds=[5, 7]")
    assert systems_in(specs) == {"system-etd-seed5", "system-etd-seed7"}
    assert "explorer-seed5" in specs["system-etd-seed5"].needs
    assert "explorer-seed3" in specs["system-etd-seed7"].needs  # the first, where there is none of that seed
    assert specs["system-etd-seed5"].section == {**specs["system-etd-seed7"].section, "seed": 5}


def test_planners_and_adapters_are_of_a_seed_too(run_file: Path) -> None:
    run_file.write_text(RUN + "reasoner: {}\n", encoding="utf-8")
    specs = specs_of(
        run_file, "systems={run: [rog], seeds: [0, 1, 2]}", "systems.rog.plans=dense", "plans.seeds=[0, 1]"
    )
    wanted = {0: 0, 1: 1, 2: 0}
    for seed, made in wanted.items():
        assert {f"dense-seed{made}", f"reasoner-seed{made}"} <= set(specs[f"system-rog-seed{seed}"].needs)


@pytest.mark.parametrize(
    ("plans", "needs"),
    [
        ("lm", {"lm"}),
        ("generator", {"lm"}),
        ("dense", {"lm", "dense-seed0"}),
        ("mixture", {"lm", "dense-seed0"}),
        ("random", {"lm"}),
        ("none", {"lm"}),
    ],
)
@pytest.mark.parametrize("system", ["rog", "eperm"])
def test_plans_may_come_from_another_model(run_file: Path, system: str, plans: str, needs: set[str]) -> None:
    specs = specs_of(run_file, f"systems.{system}.plans={plans}")
    assert set(specs[f"system-{system}-seed0"].needs) - {"graph", "questions"} == needs


def test_a_model_that_only_plans_counts_whoever_answers(run_file: Path) -> None:
    """An endpoint has no stage: what shapes its plans is in the section of whoever follows them."""
    endpoint = "lm={kind: endpoint, url: 'http://127.0.0.1:8000/v1', model: %s}"
    run = ("systems.run=[rog]", "systems.answered_by=[oracle]", "systems.rog.plans=%s")
    for plans, same in (("generator", False), ("lm", True)):
        one, other = (
            specs_of(run_file, endpoint % model, *run[:2], run[2] % plans)["system-rog-oracle-seed0"]
            for model in ("m", "n")
        )
        assert (one == other) == same


def test_find_hard_negatives_and_oracles_know_the_right_plans(run_file: Path) -> None:
    specs = specs_of(run_file, "systems.pool=hard")
    assert all("supervision" in specs[key].needs for key in ALL)


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
ASKING = ALL - of("explorer")
OWN = [name for name in SYSTEMS if system_type(name).settings]  # systems that have settings
WHICH = {"run", "answered_by", "variants", "seeds"}  # settings that say which stages there are
HOW = {"chunk", "max_traces"}  # settings of how the work is done
SHAPING: dict[str, set[str]] = {
    f"systems.{name}": ALL for name in SystemsSection.legal_keys() if name not in {*WHICH, *HOW, *OWN, "oracle"}
}
SHAPING |= {
    "evaluation.split": ALL,
    "explorer.steps": ALL | {FUSION},
    "explorer.mask_topics": ALL | {FUSION},
    "dataset.reenter_topic": ALL | {FUSION},
    **dict.fromkeys(("evaluation.edge_budget", "evaluation.attention_threshold"), EXPLORING | {FUSION}),
    "evaluation.evidence_paths": EXPLORING | {FUSION},
}


def only_compared(found: set[str]) -> set[str]:
    return {key for key in found if key.startswith(("system-", "fusion-"))}


@pytest.mark.parametrize("setting", SHAPING)
def test_a_setting_changes_the_stages_that_it_shapes(run_file: Path, setting: str) -> None:
    assert only_compared(changed(run_file, another(run_file, setting))) == SHAPING[setting]


@pytest.mark.parametrize("system", OWN)
def test_a_systems_own_settings_change_that_system_alone(run_file: Path, system: str) -> None:
    wanted = of(system) | ({FUSION} if system == "ours" else set())
    for name in system_type(system).settings.model_fields.keys() - {"explorer"}:  # type: ignore[union-attr]
        override = another(run_file, f"systems.{system}.{name}")
        assert changed(run_file, override) == wanted, override


@pytest.mark.parametrize("override", ["systems.chunk=7", "systems.max_traces=0", "systems.run=[tog, ours, etd, rog]"])
def test_how_the_work_is_done_changes_nothing(run_file: Path, override: str) -> None:
    assert changed(run_file, override) <= {"comparison"}


def test_the_oracles_settings_are_its_own(run_file: Path) -> None:
    played = ("systems.run=[rog, direct]", "systems.answered_by=[lm, oracle, random]")
    for name in OracleSection.model_fields:
        override = another(run_file, f"systems.oracle.{name}", *played)
        assert changed(run_file, override, base=played) == of("rog-oracle", "direct-oracle"), override


def test_another_wording_of_a_prompt_is_another_system_but_another_fusion_only_of_plans(run_file: Path) -> None:
    own = run_file.parent / "prompts"
    own.mkdir()
    (own / "reason.txt").write_text("Answer {question} by\n{paths}", encoding="utf-8")
    found = changed(run_file, "prompts=prompts")
    assert found >= ASKING
    assert not {FUSION, "system-explorer-seed0"} & found
    (own / "plan.txt").write_text("Name the relations that answer {question}", encoding="utf-8")
    assert FUSION in changed(run_file, "prompts=prompts")


def test_no_spec_holds_a_path_of_the_machine(run_file: Path) -> None:
    for spec in specs_of(run_file).values():
        assert str(run_file.parent) not in str([spec.key, dict(spec.section), list(spec.files)])


# Variants: rows of their own


def variants(run_file: Path, text: str, run: str = "[rog]") -> dict[str, StageSpec]:
    run_file.write_text(PLANNING + f"systems:\n  run: {run}\n  variants:\n    {text}\n", encoding="utf-8")
    return specs_of(run_file)


def test_a_variant_is_its_system_under_other_settings(run_file: Path) -> None:
    specs = variants(run_file, "RoG without planning: {system: rog, settings: {plans: none, num_plans: 7}}")
    plain, variant = (specs[f"system-{row}-seed0"].section for row in ("rog", "RoG without planning"))
    assert {name for name in {**plain, **variant} if plain.get(name) != variant.get(name)} == {
        "row",
        "settings.plans",
        "settings.num_plans",
    }
    assert (variant["system"], variant["row"]) == ("rog", "RoG without planning")
    assert set(specs["comparison"].needs) == of("rog", "RoG without planning")


def test_a_variant_may_have_answerers_of_its_own(run_file: Path) -> None:
    assert systems_in(variants(run_file, "a/b: {system: tog, settings: {width: 1}}", "[]")) == of("a/b")
    specs = variants(run_file, "tidy: {system: etd, settings: {paths: false}, answered_by: [oracle, first]}")
    assert systems_in(specs) == of("rog", "tidy-oracle", "tidy-first")
    assert "supervision" in specs["system-tidy-oracle-seed0"].needs


def test_a_variant_that_needs_a_model_or_right_plans_makes_them(run_file: Path) -> None:
    text = BARE + "systems:\n  run: [explorer]\n  variants:\n    played: {system: direct, answered_by: [%s]}\n"
    run_file.write_text(text % "oracle", encoding="utf-8")
    assert "supervision" in specs_of(run_file)["system-played-oracle-seed0"].needs
    run_file.write_text(text % "lm", encoding="utf-8")
    with pytest.raises(ConfigError, match="give 'lm', the language model that answers"):
        read_config(run_file)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("x: {system: rog, settings: {plan: none}}", r"variants.x.settings.plan: .*Settings of rog: plans, num_plans"),
        ("x: {system: rog, settings: {plans: gold}}", r"variants.x.settings.plans: .*'lm', 'generator', 'dense'"),
        ("x: {system: etd, settings: {num_candidates: 99}}", "variants.x.settings.num_candidates: .*less than or"),
        ("x: {system: direct, settings: {width: 1}}", "variants.x.settings: direct has no settings"),
        ("x: {system: rgo}", "legal are etd, dualr, rog.*did you mean 'rog'"),
        ("rog: {system: rog}", "variants.rog: a variant has a name of its own"),
        ("x-seed1: {system: rog}", "variants.x-seed1: a variant has a name of its own"),
        ("'x: y': {system: rog}", "should match pattern"),
        ("x: {system: rog, answered_by: []}", "at least 1"),
    ],
)
def test_a_variant_that_cannot_be_is_named_with_what_is_legal(run_file: Path, variant: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants(run_file, variant)


# What is missing, or wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BARE + "systems: {}\n", "systems.answered_by: give 'lm', .*systems.answered_by: \\[oracle\\]"),
        (BARE + "lm: {kind: embedded}\nsystems: {}\n", "the embedded model is trained on plans: give 'plans'"),
        (PLANNING + "systems: {run: []}\n", "run: name at least one system"),
        (PLANNING + "systems: {run: [etdd]}\n", "legal are etd, dualr.*did you mean 'etd'"),
        (PLANNING + "systems: {rog: {plan: lm}}\n", "unknown key 'systems.rog.plan'.*did you mean 'plans'"),
        (PLANNING + "systems: {answered_by: [orakel]}\n", "legal are lm, oracle, random, first"),
        (PLANNING + "systems: {max_calls: 0}\n", "systems.max_calls = 0"),
        (PLANNING + "systems: {oracle: {error: 2}}\n", "systems.oracle.error = 2"),
        (
            "dataset: {name: given, source: plans, plan_files: {train: t.jsonl}}\nplans: {planners: [dense]}\n"
            "dense: {}\nsystems: {answered_by: [oracle]}\n",
            "a dataset of plans has no graph to answer from",
        ),
    ],
)
def test_sections_that_do_not_fit_together_are_named(run_file: Path, text: str, message: str) -> None:
    run_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_config(run_file)


@pytest.mark.parametrize(("system", "setting"), [("rog", "rog: {plans: dense}"), ("ours", "ours: {planner: dense}")])
def test_a_planner_that_the_run_does_not_make_is_named(run_file: Path, system: str, setting: str) -> None:
    run_file.write_text(BARE + f"systems: {{run: [{system}], answered_by: [oracle], {setting}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"needs 'dense-seed0', which this run does not make: .*leave the system out"):
        specs_of(run_file)
