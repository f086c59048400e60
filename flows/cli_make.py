"""``kgqa make-questions``: questions from the relation paths of a graph, for whoever has none to learn from.

The papers propose it (DualR, appendix A). Topic and relations are drawn step by step, each relation that leads on
alike, so that rare ones are asked as often as frequent ones. The words are those of relation names, in a few wordings.
Such questions teach what a graph holds, not how people ask: they are marked, and no split for testing takes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_init import Names, build_draft, graph_format, header_of
from flows.cli_session import open_run, run_missing, working
from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ConfigError, InputError, counted

if TYPE_CHECKING:
    import numpy as np

    from kgqa_core.graph.kg import KnowledgeGraph
    from kgqa_core.run.pipeline import Pipeline

MOST_ANSWERS = 50  # of a question; with more it asks for a list that nobody wants
DRAWS = 100  # per question that is wanted: a small graph may not hold so many
DEV_SHARE = 0.1
FORWARD = ("what is the {step} of {of}", "which {step} does {of} have", "the {step} of {of}", "{of} {step} what")
BACKWARD = ("what has the {step} {of}", "whose {step} is {of}", "find all with {step} {of}", "what {step} {of}")


def make_questions(
    graph: Annotated[Path, typer.Argument(metavar="CONF|TRIPLES", help="A run configuration, or a file of triples.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for train.jsonl and dev.jsonl.")] = Path(
        "questions"
    ),
    num: Annotated[int, typer.Option(min=1, help="How many questions.")] = 3000,
    hops: Annotated[int, typer.Option(min=1, max=4, help="The most relations from topic to answers.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Another number gives other questions.")] = 0,
    names: Names = None,
    max_rejected: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of lines of TRIPLES that may be unusable.")
    ] = None,
) -> None:
    """Make questions from the relation paths of a graph, to learn from where there are none.

    A tenth goes to dev, none to test: what people ask is worded otherwise, so only their questions can test.

    \b
    Example:
      kgqa make-questions triples.tsv
      kgqa init triples.tsv questions
    """
    import numpy as np

    from kgqa_core.run.open import graph_of

    files = {split: out / f"{split}.jsonl" for split in ("train", "dev")}
    if there := [path for path in files.values() if path.exists()]:
        raise ConfigError(f"{there[0]} is there already: give --out another folder")
    with working("making questions"), ExitStack() as stack:
        built = graph_of(_built(graph, names, out, max_rejected))
        out.mkdir(parents=True, exist_ok=True)
        streams = {
            split: stack.enter_context(stack.enter_context(written_whole(path)).open("w", encoding="utf-8"))
            for split, path in files.items()
        }
        made, lot = 0, np.random.default_rng([seed, 1])
        for made, row in enumerate(draw_questions(built, num=num, hops=hops, seed=seed), 1):  # noqa: B007
            split = "dev" if lot.random() < DEV_SHARE else "train"
            streams[split].write(json.dumps(row, ensure_ascii=False) + "\n")
    typer.echo(
        f"{counted(made, 'question')} in {out}" + ("" if made == num else f": the graph gave no {num} different ones")
    )


def _built(path: Path, names: Path | None, out: Path, max_rejected: float | None) -> Pipeline:
    """Return a run whose graph is built."""
    given = {"names": names and str(names.absolute()), "max_reject_ratio": max_rejected}
    told = {key: value for key, value in given.items() if value is not None}
    if path.suffix in (".yaml", ".yml"):
        if told:
            raise ConfigError(f"{path} says itself what its graph is: write dataset.graph.{next(iter(told))} there")
        pipeline = open_run(path, [])
        run_missing(pipeline, "graph")
        return pipeline
    section = {"format": (form := graph_format(path)), "path": str(path.absolute()), **header_of(path, form)}
    questions = {"format": "jsonl", "files": {"train": str(path.absolute())}}  # none yet: only the graph is built
    return build_draft({"graph": {**section, **told}, "questions": questions}, out, "graph")


def draw_questions(graph: KnowledgeGraph, *, num: int, hops: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield up to ``num`` different questions, each with topic, answers and chain; equal seeds give equal ones.

    Raises InputError where the graph has no relation path of 1 to ``hops`` steps with few answers.
    """
    import numpy as np

    from kgqa_core.graph.follow import follow_layers
    from kgqa_core.instructions.plan import PathConstraints

    random, space, seen = np.random.default_rng([seed, 0]), PathConstraints(graph, max_hops=hops), set[int]()
    heads = np.repeat(np.arange(graph.num_entities), np.diff(graph.group_ptr))  # of each group of edges
    order = np.argsort(graph.group_relation, kind="stable")
    starts = np.searchsorted(graph.group_relation[order], np.arange(2 * graph.num_relations + 1))
    first_steps = np.flatnonzero(np.diff(starts))
    for _ in range(DRAWS * num if len(first_steps) else 0):
        relation = int(random.choice(first_steps))
        topic = int(heads[order[random.integers(starts[relation], starts[relation + 1])]])
        path: tuple[int, ...] = (relation,)
        for _ in range(int(random.integers(hops))):
            ending, _ = space.around((topic,)).next_relations(path)
            path = (*path, int(random.choice(ending))) if len(ending) else path
        answers = follow_layers(graph, [topic], path)[-1].tolist()
        key = hash((topic, path))
        if not 0 < len(answers) <= MOST_ANSWERS or key in seen:
            continue
        seen.add(key)
        labels, num_relations = graph.relation_names, graph.num_relations
        steps = [(labels[step % num_relations], step >= num_relations) for step in path]
        yield {
            "id": f"made-{seed}-{len(seen)}",
            "question": word(steps, graph.name_of(topic), random),
            "topics": [graph.label_of(topic)],
            "answers": [graph.label_of(answer) for answer in answers],
            "hops": len(path),
            "chain": [f"{'~' * backward}{label}" for label, backward in steps],
            "made": True,
        }
        if len(seen) == num:
            return
    if not seen:
        raise InputError(f"the graph has no relation path of 1 to {hops} steps with at most {MOST_ANSWERS} ends")


def word(steps: Sequence[tuple[str, bool]], name: str, random: np.random.Generator) -> str:
    """Return a wording of some steps, (label, is it walked backward?), from the entity called ``name``."""
    phrase, (last, is_backward) = name, steps[-1]
    for label, backward in steps[:-1]:
        phrase = ("what has the {} {}" if backward else "the {} of {}").format(step_words(label), phrase)
    frames = BACKWARD if is_backward else FORWARD
    return frames[int(random.integers(len(frames)))].format(step=step_words(last), of=phrase)


def step_words(label: str) -> str:
    """Return a relation's name as words: ``people.person.birthPlace`` and ``http://x.org/birthPlace``: birth place."""
    last = label if " " in label else re.split(r"[/#.:]", label.rstrip("/#.:"))[-1]
    return " ".join(re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", last)) or [label]).lower()
