"""What ``kgqa ask`` and ``kgqa evaluate --questions`` open: an explorer or a system of a run, or a registered model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_output import print_answer, print_json, print_rejects, print_reply, say
from flows.cli_session import Json, Settings, open_run, read_run, run_missing, working
from kgqa_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flows.one_question import SystemReply
    from kgqa_core.run.ask import Answerer
    from kgqa_core.run.pipeline import Pipeline


AnsweredBy = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Who plays the language model: lm (the run's own), oracle, random, first."),
]


def ask(
    conf: Annotated[
        str, typer.Argument(metavar="CONF", help="A run configuration, or a registered model: models:/NAME@champion.")
    ],
    question: Annotated[str | None, typer.Argument(metavar="QUESTION", help="The question, in quotes.")] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Name or label of a topic entity; repeatable. Default: the name in the text."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="NAME", help="The system that answers; default: the explorer alone.")
    ] = None,
    answered_by: AnsweredBy = None,
    release: Annotated[
        str | None, typer.Option(metavar="RELEASE", help="A release of CONF answers: champion, or an id.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --system: show every prompt and what was said.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Questions, one per line: text, or JSON with question, topic(s), claim."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --file: .jsonl or .parquet. Default: JSON lines, printed.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Answer one question, or a file of any size, with scores and the paths that the answers rest on.

    \b
    Examples:
      kgqa ask conf/demo.yaml "who directed The Drowned Harbour?"
      kgqa ask conf/demo.yaml "who directed it?" --topic "The Drowned Harbour"
      kgqa ask conf/demo.yaml "who directed The Drowned Harbour?" --system rog --trace
      kgqa ask conf/nightly.yaml --release champion "who directed The Drowned Harbour?"
      kgqa ask models:/kgqa-demo@champion "who directed The Drowned Harbour?"
      kgqa ask conf/demo.yaml --file questions.txt --out answers.jsonl
    """
    if (question is None) == (file is None) or (file and (topic or trace)) or (out and not file):
        raise typer.BadParameter("give a question, perhaps with --topic or --trace, or --file FILE, perhaps with --out")
    if sum(map(bool, (release, system, conf.startswith("models:/")))) > 1:
        raise typer.BadParameter("--release, --system and models:/NAME each say who answers: give one of them")
    if (trace or answered_by) and not system:
        raise typer.BadParameter(
            "--trace and --answered-by go with --system: the explorer alone asks no language model"
        )
    if file is not None:
        ask_questions(conf, settings or [], file, out, system, answered_by, release)
        return
    assert question is not None
    given, topics = settings or [], topic or ()
    with working("answering"):
        if system is None:
            answer = open_answerer(conf, given, release).ask(question, *topics)
        else:
            reply = open_and_ask(Path(conf), given, question, topics, system=system, answered_by=answered_by)
    if as_json:
        print_json(asdict(answer if system is None else reply))
    elif system is None:
        print_answer(answer)
    else:
        print_reply(reply, trace)


def open_answerer(conf: str, settings: list[str], release: str | None = None) -> Answerer:
    """Open the explorer of a run configuration, of one of its releases or, loading MLflow, of a registered model."""
    if conf.startswith("models:/"):
        from kgqa_core.config_file import home_here
        from tasks.registry import load_answerer

        if settings:
            raise ConfigError(f"--set changes a run configuration; {conf} is a registered model, which is as it is")
        return load_answerer(home_here(), conf)
    if release:
        from tasks.release import releases_of
        from tasks.serving import open_release

        return open_release(releases_of(read_run(Path(conf), settings)), release).answerer
    from kgqa_core.run.ask import open_answerer as open_explorer

    return open_explorer(open_run(Path(conf), settings))


def ask_questions(
    conf: str,
    settings: list[str],
    file: Path,
    out: Path | None,
    system: str | None,
    answered_by: str | None,
    release: str | None = None,
) -> None:
    """Answer a file of questions; make what is missing, but for a release or a registered model, which is as it is."""
    answers = sys.stdout if out is None else out  # what is printed while working goes elsewhere
    with working("answering"):
        from flows.question_file import FileAnswerer, answer_file, needed_stages, open_row, require_places
        from kgqa_core.questions.formats import read_asked

        require_places(file, out)
        if release or conf.startswith("models:/"):
            explorer = open_answerer(conf, settings, release).system
            rejected = answer_file(FileAnswerer(explorer.answer, explorer.graph), file, read_asked, out=answers)
        else:
            pipeline = open_asked_run(Path(conf), settings, system, answered_by)
            run_missing(pipeline, *needed_stages(pipeline, system))
            with open_row(pipeline, system) as who:
                rejected = answer_file(who, file, read_asked, out=answers)
    print_rejects(rejected.first, rejected.num, rejected.file)


def open_asked_run(conf: Path, settings: list[str], system: str | None, answered_by: str | None) -> Pipeline:
    """Open a run with the one system, or variant, that is asked; None: its explorer alone."""
    if system and "," in system:
        raise ConfigError(f"one system is asked, not {system}; kgqa evaluate --systems puts several side by side")
    given = [*untaught_settings(conf, settings, system, answered_by), *settings]
    systems = read_run(conf, [*given, *system_settings(None, answered_by)]).systems
    is_variant = systems is not None and system in systems.variants
    return open_run(conf, [*given, *system_settings(None if is_variant else system, answered_by)])


def open_and_ask(
    conf: Path, settings: list[str], question: str, topics: Sequence[str], *, system: str, answered_by: str | None
) -> SystemReply:
    """Ask one system, or a variant, of a run; make what it needs, which a run without it may never have made.

    One question is too small to share out, so torch has one thread.
    """
    from flows.one_question import ask_system
    from flows.question_file import needed_stages
    from kgqa_core.run.ask import torch_threads

    pipeline = open_asked_run(conf, settings, system, answered_by)
    run_missing(pipeline, *needed_stages(pipeline, system))
    with torch_threads(1):
        return ask_system(pipeline, question, *topics, row=system)


def untaught_settings(
    conf: Path, settings: Sequence[str], systems: str | None, answered_by: str | None
) -> Iterator[str]:
    """Yield what --systems need where the run has taught no model: the one in the box, with its shipped adapter.

    That is a run that says nothing of language models and systems. What a user sets goes behind these, and counts.
    """
    names = [name.strip() for name in (systems or "").split(",")]
    if set(names) <= {"", "explorer"} or (answered_by and "lm" not in answered_by.split(",")):
        return
    run = read_run(conf, [one for one in settings if not one.startswith("systems")])  # they may need the model
    if run.lm is not None or run.systems is not None:
        return
    say(f"{conf} names no language model: the one in the box answers, with the adapter that comes with it", err=True)
    yield from ("lm.kind=packaged", "lm.adapter=shipped", "systems.answers=shown")
    if "rog" in names:  # the model's own plans guess at relations that it never saw; figures: docs/results.md
        yield from ("systems.rog.plans=encoder", "systems.rog.num_plans=8")


def system_settings(systems: str | None, answered_by: str | None) -> list[str]:
    """Return what --systems and --answered-by say as overrides of the configuration."""
    given = {"systems.run": systems, "systems.answered_by": answered_by}
    return [f"{key}=[{names}]" for key, names in given.items() if names]
