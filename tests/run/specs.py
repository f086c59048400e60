"""What stages are made of, for tests: specs under overrides, and for any setting another value than the one it has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, get_args

from kgqa_core.config_base import Section
from kgqa_core.config_file import read_config, variants_of
from kgqa_core.errors import ConfigError
from kgqa_core.run.stages import StageSpec, known_stages, stage_specs

TRIED = ["true", "false", "7", "3", "2", "37", "0.25", "0.7", "[a.]", "null", "1GB", "de", "tcp://127.0.0.1:8786"]
TRIED += ["a/b", "[1, 3, 2]", ";"]

PLANNING = """\
dataset: {name: tiny, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
plans: {planners: [generator, dense]}
lm: {kind: packaged}
dense: {}
"""
RUN = PLANNING + "systems: {}\n"
BARE = PLANNING.split("plans:", maxsplit=1)[0]  # no model, no plans
TUNED_RUN = RUN.replace("systems: {}", "reasoner: {}")
PLANS_ONLY = """\
dataset: {name: given, source: plans, plan_files: {train: train.jsonl, dev: dev.jsonl}}
plans: {planners: [dense], seeds: [0, 1]}
dense: {}
evaluation: {split: dev}
"""
TAUGHT = "instructions"


def specs_of(path: Path, *overrides: str) -> dict[str, StageSpec]:
    return {spec.key: spec for spec in stage_specs(read_config(path, overrides))}


def changed(path: Path, *overrides: str, base: tuple[str, ...] = ()) -> set[str]:
    """Return the stages whose own section an override changes, and those that are new."""
    before, after = specs_of(path, *base), specs_of(path, *base, *overrides)
    return {key for key in after if key not in before or before[key].section != after[key].section}


def settings_of(model: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of all settings in a section and those below it."""
    found: set[str] = set()
    for section in variants_of(model):
        for name, field in section.model_fields.items():
            inner = [part for part in variants_of(field.annotation) if issubclass(part, Section)]
            found |= settings_of(field.annotation, f"{prefix}{name}.") if inner else {prefix + name}
    return found


def another(path: Path, setting: str, *base: str) -> str:
    """Return an override that gives a setting a legal value that it has not."""

    *above, name = setting.split(".")

    def section(*overrides: str) -> Any:
        return reduce(step, above, read_config(path, [*base, *overrides]))

    now = section()
    for tried in (*words(type(now).model_fields[name].annotation), *TRIED):
        try:
            if getattr(section(override := f"{setting}={tried}"), name) != getattr(now, name):
                return override
        except ConfigError:
            continue
    raise AssertionError(f"no other value of {setting} is legal")


def step(section: Any, name: str) -> Any:
    """Return what is below a section: one of its settings, or the section of a system."""
    return getattr(section, name) if name in type(section).model_fields else section.settings_of(name)


def words(annotation: Any) -> Iterator[str]:
    """Yield the words that an annotation allows."""
    for part in get_args(annotation):
        yield from [part] if isinstance(part, str) else words(part)


def assert_in_order(specs: dict[str, StageSpec]) -> None:
    """Fail unless every stage comes after all that it reads, and is of a kind that is known."""
    seen: set[str] = set()
    for spec in specs.values():
        assert set(spec.needs) <= seen
        assert known_stages()[spec.stage].version >= 1
        seen.add(spec.key)
