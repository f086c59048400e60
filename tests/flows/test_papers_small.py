"""A run file of each paper, whole, on the miniature: every stage runs, and published figures stand beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.pipeline import retrain
from kgqa_core.config_file import read_config
from tasks.miniature import enter_miniature
from tasks.server import prefect_server
from tests.conftest import PROJECT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home and one Prefect server for all: what the runs share is made once."""
    folder = tmp_path_factory.mktemp("home")
    with prefect_server(folder):
        yield folder


@pytest.fixture
def home(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the command sees before it enters the miniature; what that sets is undone."""
    monkeypatch.setenv("KGQA_HOME", str(shared))
    monkeypatch.setenv("KGQA_DATA", "/nowhere")
    return shared


@pytest.mark.parametrize(
    ("run", "settings", "published"),
    [
        ("etd-metaqa-1hop", ["explorer.init_from=null", "systems.etd.multiple_choice=false"], "published Hits@1"),
        ("dualr-tuned-webqsp", ["explorer.init_from=null", "reasoner.folds=2"], "published Hits@1"),
        ("rog-metaqa-3hop", ["lm.adapter=${KGQA_DATA}/models/rog-webqsp-adapter"], "published Hit"),
        ("eperm-webqsp", [], "published Hit"),
        ("fiske-webquestions", [], "published partial"),
    ],
)
def test_a_run_file_of_each_paper_runs_whole_in_small(
    home: Path, run: str, settings: list[str], published: str
) -> None:
    conf = PROJECT / "conf" / "papers" / f"{run}.yaml"
    config = read_config(conf, [*enter_miniature(conf), *settings])
    summary = retrain(config)
    assert config.runtime.home.is_relative_to(home)
    assert summary.comparison is not None and summary.name == f"{run}-miniature"
    rows = {row["about"]["system"] for row in summary.comparison["rows"]}
    assert rows == set(config.systems.run)
    headers = [name for table in summary.comparison["tables"] for name in table["header"]]
    assert published in headers
    assert summary.report.read_text(encoding="utf-8").startswith(f"# {run}-miniature")
    if config.reasoner:
        assert any(outcome.key.startswith("reasoner") for outcome in summary.outcomes)
