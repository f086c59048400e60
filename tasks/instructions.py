"""Instruction data: what the graph supervises, rendered as prompts with targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from kgqa_core.types import Question, Split
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

if TYPE_CHECKING:
    from kgqa_core.instructions.example_cases import ExampleSettings
    from kgqa_core.instructions.examples import Given

TAUGHT: tuple[Split, ...] = ("train", "dev")


@pipeline_task("make instructions")
def make_instructions(pipeline: Pipeline) -> StageOutcome:
    """Render the examples of all instructions that the model is tuned on, for training and dev questions."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.instructions.example_cases import read_path_rows
        from kgqa_core.instructions.examples import make_examples, write_examples
        from kgqa_core.instructions.render import read_prompts
        from kgqa_core.planners.cases import PATHS_FILE
        from kgqa_core.run.open import INSTRUCTIONS_FILE, plan_ground

        ground, skipped = plan_ground(pipeline), Counter[str]()
        prompts = read_prompts(pipeline.config.prompts)
        examples = make_examples(
            ground.graph if ground else None,
            questions_to_teach(pipeline),
            read_path_rows(pipeline.artifact("supervision").folder / PATHS_FILE),
            prompts=prompts,
            settings=example_settings(pipeline),
            given=given_elsewhere(pipeline),
            skipped=skipped,
        )
        counts = write_examples(examples, folder / INSTRUCTIONS_FILE)
        for instruction, count in counts.items():
            recorder.metric(f"num_examples.{instruction}", count)
        for reason, count in skipped.items():
            recorder.metric(f"num_skipped.{reason.replace(':', '').replace(' ', '_')}", count)
        for name, version in prompts.versions.items():
            recorder.param(f"prompt.{name}", version)
        recorder.table("instructions", INSTRUCTIONS_FILE)

    return run_stage(pipeline, "instructions", write)


def given_elsewhere(pipeline: Pipeline) -> Given:
    """Return what examples need beside the graph: candidates of explorers, and names where the graph is one of rows."""
    from kgqa_core.instructions.examples import Given
    from kgqa_core.instructions.render import RowNames
    from kgqa_core.run.open import graph_of, subgraphs_of
    from kgqa_core.systems.candidates import read_candidates

    subgraphs = subgraphs_of(pipeline)
    names = RowNames(graph_of(pipeline), subgraphs) if subgraphs else None
    if "candidates" in pipeline.specs:
        return Given(predictions=read_candidates(pipeline.artifact("candidates").folder), names=names)
    return Given(names=names)


def questions_to_teach(pipeline: Pipeline) -> Iterator[Question]:
    """Yield the training and dev questions, on what their plans are followed in."""
    if "questions" in pipeline.specs:
        from kgqa_core.questions.build import read_questions
        from kgqa_core.run.open import ground_of

        ground, folder = ground_of(pipeline), pipeline.artifact("questions").folder
        for split in TAUGHT:
            yield from ground.place(read_questions(folder, split))
        return
    from kgqa_core.planners.cases import read_cases

    for split in TAUGHT:
        for asked in read_cases(pipeline.artifact("supervision").folder, split):
            yield Question(asked.id, asked.text, asked.text, (), (), split)


def example_settings(pipeline: Pipeline) -> ExampleSettings:
    """Return what examples are made of: the reasoner's mixture, and always plans for a model that we make."""
    from kgqa_core.config_lm import EmbeddedLmSection
    from kgqa_core.instructions.example_cases import ExampleSettings

    config = pipeline.config
    plans, reasoner = config.plans, config.reasoner
    assert plans is not None
    taught = {"mode": plans.supervision, "threshold": plans.precision_threshold}
    if config.explorer is not None:
        taught |= {"mask_topics": config.explorer.mask_topics, "reenter_topic": config.dataset.reenter_topic}
    else:
        taught |= {"signed": False}
    if reasoner is None:
        return ExampleSettings(weights={"plan": 1.0}, **taught)
    always = {"plan": 1.0} if isinstance(config.lm, EmbeddedLmSection) else {}
    is_eperm = reasoner.objective == "eperm"
    return ExampleSettings(
        weights=always | reasoner.mixture,
        shares=reasoner.shares,
        share=not is_eperm,
        scored=is_eperm,
        num_plans=reasoner.paths_per_question,
        wrong_plans=reasoner.wrong_plans,
        max_paths=reasoner.max_paths,
        answers=reasoner.answers,
        num_candidates=reasoner.num_candidates,
        **taught,
    )
