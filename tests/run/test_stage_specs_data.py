"""Specs of data and explorer: what shapes an artifact is in its spec, by content; what is of the machine is in none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.graph.search_graph import open_subgraphs
from kgqa_core.questions.build import read_questions
from kgqa_core.run.open import graph_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import REQUIRED, StageSpec, stage_specs
from kgqa_core.systems.given import GIVEN, GivenSection
from kgqa_core.tracking import Recorder
from tests.run.specs import another, assert_in_order, changed, settings_of, specs_of

STAGES = ["graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]
TRAINED, JUDGED = "explorer-seed0", "evaluation-seed0"
DUMP, CUT = "dataset.graph={format: freebase, path: data}", "dataset.subgraphs={method: pagerank, hops: 3}"
SHAPED_BY: dict[tuple[str, ...], str] = {
    ("graph",): "dataset.graph.max_reject_ratio dataset.graph.inverse_suffix dataset.graph.columns "
    "dataset.graph.delimiter dataset.graph.header",
    ("questions",): "dataset.questions.max_reject_ratio dataset.questions.train_size dataset.questions.draw "
    "dataset.questions.max_missing_ratio dataset.questions.hold_out_templates",
    ("questions", TRAINED, "controls"): "dataset.reenter_topic explorer.steps",
    ("encodings", TRAINED): "encoder.dim explorer.mask_topics explorer.variant",
    (TRAINED,): "explorer.width explorer.edge_budget explorer.epochs explorer.batch_size explorer.learning_rate "
    "explorer.warmup_steps explorer.weight_decay explorer.loss explorer.prune_after explorer.prune_below "
    "explorer.patience explorer.question_noise explorer.precision explorer.learn_dev",
    (JUDGED,): "evaluation.evidence_paths evaluation.edge_budget evaluation.attention_threshold evaluation.passes",
    ("controls", JUDGED): "evaluation.split",
}
SHAPING = {name: set(stages) for stages, names in SHAPED_BY.items() for name in names.split()}
OF_DUMP = {
    **dict.fromkeys(("namespaces", "names", "aliases", "types", "language", "keep_types", "keep_foreign"), "dump"),
    **dict.fromkeys(("noise", "max_reject_ratio"), "dump"),
    **dict.fromkeys(("hops", "cvt_is_hop", "hub_cap", "names_relations"), "graph"),
}
OF_CUT = ("method", "hops", "group_cap", "cvt_is_hop", "drop_relations", "max_triples", "max_entities")
# Settings that are in specs in another way, each with a test of its own below: files by content, seeds as stages.
OTHERWISE = {f"dataset.graph.{name}" for name in ("path", "names", "format", *OF_DUMP)}
OTHERWISE |= {f"dataset.questions.{name}" for name in ("path", "files", "hops", "dev_ids", "format", "variant")}
OTHERWISE |= {f"dataset.subgraphs.{name}" for name in OF_CUT} | {"dataset.seed"}
OTHERWISE |= {"encoder.path", "encoder.pooling", "encoder.kind"}
OTHERWISE |= {f"explorer.{name}" for name in ("seeds", "init_from", "init_attention", "also_train_on", "cpu_minutes")}
LABELS = {"name", "dataset.name", "dataset.source"}  # shown to people; the source decides which stages there are
MACHINE = ("runtime.", "cluster.", "tracking.", "dataset.drift.")  # the last stop a run, and shape nothing
ELSEWHERE = ("plans.", "lm.", "roles.", "reasoner.", "dense.", "prompts", "dataset.plan_files", "dataset.max_reject")
ELSEWHERE += ("systems.", "gate.")


@pytest.mark.parametrize("setting", SHAPING)
def test_a_setting_changes_the_stages_that_it_shapes(films: Path, setting: str) -> None:
    assert changed(films, another(films, setting)) == SHAPING[setting]


def test_formats_encoders_and_variants_change_what_reads_them(films: Path) -> None:
    assert changed(films, "dataset.graph.format=csv") == {"graph"}
    assert changed(films, "encoder={kind: minilm}") == {"encodings", TRAINED}
    metaqa(films.parent / "data/questions", *(f"1-hop/qa_{split}.txt" for split in ("train", "dev", "test")))
    assert changed(films, "dataset.questions.format=metaqa") == {"questions"}
    (films.parent / "data/questions/WebQSP.train.json").touch()
    (films.parent / "dev.txt").write_text("q1\n")
    webqsp = ("dataset.questions.format=webqsp",)
    assert changed(films, "dataset.questions.variant=rog", base=webqsp) == {"questions"}
    listed = ("dataset.questions.variant=etd", "dataset.questions.dev_ids=dev.txt")
    found = {key: sorted(spec.files) for key, spec in specs_of(films, *webqsp, *listed).items() if spec.files}
    assert found == {"graph": ["triples"], "questions": ["questions/WebQSP.train.json", "questions/dev_ids"]}


def test_a_folder_of_lines_is_one_graph(films: Path) -> None:
    (deeper := films.parent / "parts" / "year=2024").mkdir(parents=True)
    for name in ("part-0.csv", "part-1.csv.gz", "_SUCCESS", "notes.txt", "part-1.tsv"):
        (deeper.parent / name).touch()
    found = specs_of(films, "dataset.graph={format: csv, path: parts}")["graph"].files
    assert sorted(found) == ["triples/part-0.csv", "triples/part-1.csv.gz"]
    (deeper / "part-2.csv.gz").touch()
    with pytest.raises(ConfigError, match=r"year=2024/part-2\.csv\.gz lies deeper and would be left out"):
        specs_of(films, "dataset.graph={format: csv, path: parts}")
    shutil.rmtree(deeper)
    (deeper.parent / "part-3.csv").symlink_to("nowhere.csv")
    pipeline = Pipeline(read_config(films, ["dataset.graph={format: csv, path: parts}"]))
    with pytest.raises(InputError, match=r"part-3\.csv does not exist"):
        pipeline.make("graph")


def test_a_folder_of_parquet_files_is_one_graph(films: Path) -> None:
    folder = films.parent / "parts"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"parts holds no \.parquet file"):
        specs_of(films, "dataset.graph={format: parquet, path: parts}")
    for number in range(2):
        table = pa.table({"s": [f"s{number}"], "r": ["r"], "o": ["o"], "weight": [number]})
        pq.write_table(table, folder / f"part-{number}.parquet")
    (folder / "_SUCCESS").touch()
    pipeline = Pipeline(read_config(films, ["dataset.graph={format: parquet, path: parts, columns: [s, r, o]}"]))
    assert sorted(pipeline.specs["graph"].files) == ["triples/part-0.parquet", "triples/part-1.parquet"]
    assert pipeline.make("graph").artifact.folder.joinpath("triples-0000.parquet").is_file()
    assert graph_of(pipeline).entity_labels == ["o", "s0", "s1"]
    for name in ("_delta_log", "year=2024/month=1"):
        (folder / name).mkdir(parents=True)
        shutil.copy(folder / "part-0.parquet", folder / name)
        if name != "_delta_log":  # a table's own notes are no part of it
            with pytest.raises(ConfigError, match=r"month=1/part-0\.parquet lies deeper and would be left out"):
                specs_of(films, "dataset.graph={format: parquet, path: parts}")
        else:
            specs_of(films, "dataset.graph={format: parquet, path: parts}")
    shutil.rmtree(folder / "year=2024")
    for number in range(2):
        path = folder / f"part-{number}.parquet"
        path.rename(path.with_suffix(".parquet.gz"))
        with pytest.raises(ConfigError, match=r"part-0\.parquet\.gz is packed and would be left out"):
            specs_of(films, "dataset.graph={format: parquet, path: parts}")


def test_no_setting_is_forgotten_here() -> None:
    found = {name for name in settings_of(RunConfig) if not name.startswith((*MACHINE, *ELSEWHERE))}
    assert found == SHAPING.keys() | OTHERWISE | LABELS


TLS = ("cluster.address=tls://there:8786", *(f"cluster.tls_{name}={name}.pem" for name in ("ca", "cert", "key")))


@pytest.mark.parametrize("setting", sorted(name for name in settings_of(RunConfig) if name.startswith(MACHINE)))
def test_a_setting_of_the_machine_or_a_guard_changes_nothing(films: Path, setting: str) -> None:
    base = TLS if setting.startswith("cluster.tls_") else ()  # those go together
    override = "runtime.home=elsewhere" if setting == "runtime.home" else another(films, setting, *base)
    assert specs_of(films, *base, override) == specs_of(films)
    assert specs_of(films, "name=another", "dataset.name=another") == specs_of(films)


def test_the_cap_on_a_training_counts_where_no_epochs_are_given(films: Path) -> None:
    assert changed(films, "explorer.cpu_minutes=9", base=("explorer.epochs=null",)) == {TRAINED}
    assert changed(films, "explorer.cpu_minutes=9") == set()


def test_of_the_gate_only_the_share_of_its_questions_shapes_a_stage(films: Path) -> None:
    assert changed(films, "gate={share: 0.2}") == {"questions"}
    told = "{share: 0.2, margin: 0.5, slice_margin: 3, min_slice: 9, min_gain: 1, min_lift: 1, max_seconds: 9}"
    assert specs_of(films, f"gate={told}") == specs_of(films, "gate={share: 0.2}")


# Which stages there are


def test_seeds_are_stages_and_the_first_ones_do_not_depend_on_how_many_there_are(films: Path) -> None:
    one, three = specs_of(films), specs_of(films, "explorer.seeds=[0, 2, 5]")
    assert list(one) == STAGES
    assert {key: three[key] for key in one} == one
    assert three["evaluation-seed5"].needs == ("graph", "questions", "encodings", "explorer-seed5", "controls")
    assert three["explorer-seed5"].section == {**one["explorer-seed0"].section, "seed": 5}
    assert_in_order(three)


def test_the_embedded_dataset_is_a_stage_with_a_seed(tiny_config: RunConfig) -> None:
    specs = {spec.key: spec for spec in stage_specs(tiny_config)}
    assert specs["dataset"].section == {"seed": 0}
    assert (specs["graph"].needs, specs["questions"].needs) == (("dataset",), ("dataset", "graph"))
    assert_in_order(specs)


def freebase_specs(films: Path, *more: str) -> dict[str, StageSpec]:
    for name in ("1.nt.gz", "2.nt"):
        (films.parent / "data" / name).touch()
    return specs_of(films, DUMP, *more)


def test_a_dump_is_parsed_file_by_file_and_the_graph_is_what_topics_reach(films: Path) -> None:
    specs = freebase_specs(films)
    dumps = ["dump-1.nt.gz", "dump-2.nt"]
    assert list(specs)[:5] == [*dumps, "topics", "graph", "questions"]
    assert specs["graph"].needs == (*dumps, "topics")
    assert list(specs["dump-2.nt"].files) == ["2.nt"]  # rejects name the file
    whole = freebase_specs(films, "dataset.graph.hops=null")  # without a limit of steps no topics are read
    assert "topics" not in whole
    assert list(whole["graph"].needs) == dumps
    for setting, stage in OF_DUMP.items():
        found = changed(films, another(films, f"dataset.graph.{setting}", DUMP), base=(DUMP,))
        assert {key.partition("-")[0] for key in found} - {"topics"} == {stage}, setting
    assert changed(films, "dataset.questions.train_size=11", base=(DUMP,)) == {"questions"}  # the same topics
    (films.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no \.nt, \.nq, .* file"):
        specs_of(films, "dataset.graph={format: freebase, path: empty}")
    (films.parent / "data" / "README.md").touch()
    assert freebase_specs(films).keys() == specs.keys()
    (films.parent / "data" / "3.nt.bz2").touch()
    with pytest.raises(ConfigError, match=r"data/3\.nt\.bz2 is packed and would be left out"):
        freebase_specs(films)


def test_with_a_subgraph_per_question_all_that_walks_reads_them(films: Path) -> None:
    for split in ("train", "dev", "test"):
        (films.parent / f"data/questions/{split}.jsonl").write_text("{}\n", encoding="utf-8")
    nsm = ("dataset.graph={format: nsm}", "dataset.questions.format=nsm")
    whole, own = specs_of(films, *nsm), specs_of(films, *nsm, "dataset.subgraphs=question")
    assert list(own) == ["graph", "subgraphs", *(key for key in STAGES if key != "graph")]
    assert own["subgraphs"].files == own["questions"].files == own["graph"].files
    readers = {key for key, spec in own.items() if "subgraphs" in spec.needs}
    assert readers == {"questions", TRAINED, "controls", JUDGED}
    assert {key: spec.section for key, spec in own.items() if key != "subgraphs"} == {
        key: spec.section for key, spec in whole.items()
    }


@pytest.mark.parametrize("form", ["nsm", "paths"])
def test_lines_without_ids_in_two_files_of_one_name_are_told_apart(films: Path, form: str) -> None:
    for split, who in (("train", "Ada"), ("test", "Bob")):
        line = {"question": f"Where is {who}?", "entities": [who], "answers": ["Rome"]}
        line |= {"subgraph": {"tuples": [[who, "lives_in", "Rome"]]}, "paths": [[who, "lives_in", "Rome"]]}
        (films.parent / split).mkdir()
        (films.parent / split / "own.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    files = f"{{format: {form}, files: {{train: train/own.jsonl, test: test/own.jsonl}}}}"
    settings = (f"dataset.graph={{format: {form}}}", f"dataset.questions={files}", "dataset.subgraphs=question")
    run = Pipeline(read_config(films, settings))
    folders = {key: run.make(key).artifact.folder for key in ("graph", "subgraphs", "questions")}
    ids = [one.id for one in read_questions(folders["questions"])]
    assert ids == ["train-own-1", "test-own-1"]
    assert open_subgraphs(folders["subgraphs"]).block_of.keys() == set(ids)
    if form == "paths":
        search = SimpleNamespace(whole=None)
        parts = SimpleNamespace(pipeline=run, settings=GivenSection(), search=search, prompts=None, seed=0)
        lines = GIVEN.open(parts).lines
        assert {id: line.question for id, line in lines.items()} == {ids[0]: "Where is Ada?", ids[1]: "Where is Bob?"}


def test_subgraphs_that_are_cut_follow_the_questions_and_all_that_walks_reads_them(films: Path) -> None:
    whole, cut = specs_of(films), specs_of(films, CUT)
    assert list(cut)[:3] == ["graph", "questions", "subgraphs"]
    assert cut["subgraphs"].needs == ("graph", "questions")
    assert {key for key, spec in cut.items() if "subgraphs" in spec.needs} == {TRAINED, "controls", JUDGED}
    assert cut["questions"] == whole["questions"]
    assert list(freebase_specs(films, CUT))[3:6] == ["graph", "questions", "subgraphs"]
    for setting in OF_CUT:
        override = "method=expand" if setting == "method" else another(films, f"dataset.subgraphs.{setting}", DUMP, CUT)
        override = f"dataset.subgraphs.{override.removeprefix('dataset.subgraphs.')}"
        assert changed(films, override, base=(DUMP, CUT)) == {"subgraphs"}


# Files: all that are read, none that are not


def test_files_are_known_by_names_that_are_free_of_the_machine(films: Path) -> None:
    data = films.parent / "data"
    assert specs_of(films)["graph"].files == {"triples": data / "triples.tsv"}
    named = specs_of(films, "dataset.graph.names=data/names.tsv")["graph"]
    assert named.files == {"triples": data / "triples.tsv", "names": data / "names.tsv"}
    assert named.section == specs_of(films)["graph"].section
    (data / "questions/predictions.jsonl").touch()
    assert specs_of(films)["questions"].files == {
        f"questions/{split}.jsonl": data / f"questions/{split}.jsonl" for split in ("train", "dev", "test")
    }
    one = specs_of(films, "dataset.questions.path=data/questions/train.jsonl")["questions"]
    assert one.files == {"questions/train.jsonl": data / "questions/train.jsonl"}  # the name goes into question ids
    for spec in specs_of(films).values():
        assert str(films.parent) not in json.dumps([spec.key, spec.stage, dict(spec.section), list(spec.files)])


def metaqa(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_of_metaqa_the_chosen_hops_or_files_are_read_with_their_chains(films: Path) -> None:
    folder, splits = films.parent / "asked", ("dev", "test", "train")
    plain = [f"{hop}-hop/qa_{split}{chain}.txt" for hop in (1, 2) for split in splits for chain in ("", "_qtype")]
    official = [f"3-hop/vanilla/qa_{split}.txt" for split in splits]
    others = ("3-hop/qa_test_qtype.txt", "3-hop/ntm/qa_test.txt", "1-hop/notes.txt", "old-hop/qa_dev.txt")
    metaqa(folder, *plain, *official, *others)
    asked = "dataset.questions={format: metaqa, path: asked"
    two = specs_of(films, f"{asked}, hops: [1, 3]}}")["questions"]
    wanted = [*plain[:6], *official, "3-hop/qa_test_qtype.txt"]
    assert two.files == {f"questions/{name}": folder / name for name in wanted}
    assert two.section["hops"] == [1, 3]
    assert len(specs_of(films, f"{asked}}}")["questions"].files) == 12 + 4  # none of the last three
    single = films.parent / "single"
    names = ("qa_train.txt", "qa_train_qtype.txt", "vanilla/qa_test.txt", "qa_test_qtype.txt", "qa_dev.txt")
    metaqa(single, *names)
    files = "{train: single/qa_train.txt, test: single/vanilla/qa_test.txt, dev: single/qa_dev.txt}"
    found = specs_of(films, f"dataset.questions={{format: metaqa, files: {files}}}")["questions"].files
    assert {name.removeprefix("questions/"): path for name, path in found.items()} == {
        "train/qa_train.txt": single / names[0],
        "train/qa_train.txt qa_train_qtype.txt": single / names[1],
        "test/qa_test.txt": single / names[2],
        "test/qa_test.txt qa_test_qtype.txt": single / names[3],
        "dev/qa_dev.txt": single / names[4],
    }


def test_of_other_formats_what_stands_beside_or_is_chosen_is_read(films: Path) -> None:
    metaqa(films.parent, "cup/1-hop.txt", "cup/2-hop.txt", "cup/kb.txt", "empty/notes.md")
    metaqa(films.parent, *(f"nsm/{name}" for name in ("train_simple.json", "entities.txt", "relations.txt")))
    for hops, names in (("", ["1-hop.txt", "2-hop.txt"]), (", hops: [2]", ["2-hop.txt"])):
        found = specs_of(films, f"dataset.questions={{format: wc2014, path: cup{hops}}}")["questions"].files
        assert list(found) == [f"questions/{name}" for name in names]
    nsm = specs_of(films, "dataset.graph={format: nsm}", "dataset.questions={format: nsm, path: nsm}")["graph"].files
    assert set(nsm) == {"questions/train_simple.json", "questions/entities.txt", "questions/relations.txt"}
    for form, wanted in (("jsonl", "train.jsonl"), ("metaqa", "1-hop/qa_train.txt"), ("wc2014", "1-hop.txt")):
        with pytest.raises(ConfigError, match=rf"dataset.questions.path: .*empty .*{wanted}"):
            specs_of(films, f"dataset.questions={{format: {form}, path: empty}}")


def test_a_local_encoder_is_known_by_the_files_that_shape_encodings_and_the_default_one_by_its_weights(
    films: Path,
) -> None:
    from kgqa_core.text.transformer import SHA256

    assert SHA256 in specs_of(films, "encoder={kind: minilm}")["encodings"].section["identity"]
    folder = films.parent / "models" / "tiny"
    metaqa(folder, "model.safetensors", "config.json", "vocab.txt", "README.md", "pytorch_model.bin")
    local = "encoder={kind: local, path: models/tiny, pooling: first_last}"
    specs = specs_of(films, local)
    names = ("config.json", "model.safetensors", "vocab.txt")
    for key in ("encodings", TRAINED):  # the checkpoint names its encoder
        assert specs[key].files == {f"encoder/{name}": folder / name for name in names}
    assert specs["encodings"].section == {"kind": "local", "pooling": "first_last", "version": 1}
    assert specs[TRAINED].section["encoder_pooling"] == "first_last"
    folder.rename(folder.with_name("renamed"))
    renamed = specs_of(films, local.replace("models/tiny", "models/renamed"))["encodings"]
    assert (renamed.section, renamed.files.keys()) == (specs["encodings"].section, specs["encodings"].files.keys())
    with pytest.raises(ConfigError, match=r"encoder.path: .*models/rename is no folder; did you mean 'renamed'"):
        specs_of(films, local.replace("models/tiny", "models/rename"))


# An explorer to start from


def make_ground(pipeline: Pipeline) -> Pipeline:
    """Make what an explorer reads, of one word."""
    for key in ("graph", "questions", "encodings"):
        if pipeline.find(key) is None:
            pipeline.make(key, write_required)
    return pipeline


def write_required(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Write what a stage must have written, of one word."""
    for name in REQUIRED[spec.stage]:
        file = folder / name.replace("*", "any")
        pq.write_table(pa.table({"made": ["made"]}), file) if file.suffix == ".parquet" else file.write_text("made")


def test_an_explorer_to_start_from_is_in_the_recipe_by_content_not_by_path(films: Path, tmp_path: Path) -> None:
    found = {}
    for name, weights in {"": "", "one": "weights", "same": "weights", "other": "other"}.items():
        overrides = [f"explorer.init_from={tmp_path / name}"] if name else []
        for file, text in {"model.json": "{}", "model.safetensors": weights}.items() if name else ():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(text, "utf-8")
        recipe = make_ground(Pipeline(read_config(films, overrides))).recipe(TRAINED)
        assert recipe is not None
        found[name] = recipe.fingerprint
    assert found["one"] == found["same"]
    assert len(set(found.values())) == 3


def test_a_run_to_start_from_is_waited_for_and_read_by_content(films: Path) -> None:
    first = films.with_name("first.yaml")
    first.write_text(films.read_text("utf-8"), "utf-8")
    start = "explorer.init_from=first.yaml"
    assert specs_of(films, "explorer.init_attention=0.5") == specs_of(films)  # it matters only where it is taken over
    assert changed(films, "explorer.init_attention=0.5", base=(start,)) == {TRAINED}
    pipeline = make_ground(Pipeline(read_config(films, [start, "explorer.epochs=9"])))
    assert pipeline.recipe(TRAINED) is None
    status = {stage.key: stage for stage in pipeline.status()}
    assert status[TRAINED].why == "waits for explorer-seed0 of first.yaml"
    other = pipeline.other_run(first)
    other.make(TRAINED, write_required)
    recipe = pipeline.recipe(TRAINED)
    assert recipe is not None
    assert recipe.inputs["init"] == other.artifact(TRAINED).content
    assert {stage.key: stage.why for stage in pipeline.status()}[TRAINED] == "never built"


def test_a_start_that_cannot_be_is_refused(films: Path) -> None:
    text = films.read_text("utf-8")
    for name, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        films.with_name(name).write_text(text.replace("explorer: {", f"explorer: {{init_from: {other}, ", 1), "utf-8")
    films.with_name("first.yaml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"b\.yaml depends on itself through other runs"):
        make_ground(Pipeline(read_config(films.with_name("a.yaml")))).recipe(TRAINED)
    with pytest.raises(ConfigError, match=r"explorer\.init_from: .*first\.yaml has another encoder"):
        specs_of(films, "explorer.init_from=first.yaml", "encoder.dim=37")
    with pytest.raises(
        ConfigError, match=r"explorer\.init_from: .*nowhere is no run configuration \(\.yaml\), folder or release"
    ):
        specs_of(films, "explorer.init_from=nowhere")
