"""Opening what a run compares: its systems, each with what it stands on and whoever plays its language model."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kgqa_core.artifacts import hash_json
from kgqa_core.config import RunConfig
from kgqa_core.config_lm import ROLES, Role
from kgqa_core.config_systems import PLACES, system_type
from kgqa_core.errors import UnableError
from kgqa_core.evaluation.predictions import Answer, SystemSource
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.alignment import learn_wordings
from kgqa_core.instructions.plan import PlanAsker, PlanInstruction, Planner, PlanQuestion, weigh_plans
from kgqa_core.instructions.render import Prompts, read_prompts
from kgqa_core.lm.calls import Meter
from kgqa_core.lm.types import LanguageModel
from kgqa_core.oracle.oracle import Knowledge, open_oracle
from kgqa_core.oracle.plans import FixedPlans, RandomPlans, find_hard_negatives, propose_ends
from kgqa_core.oracle.player import open_control
from kgqa_core.planners.evaluate import read_cases
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import fill_hops
from kgqa_core.questions.link_names import NameIndex
from kgqa_core.questions.link_text import TextLinker, link_topics
from kgqa_core.run import open as opening
from kgqa_core.run.open import Player, open_planner, path_constraints, search_graph
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import StageSpec
from kgqa_core.run.stages.systems import chosen_settings
from kgqa_core.systems.answering import PlanSource
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.systems.ours import DevQuestion, describe_choice, disagree, first_plan, options_of, reached_by
from kgqa_core.systems.runner import Bench
from kgqa_core.types import LabelPath, Question

FUSION_FILE = "fusion.json"
MAX_DEV = 5000  # dev questions that a fusion is chosen on


@contextmanager
def open_bench(pipeline: Pipeline, key: str) -> Iterator[Bench]:
    """Open the system of a stage; ArtifactError where something that it stands on is not made."""
    section, systems = pipeline.specs[key].section, pipeline.config.comparison
    with ExitStack() as stack:
        parts = Parts(pipeline, pipeline.specs[key], stack)
        system = system_type(parts.name).open(parts)
        played: dict[str, list[str]] = {}  # model -> its roles
        for role in ROLES:
            if f"model.{role}" in section:
                played.setdefault(str(section[f"model.{role}"]), []).append(role)
        source = SystemSource(
            graph=pipeline.artifact("graph").content,
            system=parts.row,
            seed=parts.seed,
            answered_by=parts.answerer,
            model=parts.model.name if parts.model else "",
            roles=", ".join(f"{', '.join(roles)}: {model}" for model, roles in played.items()),
            base=parts.base,
            prompts=hash_json(dict(section["prompts"]))[:16] if parts.answerer else "",
            topics=systems.topics if system.needs_topic else "none",
            pool=parts.pool,
            settings=parts.settings.model_dump(mode="json", exclude=PLACES) if parts.settings else {},
        )
        limits = systems.max_new_tokens, systems.answers == "shown", float(section.get("abstain_below", 0.0))
        yield Bench(system, parts.search, parts.model, tuple(parts.meters), source, *limits)


def read_asked(pipeline: Pipeline, *, linked: bool = True) -> list[Question]:
    """Return the questions that the systems answer: those of the evaluation split, or some of them drawn by seed.

    ``linked=False``: with their own topics, also where systems get those found again in the text alone.
    """
    systems, search = pipeline.config.comparison, search_graph(pipeline)
    folder = pipeline.artifact("questions").folder
    questions = read_questions(folder, pipeline.config.evaluation.split)
    if systems.num_questions is not None and systems.num_questions < len(questions):
        places = random.Random(systems.draw).sample(range(len(questions)), systems.num_questions)
        questions = [questions[place] for place in sorted(places)]
    questions = fill_hops(questions, search)
    if linked and systems.topics == "linked":
        questions = link_topics(questions, TextLinker(NameIndex(search.entities), read_questions(folder, "train")))
        if (blocks := search.subgraphs) is not None:  # what a question's subgraph lacks is not found
            questions = [
                replace(one, topics=search.to_entities(blocks.rows_of(one.id, one.topics))) for one in questions
            ]
    return questions


def find_fusion(pipeline: Pipeline, seed: int) -> dict[str, Any]:
    """Choose on dev how explorer and planner are fused; return the choice, its parts' figures and all points."""
    dev = read_questions(pipeline.artifact("questions").folder, "dev")
    questions = [one for one in dev if one.topics and one.claim is None]  # a verdict counts by its evidence: not here
    if len(questions) > MAX_DEV:
        questions = random.Random(0).sample(questions, MAX_DEV)
    search, settings = search_graph(pipeline), pipeline.config.comparison.settings_of("ours")
    mask = pipeline.config.exploration.mask_topics
    asked = [PlanQuestion(one.id, one.asked(mask), one.topics) for one in search.place(questions)]
    topics = [one.topics for one in asked]
    explored = opening.open_system(pipeline, seed).answer(questions)
    with open_planner(pipeline, settings.planner, seed) as (planner, _):
        plans = planner.plan(asked, num_plans=settings.num_plans)
    reached = reached_by(search, topics, plans)
    options = [options_of(one, own) for one, own in zip(explored, reached, strict=True)]
    alone = {settings.planner: first_plan(questions, reached)}
    lm_weights: dict[int, list[float]] = {}
    if opening.has_generator(pipeline.config):
        apart = [place for place, own in enumerate(options) if disagree(own)]
        generator: Any
        with open_planner(pipeline, "generator", seed) as (generator, _):
            with suppress(UnableError):  # else it cannot decide where they disagree
                said = generator.weigh([asked[at] for at in apart], [[plan.path for plan in plans[at]] for at in apart])
                lm_weights = {place: weigh_plans(own) for place, own in zip(apart, said, strict=True)}
            own_plans = generator.plan(asked, num_plans=1)
        alone["lm as planner"] = first_plan(questions, reached_by(search, topics, own_plans))
    weights = [weigh_plans([plan.log_prob for plan in own]) for own in plans]
    rows = [
        DevQuestion(question, explored[at], options[at], weights[at], lm_weights.get(at))
        for at, question in enumerate(questions)
    ]
    return describe_choice(rows, alone)


class Parts:
    """What a system may be made of. A part is opened when it is first asked for; each may raise ArtifactError."""

    def __init__(self, pipeline: Pipeline, spec: StageSpec, stack: ExitStack) -> None:
        """Open the model that answers for a system's stage; ``stack`` closes what is opened."""
        section = spec.section
        self.pipeline, self.stack = pipeline, stack
        self.name, self.seed = str(section["system"]), int(section["seed"])
        self.row = str(section.get("row", self.name))
        self.systems = pipeline.config.comparison
        if chosen := chosen_settings(pipeline, spec):
            self.systems = self.systems.with_settings(self.row, chosen)
        self.settings = self.systems.settings_of(self.row)
        self.max_calls, self.pool = self.systems.max_calls, section["pool"]
        self.mask_topics = pipeline.config.exploration.mask_topics
        self.meters: list[Meter] = []
        self.answerer = str(section.get("answered_by", ""))  # empty: no language model is asked
        self.base = ""  # the model that answers, its tuning aside, by content: what a row and its ``direct`` share
        self.model = self._model() if self.answerer else None

    @cached_property
    def search(self) -> SearchGraph:
        """Return what the run searches."""
        return search_graph(self.pipeline)

    @cached_property
    def prompts(self) -> Prompts:
        """Return the run's prompts."""
        return read_prompts(self.pipeline.config.prompts)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit-norm vectors of texts, as the run's encoder makes them."""
        return opening.encode_all(self.pipeline, texts)

    def explorer(self) -> ExplorerSystem:
        """Return the explorer of this seed, or that of the run that the settings name; both walk this run's graph."""
        conf = system_type(self.name).depends_on_run(self.settings)
        other = None if conf is None else self.pipeline.other_run(conf)
        return opening.open_system(self.pipeline, self.seed, trained_by=other)

    def candidates(self, num_paths: int) -> Answer:
        """Return what the explorer answers, so many candidates with evidence, or the hard negatives in its place."""
        if self.pool == "none":
            return replace(self.explorer(), evidence_paths=num_paths).answer
        return partial(propose_ends, self.search, self._hard_negatives())

    def plans(self, source: str) -> PlanSource:
        """Return a source of plans by its name, or the hard negatives that take its place."""
        if self.pool == "hard":
            return PlanSource(FixedPlans(self._hard_negatives()), self.mask_topics)
        if source == "lm":
            return PlanSource(self.asker(), self.mask_topics)
        if source == "random":
            space = path_constraints(self.search)
            return PlanSource(RandomPlans(space, self.seed), self.mask_topics)
        if source == "none":
            return PlanSource(FixedPlans({}), self.mask_topics)
        if source == "encoder":
            from kgqa_core.planners.dense import EncoderPlanner, steps_around

            exists = steps_around(path_constraints(self.search))
            return PlanSource(EncoderPlanner(self.encode, exists, self.search.max_hops), self.mask_topics)
        return PlanSource(self.planner(source), self.mask_topics)

    def planner(self, name: str) -> Planner:
        """Return a planner that the run has trained; what a language model of its own costs is counted."""
        planner, meter = self.stack.enter_context(open_planner(self.pipeline, name, self.seed, row=self.row))
        self.meters += [meter] if meter is not None else []
        return planner

    def asker(self) -> PlanAsker:
        """Return how the language model that answers is asked about plans that exist."""
        if self.answerer == "lm":
            return opening.plan_asker(self.pipeline, self.search, self.row)
        # Whoever plays a model picks among what there is.
        return PlanAsker(PlanInstruction(self.prompts), path_constraints(self.search))

    def fusion(self) -> Mapping[str, Any]:
        """Return what was chosen on dev for this seed (``SystemType.fuses``)."""
        file = self.pipeline.artifact(f"fusion-seed{self.seed}").folder / FUSION_FILE
        chosen: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["chosen"]
        return chosen

    def _hard_negatives(self) -> Mapping[str, Sequence[LabelPath]]:
        """Return each question's gold plan among wrong ones: of plans that do equally well the one that is meant."""
        folder, split = self.pipeline.artifact("supervision").folder, self.pipeline.config.evaluation.split
        known = learn_wordings((one.text, one.paths) for one in read_cases(folder, "train"))
        golds = {
            one.id: sorted(one.paths, key=partial(known.strength, one.text), reverse=True)
            for one in read_cases(folder, split)
        }
        placed, space = self.search.place(read_asked(self.pipeline)), path_constraints(self.search)
        return find_hard_negatives(space, placed, golds, seed=self.systems.draw)

    def _model(self) -> LanguageModel:
        """Return whoever plays the language model, metered and held to the cap of calls."""
        role: Role = "reason"
        if self.answerer == "lm":
            roles = self.systems.roles_of(self.row)
            players = opening.open_players(self.pipeline, self.seed, roles, row=self.row)
            role = "reason" if "reason" in roles else roles[-1]
            self.base = opening.base_content(self.pipeline, role, self.row)
        elif self.answerer == "oracle":
            oracle, folder = self.systems.oracle, self.pipeline.artifact("supervision").folder
            plans = {one.id: one.paths for one in read_cases(folder, self.pipeline.config.evaluation.split)}
            knowledge = Knowledge(self.search, read_asked(self.pipeline, linked=False), plans)
            settings = oracle.model_copy(update={"seed": oracle.seed + self.seed})
            players = {role: Player(open_oracle(knowledge, settings=settings))}
        else:
            players = {role: Player(open_control(self.seed if self.answerer == "random" else None))}
        self.base = self.base or players[role].model.name
        entered = opening.metered(self.pipeline, players, system=self.name, max_calls=self.max_calls)
        model, meter = self.stack.enter_context(entered)
        self.meters.append(meter)
        return model


# ------ The worker cache: the system that a process answers chunks of questions with, opened once.

_cached: dict[tuple[str, str, str], tuple[ExitStack, Bench, tuple[Question, ...]]] = {}  # one at most: models are large


def cached_bench(
    config_json: str, key: str, fingerprint: str, run: Pipeline | None = None
) -> tuple[Bench, tuple[Question, ...]]:
    """Return the system of a stage and all questions; another one that this process has open is closed.

    ``fingerprint`` is of the stage's recipe: a worker may outlive a run, whose data are old. ``run`` is whose parts the
    system has, where this process has it: the gate puts a release's in the place of a run's own. None: a worker's, as
    the configuration says.
    """
    wanted = (config_json, key, fingerprint)
    if wanted not in _cached:
        close_bench()
        with ExitStack() as stack:
            pipeline = run or Pipeline(RunConfig.model_validate_json(config_json))
            bench = stack.enter_context(open_bench(pipeline, key))
            questions = tuple(read_asked(pipeline))
            if torch := sys.modules.get("torch"):  # a worker's one thread stays one
                torch.set_num_threads(min(torch.get_num_threads(), pipeline.config.runtime.threads))
            _cached[wanted] = (stack.pop_all(), bench, questions)
    _, bench, questions = _cached[wanted]
    return bench, questions


def close_bench() -> None:
    """Close what this process has open."""
    while _cached:
        _, (stack, _, _) = _cached.popitem()
        stack.close()
