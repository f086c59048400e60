"""Run configurations: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kgqa_core.config import RunConfig
from kgqa_core.config_file import Setting, config_hash, configure, machine_paths, read_config
from kgqa_core.errors import ConfigError
from tests.conftest import PROJECT, TOWNS

EMBEDDED = """\
dataset: {name: demo, source: embedded}
encoder: {kind: hash}
explorer: {steps: 3, edge_budget: 40, epochs: 8}
"""

FILES = TOWNS.replace("{kind: hash}", "{kind: local, path: encoders/tiny}")
NSM = FILES.replace("{format: tsv, path: triples.tsv}", "{format: nsm}").replace("format: jsonl", "format: nsm")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a run file and return its path."""

    def write_file(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refused(path: Path, *overrides: str) -> str:
    """Return the message with which a configuration is refused."""
    with pytest.raises(ConfigError) as raised:
        read_config(path, overrides)
    assert raised.value.exit_code == 2
    return str(raised.value)


def source_of(config: RunConfig) -> Any:
    return config.dataset


@pytest.mark.parametrize("path", sorted((PROJECT / "conf").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_run_file_that_we_ship_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if path.stem in ("local", "local.example", "prices"):
        pytest.skip("no run")
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    config = read_config(path)
    assert (config.name, config.dataset.name) == (path.stem, path.stem)
    assert path.read_text(encoding="utf-8").startswith("# Purpose ")
    if path.stem.startswith("metaqa"):
        assert source_of(config).graph.path == tmp_path / "data/metaqa/kb.txt"


def test_the_example_of_local_yaml_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGQA_HOME")
    monkeypatch.delenv("KGQA_DATA", raising=False)
    (tmp_path / "local.yaml").write_bytes((PROJECT / "conf/local.example.yaml").read_bytes())
    assert set(machine_paths(tmp_path)) == {"KGQA_DATA", "KGQA_HOME"}


@pytest.mark.parametrize("more", ["", "runtime:\n"])
def test_what_is_left_out_has_a_default_and_the_name_is_the_files(write: Write, own_home: Path, more: str) -> None:
    config = read_config(write(EMBEDDED + more, "my first run.yaml"))
    assert config.name == "my first run"
    assert (source_of(config).seed, config.dataset.reenter_topic) == (0, False)
    assert (config.exploration.width, config.exploration.batch_size, config.exploration.seeds) == (64, 32, (0,))
    assert (config.evaluation.split, config.tracking.enabled) == ("test", True)
    assert config.runtime.home == own_home


def test_paths_resolve_against_the_run_file_and_may_be_absolute_or_of_the_user(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(FILES.replace("questions.jsonl", "../asked/q.jsonl"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given_path in (path, Path("../run.yaml")):
        config = read_config(given_path)
        assert source_of(config).graph.path == tmp_path / "triples.tsv"
        assert source_of(config).questions.path == tmp_path / "../asked/q.jsonl"
        assert config.encoding.model_dump()["path"] == tmp_path / "encoders/tiny"
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    files = "files: {train: ~/train.jsonl, dev: /srv/dev.jsonl, test: '${KGQA_DATA}/own/test.jsonl'}"
    assert source_of(read_config(write(FILES.replace("path: questions.jsonl", files)))).questions.files == {
        "train": tmp_path / "me/train.jsonl",
        "dev": Path("/srv/dev.jsonl"),
        "test": tmp_path / "data/own/test.jsonl",
    }


@pytest.mark.parametrize("written", ["1e-3", "1E-3", "1.0e-3", "+1e-3", "0.001", ".1e-2", "10e-4"])
def test_numbers_are_read_as_people_write_them(write: Write, written: str) -> None:
    config = read_config(write(EMBEDDED.replace("epochs: 8", f"epochs: 8, learning_rate: {written}")))
    assert config.exploration.learning_rate == pytest.approx(1e-3)


def test_settings_of_every_kind_can_be_overridden(write: Write, tmp_path: Path) -> None:
    overrides = {
        "explorer.epochs": "3",
        "explorer.seeds": "[2, 3, 5]",
        "dataset.questions": "{format: metaqa, path: asked, hops: [1, 3]}",
        "dataset.graph.path": "other.tsv",
        "cluster.address": "tcp://127.0.0.1:8786",
        "name": "tried=out",
        " evaluation.split ": "dev",
        "evaluation.edge_budget": "all",
    }
    config = read_config(write(FILES), [f"{key}={value}" for key, value in overrides.items()])
    explorer, dataset = config.exploration, source_of(config)
    assert (explorer.epochs, explorer.seeds) == (3, (2, 3, 5))
    assert (dataset.questions.format, dataset.questions.hops) == ("metaqa", (1, 3))
    assert (dataset.questions.path, dataset.graph.path) == (tmp_path / "asked", tmp_path / "other.tsv")
    assert config.cluster.address == "tcp://127.0.0.1:8786"
    assert (config.name, config.evaluation.split, config.evaluation.edge_budget) == ("tried=out", "dev", "all")


def test_triples_of_formats_nsm_and_rog_may_come_from_the_question_files(write: Write) -> None:
    for format in ("nsm", "rog"):
        text = NSM.replace("format: nsm", f"format: {format}")
        dataset = source_of(read_config(write(text), ["dataset.subgraphs=question"]))
        assert (dataset.graph.format, dataset.graph.path, dataset.subgraphs.method) == (format, None, "question")
    cut = source_of(read_config(write(FILES), ["dataset.subgraphs={method: pagerank, max_entities: 500}"])).subgraphs
    assert (cut.is_cut, cut.max_entities) == (True, 500)


SEEDS = "explorer.seeds"
QUESTIONS, SUBGRAPHS = "dataset.questions", "dataset.subgraphs"


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (EMBEDDED, "explorer.epochs", r"--set 'explorer.epochs' is not of the form section.key=value"),
        (EMBEDDED, "=3", r"--set '=3' is not of the form"),
        (EMBEDDED, "explorer.epochs=[3", r"--set 'explorer.epochs=\[3': the value is no YAML"),
        (EMBEDDED, "explorer.epochs={a: 1, a: 2}", r"--set 'explorer.epochs=.*the key 'a' is given twice"),
        (EMBEDDED, "explorer.epochs.deep=3", r"--set 'explorer.epochs.deep=3': 'epochs' is a value, not a section"),
        (EMBEDDED, "explorr.epochs=3", r"unknown key 'explorr' .*did you mean 'explorer'"),
        (EMBEDDED, "runtime.workers=3", r"unknown key 'runtime.workers' \(value 3\).*did you mean 'cluster.workers'"),
        (EMBEDDED, "explorer.epochs=!!bool x", r"--set 'explorer.epochs=!!bool x': the value is no YAML"),
        ("name: !!int ''", "", r"run.yaml is no readable YAML"),
        (EMBEDDED, "reasoner.variant=[rog]", r"reasoner.variant = \['rog'\]: legal are ours, rog, eperm"),
        (EMBEDDED, "reasoner={instructions: {explain: 1}, shares: {plans: 1}}", r"(?s)'explain': legal.*mean 'plan'\?"),
        (EMBEDDED, "cluster.memory_limit=0GB", r"cluster.memory_limit = '0GB': must be a number with a unit"),
        (EMBEDDED, "runtime.memory_limit=99999999TB", r"limit = '99999999TB': must be a number .*from 1MB"),
        (EMBEDDED, "cluster.memory_limit=lots", r"cluster.memory_limit = 'lots': must be a number with a unit"),
        (EMBEDDED, "trakcing={}", r"unknown key 'trakcing' \(value {}\); legal keys: cluster, dataset,.*'tracking'\?"),
        (EMBEDDED, "explorer.epoch=8", r"unknown key 'explorer.epoch' \(value 8\).*did you mean 'epochs'"),
        (EMBEDDED, "dataset.questions=3", r"'dataset.questions' \(value 3\); legal keys: name, .*, source$"),
        (EMBEDDED, "dataset.sed=3", r"'dataset.sed' \(value 3\); legal keys: name, reenter_topic, seed, source;"),
        (FILES, "dataset.graph.pth=x", r"'dataset.graph.pth' .*format, header, inverse_suffix.*'path'\?"),
        (FILES, f"{QUESTIONS}.files={{tran: x}}", r"questions.files.tran.*train, dev, test.*'train'\?"),
        (FILES, "dataset.files=3", r"unknown key 'dataset.files' \(value 3\)"),
        (EMBEDDED, "dataset.source=embeded", r"dataset.source = 'embeded'.*mean 'embedded'\?"),
        (EMBEDDED, "dataset={name: demo}", r"missing key 'dataset.source'; legal are embedded, files"),
        (EMBEDDED, "dataset.seed=3", r"dataset.seed = 3: must be 0"),
        (EMBEDDED, "encoder.kind=hsah", r"encoder.kind = 'hsah': legal are minilm, local, hash; .*'hash'\?"),
        (EMBEDDED, "encoder.dim=7", r"encoder.dim = 7: .*greater than or equal to 8"),
        (FILES, "dataset.graph.format=tvs", r"graph.format = 'tvs': legal are wikimovies, tsv, csv, .*'tsv'\?"),
        (FILES, "dataset.graph={format: rdf, path: x, hub_cap: 3}", r"'hub_cap' and 'cvt_is_hop: false' need 'hops'"),
        (FILES, f"{QUESTIONS}.files={{train: 5}}", r"questions.files.train = 5: must be a path"),
        (FILES, f"{QUESTIONS}={{format: jsonl}}", r"questions = {'format': 'jsonl'}: give either 'path' or 'files'"),
        (FILES, f"{QUESTIONS}.files={{}}", r"dataset.questions.files = {}: .*at least 1"),
        (FILES, f"{QUESTIONS}.hops=[1]", r"'hops' chooses folders of MetaQA or files of"),
        (FILES, f"{QUESTIONS}.variant=rog", r"'variant' is one of WebQSP or ComplexWebQuestions"),
        (FILES, f"{QUESTIONS}.dev_ids=dev.txt", r"'dev_ids' is the dev split of a variant"),
        (EMBEDDED, "explorer.steps=3.0", r"explorer.steps = 3.0: .*integer"),
        (EMBEDDED, "explorer.steps=9", r"explorer.steps = 9: .*less than or equal to 8"),
        (EMBEDDED, "explorer.epochs=0", r"explorer.epochs = 0: .*greater than or equal to 1"),
        (EMBEDDED, "explorer.learning_rate=.inf", r"explorer.learning_rate = inf: .*finite"),
        (EMBEDDED, "explorer.learning_rate=fast", r"explorer.learning_rate = 'fast': .*number"),
        (EMBEDDED, f"{SEEDS}=1", r"explorer.seeds = 1: must be a list"),
        (EMBEDDED, f"{SEEDS}=[]", r"explorer.seeds = \[\]: .*one number or more"),
        (EMBEDDED, f"{SEEDS}=[2, 2]", r"explorer.seeds = \[2, 2\]: .*each given once"),
        (EMBEDDED, f"{SEEDS}=[0, yes]", r"explorer.seeds.1 = True: .*integer"),
        (EMBEDDED, "tracking.enabled='no'", r"tracking.enabled = 'no': .*boolean"),
        (EMBEDDED, "runtime=fast", r"runtime = 'fast': must be a section; its keys are home, threads"),
        (EMBEDDED, "name=../../etc/passwd", r"name = '../../etc/passwd': .*no slash"),
        (EMBEDDED, "name=.hidden", r"name = '.hidden': .*no dot first"),
        (EMBEDDED, "dataset.name=''", r"dataset.name = '': .*1 to 100 characters"),
        (EMBEDDED, r'name="caf\udce9"', r"name = 'caf\\udce9': .*1 to 100 characters"),  # of a file named in Latin-1
        (EMBEDDED, "evaluation.edge_budget=0", r"edge_budget = 0: must be a number of edges, 1 or more, or: all"),
        (EMBEDDED, "evaluation.edge_budget=true", r"edge_budget = True: must be a number of edges"),
        (NSM, "dataset.graph.format=tsv", r"give 'path'; only triples of format nsm, rog or paths may come from"),
        (NSM, f"{QUESTIONS}.format=jsonl", r"graph: give 'path'; only questions of its own format, nsm, rog or paths"),
        (NSM, f"{SUBGRAPHS}=own", r"dataset.subgraphs.method = 'own': legal are none, question, expand, pagerank"),
        (FILES, f"{SUBGRAPHS}=question", r"subgraphs: 'question' needs graph: {format: nsm}, rog or paths, without"),
        (FILES, f"{SUBGRAPHS}={{hops: 3}}", r"settings of subgraphs that are cut go with 'method: expand'"),
        (FILES, f"{SUBGRAPHS}={{method: expand, max_entities: 7}}", r"'max_entities' goes with 'method: pagerank'"),
        (FILES, f"{SUBGRAPHS}={{method: expand, cvt_is_hop: false}}", r"'cvt_is_hop: false' needs a dump"),
        (FILES, f"{QUESTIONS}={{format: metaqa, hops: [1, 2], files: {{test: x}}}}", r"'hops' of 'files' is one"),
        (FILES, f"{SUBGRAPHS}={{method: expand, cap: 7}}", r"unknown key 'dataset.subgraphs.cap' .*group_cap"),
        ("dataset: 5", "", r"(?s)dataset = 5: must be a section.*missing key 'encoder'; … and 1 more"),
        ("- a list", "", r"must be a mapping of sections, not \['a list'\]"),
        ("", "", r"must be a mapping of sections, not None"),
        ("dataset: [1", "", r"(?s)run.yaml is no readable YAML.*line 1"),
        (EMBEDDED + "encoder: {kind: hash}", "", r"(?s)the key 'encoder' is given twice.*line 4"),
        (EMBEDDED.replace("steps: 3", "steps: 3, steps: 4"), "", r"(?s)the key 'steps' is given twice.*line 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_key_value_and_what_is_legal(
    write: Write, text: str, override: str, message: str
) -> None:
    said = refused(write(text), *filter(None, [override]))
    assert re.search(message, said), said
    assert "--set" in said or "run.yaml" in said


def test_our_own_run_files_are_found_by_name_from_anywhere_unless_the_user_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_of(read_config(Path("conf/own-graph-example.yaml"))).questions.path.is_dir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own-graph-example.yaml").write_text("name: mine\n" + FILES, encoding="utf-8")
    assert read_config(Path("conf/own-graph-example.yaml")).name == "mine"
    with pytest.raises(ConfigError, match=r"no configuration file .*conf/own-graph\.yaml"):
        read_config(Path("conf/own-graph.yaml"))


def test_many_problems_and_long_values_do_not_flood_the_terminal(write: Write) -> None:
    message = refused(write(EMBEDDED + "\n".join(f"key{number}: {'x' * 5000}" for number in range(11))))
    assert "… and 9 more" in message
    assert len(message) < 3000


def test_a_file_that_cannot_be_read_is_named_with_its_nearest_sibling(write: Write, tmp_path: Path) -> None:
    write(EMBEDDED, "metaqa-1hop.yaml")
    assert "did you mean 'metaqa-1hop.yaml'?" in refused(tmp_path / "metaqa-1-hop.yaml")
    assert "no configuration file" in refused(tmp_path / "no" / "folder" / "run.yaml")
    assert "is no readable YAML" in refused(tmp_path)  # a folder
    path = tmp_path / "latin.yaml"
    path.write_bytes(EMBEDDED.replace("demo", "café").encode("latin-1"))
    assert "latin.yaml is no readable YAML" in refused(path)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("'${KGQA_DATA}/kb.tsv'", ["needs KGQA_DATA, which is not set: ", "local.yaml"]),
        ("'${KGQA_DTA}/kb.tsv'", ["unknown variable 'KGQA_DTA'", "did you mean 'KGQA_DATA'?"]),
        ("~nobody-of-that-name/kb.tsv", []),
    ],
)
def test_a_path_that_leads_nowhere_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch, path: str, parts: list[str]
) -> None:
    monkeypatch.delenv("KGQA_DATA", raising=False)
    said = refused(write(FILES.replace("triples.tsv", path)))
    assert [part for part in (f"dataset.graph.path = {path!r}".replace('"', ""), *parts) if part not in said] == []


def test_local_yaml_names_this_machines_folders_and_the_environment_wins(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.delenv("KGQA_DATA", raising=False)
    write("data: sets\nhome: ~/results\n", "local.yaml")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    path = write(FILES.replace("triples.tsv", "'${KGQA_DATA}/kb.tsv'"))
    config = read_config(path)
    assert source_of(config).graph.path == tmp_path / "sets/kb.tsv"  # relative to local.yaml
    assert config.runtime.home == own_home  # the environment's
    monkeypatch.delenv("KGQA_HOME")
    assert read_config(path).runtime.home == tmp_path / "me/results"


@pytest.mark.parametrize(("home", "expected"), [("results", "here/results"), (None, "me/.local/share/kgqa")])
def test_the_environment_is_relative_to_the_current_folder_and_the_default_home_is_the_users(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, expected: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("KGQA_HOME", home) if home else monkeypatch.delenv("KGQA_HOME")
    assert read_config(write(EMBEDDED)).runtime.home == tmp_path / expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta: /x", r"(?s)local.yaml.*unknown key 'dta' \(value '/x'\); legal keys: data, home; did you mean 'data'\?"),
        ("data:", r"(?s)local.yaml.*data = None: must be a path"),
        ("home: 3", r"home = 3: must be a path"),
        ('home: ""', r"home = '': must be a path"),
        ("- x", r"must be a mapping"),
        ("data: /x\ndata: /y", r"the key 'data' is given twice"),
    ],
)
def test_a_wrong_local_yaml_is_named(write: Write, text: str, message: str) -> None:
    write(text, "local.yaml")
    assert re.search(message, refused(write(EMBEDDED)))


def test_the_hash_is_of_what_shapes_results_and_of_nothing_else(write: Write) -> None:
    def hashed(setting: str) -> str:
        return config_hash(read_config(write(EMBEDDED), [setting]))

    same = ["runtime.threads=2", "runtime.home=elsewhere", "cluster.workers=5", "tracking.enabled=false"]
    (first,) = {hashed(setting) for setting in same}
    assert len(first) == 64
    other = ["explorer.epochs=9", "explorer.seeds=[1]", "dataset.reenter_topic=true", "encoder.dim=16"]
    assert len({first, *map(hashed, [*other, "evaluation.split=dev"])}) == 6


@pytest.mark.parametrize("text", [EMBEDDED, FILES, FILES.replace("path: questions.jsonl", "files: {dev: d, test: t}")])
def test_a_configuration_comes_back_from_json_and_prefects_parameters_as_it_was(write: Write, text: str) -> None:
    """A deployment's parameters are JSON: paths are text there, and tuples are lists."""
    from flows.pipeline import retrain

    config = read_config(write(text), ["explorer.seeds=[2, 3]", "explorer.learning_rate=1"])
    dumped = config.model_dump(mode="json")
    assert RunConfig.model_validate(json.loads(json.dumps(dumped))) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(dumped))) == config
    assert config_hash(RunConfig.model_validate(dumped)) == config_hash(config)
    stored = json.loads(json.dumps(retrain.serialize_parameters({"config": config})))
    assert retrain.validate_parameters(stored)["config"] == config
    assert retrain.validate_parameters({"config": config})["config"] == config
    with pytest.raises(ValidationError, match="frozen"):
        config.exploration.epochs = 3  # type: ignore[misc]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("${KGQA_DATA}/x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=7), inner, max_size=3),
    max_leaves=5,
)
KEYS = "dataset encoder explorer runtime name dataset.name dataset.source dataset.graph dataset.questions encoder.kind"
KEYS += " dataset.questions.files dataset.graph.path explorer.seeds runtime.home"


@given(key=st.sampled_from(KEYS.split()), value=values)
def test_no_value_anywhere_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    raw = {**yaml.safe_load(FILES), "runtime": {}}
    *parents, last = key.split(".")
    section = raw
    for name in parents:
        section = section[name]
    section[last] = value
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(raw, allow_unicode=True), encoding="utf-8", errors="replace")
    try:
        config = read_config(path)
    except ConfigError as problem:
        assert "any.yaml" in str(problem) or key in str(problem)
        assert len(str(problem)) < 3000
    else:
        assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_settings_of_another_file_have_its_paths_and_later_ones_win(write: Write, tmp_path: Path) -> None:
    encoder = {"kind": "local", "path": "my encoder"}
    settings = [
        Setting("dataset.questions.path", "own.jsonl", "the sweep", tmp_path / "sweeps"),
        Setting("encoder", encoder, "the sweep", tmp_path / "sweeps"),
        Setting("encoder.pooling", "first_last", "the sweep", tmp_path / "sweeps"),
        Setting("explorer.epochs", 3, "the sweep"),
        Setting("explorer.epochs", 5, "the command line"),
    ]
    config = configure(write(FILES), settings)
    assert source_of(config).graph.path == tmp_path / "triples.tsv"
    assert source_of(config).questions.path == tmp_path / "sweeps/own.jsonl"
    read = {"kind": "local", "path": tmp_path / "sweeps/my encoder", "pooling": "first_last"}
    assert config.encoding.model_dump() == read
    assert config.exploration.epochs == 5
    assert encoder == {"kind": "local", "path": "my encoder"}, "a setting is used for several runs"


def test_an_error_says_where_a_setting_came_from(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^the run of the sweep is not usable:\n.*'explorer.epoch'.*'epochs'"):
        configure(write(EMBEDDED), [Setting("explorer.epoch", 3, "the sweep")], source="the run of the sweep")
    with pytest.raises(ConfigError, match=r"^the sweep: 'epochs' is a value, not a section"):
        configure(write(EMBEDDED), [Setting("explorer.epochs.deep", 3, "the sweep")])
