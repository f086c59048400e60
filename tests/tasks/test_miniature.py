"""The miniature: a world that its questions fit, in the datasets' forms, and models that can be asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tasks import miniature, miniature_models
from tests.conftest import PROJECT

PAPERS = PROJECT / "conf" / "papers"
DATA_ALONE = ["encoder={kind: hash}", "explorer.init_from=null", "roles={}"]
DATA_ALONE += [f"{section}=null" for section in ("lm", "plans", "reasoner", "systems")]


@pytest.fixture(scope="module")
def world() -> miniature.World:
    """The world that everything is cut out of."""
    return miniature.cut_world()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the miniature's data, its models left out: they take seconds."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miniature_models, "write_models", lambda folder, texts: None)
        miniature.write_miniature(folder / miniature.MARK / f"data-{miniature.VERSION}")
    return folder


@pytest.fixture
def entered(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands see; what they set is undone."""
    monkeypatch.setenv("KGQA_HOME", str(home))
    monkeypatch.setenv("KGQA_DATA", "/nowhere")
    return home


def test_each_number_of_hops_has_questions_that_name_their_topic_and_whose_chain_leads_to_the_answers(
    world: miniature.World,
) -> None:
    for split, count in miniature.NUM_QUESTIONS.items():
        for hops in (1, 2, 3):
            assert len([one for one in world.asked if (one.split, one.hops) == (split, hops)]) == count
    for table in (miniature.WIKIMOVIES, miniature.FREEBASE):
        other = miniature.translate(world, table)
        follow = miniature.follower(other.triples)
        for one in other.asked:
            assert other.name(one.topic) in one.text
            assert tuple(sorted(follow(one.topic, one.chain))) == one.answers
    assert miniature.cut_world() == world


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        *(("etd-metaqa-2hop", 29), ("dualr-wc2014", 58), ("fiske-mooc", 43), ("fiske-webqsp", 58)),
        *(("etd-cwq-alone", 87), ("fiske-webquestions", 50), ("rog-webqsp", 87)),
    ],
)
def test_every_form_is_read_whole_and_its_answers_are_in_the_graph(entered: Path, run: str, asked: int) -> None:
    conf = PAPERS / f"{run}.yaml"
    pipeline = Pipeline(read_config(conf, [*miniature.enter_miniature(conf), *DATA_ALONE]))
    (*_, questions) = ensure(pipeline, ["questions"])
    lint = json.loads((questions.artifact.folder / "lint.json").read_text(encoding="utf-8"))
    assert sum(row["num_questions"] for row in lint["coverage"]) == asked
    report = json.loads((pipeline.artifact("graph").folder / "graph.json").read_text(encoding="utf-8"))
    assert not report.get("rejects")  # a dump's are counted where it is parsed
    assert all(row["any_gold"] > 0 for row in lint["coverage"]), run


def test_entering_marks_the_run_and_moves_its_data_and_home(entered: Path) -> None:
    conf = PAPERS / "rog-webqsp.yaml"
    settings = miniature.enter_miniature(conf)
    assert settings == ["name=rog-webqsp-miniature", "dataset.name=rog-webqsp-miniature"]
    assert miniature.enter_miniature(conf) == settings  # where it is entered already, nothing moves
    config = read_config(conf, settings)
    assert config.runtime.home == entered / miniature.MARK
    assert config.lm.path.is_relative_to(os.environ["KGQA_DATA"])


def test_a_draw_is_smaller_and_a_server_has_no_miniature(entered: Path) -> None:
    assert miniature.enter_miniature(PAPERS / "rog-metaqa-3hop.yaml")[2:] == ["dataset.questions.train_size=10"]
    endpoint = "lm={kind: endpoint, url: 'http://127.0.0.1:1/v1', model: gpt}"
    with pytest.raises(ConfigError, match=r"--small: .*asks a server"):
        miniature.enter_miniature(PAPERS / "etd-webqsp.yaml", [endpoint])


def test_every_model_of_the_run_files_has_its_architecture_and_reads_what_it_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import re

    text = "".join(path.read_text(encoding="utf-8") for path in PAPERS.glob("*.yaml"))
    named = set(re.findall(r"\$\{KGQA_DATA\}/models/([\w.-]+)", text))
    assert named == {*miniature_models.MODELS, *miniature_models.ADAPTERS}
    for name, kind in miniature_models.MODELS.items():
        miniature_models.write_model(tmp_path / name, kind, ["who directed Heat?", "Answer: Mann"])
        assert transformers.AutoConfig.from_pretrained(tmp_path / name).model_type == kind.architecture
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        tokens = tokenizer("who directed Ñapla?", add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(tokens).strip() == "who directed Ñapla?"
        assert bool(tokenizer.chat_template) == (kind.template is not None)
