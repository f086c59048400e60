"""The stages that make or tune a language model: examples of its instructions, its folder, adapters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kgqa_core.artifacts import JOURNAL
from kgqa_core.config import RunConfig
from kgqa_core.config_base import SHIPPED
from kgqa_core.config_lm import OwnModelSection, Role
from kgqa_core.errors import ConfigError
from kgqa_core.graph.supervision import read_supervision, takes
from kgqa_core.instructions.alignment import learn_wordings
from kgqa_core.instructions.examples import ALIGNED, Source, fold_of, make_examples, write_examples
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm import gguf
from kgqa_core.planners.evaluate import PATHS_FILE, read_cases
from kgqa_core.questions.build import read_questions
from kgqa_core.run import open as opening
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import Stage, StageSpec
from kgqa_core.run.stages.data import ground_keys
from kgqa_core.run.stages.explorer import folder_files, question_set
from kgqa_core.systems.tables import CANDIDATES_FILE, read_candidates, write_candidates
from kgqa_core.tracking import Recorder
from kgqa_core.types import Prediction, Question, Split

if TYPE_CHECKING:
    from kgqa_core.explorer.fit import QuestionSet

INSTRUCTIONS_FILE = "instructions.parquet"
TAUGHT: tuple[Split, ...] = ("train", "dev")
GGUF_DTYPE = "bfloat16"  # of the folder that is made of a GGUF file: what has four or eight bits fits into it
# Settings of a reasoner that shape its examples.
HOW_ASKED = {"objective", "instructions", "shares", "paths_per_question", "wrong_plans", "max_paths", "answers"}
HOW_ASKED |= {"num_candidates", "candidates", "abstain", "meant_only"}


# ------ What of language models and their plans is in the recipes of stages that use them.

PLAN: tuple[Role, ...] = ("plan",)


def model_recipe(config: RunConfig, roles: Iterable[Role] = PLAN, row: str = "") -> dict[str, Any]:
    """Return what the configuration says of the models that play some roles; their files, or names, say the rest."""
    recipe: dict[str, Any] = {}
    for role in roles:
        if said := opening.model_section(config, role, row).recipe():
            is_own = isinstance(config.player(role, row), OwnModelSection)
            recipe["lm" if is_own else f"lm.{role}"] = said
    return recipe


def model_files(config: RunConfig, roles: Iterable[Role] = PLAN, row: str = "") -> dict[str, Path]:
    """Return the files of the models that play some roles and are on this machine, and of their adapters."""
    files: dict[str, Path] = {}
    for role in roles:
        player = config.player(role, row)
        if not isinstance(player, OwnModelSection):
            weights = player.weights(None)
            if weights is None and player.is_tunable:
                raise ConfigError(
                    f"roles.{role}: a model that a stage makes (kind packaged, or a .gguf file) is named "
                    "by lm, one for a run; name it there, and the others under roles"
                )
            files |= folder_files(weights.folder, f"roles.{role}.path", f"{role}.lm") if weights else {}
            files |= _adapter_files(weights and weights.adapter, f"roles.{role}.adapter", f"{role}.adapter")
            continue
        files |= _base_files(config)
        if isinstance(player.adapter, Path):
            files |= _adapter_files(player.adapter, f"roles.{role}.adapter", f"{role}.adapter")
        elif player.adapter == "tuned" and config.reasoner is None:
            files |= _first_adapter_files(config)
    return files


def _base_files(config: RunConfig) -> dict[str, Path]:
    weights = config.lm.weights(None) if config.lm else None
    return folder_files(weights.folder, "lm.path", "lm") if weights else {}


def _first_adapter_files(config: RunConfig) -> dict[str, Path]:
    """Return the files of the adapter that ``lm`` names, also beside a model that stage ``lm`` makes."""
    return _adapter_files(getattr(config.lm, "adapter", None), "lm.adapter", "adapter")


def _adapter_files(adapter: Path | None, key: str, name: str) -> dict[str, Path]:
    if adapter == SHIPPED and not SHIPPED.is_dir():
        raise ConfigError(f"{key}: this version of kgqa comes without an adapter. Train one: give a section 'reasoner'")
    return folder_files(adapter, key, name) if adapter else {}


def prompt_hashes(config: RunConfig, *instructions: str) -> dict[str, str]:
    """Return the hashes of the prompts of some instructions, with their variants and system prompts, or of all."""
    hashes = {name: one.sha256 for name, one in sorted(read_prompts(config.prompts).items())}
    wanted = re.compile(rf"({'|'.join(map(re.escape, instructions))})([_.].*)?" if instructions else ".*")
    return {name: content for name, content in hashes.items() if wanted.fullmatch(name)}


def model_stages(config: RunConfig, seed: int, roles: Iterable[Role] = PLAN, row: str = "") -> list[str]:
    """Return the stages that the models of some roles are made in."""
    players = [config.player(role, row) for role in roles]
    own = [player for player in players if isinstance(player, OwnModelSection)]
    is_tuned = config.reasoner is not None and any(player.adapter == "tuned" for player in own)
    made = ["lm"] if own and opening.has_model_stage(config) else []
    return [*made, *([f"reasoner-seed{opening.planner_seed(config, seed)}"] if is_tuned else [])]


def plan_stages(config: RunConfig, source: str, seed: int, row: str = "") -> list[str]:
    """Return the stages that a source of plans is made in."""
    if source == "generator":
        return model_stages(config, seed, row=row)
    own = {"dense": f"dense-seed{opening.planner_seed(config, seed)}", "encoder": "encodings"}
    return [own[source]] if source in own else []


def teaching(config: RunConfig) -> dict[str, Any]:
    """Return which of the paths found teach."""
    assert config.plans is not None
    return config.plans.model_dump(mode="json", include={"supervision", "precision_threshold"})


# ------ What the stages are made of.


def _is_tuned(config: RunConfig) -> bool:
    """Say whether the run tunes its model: to plan, or to answer in a system, whoever plans there."""
    if config.lm is None or config.plans is None or config.reasoner is None:
        return False
    return opening.has_generator(config) or (config.systems is not None and config.systems.is_answered_by("lm"))


def _candidates_specs(config: RunConfig) -> Iterator[StageSpec]:
    """Explorers are trained on all folds but one, without what only helps them to start, and never on dev."""
    reasoner, explorer = config.reasoner, config.explorer
    if reasoner is None or explorer is None or not _is_tuned(config) or "choose" not in reasoner.mixture:
        return
    if reasoner.candidates == "pool":
        return
    section = explorer.model_dump(mode="json", exclude={"seeds", "init_from", "init_attention", "also_train_on"})
    section |= {"seed": explorer.seeds[0], "reenter_topic": config.dataset.reenter_topic, "learn_dev": False}
    section |= config.evaluation.model_dump(mode="json", exclude={"split", "passes"})
    section |= reasoner.model_dump(mode="json", include={"folds", "num_candidates"})
    yield StageSpec("candidates", section, (*ground_keys(config), "encodings"))


def _instructions_specs(config: RunConfig) -> Iterator[StageSpec]:
    reasoner = config.reasoner
    if reasoner is None or not _is_tuned(config):
        return
    asked = reasoner.model_dump(mode="json", include=HOW_ASKED)
    section = {**teaching(config), **asked, "prompts": prompt_hashes(config, *reasoner.mixture)}
    section |= {"reenter_topic": True} if config.dataset.reenter_topic else {}  # golds' paths may be the same
    needs = (*ground_keys(config), "supervision", *(spec.key for spec in _candidates_specs(config)))
    yield StageSpec("instructions", section, needs)


def _lm_specs(config: RunConfig) -> Iterator[StageSpec]:
    if config.lm is not None and config.lm.gguf is not None:
        name = gguf.INPUT_NAME if config.lm.kind == "packaged" else "lm.path"
        yield StageSpec("lm", {"dtype": GGUF_DTYPE}, files={name: config.lm.gguf})


def _reasoner_specs(config: RunConfig) -> Iterator[StageSpec]:
    reasoner, plans = config.reasoner, config.plans
    if reasoner is None or plans is None or not _is_tuned(config):
        return
    read = ("instructions", "lm") if opening.has_model_stage(config) else ("instructions",)
    section = reasoner.model_dump(mode="json", exclude={*HOW_ASKED, "folds"})
    if recipe := opening.model_section(config).recipe():
        section["lm"] = recipe
    section["taught"] = sorted(reasoner.mixture)
    if start := _first_adapter_files(config):
        section["starts_from"] = "adapter"
    for seed in plans.seeds:
        own = {**section, "seed": seed}
        yield StageSpec(f"reasoner-seed{seed}", own, read, _base_files(config) | start, system="reasoner")


# ------ How they are built.


def _find_candidates(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Train one explorer per fold; dev questions, which none of them learns from, are answered by the first."""
    folds, whole = spec.section["folds"], question_set(run)
    found: list[Prediction] = []
    for fold in range(folds):
        held_out = [one for one in whole.train if fold_of(one.id, folds) == fold]
        others = [one for one in whole.train if fold_of(one.id, folds) != fold]
        asked = [*held_out, *(whole.dev if fold == 0 else ())]
        found += _answer_unseen(run, replace(whole, train=others), asked, folder, fold)
    write_candidates(found, folder, num_candidates=spec.section["num_candidates"])
    golds = {one.id: set(one.answers) for one in (*whole.train, *whole.dev)}
    first = [one.candidates[0] in golds[one.question_id] for one in found if one.candidates]
    recorder.metric("hits1_out_of_fold", 100 * sum(first) / max(len(found), 1))
    recorder.metric("num_questions", len(found))
    recorder.table("candidates", CANDIDATES_FILE)


def _answer_unseen(
    run: Pipeline, learned: QuestionSet, asked: Sequence[Question], folder: Path, fold: int
) -> list[Prediction]:
    from kgqa_core.explorer.fit import FitRun, fit_explorer

    config, what = run.config, f"out-of-fold explorer {fold + 1}"
    section = config.exploration.model_copy(update={"learn_dev": False})  # it answers dev questions
    encoder, device = opening.encoder_of(config.encoding).name, opening.device_of(config)
    told = partial(run.progress, f"training {what}")
    runtime = config.runtime
    with TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch)
        fit = FitRun(out, Recorder("candidates"), threads=runtime.threads, device=device, progress=told)
        fit_explorer([learned], section, fit, seed=section.seeds[0], encoder=encoder)
        known: dict[str, Any] = {"graph": learned.graph, "encoder": encoder, "encode": partial(opening.encode_all, run)}
        system = opening.load_system(out, **known, evaluation=config.evaluation, batch_size=runtime.batch_size)
    system = replace(system, model=system.model.to(device))
    return system.answer(asked, partial(run.progress, f"asking {what}"))


def _make_instructions(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    source, skipped = _example_source(run), Counter[str]()
    supervision = read_supervision(run.artifact("supervision").folder / PATHS_FILE)
    if source.reasoner.meant_only or not ALIGNED.isdisjoint(source.reasoner.mixture):
        asked = (
            (one.masked, [row.path for row in supervision.get(one.id, ()) if takes(row, source.mode, source.threshold)])
            for one in _questions_to_teach(run)
            if one.split == "train"
        )
        source = replace(source, known=learn_wordings(asked))
    examples = make_examples(source, _questions_to_teach(run), supervision, skipped=skipped)
    recorder.metrics(write_examples(examples, folder / INSTRUCTIONS_FILE), prefix="num_examples.")
    for reason, count in skipped.items():
        recorder.metric(f"num_skipped.{reason.replace(':', '').replace(' ', '_')}", count)
    for name, prompt in sorted(source.prompts.items()):
        recorder.param(f"prompt.{name}", prompt.version)
    recorder.table("instructions", INSTRUCTIONS_FILE)


def _example_source(run: Pipeline) -> Source:
    plans, reasoner = run.config.plans, run.config.reasoner
    search = opening.plan_graph(run)
    assert plans is not None and reasoner is not None
    return Source(
        search,
        read_prompts(run.config.prompts),
        reasoner,
        mode=plans.supervision,
        threshold=plans.precision_threshold,
        mask_topics=run.config.explorer is None or run.config.explorer.mask_topics,
        space=opening.path_constraints(search) if search else None,
        predictions=read_candidates(run.artifact("candidates").folder) if "candidates" in run.specs else {},
    )


def _questions_to_teach(run: Pipeline) -> Iterator[Question]:
    """Yield the training and dev questions, on what their plans are followed in."""
    if "questions" in run.specs:
        search, folder = opening.search_graph(run), run.artifact("questions").folder
        for split in TAUGHT:
            yield from search.place(read_questions(folder, split))
        return
    for split in TAUGHT:
        for asked in read_cases(run.artifact("supervision").folder, split):
            yield Question(asked.id, asked.text, asked.text, (), (), split)


def _make_model(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Make an ordinary transformers folder of a GGUF file."""
    (file,) = spec.files.values()
    gguf.write_folder(file, folder / opening.MODEL_FOLDER, dtype=spec.section["dtype"])


def _tune(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
    """Train adapters, or all weights; a training that was killed goes on where it was."""
    from kgqa_core.lm.tune import tune_in_processes
    from kgqa_core.lm.tune_data import TuneJob

    config, weights = run.config, opening.base_weights(run)
    assert weights is not None and config.reasoner is not None
    job = TuneJob(
        base=weights.folder,
        adapter=weights.adapter,
        examples=(run.artifact("instructions").folder / INSTRUCTIONS_FILE,),
        section=config.reasoner,
        seed=spec.seed,
        out=folder,
        journal=folder / JOURNAL,
        device=opening.device_of(config),
        sharded=config.runtime.sharded,
        threads=config.runtime.threads,
    )
    told = partial(run.progress, f"tuning (seed {spec.seed})")
    report = tune_in_processes(job, config.runtime.processes, on_point=recorder.curve, progress=told)
    figures = ("num_steps", "num_tokens", "num_trainable", "num_parameters", "cpu_seconds", "train_loss", "kept_step")
    recorder.metrics(report, *figures, prefix="tune.")
    recorder.metric("tune.num_too_long", sum(report.num_too_long.values()))
    recorder.metrics(report.dev_losses, prefix="tune.dev_loss.")


SECTIONS = "give the sections 'plans' and 'lm'"

STAGES = (
    Stage("candidates", 1, "find out-of-fold candidates", _candidates_specs, _find_candidates),
    Stage("instructions", 10, "make instructions", _instructions_specs, _make_instructions, asked_for=SECTIONS),
    Stage("lm", 3, "make language model", _lm_specs, _make_model, asked_for=SECTIONS),
    Stage("reasoner", 5, "tune language model", _reasoner_specs, _tune, asked_for=f"{SECTIONS}, and 'reasoner'"),
)
