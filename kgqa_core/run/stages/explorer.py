"""The stages of the explorer: encodings, one training per seed, the controls beside it, and its scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import JOURNAL, write_json
from kgqa_core.config import LocalEncoderSection, RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, nearest_beside
from kgqa_core.evaluation.figures import report_row
from kgqa_core.evaluation.metrics import join_scores, score_predictions
from kgqa_core.evaluation.predictions import Source, answer_stream, open_predictions
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import find_answerable
from kgqa_core.run import open as opening
from kgqa_core.run.open import explorer_key
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import OtherStage, Stage, StageSpec
from kgqa_core.run.stages.data import ground_keys, subgraph_keys, walk_of
from kgqa_core.schemas import ENCODINGS
from kgqa_core.systems.controls import fit_template_control, score_controls
from kgqa_core.systems.etd import AnswerCost
from kgqa_core.text import transformer
from kgqa_core.text.encoder import hash_text
from kgqa_core.tracking import Recorder, answers_metric, hop_metric

if TYPE_CHECKING:
    from kgqa_core.explorer.fit import QuestionSet

EXPLORER = "explorer"  # what MLflow calls it, too
CONFIG = (".yaml", ".yml")
CHUNK = 4096  # questions that are answered, written and scored together
SHOWN = ("hits1", "f1", "em", "coverage")


def _encodings_specs(config: RunConfig) -> Iterator[StageSpec]:
    if config.explorer is not None:
        section = encoder_identity(config)
        section |= {} if config.explorer.mask_topics else {"mask_topics": False}
        yield StageSpec("encodings", section, ("graph", "questions"), _encoder_files(config))


def encoder_identity(config: RunConfig) -> dict[str, Any]:
    """Return what the configuration and our code say about the encoder; of a local one, its files say the rest."""
    section = config.encoding.model_dump(mode="json", exclude={"path"})
    if isinstance(config.encoding, LocalEncoderSection):
        return {**section, "version": transformer.VERSION}
    return {**section, "identity": opening.encoder_of(config.encoding).name}


def _encoder_files(config: RunConfig) -> dict[str, Path]:
    encoder = config.encoding
    return folder_files(encoder.path, "encoder.path", "encoder") if isinstance(encoder, LocalEncoderSection) else {}


def folder_files(folder: Path, key: str, name: str) -> dict[str, Path]:
    """Return the files of a transformers folder that decide what it does, called ``name``; ``key`` is its setting."""
    if not folder.is_dir():
        raise ConfigError(f"{key}: {folder} is no folder{nearest_beside(folder)}")
    return {f"{name}/{path.name}": path for path in transformer.content_files(folder)}


def _explorer_specs(config: RunConfig) -> Iterator[StageSpec]:
    explorer = config.explorer
    if explorer is None:
        return
    idle = set() if explorer.init_from else {"init_attention"}
    idle |= ({"cpu_minutes"} if explorer.epochs else set()) | (set() if explorer.learn_dev else {"learn_dev"})
    section = explorer.model_dump(mode="json", exclude={"seeds", "init_from", "also_train_on", *idle})
    section["reenter_topic"] = config.dataset.reenter_topic
    section |= {"attention_threshold": 0.0} if explorer.variant == "paper" else {}  # K alone prunes
    # The checkpoint names its encoder, so the encoder shapes it even where two encode alike.
    section |= {f"encoder_{name}": value for name, value in encoder_identity(config).items()}
    files = _encoder_files(config)
    if (start := explorer.init_from) and start.suffix not in CONFIG:
        if not start.is_dir():
            raise ConfigError(f"explorer.init_from: {start} is no run configuration (.yaml), folder or release")
        files |= {f"init/{name}": start / name for name in ("model.json", "model.safetensors")}
    needs = (*ground_keys(config), "encodings")
    for seed in explorer.seeds:
        own, others = {**section, "seed": seed}, _other_runs(config, seed)
        yield StageSpec(f"explorer-seed{seed}", own, needs, files, others, system=EXPLORER)


def _other_runs(config: RunConfig, seed: int) -> dict[str, OtherStage]:
    found, explorer = {}, config.exploration
    if explorer.init_from is not None and explorer.init_from.suffix in CONFIG:
        other = _other_config(config, explorer.init_from, "init_from")
        found["init"] = OtherStage(explorer.init_from, explorer_key(other, seed))
    for number, conf in enumerate(explorer.also_train_on):
        other = _other_config(config, conf, "also_train_on")
        if other.exploration.mask_topics != explorer.mask_topics:
            raise ConfigError(f"explorer.also_train_on: {conf} has another explorer.mask_topics; both must read alike")
        for key in ("graph", *subgraph_keys(other), "questions", "encodings"):
            found[f"also{number}.{key}"] = OtherStage(conf, key)
    return found


def _other_config(config: RunConfig, conf: Path, key: str) -> RunConfig:
    other = read_config(conf)
    if other.encoding != config.encoding:
        raise ConfigError(f"explorer.{key}: {conf} has another encoder; an explorer carries over only with its encoder")
    return other


def _controls_specs(config: RunConfig) -> Iterator[StageSpec]:
    if config.explorer is not None:
        yield StageSpec("controls", {**walk_of(config), "split": config.evaluation.split}, ground_keys(config))


def _evaluation_specs(config: RunConfig) -> Iterator[StageSpec]:
    for seed in config.explorer.seeds if config.explorer else ():
        section = {**config.evaluation.model_dump(mode="json"), "seed": seed}
        needs = (*ground_keys(config), "encodings", f"explorer-seed{seed}", "controls")
        yield StageSpec(f"evaluation-seed{seed}", section, needs, system=EXPLORER)


# ------ How they are built.


def _encode(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Encode the distinct texts and relations that the cache does not hold yet, and keep what this run needs."""
    graph, masked = opening.graph_of(run), run.config.exploration.mask_topics
    asked = {question.asked(masked) for question in read_questions(run.artifact("questions").folder)}
    texts = sorted(asked.union(opening.relation_texts(graph)))
    vectors = opening.encode_all(run, texts)
    rows = {"key": [hash_text(text) for text in texts], "text": texts, "vector": list(vectors)}
    pq.write_table(pa.table(rows, schema=ENCODINGS), folder / opening.ENCODINGS_FILE, compression="zstd")
    recorder.metric("num_texts", len(texts))
    recorder.metric("encoding_dim", vectors.shape[1])


def _train(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Train, choose the thresholds on dev, save; a training that was killed goes on where it was."""
    from kgqa_core.explorer.fit import FitRun, fit_explorer

    section, start = run.config.exploration, spec.depends_on_run.get("init")
    init = run.other_run(start.conf).artifact(start.key).folder if start else section.init_from
    sets = [question_set(run), *(question_set(run.other_run(conf)) for conf in section.also_train_on)]
    threads, device = run.config.runtime.threads, opening.device_of(run.config)
    told = partial(run.progress, f"training explorer (seed {spec.seed})")
    fit = FitRun(folder, recorder, threads=threads, device=device, journal=folder / JOURNAL, progress=told)
    encoder = opening.encoder_of(run.config.encoding).name
    fit_explorer(sets, section, fit, seed=spec.seed, encoder=encoder, init_from=init)


def question_set(run: Pipeline) -> QuestionSet:
    """Return what a run's dataset teaches."""
    from kgqa_core.explorer.fit import QuestionSet

    questions, search = run.artifact("questions").folder, opening.search_graph(run)
    train, dev = (search.place(read_questions(questions, split)) for split in ("train", "dev"))
    encodings = opening.read_encodings(run.artifact("encodings").folder)
    return QuestionSet(search.graph, train=train, dev=dev, encodings=encodings, reenter_topic=search.reenter_topic)


def _fit_controls(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Fit the template control on training questions and score both controls on the evaluation split."""
    search = opening.search_graph(run)
    taught = search.place(read_questions(run.artifact("questions").folder, "train"))
    control = fit_template_control(search, taught, progress=partial(run.progress, "fitting the template control"))
    control.save(folder / "template_control.json")
    asked = search.place(opening.read_with_hops(run, run.config.evaluation.split))
    rows = score_controls(control, asked)
    write_json(folder / "scores.json", rows)
    for row in rows:
        recorder.metrics(row["overall"], "hits1", "f1", prefix=f"{row['role'].replace(' ', '_')}.")


def _evaluate(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Answer the evaluation split, score the answers, and put the controls beside the scores."""
    import torch

    config, system, split = run.config, opening.open_system(run, spec.seed), run.config.evaluation.split
    graph, search, name = system.graph, opening.search_graph(run), f"{EXPLORER} (seed {spec.seed})"
    questions = opening.read_with_hops(run, split)
    torch.set_num_threads(config.runtime.threads)
    # The compiled walk is loaded by a question that walks: it is no part of what answering costs.
    system.answer([one for one in questions if one.topics][:1])
    costs = [AnswerCost() for _ in range(config.evaluation.passes)]
    source, parts = Source(graph=run.artifact("graph").content, system=name), []
    with open_predictions(folder / "predictions.parquet", graph, source) as write:
        for number, cost in enumerate(costs, start=1):
            done = 0
            for asked, predictions in answer_stream(partial(system.answer, cost=cost), questions, chunk=CHUNK):
                done += len(asked)
                run.progress(f"answering (seed {spec.seed}, pass {number})", done, len(questions))
                if number == 1:
                    write(asked, predictions)
                    parts.append(score_predictions(asked, predictions))
    answerable = find_answerable(search.place(questions), search.graph)
    row = asdict(report_row(name, "learned", join_scores(parts), answerable))
    controls = json.loads((run.artifact("controls").folder / "scores.json").read_text(encoding="utf-8"))
    write_json(folder / "scores.json", [row, *controls])
    record_scores(recorder, row, controls)
    recorder.metrics(min(costs, key=lambda cost: cost.cpu_seconds).figures(), prefix="answer.")
    recorder.table("predictions", "predictions.parquet")


def record_scores(recorder: Recorder, row: Mapping[str, Any], controls: Sequence[Mapping[str, Any]] = ()) -> None:
    """Record a system's figures and its controls' (rows of the report), so that its charts can show them."""
    recorder.metrics(row["overall"])
    for metric in SHOWN:
        for hops, figures in row["by_hops"].items():
            recorder.metric(hop_metric(metric, hops), figures[metric])
        if row["answerable"]:
            recorder.metric(f"{metric}.answerable", row["answerable"][metric])
        for bucket, figures in row["by_answers"].items():
            recorder.metric(answers_metric(metric, bucket), figures[metric])
    for control in controls:
        series = control["role"].replace(" ", "_")
        recorder.metrics(control["overall"], *SHOWN, prefix=f"{series}.")
        for hops, figures in control["by_hops"].items():
            recorder.metric(hop_metric(f"{series}.hits1", hops), figures["hits1"])


STAGES = (
    Stage("encodings", 1, "encode texts", _encodings_specs, _encode),
    Stage("explorer", 4, "train explorer", _explorer_specs, _train),
    Stage("controls", 5, "fit controls", _controls_specs, _fit_controls),
    Stage("evaluation", 4, "evaluate explorer", _evaluation_specs, _evaluate),
)
