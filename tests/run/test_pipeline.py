"""What a run's stages are made of, which of them are done, and why one is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.artifacts import Recipe
from kgqa_core.config import RunConfig, Section
from kgqa_core.config_file import read_config, variants_of
from kgqa_core.errors import ArtifactError, ConfigError, InputError
from kgqa_core.run.pipeline import Pipeline, differences
from kgqa_core.run.stages import StageSpec, known_stages, stage_specs

NUM_FILMS = 17
RUN = """\
dataset:
  name: films
  source: files
  graph: {format: tsv, path: data/triples.tsv}
  questions: {format: jsonl, path: data/questions}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 1}
"""
STAGES = ["graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]

Build = Callable[[Pipeline], list[str]]


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A run file with a graph and questions of its own beside it."""
    questions = tmp_path / "data" / "questions"
    questions.mkdir(parents=True)
    triples = [f"Film {n}\tdirected_by\tPerson {n % 5}\nFilm {n}\treleased\t{1950 + n % 3}" for n in range(NUM_FILMS)]
    (tmp_path / "data/triples.tsv").write_text("\n".join(triples) + "\n", encoding="utf-8")
    for split, numbers in {"train": range(11), "dev": range(11, 13), "test": range(13, 17)}.items():
        asked = [
            {"question": f"who directed Film {n}?", "topics": [f"Film {n}"], "answers": [f"Person {n % 5}"]}
            for n in numbers
        ]
        (questions / f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in asked), encoding="utf-8")
    (tmp_path / "films.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "films.yaml"


def pipeline_of(path: Path, *overrides: str) -> Pipeline:
    return Pipeline(read_config(path, overrides))


def states(pipeline: Pipeline) -> dict[str, tuple[str, str]]:
    """Return (state, why) of every stage."""
    return {status.key: (status.state, status.why) for status in pipeline.status()}


def fingerprints(pipeline: Pipeline) -> dict[str, str]:
    """Return the fingerprint of every stage of a run that is done."""
    return {key: pipeline.artifact(key).fingerprint for key in pipeline.specs}


# Where the stages stand


def test_of_a_run_that_was_never_made_every_stage_is_missing(films: Path) -> None:
    assert states(pipeline_of(films)) == {
        "graph": ("missing", "never built"),
        "questions": ("missing", "waits for graph"),
        "encodings": ("missing", "waits for graph, questions"),
        "explorer-seed0": ("missing", "waits for graph, questions, encodings"),
        "controls": ("missing", "waits for graph, questions"),
        "evaluation-seed0": ("missing", "waits for graph, questions, encodings, explorer-seed0, controls"),
    }


def test_of_a_run_that_was_made_every_stage_is_done_and_says_where(tiny_config: RunConfig) -> None:
    statuses = Pipeline(tiny_config).status()
    assert [status.key for status in statuses] == ["dataset", *STAGES]
    assert {(status.state, status.why) for status in statuses} == {("done", "")}
    for status in statuses:
        assert status.folder is not None
        assert status.folder.parent == tiny_config.runtime.home / "artifacts" / status.stage
        assert {"manifest.json", "tracking.json"} <= {path.name for path in status.folder.iterdir()}


def test_a_changed_setting_makes_its_stage_stale_and_those_after_it_wait(films: Path, build_stages: Build) -> None:
    assert build_stages(pipeline_of(films)) == STAGES
    changed = pipeline_of(films, "explorer.epochs=2", "evaluation.evidence_paths=1")
    assert states(changed) == {
        "graph": ("done", ""),
        "questions": ("done", ""),
        "encodings": ("done", ""),
        "explorer-seed0": ("stale", "epochs is 2, was 1"),
        "controls": ("done", ""),
        "evaluation-seed0": ("stale", "waits for explorer-seed0"),
    }
    old = next(status for status in changed.status() if status.key == "explorer-seed0")
    assert old.folder == pipeline_of(films).artifact("explorer-seed0").folder
    assert build_stages(changed) == ["explorer-seed0", "evaluation-seed0"]
    back = pipeline_of(films)
    assert {state for state, _ in states(back).values()} == {"done"}  # the old ones are still there
    assert build_stages(back) == []


def test_a_changed_question_file_makes_the_questions_stale(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    asked = films.parent / "data/questions/dev.jsonl"
    asked.write_text(asked.read_text(encoding="utf-8").replace("who directed", "who made"), encoding="utf-8")
    found = states(pipeline_of(films))
    assert found["graph"] == ("done", "")
    assert found["questions"] == ("stale", "input questions/dev.jsonl changed")
    assert found["encodings"] == ("stale", "waits for questions")
    assert found["evaluation-seed0"] == ("stale", "waits for questions, encodings, explorer-seed0, controls")
    assert build_stages(pipeline_of(films)) == [STAGES[1], "changes", *STAGES[2:]]


def test_a_question_file_more_is_named(films: Path, build_stages: Build) -> None:
    (films.parent / "data/questions/dev.jsonl").rename(films.parent / "dev.jsonl")
    build_stages(pipeline_of(films))
    (films.parent / "dev.jsonl").rename(films.parent / "data/questions/dev.jsonl")
    assert states(pipeline_of(films))["questions"] == ("stale", "input questions/dev.jsonl is new")


def test_a_damaged_artifact_is_named_and_only_it_is_made_again(
    tiny_copy: RunConfig, tiny_config: RunConfig, build_stages: Build
) -> None:
    folder = Pipeline(tiny_copy).artifact("encodings").folder
    (folder / "encodings.parquet").write_bytes(b"PAR1")
    found = states(Pipeline(tiny_copy))
    assert found["encodings"] == ("missing", "its artifact is gone or damaged")
    assert found["explorer-seed0"] == ("stale", "waits for encodings")
    assert found["controls"] == ("done", "")
    assert build_stages(Pipeline(tiny_copy)) == ["encodings"]
    assert fingerprints(Pipeline(tiny_copy)) == fingerprints(Pipeline(tiny_config))


@pytest.mark.parametrize(
    ("lost", "key", "why"),
    [
        ("data/triples.tsv", "graph", r"triples: .*triples.tsv does not exist. Nearest beside it: triples.csv"),
        ("data", "graph", r"triples: .*Its folder .* does not exist either"),
    ],
)
def test_a_missing_file_is_named_with_what_lies_beside_it(
    films: Path, build_stages: Build, lost: str, key: str, why: str
) -> None:
    build_stages(pipeline_of(films))
    (films.parent / "data/triples.csv").touch()
    pipeline = pipeline_of(films)
    (films.parent / lost).rename(films.parent / "hidden")
    state, reason = states(pipeline)[key]
    assert state == "stale"
    with pytest.raises(InputError, match=why):
        raise InputError(reason)
    assert states(pipeline)["questions"] == ("stale", "waits for graph")
    with pytest.raises(InputError, match=why):
        build_stages(pipeline)


def test_a_folder_where_a_file_should_be_is_named(films: Path) -> None:
    with pytest.raises(InputError, match=r"triples: cannot read .*data: Is a directory"):
        pipeline_of(films, "dataset.graph.path=data").recipe("graph")


def test_a_stage_that_another_run_made_counts_and_is_remembered(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    other = pipeline_of(films, "name=other")
    assert build_stages(other) == []
    changed = pipeline_of(films, "name=other", "explorer.width=11")
    assert states(changed)["explorer-seed0"] == ("stale", "width is 11, was 7")


def test_what_a_run_used_last_is_only_a_note(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    pipeline = pipeline_of(films)
    note = pipeline.home / "runs" / "films.json"
    assert set(json.loads(note.read_text())) == set(STAGES)
    for rubbish in ("", "[]", '{"graph": 5}', '{"graph": "../../etc"}'):
        note.write_text(rubbish)
        assert {state for state, _ in states(pipeline_of(films)).values()} == {"done"}
        assert states(pipeline_of(films, "explorer.width=11"))["explorer-seed0"] == ("missing", "never built")
    shutil.rmtree(note.parent)
    note.parent.write_text("no folder")
    assert build_stages(pipeline_of(films)) == []  # a note that cannot be written stops nothing


def test_what_is_not_done_cannot_be_opened_or_built_upon(films: Path) -> None:
    pipeline = pipeline_of(films)
    assert pipeline.recipe("questions") is None
    with pytest.raises(ArtifactError, match=r"stage 'graph' of 'films' is not done: make it with kgqa run"):
        pipeline.artifact("graph")
    with pytest.raises(ArtifactError, match=r"'questions' reads graph, of which not all are done.*kgqa status"):
        pipeline.build("questions", lambda folder: None)


def test_every_stage_is_looked_up_once(films: Path, build_stages: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stages read others: looked up anew at each reading they would be many."""
    build_stages(pipeline_of(films))
    pipeline = pipeline_of(films)
    looked_up: list[str] = []
    find = pipeline.store.find
    monkeypatch.setattr(pipeline.store, "find", lambda recipe: looked_up.append(recipe.stage) or find(recipe))
    assert pipeline.find("evaluation-seed0")
    assert sorted(looked_up) == sorted({spec.stage for spec in pipeline.specs.values()})
    looked_up.clear()
    pipeline.status()
    assert sorted(looked_up) == sorted({spec.stage for spec in pipeline.specs.values()})


# What an artifact's identity follows


def test_fingerprints_follow_content_and_neither_place_nor_time(
    films: Path, build_stages: Build, tmp_path: Path
) -> None:
    build_stages(pipeline_of(films))
    elsewhere = tmp_path / "another" / "folder"
    elsewhere.mkdir(parents=True)
    shutil.copytree(tmp_path / "data", elsewhere / "data", copy_function=shutil.copyfile)  # new times
    shutil.copyfile(films, elsewhere / "films.yaml")
    moved = pipeline_of(elsewhere / "films.yaml")
    assert build_stages(moved) == []
    assert fingerprints(moved) == fingerprints(pipeline_of(films))


def test_an_input_rebuilt_to_the_same_content_ends_there(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    before = fingerprints(pipeline_of(films))
    triples = films.parent / "data/triples.tsv"
    triples.write_text("".join(reversed(triples.read_text(encoding="utf-8").splitlines(keepends=True))))
    assert states(pipeline_of(films))["graph"] == ("stale", "input triples changed")
    assert build_stages(pipeline_of(films)) == ["graph"]
    after = fingerprints(pipeline_of(films))
    assert after.pop("graph") != before.pop("graph")
    assert after == before


def test_a_file_changed_while_it_was_read_makes_no_artifact(films: Path) -> None:
    pipeline = pipeline_of(films)

    def write(folder: Path) -> None:
        (folder / "graph.txt").write_text((films.parent / "data/triples.tsv").read_text(encoding="utf-8"))
        (films.parent / "data/triples.tsv").write_text("Film 0\tdirected_by\tPerson 3\n")

    with pytest.raises(InputError, match=r"triples: .*triples.tsv was changed while stage 'graph' read it"):
        pipeline.build("graph", write)
    assert pipeline.find("graph") is None


def test_a_new_version_of_a_stages_code_makes_it_stale(
    films: Path, build_stages: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_stages(pipeline_of(films))
    stages = known_stages()
    before = stages["controls"].version
    stages["controls"] = replace(stages["controls"], version=71)
    monkeypatch.setattr("kgqa_core.run.pipeline.known_stages", lambda: stages)
    found = states(pipeline_of(films))
    assert found["controls"] == ("stale", f"the stage's code is version 71, was {before}")
    assert found["explorer-seed0"] == ("done", "")
    assert found["evaluation-seed0"] == ("stale", "waits for controls")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Recipe("s", 1, {"hops": (1, 2)}, {"a": "x"}), Recipe("s", 1, {"hops": [1, 2]}, {"a": "x"}), []),
        (Recipe("s", 1, {"k": 1}, {}), Recipe("s", 1, {"k": True}, {}), ["k is True, was 1"]),
        (Recipe("s", 1, {"old": 1}, {}), Recipe("s", 1, {"new": 2}, {}), ["new is 2, was None", "old is None, was 1"]),
        (
            Recipe("s", 1, {}, {"gone": "x", "kept": "x", "other": "x"}),
            Recipe("s", 2, {}, {"came": "x", "kept": "x", "other": "y"}),
            [
                "the stage's code is version 2, was 1",
                "input came is new",
                "input gone is gone",
                "input other changed",
            ],
        ),
    ],
)
def test_differences_of_two_recipes_are_said_in_words(old: Recipe, new: Recipe, expected: list[str]) -> None:
    assert differences(old, new) == expected


# Specs are complete: a setting that shapes an artifact is in its spec, a setting of the machine is in none


def specs_of(path: Path, *overrides: str) -> dict[str, StageSpec]:
    return {spec.key: spec for spec in stage_specs(read_config(path, overrides))}


def changed_sections(path: Path, *overrides: str) -> set[str]:
    """Return the keys of the stages whose own section an override changes."""
    before, after = specs_of(path), specs_of(path, *overrides)
    assert before.keys() == after.keys()
    return {key for key in before if before[key].section != after[key].section}


TRAINED, JUDGED = "explorer-seed0", "evaluation-seed0"
SHAPING = {
    "dataset.reenter_topic=true": {"questions", TRAINED, "controls"},
    "dataset.graph.format=csv": {"graph"},
    "dataset.graph.max_reject_ratio=0.5": {"graph"},
    "dataset.graph.inverse_suffix=_inverse": {"graph"},
    "dataset.questions.format=metaqa": {"questions"},
    "dataset.questions.max_reject_ratio=0.5": {"questions"},
    "dataset.questions.variant=rog": {"questions"},
    "dataset.questions.train_size=11": {"questions"},
    "dataset.questions.hold_out_templates=0.2": {"questions"},
    "dataset.questions.draw=3": {"questions"},
    "encoder.dim=37": {"encodings", TRAINED},
    "encoder.kind=minilm": {"encodings", TRAINED},
    "explorer.steps=2": {"questions", TRAINED, "controls"},
    "explorer.width=11": {TRAINED},
    "explorer.edge_budget=11": {TRAINED},
    "explorer.epochs=2": {TRAINED},
    "explorer.batch_size=11": {TRAINED},
    "explorer.learning_rate=0.5": {TRAINED},
    "explorer.warmup_steps=11": {TRAINED},
    "explorer.variant=paper": {TRAINED, "encodings"},
    "explorer.weight_decay=0.5": {TRAINED},
    "explorer.mask_topics=false": {TRAINED, "encodings"},
    "explorer.loss=per_answer": {TRAINED},
    "explorer.prune_after=11": {TRAINED},
    "explorer.prune_below=0.5": {TRAINED},
    "explorer.patience=2": {TRAINED},
    "explorer.question_noise=0.1": {TRAINED},
    "explorer.precision=bfloat16": {TRAINED},
    "evaluation.split=dev": {"controls", JUDGED},
    "evaluation.evidence_paths=2": {JUDGED},
    "evaluation.edge_budget=3": {JUDGED},
    "evaluation.attention_threshold=0.3": {JUDGED},
    "evaluation.passes=3": {JUDGED},
}
# Settings that are in specs in another way, each with a test of its own below: files by content, seeds as stages.
OTHERWISE = {
    "dataset.graph.path",
    "dataset.graph.names",
    "dataset.graph.hops",
    "dataset.graph.cvt_is_hop",
    "dataset.graph.hub_cap",
    "dataset.graph.language",
    "dataset.graph.keep_types",
    "dataset.graph.noise",
    "dataset.questions.path",
    "dataset.questions.files",
    "dataset.questions.hops",
    "dataset.questions.dev_ids",
    "dataset.seed",
    "dataset.subgraphs.method",
    "dataset.subgraphs.hops",
    "dataset.subgraphs.group_cap",
    "dataset.subgraphs.cvt_is_hop",
    "dataset.subgraphs.drop_relations",
    "dataset.subgraphs.max_triples",
    "dataset.subgraphs.max_entities",
    "encoder.path",
    "encoder.pooling",
    "explorer.seeds",
    "explorer.init_from",
    "explorer.init_attention",
    "explorer.also_train_on",
}
LABELS = {"name", "dataset.name", "dataset.source"}  # shown to people; the source decides which stages there are
MACHINE = ("runtime.", "cluster.", "tracking.")
PLANNING = (
    "plans.",
    "lm.",
    "reasoner.",
    "dense.",
    "prompts",
    "dataset.plan_files",
    "dataset.max_reject",
)  # see test_stage_specs_lm.py
SYSTEMS = "systems."  # see test_stage_specs_systems.py
PLANNING_STAGES = {"supervision", "candidates", "instructions", "lm", "reasoner", "dense", "plans"}
COMPARING_STAGES = {"fusion", "system", "comparison"}
DRIFT = "dataset.drift."  # settings that stop a run, and shape nothing
GUARDED = (
    "dataset.drift.max_triples_change=0.5",
    "dataset.drift.max_entities_change=0.5",
    "dataset.drift.max_relation_change=null",
    "dataset.drift.relation_min_triples=7",
    "dataset.drift.max_questions_change=0.5",
    "dataset.drift.max_coverage_drop=1.5",
    "dataset.drift.max_name_coverage_drop=1.5",
    "dataset.drift.min_changed=7",
)


@pytest.mark.parametrize("override", SHAPING)
def test_a_setting_changes_the_stages_that_it_shapes(films: Path, override: str) -> None:
    if override == "encoder.kind=minilm":
        assert changed_sections(films, "encoder={kind: minilm}") == SHAPING[override]
    elif override == "dataset.questions.format=metaqa":
        metaqa(films.parent / "data/questions", *(f"1-hop/qa_{split}.txt" for split in ("train", "dev", "test")))
        assert changed_sections(films, override) == SHAPING[override]
    elif override == "dataset.questions.variant=rog":
        webqsp = as_webqsp(films)
        assert changed_sections(webqsp, override) == SHAPING[override]
    else:
        assert changed_sections(films, override) == SHAPING[override]


def as_webqsp(path: Path) -> Path:
    """Let a run read WebQSP's files."""
    (path.parent / "data/questions/WebQSP.train.json").touch()
    path.write_text(RUN.replace("format: jsonl", "format: webqsp"), encoding="utf-8")
    return path


def test_the_list_of_dev_questions_is_a_file_of_the_questions_alone(films: Path) -> None:
    webqsp = as_webqsp(films)
    (films.parent / "dev.txt").write_text("q1\n")
    specs = specs_of(webqsp, "dataset.questions.variant=etd", "dataset.questions.dev_ids=dev.txt")
    found = {key: sorted(spec.files) for key, spec in specs.items() if spec.files}
    assert found == {"graph": ["triples"], "questions": ["questions/WebQSP.train.json", "questions/dev_ids"]}


def settings_of(model: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of all settings in a section and those below it."""
    found: set[str] = set()
    for section in variants_of(model):
        for name, field in section.model_fields.items():
            inner = [part for part in variants_of(field.annotation) if issubclass(part, Section)]
            found |= settings_of(field.annotation, f"{prefix}{name}.") if inner else {prefix + name}
    return found


def test_no_setting_is_forgotten_here() -> None:
    known = {override.partition("=")[0] for override in SHAPING} | OTHERWISE | LABELS
    assert {
        name for name in settings_of(RunConfig) if not name.startswith((*MACHINE, *PLANNING, SYSTEMS, DRIFT))
    } == known
    guards = {override.partition("=")[0] for override in GUARDED}
    assert {name for name in settings_of(RunConfig) if name.startswith(DRIFT)} == guards


@pytest.mark.parametrize(
    "override",
    [
        "runtime.threads=2",
        "runtime.batch_size=7",
        "runtime.memory_limit=1GB",
        *GUARDED,
        "cluster.address=tcp://127.0.0.1:8786",
        "cluster.workers=3",
        "cluster.memory_limit=1GB",
        "cluster.spill_folder=spilled",
        "cluster.fan_out_bytes=5",
        "cluster.fan_out_questions=5",
        "runtime.device=cpu",
        "runtime.processes=2",
        "tracking.enabled=false",
        "tracking.register_models=false",
        "name=another",
        "dataset.name=another",
    ],
)
def test_a_setting_of_the_machine_or_a_label_changes_nothing(films: Path, override: str) -> None:
    assert specs_of(films, override) == specs_of(films)


def test_the_list_above_has_every_setting_of_the_machine() -> None:
    tried = {
        "processes",
        "threads",
        "batch_size",
        "workers",
        "fan_out_bytes",
        "fan_out_questions",
        "address",
        "spill_folder",
        "memory_limit",
        "device",
        "enabled",
        "register_models",
    }
    found = {name.partition(".")[2] for name in settings_of(RunConfig) if name.startswith(MACHINE)}
    assert found - {"home"} == tried  # every other test has a home of its own


def test_the_vocabulary_beside_nsm_files_is_among_what_is_read(films: Path) -> None:
    folder = films.parent / "nsm"
    folder.mkdir()
    for name in ("train_simple.json", "entities.txt", "relations.txt"):
        (folder / name).touch()
    nsm = ("dataset.graph={format: nsm}", "dataset.questions={format: nsm, path: nsm}")
    files = {"questions/train_simple.json", "questions/entities.txt", "questions/relations.txt"}
    assert set(specs_of(films, *nsm)["graph"].files) == files
    (folder / "relations.txt").unlink()
    assert set(specs_of(films, *nsm)["graph"].files) == {"questions/train_simple.json"}


FREEBASE = "dataset.graph={format: freebase, path: data}"


def freebase_specs(films: Path, *more: str) -> dict[str, StageSpec]:
    for name in ("1.nt.gz", "2.nt"):
        (films.parent / "data" / name).touch()
    return specs_of(films, FREEBASE, *more)


def test_a_dump_is_parsed_file_by_file_and_the_graph_is_what_topics_reach(films: Path) -> None:
    specs = freebase_specs(films)
    dumps = ["dump-1.nt.gz", "dump-2.nt"]
    assert list(specs)[:5] == [*dumps, "topics", "graph", "questions"]
    assert specs["graph"].needs == (*dumps, "topics")
    assert list(specs["dump-2.nt"].files) == ["2.nt"]  # rejects name the file


def test_without_a_limit_of_steps_no_topics_are_read(films: Path) -> None:
    specs = freebase_specs(films, "dataset.graph.hops=null")
    assert "topics" not in specs
    assert specs["graph"].needs == ("dump-1.nt.gz", "dump-2.nt")


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("dataset.graph.language=de", {"dump"}),
        ("dataset.graph.keep_types=true", {"dump"}),
        ("dataset.graph.noise=[user.]", {"dump"}),
        ("dataset.graph.max_reject_ratio=0.5", {"dump"}),
        ("dataset.graph.hops=4", {"graph"}),
        ("dataset.graph.cvt_is_hop=false", {"graph"}),
        ("dataset.graph.hub_cap=11", {"graph"}),
        ("dataset.questions.train_size=11", {"questions"}),  # other questions, no other topics to be read
    ],
)
def test_a_setting_of_a_dump_changes_the_stages_that_it_shapes(films: Path, override: str, changed: set[str]) -> None:
    before, after = freebase_specs(films), freebase_specs(films, override)
    assert {after[key].stage for key in after if after[key].section != before[key].section} == changed


def test_a_folder_without_a_dump_is_an_error(films: Path) -> None:
    (films.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no \.nt or \.gz file"):
        specs_of(films, "dataset.graph={format: freebase, path: empty}")


def test_seeds_are_stages_and_the_first_ones_do_not_depend_on_how_many_there_are(films: Path) -> None:
    one, three = specs_of(films), specs_of(films, "explorer.seeds=[0, 2, 5]")
    assert {key: three[key] for key in one} == one
    assert three["evaluation-seed5"].needs == ("graph", "questions", "encodings", "explorer-seed5", "controls")
    assert three["explorer-seed5"].section == {**one["explorer-seed0"].section, "seed": 5}


def test_the_embedded_dataset_is_a_stage_with_a_seed(tiny_config: RunConfig) -> None:
    specs = stage_specs(tiny_config)
    assert (specs[0].key, specs[0].section) == ("dataset", {"seed": 0})
    assert [spec.needs for spec in specs[1:3]] == [("dataset",), ("dataset", "graph")]


def test_stages_come_after_what_they_read_and_every_stage_has_a_version(films: Path, tiny_config: RunConfig) -> None:
    for specs in (list(specs_of(films, "explorer.seeds=[0, 1]").values()), stage_specs(tiny_config)):
        seen: set[str] = set()
        for spec in specs:
            assert set(spec.needs) <= seen
            seen.add(spec.key)
            assert known_stages()[spec.stage].version >= 1
    only_of_other_runs = {"subgraphs", "dump", "topics"} | PLANNING_STAGES | COMPARING_STAGES
    assert {spec.stage for spec in stage_specs(tiny_config)} == known_stages().keys() - only_of_other_runs


def test_with_a_subgraph_per_question_all_that_walks_reads_them(films: Path) -> None:
    for split in ("train", "dev", "test"):
        (films.parent / f"data/questions/{split}.jsonl").write_text("{}\n", encoding="utf-8")
    nsm = ("dataset.graph={format: nsm}", "dataset.questions.format=nsm")
    whole, own = specs_of(films, *nsm), specs_of(films, *nsm, "dataset.subgraphs=question")
    assert list(own) == ["graph", "subgraphs", *(key for key in STAGES if key != "graph")]
    assert own["subgraphs"].files == own["questions"].files == own["graph"].files
    readers = {key for key, spec in own.items() if "subgraphs" in spec.needs}
    assert readers == {"questions", "explorer-seed0", "controls", "evaluation-seed0"}
    assert {key: spec.section for key, spec in own.items() if key != "subgraphs"} == {
        key: spec.section for key, spec in whole.items()
    }


CUT = "dataset.subgraphs={method: pagerank, hops: 3}"


def test_subgraphs_that_are_cut_follow_the_questions_and_all_that_walks_reads_them(films: Path) -> None:
    whole, cut = specs_of(films), specs_of(films, CUT)
    assert list(cut)[:3] == ["graph", "questions", "subgraphs"]
    assert cut["subgraphs"].needs == ("graph", "questions")
    assert {key for key, spec in cut.items() if "subgraphs" in spec.needs} == {"explorer-seed0", "controls", JUDGED}
    assert cut["questions"] == whole["questions"]
    freebase = freebase_specs(films, CUT)
    assert list(freebase)[3:6] == ["graph", "questions", "subgraphs"]


@pytest.mark.parametrize(
    "setting",
    [
        "method=expand",
        "hops=4",
        "group_cap=7",
        "cvt_is_hop=false",
        "drop_relations=[a.]",
        "max_triples=7",
        "max_entities=7",
    ],
)
def test_settings_of_a_cut_change_the_cut_alone(films: Path, setting: str) -> None:
    before, after = specs_of(films, CUT), specs_of(films, CUT, f"dataset.subgraphs.{setting}")
    assert {key for key in after if after[key].section != before[key].section} == {"subgraphs"}


# Files: all that are read, none that are not


def test_the_graphs_files_are_triples_and_names(films: Path) -> None:
    assert specs_of(films)["graph"].files == {"triples": films.parent / "data/triples.tsv"}
    named = specs_of(films, "dataset.graph.names=data/names.tsv")["graph"]
    assert named.files == {"triples": films.parent / "data/triples.tsv", "names": films.parent / "data/names.tsv"}
    assert named.section == specs_of(films)["graph"].section


def test_of_a_jsonl_folder_the_three_splits_are_read(films: Path) -> None:
    questions = films.parent / "data/questions"
    (questions / "predictions.jsonl").touch()
    assert specs_of(films)["questions"].files == {
        f"questions/{split}.jsonl": questions / f"{split}.jsonl" for split in ("train", "dev", "test")
    }


def test_one_question_file_keeps_its_name_which_goes_into_question_ids(films: Path) -> None:
    path = films.parent / "data/questions/train.jsonl"
    found = specs_of(films, "dataset.questions.path=data/questions/train.jsonl")["questions"].files
    assert found == {"questions/train.jsonl": path}


def metaqa(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_of_a_metaqa_folder_the_chosen_hops_are_read_with_their_chains(films: Path) -> None:
    folder = films.parent / "asked"
    plain = [
        f"{hop}-hop/qa_{split}{chain}.txt"
        for hop in (1, 2)
        for split in ("dev", "test", "train")
        for chain in ("", "_qtype")
    ]
    official = [f"3-hop/vanilla/qa_{split}.txt" for split in ("dev", "test", "train")]
    metaqa(
        folder,
        *plain,
        *official,
        "3-hop/qa_test_qtype.txt",
        "3-hop/ntm/qa_test.txt",
        "1-hop/notes.txt",
        "old-hop/qa_dev.txt",
    )
    asked = "dataset.questions={format: metaqa, path: asked"
    two = specs_of(films, f"{asked}, hops: [1, 3]}}")["questions"]
    wanted = [*plain[:6], *official, "3-hop/qa_test_qtype.txt"]
    assert two.files == {f"questions/{name}": folder / name for name in wanted}
    assert two.section["hops"] == [1, 3]
    everything = specs_of(films, f"{asked}}}")["questions"]
    assert len(everything.files) == 12 + 4
    assert "questions/old-hop/qa_dev.txt" not in everything.files


def test_of_single_metaqa_files_the_chains_are_read_too(films: Path) -> None:
    folder = films.parent / "asked"
    metaqa(folder, "qa_train.txt", "qa_train_qtype.txt", "vanilla/qa_test.txt", "qa_test_qtype.txt", "qa_dev.txt")
    files = "{train: asked/qa_train.txt, test: asked/vanilla/qa_test.txt, dev: asked/qa_dev.txt}"
    found = specs_of(films, f"dataset.questions={{format: metaqa, files: {files}}}")["questions"].files
    assert found == {
        "questions/train/qa_train.txt": folder / "qa_train.txt",
        "questions/train/qa_train.txt qa_train_qtype.txt": folder / "qa_train_qtype.txt",
        "questions/test/qa_test.txt": folder / "vanilla/qa_test.txt",
        "questions/test/qa_test.txt qa_test_qtype.txt": folder / "qa_test_qtype.txt",
        "questions/dev/qa_dev.txt": folder / "qa_dev.txt",
    }


def test_worldcup_files_are_chosen_by_hops(films: Path) -> None:
    (films.parent / "cup").mkdir()
    for name in ("1-hop.txt", "2-hop.txt", "kb.txt"):
        (films.parent / "cup" / name).touch()
    for hops, names in (("", ["1-hop.txt", "2-hop.txt"]), (", hops: [2]", ["2-hop.txt"])):
        found = specs_of(films, f"dataset.questions={{format: wc2014, path: cup{hops}}}")["questions"].files
        assert list(found) == [f"questions/{name}" for name in names]


@pytest.mark.parametrize(
    ("format", "wanted"), [("jsonl", "train.jsonl"), ("metaqa", "1-hop/qa_train.txt"), ("wc2014", "1-hop.txt")]
)
def test_a_folder_without_question_files_is_named(films: Path, format: str, wanted: str) -> None:
    (films.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"dataset.questions.path: .*empty .*{wanted}"):
        specs_of(films, f"dataset.questions={{format: {format}, path: empty}}")


def test_a_local_encoder_is_known_by_the_files_that_shape_encodings(films: Path) -> None:
    folder = films.parent / "models" / "tiny"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "vocab.txt", "README.md", "pytorch_model.bin"):
        (folder / name).write_text(name)
    local = "encoder={kind: local, path: models/tiny, pooling: first_last}"
    specs = specs_of(films, local)
    names = ("config.json", "model.safetensors", "vocab.txt")
    for key in ("encodings", TRAINED):  # the checkpoint names its encoder
        assert specs[key].files == {f"encoder/{name}": folder / name for name in names}
    assert specs["encodings"].section == {"kind": "local", "pooling": "first_last", "version": 1}
    assert specs[TRAINED].section["encoder_pooling"] == "first_last"
    folder.rename(folder.with_name("renamed"))
    renamed = specs_of(films, local.replace("models/tiny", "models/renamed"))
    assert renamed["encodings"].section == specs["encodings"].section
    assert renamed["encodings"].files.keys() == specs["encodings"].files.keys()
    with pytest.raises(ConfigError, match=r"encoder.path: .*models/rename is no folder; nearest beside it: renamed"):
        specs_of(films, local.replace("models/tiny", "models/rename"))


def test_the_default_encoder_is_known_by_its_weights(films: Path) -> None:
    from kgqa_core.text.transformer import SHA256

    section = specs_of(films, "encoder={kind: minilm}")["encodings"].section
    assert SHA256 in section["identity"]


def test_no_spec_holds_a_path_of_the_machine(films: Path, tmp_path: Path) -> None:
    for spec in specs_of(films).values():
        assert str(tmp_path) not in json.dumps([spec.key, spec.stage, dict(spec.section), list(spec.files)])


def test_an_explorer_to_start_from_is_in_the_recipe_by_content_not_by_path(films: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "same", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "model.json").write_text("{}", "utf-8")
        (folder / "model.safetensors").write_text("other" if folder.name == "other" else "weights", "utf-8")
    recipes = []
    for folder in (None, *folders):
        pipeline = Pipeline(read_config(films, [] if folder is None else [f"explorer.init_from={folder}"]))
        for key in ("graph", "questions", "encodings"):
            if pipeline.find(key) is None:
                pipeline.build(key, lambda at: (at / "made.txt").write_text("made", "utf-8"))
        recipe = pipeline.recipe(TRAINED)
        assert recipe is not None
        recipes.append(recipe.fingerprint)
    fresh, one, same, other = recipes
    assert one == same
    assert len({fresh, one, other}) == 3


def test_how_attention_is_taken_over_matters_only_where_it_is(films: Path) -> None:
    assert specs_of(films, "explorer.init_attention=0.5") == specs_of(films)
    films.with_name("first.yaml").write_text(films.read_text("utf-8"), "utf-8")
    start = "explorer.init_from=first.yaml"
    one, other = specs_of(films, start), specs_of(films, start, "explorer.init_attention=0.5")
    assert {key for key in one if one[key] != other[key]} == {TRAINED}


def test_a_run_to_start_from_is_waited_for_and_read_by_content(films: Path) -> None:
    first = films.with_name("first.yaml")
    first.write_text(films.read_text("utf-8"), "utf-8")
    pipeline = Pipeline(read_config(films, ["explorer.init_from=first.yaml", "explorer.epochs=9"]))
    for key in ("graph", "questions", "encodings"):
        pipeline.build(key, lambda at: (at / "made.txt").write_text("made", "utf-8"))
    assert pipeline.recipe(TRAINED) is None
    status = {stage.key: stage for stage in pipeline.status()}
    assert status[TRAINED].why == "waits for explorer-seed0 of first.yaml"
    other = pipeline.other_run(first)
    other.build(TRAINED, lambda at: (at / "model.json").write_text("{}", "utf-8"))
    recipe = pipeline.recipe(TRAINED)
    assert recipe is not None
    assert recipe.inputs["init"] == other.artifact(TRAINED).content
    assert {stage.key: stage.why for stage in pipeline.status()}[TRAINED] == "never built"


def test_runs_that_start_from_each_other_are_refused(films: Path) -> None:
    text = films.read_text("utf-8")
    for name, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        films.with_name(name).write_text(text.replace("explorer: {", f"explorer: {{init_from: {other}, ", 1), "utf-8")
    pipeline = Pipeline(read_config(films.with_name("a.yaml")))
    with pytest.raises(ConfigError, match=r"b\.yaml depends on itself through other runs"):
        for key in ("graph", "questions", "encodings"):
            pipeline.build(key, lambda at: (at / "made.txt").write_text("made", "utf-8"))
        pipeline.recipe(TRAINED)


def test_another_encoder_is_refused_as_a_start(films: Path) -> None:
    first = films.with_name("first.yaml")
    first.write_text(films.read_text("utf-8"), "utf-8")
    with pytest.raises(ConfigError, match=r"explorer\.init_from: .*first\.yaml has another encoder"):
        stage_specs(read_config(films, ["explorer.init_from=first.yaml", "encoder.dim=37"]))


def test_a_start_that_is_neither_a_run_nor_a_folder_is_refused(films: Path) -> None:
    with pytest.raises(ConfigError, match=r"explorer\.init_from: .*nowhere is neither"):
        stage_specs(read_config(films, ["explorer.init_from=nowhere"]))
