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
from kgqa_core.config_base import EmbeddedDataset, FileDataset
from kgqa_core.config_file import Setting, config_hash, configure, machine_paths, read_config
from kgqa_core.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[1]

EMBEDDED = """\
dataset: {name: demo, source: embedded}
encoder: {kind: hash}
explorer: {steps: 3, edge_budget: 40, epochs: 8}
"""

FILES = """\
dataset:
  name: towns
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: local, path: encoders/tiny}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""

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


# What is read


def run_files() -> list[Path]:
    others = ("local", "prices")  # no runs
    return sorted(path for path in (PROJECT / "conf").glob("*.yaml") if not path.name.startswith(others))


@pytest.mark.parametrize("path", run_files(), ids=lambda path: path.stem)
def test_every_run_file_that_we_ship_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    config = read_config(path)
    assert config.name == path.stem
    assert config.dataset.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# Purpose ")
    if isinstance(config.dataset, FileDataset) and path.stem.startswith("metaqa"):
        assert config.dataset.graph.path == tmp_path / "data/metaqa/kb.txt"
        assert config.dataset.questions.path == tmp_path / "data/metaqa"


def test_there_are_the_run_files_that_the_readme_speaks_of() -> None:
    found = {path.stem for path in run_files()}
    assert found >= {"demo", "metaqa-1hop", "metaqa-2hop", "metaqa-3hop", "metaqa-joint", "own-graph-example"}


def test_the_example_of_local_yaml_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGQA_HOME")
    monkeypatch.delenv("KGQA_DATA", raising=False)
    (tmp_path / "local.yaml").write_bytes((PROJECT / "conf/local.example.yaml").read_bytes())
    assert set(machine_paths(tmp_path)) == {"KGQA_DATA", "KGQA_HOME"}


def test_what_is_left_out_has_a_default_and_the_name_is_the_files(write: Write, own_home: Path) -> None:
    config = read_config(write(EMBEDDED, "my first run.yaml"))
    assert config.name == "my first run"
    assert isinstance(config.dataset, EmbeddedDataset)
    assert (config.dataset.seed, config.dataset.reenter_topic) == (0, False)
    assert (config.explorer.width, config.explorer.batch_size, config.explorer.seeds) == (64, 32, (0,))
    assert (config.evaluation.split, config.tracking.enabled) == ("test", True)
    assert config.runtime.home == own_home


def test_paths_resolve_against_the_run_file_wherever_one_stands(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(FILES.replace("questions.jsonl", "../asked/q.jsonl"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given_path in (path, Path("../run.yaml")):
        config = read_config(given_path)
        assert isinstance(config.dataset, FileDataset)
        assert config.dataset.graph.path == tmp_path / "triples.tsv"
        assert config.dataset.questions.path == tmp_path / "../asked/q.jsonl"
        assert config.encoder.model_dump()["path"] == tmp_path / "encoders/tiny"


def test_absolute_paths_the_users_folder_and_one_file_per_split(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("KGQA_DATA", str(tmp_path / "data"))
    files = "files: {train: ~/train.jsonl, dev: /srv/dev.jsonl, test: '${KGQA_DATA}/own/test.jsonl'}"
    config = read_config(write(FILES.replace("path: questions.jsonl", files)))
    assert isinstance(config.dataset, FileDataset)
    assert config.dataset.questions.files == {
        "train": tmp_path / "me/train.jsonl",
        "dev": Path("/srv/dev.jsonl"),
        "test": tmp_path / "data/own/test.jsonl",
    }


@pytest.mark.parametrize("written", ["1e-3", "1E-3", "1.0e-3", "+1e-3", "0.001", ".1e-2", "10e-4"])
def test_numbers_are_read_as_people_write_them(write: Write, written: str) -> None:
    config = read_config(write(EMBEDDED.replace("epochs: 8", f"epochs: 8, learning_rate: {written}")))
    assert config.explorer.learning_rate == pytest.approx(1e-3)


def test_an_empty_section_is_one_with_all_defaults(write: Write, own_home: Path) -> None:
    assert read_config(write(EMBEDDED + "runtime:\n")).runtime.home == own_home


# --set


def test_settings_of_every_kind_can_be_overridden(write: Write, tmp_path: Path) -> None:
    config = read_config(
        write(FILES),
        [
            "explorer.epochs=3",
            "explorer.seeds=[2, 3, 5]",
            "explorer.learning_rate=5e-4",
            "dataset.questions={format: metaqa, path: asked, hops: [1, 3]}",
            "dataset.graph.path=other.tsv",
            "tracking.enabled=false",
            "cluster.address=tcp://127.0.0.1:8786",
            "name=tried=out",
            " evaluation.split =dev",
        ],
    )
    assert isinstance(config.dataset, FileDataset)
    assert (config.explorer.epochs, config.explorer.seeds, config.explorer.learning_rate) == (3, (2, 3, 5), 5e-4)
    assert (config.dataset.questions.format, config.dataset.questions.hops) == ("metaqa", (1, 3))
    assert config.dataset.questions.path == tmp_path / "asked"
    assert config.dataset.graph.path == tmp_path / "other.tsv"
    assert not config.tracking.enabled
    assert config.cluster.address == "tcp://127.0.0.1:8786"
    assert config.name == "tried=out"
    assert config.evaluation.split == "dev"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("explorer.epochs", r"--set 'explorer.epochs' is not of the form section.key=value"),
        ("=3", r"--set '=3' is not of the form"),
        ("explorer.epochs=[3", r"--set 'explorer.epochs=\[3': the value is no YAML"),
        ("explorer.epochs={a: 1, a: 2}", r"--set 'explorer.epochs=.*the key 'a' is given twice"),
        ("explorer.epochs.deep=3", r"--set 'explorer.epochs.deep=3': 'epochs' is a value, not a section"),
        ("explorer.seeds.0=3", r"--set 'explorer.seeds.0=3': 'seeds' is a value"),
        ("explorr.epochs=3", r"unknown key 'explorr' .*did you mean 'explorer'"),
        ("runtime.workers=3", r"unknown key 'runtime.workers' \(value 3\).*did you mean 'cluster.workers'"),
        ("runtime.fan_out_bytes=3", r"did you mean 'cluster.fan_out_bytes'"),
        ("runtime.scheduler_address=tcp://a:1", r"did you mean 'cluster.address'"),
        ("cluster.memory_limit=2", r"cluster.memory_limit = 2: "),
        ("cluster.memory_limit=lots", r"cluster.memory_limit = 'lots': must be a number with a unit, such as 2GB"),
        ("explorer.epoch=3", r"unknown key 'explorer.epoch' \(value 3\).*did you mean 'epochs'"),
        ("explorer.epochs=", r"explorer.epochs = None"),
        ("explorer.epochs=3.5", r"explorer.epochs = 3.5: .*integer"),
    ],
)
def test_an_override_that_is_none_is_named(write: Write, override: str, message: str) -> None:
    given_list = "explorer: {steps: 3, edge_budget: 40, epochs: 8, seeds: [0]}"
    text = EMBEDDED.replace("explorer: {steps: 3, edge_budget: 40, epochs: 8}", given_list)
    assert re.search(message, refused(write(text), override))


# What is refused


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            EMBEDDED + "trakcing: {}",
            ["unknown key 'trakcing' (value {})", "legal keys: cluster, dataset,", "mean 'tracking'?"],
        ),
        (
            EMBEDDED.replace("epochs", "epoch"),
            ["unknown key 'explorer.epoch' (value 8)", "missing key 'explorer.epochs'"],
        ),
        (
            EMBEDDED.replace("name: demo", "name: demo, sed: 3"),
            ["unknown key 'dataset.sed' (value 3)", "legal keys: name, reenter_topic, seed, source;", "mean 'seed'?"],
        ),
        (
            FILES.replace("format: tsv,", "format: tsv, pth: x,"),
            [
                "unknown key 'dataset.graph.pth' (value 'x')",
                "format, inverse_suffix, max_reject_ratio, names, path",
                "mean 'path'?",
            ],
        ),
        (
            FILES.replace("path: questions.jsonl", "files: {tran: x}"),
            ["questions.files.tran", "train, dev, test", "'train'?"],
        ),
        (FILES.replace("source: files", "source: files\n  files: 3"), ["unknown key 'dataset.files' (value 3)"]),
        (EMBEDDED.replace("source: embedded", "source: embeded"), ["dataset.source = 'embeded'", "mean 'embedded'?"]),
        (EMBEDDED.replace(", source: embedded", ""), ["missing key 'dataset.source'", "embedded, files"]),
        (EMBEDDED.replace("kind: hash", "kind: hsah"), ["encoder.kind = 'hsah'", "minilm, local, hash", "'hash'?"]),
        (EMBEDDED.replace("kind: hash", "kind: local"), ["missing key 'encoder.path'"]),
        (EMBEDDED.replace("kind: hash", "kind: hash, dim: 7"), ["encoder.dim = 7", "greater than or equal to 8"]),
        (
            FILES.replace("format: tsv", "format: tvs"),
            ["dataset.graph.format = 'tvs'", "wikimovies, tsv, csv, parquet", "'tsv'?"],
        ),
        (FILES.replace("path: questions.jsonl", "files: {train: 5}"), ["dataset.questions.files.train = 5", "path"]),
        (
            FILES.replace(", path: questions.jsonl", ""),
            ["dataset.questions = {'format': 'jsonl'}", "'path' or 'files'"],
        ),
        (
            FILES.replace("path: questions.jsonl", "path: x, files: {train: x}"),
            ["dataset.questions = ", "give either 'path' or 'files'"],
        ),
        (FILES.replace("path: questions.jsonl", "files: {}"), ["dataset.questions.files = {}", "at least 1"]),
        (
            FILES.replace("path: questions.jsonl", "path: x, hops: [1]"),
            ["'hops' chooses folders of MetaQA or files of"],
        ),
        (
            FILES.replace("path: questions.jsonl", "path: x, variant: rog"),
            ["'variant' is one of WebQSP or ComplexWebQuestions; leave it out for another format"],
        ),
        (
            FILES.replace("path: questions.jsonl", "path: x, dev_ids: dev.txt"),
            ["'dev_ids' is the dev split of a variant: say 'variant: etd' or 'variant: rog' as well"],
        ),
        (EMBEDDED.replace("steps: 3", "steps: true"), ["explorer.steps = True", "integer"]),
        (EMBEDDED.replace("steps: 3", "steps: '3'"), ["explorer.steps = '3'", "integer"]),
        (EMBEDDED.replace("steps: 3", "steps: 3.0"), ["explorer.steps = 3.0", "integer"]),
        (EMBEDDED.replace("steps: 3", "steps: 9"), ["explorer.steps = 9", "less than or equal to 8"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 0"), ["explorer.epochs = 0", "greater than or equal to 1"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, learning_rate: .inf"), ["explorer.learning_rate = inf", "finite"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, learning_rate: .nan"), ["explorer.learning_rate = nan", "finite"]),
        (
            EMBEDDED.replace("epochs: 8", "epochs: 8, learning_rate: fast"),
            ["explorer.learning_rate = 'fast'", "number"],
        ),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, seeds: 1"), ["explorer.seeds = 1: must be a list"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, seeds: []"), ["explorer.seeds = []", "one number or more"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, seeds: [2, 2]"), ["explorer.seeds = [2, 2]", "each given once"]),
        (EMBEDDED.replace("epochs: 8", "epochs: 8, seeds: [0, yes]"), ["explorer.seeds.1 = True", "integer"]),
        (EMBEDDED + "tracking: {enabled: 'no'}", ["tracking.enabled = 'no'", "boolean"]),
        (EMBEDDED + "runtime: {memory_limit: much}", ["runtime.memory_limit = 'much'", "2GB"]),
        (EMBEDDED + "runtime: fast", ["runtime = 'fast'", "must be a section; its keys are home, threads"]),
        (EMBEDDED + "name: ../../etc/passwd", ["name = '../../etc/passwd'", "no slash"]),
        (EMBEDDED + "name: .hidden", ["name = '.hidden'", "no dot first"]),
        (EMBEDDED.replace("name: demo", "name: ''"), ["dataset.name = ''", "1 to 100 characters"]),
        ("dataset: 5", ["dataset = 5: must be a section", "missing key 'encoder'", "missing key 'explorer'"]),
        ("- a list", ["must be a mapping of sections, not ['a list']"]),
        ("", ["must be a mapping of sections, not None"]),
        ("dataset: [1", ["is no readable YAML", "line 1"]),
        (EMBEDDED + "encoder: {kind: hash}", ["the key 'encoder' is given twice", "line 4"]),
        (EMBEDDED.replace("steps: 3", "steps: 3, steps: 4"), ["the key 'steps' is given twice", "line 3"]),
    ],
)
def test_what_is_wrong_is_named_with_key_value_and_what_is_legal(write: Write, text: str, messages: list[str]) -> None:
    message = refused(write(text))
    assert "run.yaml" in message
    for part in messages:
        assert part in message


def test_our_own_run_files_are_found_by_name_from_anywhere_unless_the_user_has_one(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = read_config(Path("conf/own-graph-example.yaml"))
    assert shipped.dataset.questions.path.is_dir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own-graph-example.yaml").write_text("name: mine\n" + FILES, encoding="utf-8")
    assert read_config(Path("conf/own-graph-example.yaml")).name == "mine"
    with pytest.raises(ConfigError, match=r"no configuration file .*conf/own-graph\.yaml"):
        read_config(Path("conf/own-graph.yaml"))


def test_many_problems_and_long_values_do_not_flood_the_terminal(write: Write) -> None:
    keys = "\n".join(f"key{number}: {'x' * 5000}" for number in range(11))
    message = refused(write(EMBEDDED + keys))
    assert "… and 6 more" in message
    assert len(message) < 3000


def test_a_file_that_is_not_utf8_is_named(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(EMBEDDED.replace("demo", "café").encode("latin-1"))
    assert "latin.yaml is no readable YAML" in refused(path)


def test_a_missing_file_is_named_with_its_nearest_sibling(write: Write, tmp_path: Path) -> None:
    write(EMBEDDED, "metaqa-1hop.yaml")
    write(EMBEDDED, "demo.yaml")
    message = refused(tmp_path / "metaqa-1-hop.yaml")
    assert "no configuration file" in message
    assert f"did you mean {tmp_path / 'metaqa-1hop.yaml'}?" in message
    assert "no configuration file" in refused(tmp_path / "no" / "folder" / "run.yaml")
    assert "is no readable YAML" in refused(tmp_path)  # a folder


# Machine paths


def test_a_variable_that_is_not_set_is_named_with_where_to_set_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KGQA_DATA", raising=False)
    message = refused(write(FILES.replace("triples.tsv", "'${KGQA_DATA}/kb.tsv'")))
    assert "dataset.graph.path = '${KGQA_DATA}/kb.tsv': needs KGQA_DATA, which is not set" in message
    assert "local.yaml" in message


def test_an_unknown_variable_is_named_with_the_nearest(write: Write) -> None:
    message = refused(write(FILES.replace("triples.tsv", "'${KGQA_DTA}/kb.tsv'")))
    assert "dataset.graph.path = '${KGQA_DTA}/kb.tsv': unknown variable 'KGQA_DTA'" in message
    assert "did you mean 'KGQA_DATA'?" in message


def test_local_yaml_names_this_machines_folders_and_the_environment_wins(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.delenv("KGQA_DATA", raising=False)
    write("data: sets\nhome: ~/results\n", "local.yaml")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    path = write(FILES.replace("triples.tsv", "'${KGQA_DATA}/kb.tsv'"))
    config = read_config(path)
    assert isinstance(config.dataset, FileDataset)
    assert config.dataset.graph.path == tmp_path / "sets/kb.tsv"  # relative to local.yaml
    assert config.runtime.home == own_home  # the environment's
    monkeypatch.delenv("KGQA_HOME")
    assert read_config(path).runtime.home == tmp_path / "me/results"


def test_the_environment_may_be_relative_to_the_current_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("KGQA_HOME", "results")
    assert read_config(write(EMBEDDED)).runtime.home == tmp_path / "here/results"


def test_the_default_home_is_in_the_users_folder_and_not_the_current_one(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KGQA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path)
    assert read_config(write(EMBEDDED)).runtime.home == tmp_path / "me/.local/share/kgqa"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("dta: /x", ["local.yaml", "unknown key 'dta' (value '/x')", "legal keys: data, home", "did you mean 'data'?"]),
        ("data:", ["data = None: must be a path"]),
        ("home: 3", ["home = 3: must be a path"]),
        ("- x", ["must be a mapping"]),
        ("data: /x\ndata: /y", ["the key 'data' is given twice"]),
    ],
)
def test_a_wrong_local_yaml_is_named(write: Write, text: str, messages: list[str]) -> None:
    write(text, "local.yaml")
    message = refused(write(EMBEDDED))
    for part in messages:
        assert part in message


def test_the_folder_of_a_user_who_is_not_there_is_named(write: Write) -> None:
    message = refused(write(FILES.replace("triples.tsv", "~nobody-of-that-name/kb.tsv")))
    assert "dataset.graph.path = '~nobody-of-that-name/kb.tsv'" in message


# The hash, and the way through Prefect's JSON


def test_the_hash_is_of_what_shapes_results_and_of_nothing_else(write: Write) -> None:
    path = write(EMBEDDED)
    first = config_hash(read_config(path))
    assert len(first) == 64
    same = ["runtime.threads=2", "runtime.home=elsewhere", "cluster.workers=5", "tracking.enabled=false"]
    assert {config_hash(read_config(path, [setting])) for setting in same} == {first}
    other = [
        "explorer.epochs=9",
        "explorer.seeds=[1]",
        "dataset.reenter_topic=true",
        "encoder.dim=16",
        "evaluation.split=dev",
    ]
    assert len({first, *(config_hash(read_config(path, [setting])) for setting in other)}) == 6


@pytest.mark.parametrize("text", [EMBEDDED, FILES, FILES.replace("path: questions.jsonl", "files: {dev: d, test: t}")])
def test_a_configuration_comes_back_from_json_as_it_was(write: Write, text: str) -> None:
    """A deployment's parameters are JSON: paths are text there, and tuples are lists."""
    config = read_config(write(text), ["explorer.seeds=[2, 3]", "explorer.learning_rate=1"])
    dumped = config.model_dump(mode="json")
    assert RunConfig.model_validate(dumped) == config
    assert RunConfig.model_validate(json.loads(json.dumps(dumped))) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(dumped))) == config
    assert config_hash(RunConfig.model_validate(dumped)) == config_hash(config)


@pytest.mark.parametrize("text", [EMBEDDED, FILES])
def test_a_configuration_passes_through_prefects_parameters_as_it_was(write: Write, text: str) -> None:
    from flows.pipeline import retrain

    config = read_config(write(text), ["explorer.seeds=[2, 3]"])
    stored = json.loads(json.dumps(retrain.serialize_parameters({"config": config})))
    assert retrain.validate_parameters(stored) == {"config": config}
    assert retrain.validate_parameters({"config": config}) == {"config": config}


def test_nothing_changes_after_reading(write: Write) -> None:
    config = read_config(write(EMBEDDED))
    with pytest.raises(ValidationError, match="frozen"):
        config.explorer.epochs = 3  # type: ignore[misc]


NSM = """\
dataset:
  name: webqsp
  source: files
  graph: {format: nsm}
  questions: {format: nsm, path: dev.jsonl}
encoder: {kind: hash}
explorer: {steps: 2, edge_budget: 10, epochs: 1}
"""


def test_triples_of_format_nsm_may_come_from_the_question_files(write: Write) -> None:
    config = read_config(write(NSM), ["dataset.subgraphs=question"])
    assert isinstance(config.dataset, FileDataset)
    assert (config.dataset.graph.path, config.dataset.subgraphs.method) == (None, "question")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.graph.format=tsv", "give 'path'; only triples of format nsm or rog may come from the question"),
        (
            "dataset.questions.format=jsonl",
            "graph: give 'path'; only questions of its own format, nsm or rog, hold triples",
        ),
        ("dataset.subgraphs=own", "dataset.subgraphs.method = 'own': legal are none, question, expand, pagerank"),
    ],
)
def test_triples_from_nowhere_are_refused(write: Write, override: str, message: str) -> None:
    assert message in refused(write(NSM), override)


def test_rows_of_rog_hold_the_triples_as_nsm_lines_do(write: Write) -> None:
    config = read_config(write(NSM.replace("format: nsm", "format: rog")), ["dataset.subgraphs=question"])
    assert isinstance(config.dataset, FileDataset)
    assert (config.dataset.graph.format, config.dataset.questions.format) == ("rog", "rog")
    mixed = NSM.replace("graph: {format: nsm}", "graph: {format: rog}")
    assert "graph: give 'path'; only questions of its own format" in refused(write(mixed))


def test_a_subgraph_per_question_needs_the_triples_of_the_question_files(write: Write) -> None:
    needs = "subgraphs: 'question' needs graph: {format: nsm} or {format: rog}, without a path"
    assert needs in refused(write(NSM), "dataset.subgraphs=question", "dataset.graph.path=train.jsonl")
    assert needs in refused(write(FILES), "dataset.subgraphs=question")


def test_subgraphs_that_are_cut_have_settings_and_others_have_none(write: Write) -> None:
    config = read_config(write(FILES), ["dataset.subgraphs={method: pagerank, max_entities: 500}"])
    assert isinstance(config.dataset, FileDataset)
    assert (config.dataset.subgraphs.is_cut, config.dataset.subgraphs.max_entities) == (True, 500)
    cut = "settings of subgraphs that are cut go with 'method: expand' or 'method: pagerank'"
    assert cut in refused(write(FILES), "dataset.subgraphs={hops: 3}")
    ranked = "'max_entities' goes with 'method: pagerank'"
    assert ranked in refused(write(FILES), "dataset.subgraphs={method: expand, max_entities: 7}")
    typo = "unknown key 'dataset.subgraphs.cap' (value 7); legal keys: cvt_is_hop, drop_relations, group_cap"
    assert typo in refused(write(FILES), "dataset.subgraphs={method: expand, cap: 7}")


# Whatever is in the file: a configuration, or an error that says why not

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("${KGQA_DATA}/x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=7), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["dataset", "encoder", "explorer", "runtime", "name", "dataset.name", "dataset.source", "dataset.graph"]
KEYS += [
    "dataset.questions",
    "dataset.questions.files",
    "dataset.graph.path",
    "encoder.kind",
    "explorer.seeds",
    "runtime.home",
]


@given(key=st.sampled_from(KEYS), value=values)
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


# Settings from another file


def test_settings_of_another_file_have_its_paths_and_later_ones_win(write: Write, tmp_path: Path) -> None:
    settings = [
        Setting("dataset.questions.path", "own.jsonl", "the sweep", tmp_path / "sweeps"),
        Setting("encoder", {"kind": "local", "path": "my encoder"}, "the sweep", tmp_path / "sweeps"),
        Setting("encoder.pooling", "first_last", "the sweep", tmp_path / "sweeps"),
        Setting("explorer.epochs", 3, "the sweep"),
        Setting("explorer.epochs", 5, "the command line"),
    ]
    config = configure(write(FILES), settings)
    assert isinstance(config.dataset, FileDataset)
    assert config.dataset.graph.path == tmp_path / "triples.tsv"
    assert config.dataset.questions.path == tmp_path / "sweeps/own.jsonl"
    assert config.encoder.model_dump()["path"] == tmp_path / "sweeps/my encoder"
    assert config.encoder.model_dump()["pooling"] == "first_last"
    assert config.explorer.epochs == 5
    assert settings[1].value == {"kind": "local", "path": "my encoder"}, "a setting is used for several runs"


def test_an_error_says_where_a_setting_came_from(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^the run of the sweep is not usable:\n.*'explorer.epoch'.*'epochs'"):
        configure(write(EMBEDDED), [Setting("explorer.epoch", 3, "the sweep")], source="the run of the sweep")
    with pytest.raises(ConfigError, match=r"^the sweep: 'epochs' is a value, not a section"):
        configure(write(EMBEDDED), [Setting("explorer.epochs.deep", 3, "the sweep")])


@pytest.mark.parametrize("given", [1, 40, "all", None])
def test_the_edge_budget_of_an_evaluation_is_a_number_or_all(write: Write, given: object) -> None:
    assert configure(write(EMBEDDED), [Setting("evaluation.edge_budget", given, "")]).evaluation.edge_budget == given


@pytest.mark.parametrize("given", ["0", "2.5", "true", "some"])
def test_another_edge_budget_is_refused(write: Write, given: str) -> None:
    message = r"evaluation.edge_budget = \S+: must be a number of edges, 1 or more, or: all"
    assert re.search(message, refused(write(EMBEDDED), f"evaluation.edge_budget={given}"))
