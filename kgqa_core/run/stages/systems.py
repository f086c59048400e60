"""The stages of the comparison: what is chosen on dev, each system's answers, and all side by side."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import JOURNAL, write_json, written_whole
from kgqa_core.config import RunConfig
from kgqa_core.config_base import CONF
from kgqa_core.config_file import read_config
from kgqa_core.config_lm import ROLES
from kgqa_core.config_systems import PLACES, Answerer, ChooseSection, system_type
from kgqa_core.errors import ConfigError
from kgqa_core.evaluation import tables
from kgqa_core.evaluation.compare import side_by_side
from kgqa_core.evaluation.figures import system_row
from kgqa_core.evaluation.runs import group_runs, read_system_run
from kgqa_core.lm.calls import Meter
from kgqa_core.questions.coverage import find_answerable
from kgqa_core.run.cluster import fan_out, open_cluster
from kgqa_core.run.open import explorer_key, has_generator, model_label, only_existing, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import OtherStage, Stage, StageSpec
from kgqa_core.run.stages.data import ground_keys, plan_walk_of
from kgqa_core.run.stages.explorer import record_scores
from kgqa_core.run.stages.tuning import PLAN, model_files, model_recipe, model_stages, plan_stages, prompt_hashes
from kgqa_core.systems.tables import merge_parts, write_answered, write_calls
from kgqa_core.tracking import Recorder

PUBLISHED = CONF / "papers" / "tables.yaml"
COMPARISON = "comparison"  # of all systems, answerers and seeds
ANSWERING = 27  # the version of how systems answer: on dev, where settings are chosen, and on test
CHOICE, CHOICE_FILE = "choice", "choice.json"  # the stage of a row's settings, and what it writes
FIGURES = {"hits1": "hits1", "f1": "f1", "num_questions": "n"}  # of a point, and their names in scores.json
FIGURES |= {"calls": "calls_per_question", "tokens": "tokens_per_question"}
# Settings that shape each answer.
SHARED = {"topics", "pool", "num_questions", "draw", "max_calls", "max_new_tokens", "answers"}
WALK_LIMITS = {"edge_budget", "attention_threshold", "evidence_paths"}  # of an explorer that answers
PARTS = "parts"  # in the journal, with the size of a chunk: files of each one that is done
SCORES = "scores.json"
TABLES = ("calls", "usage", "predictions")  # schemas.SYSTEM_CALLS, METER, SYSTEM_PREDICTIONS


def system_key(row: str, answerer: Answerer, seed: int | None) -> str:
    """Return the key of the stage in which one model and seed answer for a row; None: in which settings are chosen."""
    who = f"{row}{'' if answerer == 'lm' else f'-{answerer}'}"
    return f"{CHOICE}-{who}" if seed is None else f"system-{who}-seed{seed}"


def _seeds(config: RunConfig) -> tuple[int, ...]:
    return (config.systems.seeds if config.systems else None) or config.exploration.seeds


def _exploring(config: RunConfig) -> dict[str, Any]:
    return config.evaluation.model_dump(mode="json", include=WALK_LIMITS)


def _fusion_specs(config: RunConfig) -> Iterator[StageSpec]:
    systems = config.systems
    if systems is None or not any(system_type(name).fuses for name, _ in systems.rows().values()):
        return
    if config.exploration.learn_dev:
        raise ConfigError("explorer.learn_dev: ours is fused by what is right on dev; set it false, or run others")
    ours = systems.settings_of("ours")
    section = {**ours.model_dump(mode="json"), **_exploring(config), **plan_walk_of(config)}
    section |= {} if only_existing(config) else {"only_existing": False}
    judged = has_generator(config)
    if judged or ours.planner != "dense":
        section |= {"prompts": prompt_hashes(config, "plan"), **model_recipe(config)}
    for seed in _seeds(config):
        needs = [*ground_keys(config), "encodings", explorer_key(config, seed)]
        needs += [*plan_stages(config, ours.planner, seed), *(model_stages(config, seed) if judged else ())]
        own = {**section, "seed": seed}
        yield StageSpec(f"fusion-seed{seed}", own, tuple(dict.fromkeys(needs)), model_files(config), system="fusion")


def _choice_specs(config: RunConfig) -> Iterator[StageSpec]:
    """A stage per row with a grid and answerer: with the first seed, of whatever a point of the grid stands on."""
    if (systems := config.systems) is None:
        return
    for row, grid in systems.choose.grids.items():
        for answerer in systems.rows()[row][1] if row in systems.rows() else ():
            one = trial_config(config, row, systems.choose.points(row)[0])
            spec = _system_spec(one, system_key(row, answerer, None), row, answerer, _seeds(config)[0])
            tried = {f"settings.{setting}": values for setting, values in grid.items()}
            yield replace(spec, section={**spec.section, **tried}, system=f"choice for {spec.system}")


def trial_config(config: RunConfig, row: str, settings: Mapping[str, Any]) -> RunConfig:
    """Return the run in which a row answers dev questions under some settings, and nothing is chosen."""
    choose = config.comparison.choose
    asked = {"num_questions": choose.num_questions, "draw": choose.draw, "choose": ChooseSection()}
    systems = config.comparison.with_settings(row, settings).model_copy(update=asked)
    evaluation = config.evaluation.model_copy(update={"split": "dev"})
    return config.model_copy(update={"systems": systems, "evaluation": evaluation})


def _system_specs(config: RunConfig) -> Iterator[StageSpec]:
    """A stage per system, answerer and seed; those without a language model once per seed."""
    found: dict[str, StageSpec] = {}
    if config.systems is None:
        return
    for seed, (row, (_, answerers)) in itertools.product(_seeds(config), config.systems.rows().items()):
        for answerer in answerers:
            key = system_key(row, answerer, seed)
            found[key] = found.get(key) or _system_spec(config, key, row, answerer, seed)
    yield from found.values()


def _system_spec(config: RunConfig, key: str, row: str, answerer: Answerer, seed: int) -> StageSpec:
    systems = config.comparison
    name, own = systems.rows()[row][0], systems.settings_of(row)
    kind, asks = system_type(name), systems.roles_of(row)
    section: dict[str, Any] = {"system": name, "seed": seed, "split": config.evaluation.split}
    section |= {} if row == name else {"row": row}
    section |= {"abstain_below": least} if (least := systems.abstain_below.get(row)) else {}
    pool = systems.pool if kind.hard_negatives else "none"  # others retrieve what they retrieve
    section |= {**systems.model_dump(mode="json", include=SHARED), "pool": pool, **plan_walk_of(config)}
    section |= {} if only_existing(config) else {"only_existing": False}
    grid = systems.choose.grids.get(row, {})
    if own is not None:  # what is chosen on dev counts by the content of that stage
        shown = own.model_dump(mode="json", exclude={*PLACES, *grid})
        section |= {f"settings.{setting}": value for setting, value in shown.items()}
    needs = [*ground_keys(config), *([system_key(row, answerer, None)] if grid else ())]
    files = kind.files(config, own)
    others: dict[str, OtherStage] = {}
    if kind.encodes or kind.explores:
        needs.append("encodings")
    if kind.explores:
        section |= _exploring(config)
        needs.append(explorer_key(config, seed))
    if (conf := kind.depends_on_run(own)) is not None:
        others[name] = OtherStage(conf, explorer_key(read_config(conf), seed))
    if asks:
        section |= {"answered_by": answerer, "prompts": prompt_hashes(config)}
        if answerer == "lm":
            needs += model_stages(config, seed, asks, row)
        if answerer == "oracle":
            section |= {f"oracle.{setting}": value for setting, value in systems.oracle.model_dump().items()}
            needs.append("supervision")
    if pool == "hard":
        needs.append("supervision")
    source = kind.plan_source(own)
    needs += [*plan_stages(config, source, seed, row), *([f"fusion-seed{seed}"] if kind.fuses else [])]
    asked = {*asks} if answerer == "lm" else set()
    if source == "generator":
        asked |= {*PLAN}  # whoever answers, the run's own model plans
    roles = [role for role in ROLES if role in asked]
    section |= model_recipe(config, roles, row)
    section |= {f"model.{role}": model_label(config, role, row) for role in roles}  # as tables show it
    files |= model_files(config, roles, row)
    return StageSpec(key, section, tuple(dict.fromkeys(needs)), files, others, system=_shown_name(section))


def _shown_name(section: dict[str, Any]) -> str:
    """Return what a system is called in tables and MLflow: with who answered for it, where that is not the run's lm.

    The explorer alone must not go under the name of the stages that train and score it.
    """
    who, row = section.get("answered_by", "lm"), str(section.get("row", section["system"]))
    name = "explorer alone" if row == "explorer" else row
    pool = " on a hard pool" if section["pool"] == "hard" else ""
    return f"{name}{'' if who == 'lm' else f' by {who}'}{pool}"


def _comparison_specs(config: RunConfig) -> Iterator[StageSpec]:
    if config.systems is not None:
        section = {"dataset": config.dataset.name}  # papers report figures on it, or not
        needs = tuple(spec.key for spec in _system_specs(config))
        yield StageSpec(COMPARISON, section, needs, {"published": PUBLISHED})


# ------ How fusion and comparison are built.


def _choose_fusion(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    from kgqa_core.run.compare import FUSION_FILE, find_fusion

    found = find_fusion(run, spec.seed)
    write_json(folder / FUSION_FILE, found)
    for part, point in found["on_dev"].items():
        for figure, factor in (("hits1", 1), ("f1", 1), ("asked", 100)):
            recorder.metric(f"dev.{part.replace(' ', '_')}.{figure}", factor * point[figure])
    for name in ("weight", "decided_by", "equal"):
        recorder.param(f"fusion.{name}", found["chosen"][name])
    recorder.param("fusion.beats_its_parts_on_dev", found["beats_its_parts"])


def _choose_settings(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Let each point of a row's grid answer, unless a killed run has had it answer; keep the best."""
    row, answerer = str(spec.section.get("row", spec.section["system"])), spec.section.get("answered_by", "lm")
    points, figures = run.config.comparison.choose.points(row), []
    for number, settings in enumerate(points, start=1):
        trial, own = Pipeline(trial_config(run.config, row, settings)), folder / JOURNAL / f"point-{number}"
        if not (own / SCORES).is_file():  # written last
            own.mkdir(parents=True, exist_ok=True)
            answer_questions(trial, trial.specs[system_key(row, answerer, spec.seed)], own, Recorder(CHOICE))
        overall = json.loads((own / SCORES).read_text(encoding="utf-8"))[0]["overall"]
        figures.append({name: float(overall[figure]) for name, figure in FIGURES.items()})
        recorder.metrics(figures[-1], prefix=f"dev.point{number}.")
    found = describe_choice(row, points, figures)
    write_json(folder / CHOICE_FILE, found)
    pq.write_table(pa.Table.from_pylist(found["points"]), folder / "points.parquet")
    recorder.table("points", "points.parquet")


def describe_choice(row: str, points: Sequence[dict[str, Any]], figures: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return as JSON what was chosen, all points with their figures (percent; per question), and a line for people.

    The best has the highest Hits@1, of equals the highest F1, then the fewest calls; then the grid's order decides.
    """
    ranks = [(round(one["hits1"], 9), round(one["f1"], 9), -one["calls"]) for one in figures]  # rounded: sums tie
    best = ranks.index(max(ranks))
    others = [*ranks[:best], *ranks[best + 1 :]]
    (hits1, f1, _), second = ranks[best], max(others)
    ties = sum(other[:2] == (hits1, f1) for other in others)
    shown = [{name: "none" if value is None else str(value) for name, value in point.items()} for point in points]
    told = " and ".join(
        f"{name} {value} of {', '.join(dict.fromkeys(point[name] for point in shown))}"
        for name, value in shown[best].items()
    )
    told = f"{row}: {told}, chosen on {figures[best]['num_questions']:.0f} dev questions: Hits@1 {hits1:.1f} against"
    told += f" {second[0]:.1f} of the next, F1 {f1:.1f} against {second[1]:.1f}"
    told += f"; ties with {ties} of {len(others)} others" if ties else ""
    rows = [{**point, **one, "chosen": at == best} for at, (point, one) in enumerate(zip(shown, figures, strict=True))]
    return {"chosen": points[best], "points": rows, "told": told}


def chosen_settings(pipeline: Pipeline, spec: StageSpec) -> dict[str, Any]:
    """Return what was chosen on dev for the row of a system's stage; empty where nothing is."""
    files = [pipeline.artifact(key).folder / CHOICE_FILE for key in spec.needs if key.startswith(f"{CHOICE}-")]
    return dict(json.loads(files[0].read_text(encoding="utf-8"))["chosen"]) if files else {}


def _compare(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    runs = [read_system_run(run.artifact(key).folder / "predictions.parquet") for key in spec.needs]
    found = side_by_side(group_runs(runs))
    hops = sorted({hops for entrant in found.entrants for hops in entrant.row.by_hops})
    datasets = tables.paper_datasets(run.config.dataset.name, hops)
    published = tables.published_beside(tables.read_published(PUBLISHED), datasets, found.entrants)
    document = tables.side_by_side_document(found, published)
    for row in document["rows"]:
        del row["predictions"]  # where they are on this machine is not what was found
    write_json(folder / "comparison.json", document)
    (folder / "comparison.md").write_text(tables.render_side_by_side(found, published), encoding="utf-8")


# ------ How a system answers: chunk by chunk, here or on Dask workers, then its figures.


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some questions of one system, as a worker gets them."""

    config: str = field(repr=False)  # of the run, JSON
    key: str  # of the stage
    fingerprint: str  # of its recipe
    number: int
    size: int  # of all chunks but the last, in questions
    folder: Path  # where its parts go

    def part(self, table: str) -> Path:
        """Return where its rows of a table are, once it is done."""
        return self.folder / f"{table}-{self.number:06d}.parquet"

    def is_done(self) -> bool:
        """Say whether all its parts are there; of one without an end (a power cut) only the name is."""
        try:
            return all(pq.read_metadata(self.part(table)) for table in TABLES)
        except (OSError, ValueError):
            return False


def answer_questions(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Answer all questions, resuming behind the last chunk that a killed run finished; then score the answers."""
    from kgqa_core.run.compare import read_asked

    size, asked = run.config.comparison.chunk, read_asked(run, linked=False)  # those found in texts may be anywhere
    parts = folder / JOURNAL / f"{PARTS}-{size}"
    parts.mkdir(parents=True, exist_ok=True)
    config, recipe = run.config.model_dump_json(), run.recipe(spec.key)
    assert recipe is not None  # what it stands on is made
    numbers = range(math.ceil(len(asked) / size))
    chunks = [Chunk(config, spec.key, recipe.fingerprint, number, size, parts) for number in numbers]
    left = [chunk for chunk in chunks if not chunk.is_done()]
    _answer_chunks(run, left, min(len(left) * size, len(asked)), len(chunks) - len(left))
    for table in TABLES:
        merge_parts([chunk.part(table) for chunk in chunks], folder / f"{table}.parquet")
    answers = read_system_run(folder / "predictions.parquet", str(spec.system))
    search, asked = search_graph(run), sorted(asked, key=lambda question: question.id)  # as answers are
    answerable = find_answerable(search.place(asked), search.graph)
    row = asdict(system_row(str(spec.system), [answers], answerable))
    write_json(folder / SCORES, [row])
    record_scores(recorder, row)
    for name, value in chosen_settings(run, spec).items():
        recorder.param(f"settings.{name}", str(value))
    for table in ("predictions", "calls"):
        recorder.table(table, f"{table}.parquet")


def _answer_chunks(run: Pipeline, chunks: Sequence[Chunk], num_questions: int, done_before: int) -> None:
    """Answer chunks, over a Dask cluster where they hold many questions; whoever listens hears of each."""
    from kgqa_core.run.compare import close_bench

    def told(done: int, total: int) -> None:
        run.progress(chunks[0].key, done_before + done, done_before + total)

    def paid(num_calls: int) -> None:  # by a worker, whose meters are its own
        Meter.num_paid += num_calls

    if num_questions > run.config.cluster.fan_out_questions:
        with open_cluster(run.config.cluster, home=run.home) as client:
            fan_out(client, progress=told, arrived=paid)(answer_chunk, chunks)
        return
    try:
        for done, chunk in enumerate(chunks, start=1):
            answer_chunk(chunk, run)
            told(done, len(chunks))
    finally:
        close_bench()  # the next system brings a model of its own


def answer_chunk(chunk: Chunk, run: Pipeline | None = None) -> int:
    """Answer one chunk's questions, write its parts, return the calls paid. Runs in any process that sees the home.

    ``run`` is the run itself, where this is its process.
    """
    from kgqa_core.run.compare import cached_bench, close_bench

    bench, questions = cached_bench(chunk.config, chunk.key, chunk.fingerprint, run)
    try:
        done = bench.answer(questions[chunk.number * chunk.size : (chunk.number + 1) * chunk.size])
    except BaseException:
        close_bench()  # its meters hold calls of questions that will be asked again
        raise
    write_calls(chunk.part("calls"), done.answered)
    with written_whole(chunk.part("usage")) as unfinished:
        pq.write_table(done.usage, unfinished, compression="zstd")
    write_answered(chunk.part("predictions"), done, bench.search.entities, bench.source)
    return sum(done.usage["paid_calls"].to_pylist())


STAGES = (
    Stage("fusion", 4, "choose fusion", _fusion_specs, _choose_fusion),
    Stage(CHOICE, ANSWERING, "choose settings", _choice_specs, _choose_settings),
    Stage("system", ANSWERING, "evaluate system", _system_specs, answer_questions),
    Stage(COMPARISON, 8, "compare systems", _comparison_specs, _compare),
)
