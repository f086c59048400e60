"""Opening the systems of a run, each with what it stands on and whoever plays its language model."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kgqa_core.artifacts import hash_json
from kgqa_core.config import RunConfig
from kgqa_core.config_systems import SystemsSection
from kgqa_core.errors import ConfigError
from kgqa_core.evaluation.predictions import SystemSource
from kgqa_core.instructions.render import Prompts, read_prompts
from kgqa_core.run.models import (
    has_generator,
    metered,
    open_model,
    open_planner,
    path_constraints,
    plan_ground,
    planner_seed,
)
from kgqa_core.run.open import graph_of, ground_of, open_system
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.explorer import explorer_key
from kgqa_core.schemas import METER
from kgqa_core.systems.plan_source import as_plan_question
from kgqa_core.systems.runner import answer_all
from kgqa_core.systems.types import Answered, System
from kgqa_core.systems.walk import Walk
from kgqa_core.types import LabelPath, Prediction, Question, ReasoningPath

if TYPE_CHECKING:
    from kgqa_core.lm.calls import Meter, Metered
    from kgqa_core.lm.types import LanguageModel
    from kgqa_core.planners.types import Plan, PlanQuestion
    from kgqa_core.systems.explorer_system import ExplorerSystem
    from kgqa_core.systems.fusion import DevPoint, DevQuestion
    from kgqa_core.systems.plan_source import LmPlans, PlanSource

POOLED = ("etd", "dualr", "rog", "eperm")  # systems that a hard pool is given to; the others search by themselves
FUSION_FILE = "fusion.json"
MAX_DEV = 5000  # dev questions that a fusion is chosen on


@dataclass(frozen=True, slots=True)
class Round:
    """Some questions that were answered together."""

    answered: list[Answered]
    usage: pa.Table  # schemas.METER
    stopped: dict[str, str]  # questions that a budget stopped, with the limit


@dataclass(frozen=True, slots=True)
class Bench:
    """One system, ready to be asked."""

    system: System
    walk: Walk
    model: Metered | None  # None: it asks no language model
    meters: tuple[Meter, ...]  # of that model, and of a planner with one of its own
    source: SystemSource
    max_new_tokens: int | None = None  # of a text, see ``runner.answer_all``

    def render(self, path: ReasoningPath) -> str:
        """Return an evidence path as readable triples, in walking order."""
        from kgqa_core.explorer.backtrack import render_path

        return render_path(
            path, entity_names=self.walk.entities.entity_names, relation_labels=self.walk.entities.relation_labels
        )

    def answer(self, questions: Sequence[Question]) -> Round:
        """Return what the system answers, and what that cost."""
        limit = self.max_new_tokens
        answered = answer_all(self.system, questions, self.walk, self.model, max_new_tokens=limit)
        taken = [meter.take() for meter in self.meters]
        stopped = {question: limit for _, limits in taken for question, limit in limits.items()}
        return Round(answered, pa.concat_tables([METER.empty_table(), *(table for table, _ in taken)]), stopped)


@contextmanager
def open_bench(pipeline: Pipeline, key: str) -> Iterator[Bench]:
    """Open the system of a stage.

    Raises:
        ArtifactError: something that it stands on is not made.
    """
    section = pipeline.specs[key].section
    with ExitStack() as stack:
        opener = _Opener(pipeline, section, stack)
        system = opener.system()
        source = source_of(pipeline, key, opener.model, needs_topic=system.needs_topic)
        limit = section_of(pipeline).max_new_tokens
        yield Bench(system, opener.walk, opener.model, tuple(opener.meters), source, limit)


def source_of(pipeline: Pipeline, key: str, model: LanguageModel | None, *, needs_topic: bool) -> SystemSource:
    """Return what the predictions of a stage say of where they come from; who needs no topic uses none."""
    section, systems = pipeline.specs[key].section, section_of(pipeline)
    answerer = str(section.get("answered_by", ""))
    return SystemSource(
        graph=pipeline.artifact("graph").content,
        system=str(section.get("row", section["system"])),
        seed=int(section["seed"]),
        answered_by=answerer,
        model=model.name if model else "",
        prompts=hash_json(dict(section["prompts"]))[:16] if answerer else "",
        topics=systems.topics if needs_topic else "none",
        pool=systems.pool if section["system"] in POOLED else "none",
        settings={
            name.removeprefix("settings."): value for name, value in section.items() if name.startswith("settings.")
        },
    )


def section_of(pipeline: Pipeline) -> SystemsSection:
    """Return the section about systems.

    Raises:
        ConfigError: the run compares none.
    """
    systems = pipeline.config.systems
    if systems is None:
        name = pipeline.config.name
        raise ConfigError(f"run {name!r} compares no systems: give its configuration a section 'systems'")
    return systems


def read_asked(pipeline: Pipeline, *, linked: bool = True) -> list[Question]:
    """Return the questions that the systems answer: those of the evaluation split, or some of them drawn by seed.

    Where topics are to be linked, theirs are hidden, and found again in the text alone; ``linked=False``: not here.
    """
    from kgqa_core.questions.build import read_questions
    from kgqa_core.questions.coverage import fill_hops

    systems = section_of(pipeline)
    questions = read_questions(pipeline.artifact("questions").folder, pipeline.config.evaluation.split)
    if systems.num_questions is not None and systems.num_questions < len(questions):
        places = random.Random(systems.draw).sample(range(len(questions)), systems.num_questions)
        questions = [questions[place] for place in sorted(places)]
    ground = ground_of(pipeline)
    questions = fill_hops(
        questions,
        graph_of(pipeline),
        reenter_topic=pipeline.config.dataset.reenter_topic,
        subgraphs=ground.subgraphs,
    )
    if linked and systems.topics == "linked":
        from kgqa_core.questions.link_text import link_topics

        taught = read_questions(pipeline.artifact("questions").folder, "train")
        questions = link_topics(questions, graph_of(pipeline), examples=taught)
    return questions


def walk_of(pipeline: Pipeline) -> Walk:
    """Return what a run's systems walk on."""
    ground, config = ground_of(pipeline), pipeline.config
    entities = graph_of(pipeline) if ground.subgraphs else ground.graph
    return Walk(ground.graph, entities, ground.subgraphs, config.exploration.steps, config.dataset.reenter_topic)


def gold_plans(pipeline: Pipeline) -> dict[str, tuple[LabelPath, ...]]:
    """Return the best-executing plans of the questions that are asked; what an oracle and a hard pool know."""
    from kgqa_core.planners.cases import read_cases

    folder = pipeline.artifact("supervision").folder
    cases = read_cases(folder, pipeline.config.evaluation.split, "best")
    return {case.id: case.paths for case in cases}


def find_fusion(pipeline: Pipeline, seed: int) -> dict[str, Any]:
    """Choose on dev how explorer and planner are fused; return the choice, its parts' figures and all points.

    Raises:
        ArtifactError: explorer or planner is not made.
    """
    from kgqa_core.questions.build import read_questions
    from kgqa_core.systems.fusion import choose_fusion, judge

    dev = read_questions(pipeline.artifact("questions").folder, "dev")
    questions = [one for one in dev if one.topics and one.claim is None]  # a verdict counts by its evidence: not here
    if len(questions) > MAX_DEV:
        questions = random.Random(0).sample(questions, MAX_DEV)
    asked, planned = _dev_questions(pipeline, seed, questions)
    fusion, tried = choose_fusion(asked)
    on_dev = {"ours": dict(tried)[fusion], "explorer": judge(questions, [one.explored for one in asked]), **planned}
    return {
        "chosen": asdict(fusion),
        "num_questions": len(questions),
        "on_dev": {name: asdict(point) for name, point in on_dev.items()},
        "beats_its_parts": all(
            on_dev["ours"].objective > point.objective for name, point in on_dev.items() if name != "ours"
        ),
        "tried": [{**asdict(one), **asdict(point)} for one, point in tried],
    }


def _dev_questions(
    pipeline: Pipeline, seed: int, questions: Sequence[Question]
) -> tuple[list[DevQuestion], dict[str, DevPoint]]:
    """Return all that is fused of these dev questions, and what each planner gives alone."""
    from kgqa_core.planners.types import weigh_plans
    from kgqa_core.systems.fusion import DevQuestion, disagree, options_of

    settings, walk = section_of(pipeline).ours, walk_of(pipeline)
    chosen = explorer_key(pipeline.config, seed).rpartition("seed")[2]
    explored = open_system(pipeline, int(chosen)).answer(questions)
    asked = [
        as_plan_question(one, pipeline.config.exploration.mask_topics) for one in ground_of(pipeline).place(questions)
    ]
    with open_planner(pipeline, settings.planner, planner_seed(pipeline.config, seed)) as opened:
        plans = opened.planner.plan(asked, num_plans=settings.num_plans)
    reached = _reach(walk, asked, plans)
    planned: dict[str, DevPoint] = {settings.planner: _first_plan(questions, reached)}
    options = [options_of(one, own) for one, own in zip(explored, reached, strict=True)]
    apart = [place for place, own in enumerate(options) if disagree(own)]
    lm_weights: dict[int, list[float]] = {}
    if has_generator(pipeline.config):
        with open_planner(pipeline, "generator", planner_seed(pipeline.config, seed)) as opened:
            generator: Any = opened.planner
            paths = [[plan.path for plan in plans[place]] for place in apart]
            said = generator.weigh([asked[place] for place in apart], paths)
            lm_weights = {place: weigh_plans(own) for place, own in zip(apart, said, strict=True)}
            own = _reach(walk, asked, generator.plan(asked, num_plans=1))
            planned["lm as planner"] = _first_plan(questions, own)
    rows = [
        DevQuestion(
            question,
            explored[place],
            options[place],
            tuple(weigh_plans([plan.log_prob for plan in plans[place]])),
            tuple(lm_weights[place]) if place in lm_weights else None,
        )
        for place, question in enumerate(questions)
    ]
    return rows, planned


def _reach(walk: Walk, asked: Sequence[PlanQuestion], plans: Sequence[Sequence[Plan]]) -> list[list[tuple[int, ...]]]:
    """Return the entities that each plan of each question reaches."""
    from kgqa_core.graph.execute import execute_plans

    found = execute_plans(
        walk.graph,
        [one.topics for one in asked],
        [[plan.path for plan in own] for own in plans],
        reenter_topic=walk.reenter_topic,
    )
    return [[walk.to_entities(entities.tolist()) for entities in own] for own in found]


def _first_plan(questions: Sequence[Question], reached: Sequence[Sequence[tuple[int, ...]]]) -> DevPoint:
    """Return the figures of whoever answers all that the first plan reaches."""
    from kgqa_core.systems.fusion import judge

    answers = [own[0] if own else () for own in reached]
    predictions = [
        Prediction(question.id, own, (1.0,) * len(own), own) for question, own in zip(questions, answers, strict=True)
    ]
    return judge(questions, predictions)


class _Opener:
    """Opens the parts of one system as it needs them."""

    def __init__(self, pipeline: Pipeline, section: Mapping[str, Any], stack: ExitStack) -> None:
        self.pipeline, self.stack = pipeline, stack
        self.name, self.seed = str(section["system"]), int(section["seed"])
        self.settings = section_of(pipeline).as_row(str(section.get("row", "")))
        answerer = section.get("answered_by")
        self.meters: list[Meter] = []
        self.mask_topics = pipeline.config.exploration.mask_topics
        self.model = self._model(str(answerer)) if answerer else None

    @cached_property
    def walk(self) -> Walk:
        return walk_of(self.pipeline)

    @cached_property
    def prompts(self) -> Prompts:
        return read_prompts(self.pipeline.config.prompts)

    @cached_property
    def golds(self) -> Mapping[str, tuple[LabelPath, ...]]:
        return gold_plans(self.pipeline)

    def system(self) -> System:
        name, settings, walk = self.name, self.settings, self.walk
        cap = settings.max_calls
        if name == "explorer":
            from kgqa_core.systems.explorer_system import ExplorerAlone

            return ExplorerAlone(self._explorer())
        if name == "etd":
            from kgqa_core.systems.etd import Etd

            return Etd(walk, self.prompts, self._candidates(), settings.etd)
        if name == "dualr":
            from kgqa_core.systems.etd import dualr

            return dualr(walk, self.prompts, self._candidates(), settings.dualr)
        if name == "rog":
            from kgqa_core.systems.rog import Rog

            return Rog(walk, self.prompts, self._plans(settings.rog.plans), settings.rog)
        if name == "eperm":
            from kgqa_core.systems.eperm import Eperm

            return Eperm(walk, self.prompts, self._plans(settings.eperm.plans), settings.eperm, max_calls=cap)
        if name == "fiske":
            from kgqa_core.systems.fiske import Fiske

            return Fiske(walk, self.prompts, settings.fiske, max_calls=cap)
        if name == "tog":
            from kgqa_core.systems.tog import Tog

            return Tog(walk, self.prompts, settings.tog, max_calls=cap)
        if name == "direct":
            from kgqa_core.systems.direct import Direct

            return Direct(walk, self.prompts)
        if name == "cot":
            from kgqa_core.systems.direct import ChainOfThought

            return ChainOfThought(walk, self.prompts)
        from kgqa_core.systems.fusion import Fusion
        from kgqa_core.systems.ours import Ours

        file = self.pipeline.artifact(f"fusion-seed{self.seed}").folder / FUSION_FILE
        fusion = Fusion(**json.loads(file.read_text(encoding="utf-8"))["chosen"])
        planner = "lm" if settings.ours.planner == "generator" else settings.ours.planner
        judge = self._lm_plans()
        return Ours(walk, self._explorer(), self._plans(planner), judge, fusion, settings.ours)

    def _explorer(self) -> ExplorerSystem:
        pipeline, seed = self.pipeline, self.seed
        if self.name == "dualr" and self.settings.dualr.explorer is not None:
            pipeline = self.pipeline.other_run(self.settings.dualr.explorer)
        chosen = explorer_key(pipeline.config, seed).rpartition("seed")[2]
        return open_system(pipeline, int(chosen))

    def _candidates(self) -> Any:
        """Return the explorer, or what plays it on hard pools."""
        if self.settings.pool == "none":
            return self._explorer()
        from kgqa_core.systems.candidates import PooledCandidates

        return PooledCandidates(self.walk, self._pooled())

    def _pooled(self) -> Mapping[str, Sequence[LabelPath]]:
        """Return each question's hard pool: its right plan and wrong ones that exist."""
        from kgqa_core.oracle.hard_negatives import hard_pools

        ground = plan_ground(self.pipeline)
        assert ground is not None
        placed = ground_of(self.pipeline).place(read_asked(self.pipeline))
        seed = self.settings.draw
        return hard_pools(self.walk.graph, path_constraints(ground), placed, self.golds, seed=seed).plans

    def _plans(self, source: str) -> PlanSource:
        from kgqa_core.systems.plan_source import GivenPlans, PooledPlans, RandomPlans

        if self.settings.pool == "hard":
            return GivenPlans(PooledPlans(self._pooled()), self.mask_topics)
        ground = plan_ground(self.pipeline)
        assert ground is not None
        space = path_constraints(ground)
        if source == "lm":
            return self._lm_plans()
        if source == "random":
            return GivenPlans(RandomPlans(self.walk.graph, space, self.seed), self.mask_topics)
        if source == "none":
            return GivenPlans(PooledPlans({}), self.mask_topics)
        opened = open_planner(self.pipeline, source, planner_seed(self.pipeline.config, self.seed))
        planner = self.stack.enter_context(opened)
        if planner.meter is not None:
            self.meters.append(planner.meter)
        return GivenPlans(planner.planner, self.mask_topics)

    def _lm_plans(self) -> LmPlans:
        """Return the language model that answers as a source of plans, held to those that exist."""
        from kgqa_core.instructions.plan import PlanInstruction
        from kgqa_core.planners.generator import PlanAsker
        from kgqa_core.systems.plan_source import LmPlans

        ground = plan_ground(self.pipeline)
        assert ground is not None
        return LmPlans(PlanAsker(PlanInstruction(self.prompts), path_constraints(ground)), self.mask_topics)

    def _model(self, answerer: str) -> Metered:
        """Return whoever plays the language model, metered and held to the cap of calls."""
        from kgqa_core.lm.calls import Budget

        budget, player = Budget(calls=self.settings.max_calls), self._player(answerer)
        model = self.stack.enter_context(metered(self.pipeline, player, system=self.name, budget=budget))
        self.meters.append(model.meter)
        return model

    def _player(self, answerer: str) -> LanguageModel:
        if answerer == "lm":
            return open_model(self.pipeline, planner_seed(self.pipeline.config, self.seed))
        if answerer == "oracle":
            from kgqa_core.oracle.knowledge import Knowledge
            from kgqa_core.oracle.oracle import open_oracle

            oracle = self.settings.oracle
            own = oracle.model_copy(update={"seed": oracle.seed + self.seed})
            knowledge = Knowledge(self.walk, read_asked(self.pipeline, linked=False), self.golds)
            return open_oracle(knowledge, self.prompts, settings=own)
        from kgqa_core.oracle.chance import open_first, open_random

        return open_random(self.prompts, seed=self.seed) if answerer == "random" else open_first(self.prompts)


# ------ The system that a process answers chunks of questions with: opened once, kept from one ...


_kept: dict[tuple[str, str, str], tuple[ExitStack, Bench, tuple[Question, ...]]] = {}  # one at most: models are large


def kept_bench(config_json: str, key: str, fingerprint: str) -> tuple[Bench, tuple[Question, ...]]:
    """Return the system of a stage and all questions; another one that this process kept is closed.

    Args:
        config_json: the run's configuration.
        key: of the stage.
        fingerprint: of the stage's recipe: a worker that outlives a run must not answer the next one from old data.

    Raises:
        ArtifactError: something that it stands on is not made.
    """
    wanted = (config_json, key, fingerprint)
    if wanted not in _kept:
        close_bench()
        with ExitStack() as stack:
            pipeline = Pipeline(RunConfig.model_validate_json(config_json))
            bench = stack.enter_context(open_bench(pipeline, key))
            questions = tuple(read_asked(pipeline))
            if torch := sys.modules.get("torch"):  # a worker's one thread stays one
                torch.set_num_threads(min(torch.get_num_threads(), pipeline.config.runtime.threads))
            _kept[wanted] = (stack.pop_all(), bench, questions)
    _, bench, questions = _kept[wanted]
    return bench, questions


def close_bench() -> None:
    """Close what this process keeps: its call store is closed, its model may go."""
    while _kept:
        _, (stack, _, _) = _kept.popitem()
        stack.close()
