"""The table of systems: every line leads to a system, and a new system is one new file and one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.journey import READ, journey, num_lines
from benchmarks.places import RUN, write_places
from kgqa_core.config import RunConfig
from kgqa_core.config_base import Section
from kgqa_core.config_file import read_config
from kgqa_core.config_systems import SYSTEMS, SystemsSection, SystemType, system_type
from kgqa_core.errors import ConfigError
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import Build

DOC = Path(__file__).parents[2] / "docs" / "systems.md"
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", DOC.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of a system that somebody wrote: one new file (around.py), and one line of the table."""
    (tmp_path / "around.py").write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(SYSTEMS, "around", "around:AROUND")
    write_places(tmp_path)
    variant = "variants: {one: {system: around, settings: {most: 1}}}"
    systems = f"systems: {{run: [around], answered_by: [oracle], around: {{most: 2}}, {variant}}}\n"
    (tmp_path / "own.yaml").write_text(RUN + systems, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("around", None)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_line_of_the_table_leads_to_a_system_that_is_settled_by_default(name: str) -> None:
    kind = system_type(name)
    assert isinstance(kind, SystemType)
    assert kind.settings is None or (issubclass(kind.settings, Section) and kind.settings())


@pytest.mark.slow
def test_a_new_system_is_one_new_file_and_one_line(own: Path, build_stages: Build) -> None:
    pipeline = Pipeline(read_config(own / "own.yaml", [f"runtime.home={own / 'home'}"]))
    build_stages(pipeline)
    for row, most in (("around", 2), ("one", 1)):
        table = pq.read_table(
            pipeline.artifact(f"system-{row}-oracle-seed0").folder / "predictions.parquet"
        ).to_pylist()
        answered = [one for one in table if one["status"] == "answered"]
        assert answered and all(0 < len(one["answer_ids"]) <= most and all(one["faithful"]) for one in answered)
    assert pipeline.specs["system-one-oracle-seed0"].section["settings.most"] == 1
    assert "lm" not in pipeline.specs  # an oracle answers


def test_its_settings_are_checked_as_those_of_any_section(own: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'systems.around.moost'.*did you mean 'most'"):
        read_config(own / "own.yaml", [f"runtime.home={own}", "systems.around={moost: 2}"])
    with pytest.raises(ConfigError, match=r"unknown key 'systems.aruond'.*around.*did you mean 'around'"):
        read_config(own / "own.yaml", [f"runtime.home={own}", "systems.aruond={most: 2}"])


def test_paths_in_the_settings_of_a_row_resolve_as_those_of_its_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    write_places(tmp_path)
    rows = "{a: {system: dualr, settings: {explorer: b.yaml}}, b: {system: given, settings: {file: '${KGQA_DATA}/c'}}}"
    (tmp_path / "rows.yaml").write_text(f"{RUN}systems: {{run: [], answered_by: [oracle], variants: {rows}}}\n")
    config = read_config(tmp_path / "rows.yaml", [f"runtime.home={tmp_path}"])
    assert config.comparison.settings_of("a").explorer == tmp_path / "b.yaml"
    assert config.comparison.settings_of("b").file == tmp_path / "data/c"
    assert RunConfig.model_validate_json(config.model_dump_json()).comparison.settings_of("a").explorer.is_absolute()


def test_a_line_that_leads_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "odd", "kgqa_core.systems.rog:Rog")
    with pytest.raises(ConfigError, match=r"rog:Rog is no SystemType"):
        system_type("odd")


def test_sections_of_systems_pass_through_json_as_they_were() -> None:
    given = SystemsSection.model_validate({"rog": {"num_plans": 7}, "answered_by": ["oracle"]})
    again = SystemsSection.model_validate_json(given.model_dump_json())
    assert again == given
    assert (again.settings_of("rog").num_plans, again.settings_of("etd").num_candidates) == (7, 3)
    assert again.settings_of("direct") is None


# What a reader passes and has to open


def test_the_way_of_a_question_is_short(tmp_path: Path) -> None:
    """Ceilings, to be lowered as the way gets shorter: 59 files and 352 functions before the rooms were redrawn."""
    found, row = journey(tmp_path)
    assert row["prediction"] == ["Dan Oak"] and row["paths"] == ["(Ash, directed_by, Dan Oak)"]
    assert row["faithful"] == [True] and row["num_calls"] == 2
    assert {"systems/rog.py", "systems/runner.py", "graph/search_graph.py"} <= found.functions.keys()
    assert len(found.functions) <= 20 and found.num_functions <= 110


def test_what_the_readme_gives_to_read_is_little() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## Reading the code") :]
    listed = re.findall(r"`([a-z_/]+\.py)`", section[: section.index("```")])
    assert listed == list(READ)
    assert num_lines() <= 1_500
