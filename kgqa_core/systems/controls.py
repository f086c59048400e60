"""Controls: what can be had without learning anything from the graph's structure or the question's meaning.

*Template control*: per masked question text, the one relation path that served its training questions best, followed
from the topics. A dataset whose questions are filled-in templates is solved by it, so a learned model that does not
beat it has shown nothing. *Ceiling*: the gold relation path followed; what it misses, no explorer of paths can get.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.evaluation.figures import report_row
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.follow import reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.questions.coverage import find_answerable
from kgqa_core.systems.path_search import follow_topics, score_paths
from kgqa_core.types import Prediction, Question, ReasoningPath, RelationPath

NUM_PATHS = 3  # candidates of a prediction that get an evidence path
FORMAT = 1  # of the saved control

CeilingName = Literal["gold-chain ceiling", "best-path ceiling"]


@dataclass(frozen=True, slots=True)
class TemplateControl:
    """The best relation path per masked question text, ready to answer questions over one graph.

    A masked text never seen in training gets the path that serves most training questions among those that lead
    anywhere from its topics: no likeness of wordings is used, which would be the beginning of a model.
    """

    graph: KnowledgeGraph
    paths: Mapping[str, RelationPath]  # by masked text
    by_frequency: tuple[RelationPath, ...]  # distinct paths, those of most training questions first
    reenter_topic: bool = False

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        """Return one prediction per question: the entities reached, all with the same score."""
        return [
            answer_by_path(self.graph, question, self.pick_path(question), reenter_topic=self.reenter_topic)
            for question in questions
        ]

    def pick_path(self, question: Question) -> RelationPath | None:
        """Return the path to follow for a question; ``None`` where no known path leads anywhere."""
        if question.masked in self.paths:
            return self.paths[question.masked]
        for path in self.by_frequency:
            if len(follow_topics(self.graph, question.topics, path, reenter_topic=self.reenter_topic)):
                return path
        return None

    def save(self, path: Path) -> None:
        """Write the control as JSON; relation labels stand beside the ids, so that no other graph is taken for this."""
        content = {
            "format": FORMAT,
            "relations": self.graph.relation_labels,
            "reenter_topic": self.reenter_topic,
            "by_frequency": self.by_frequency,
            "paths": dict(sorted(self.paths.items())),
        }
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)


def fit_template_control(
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    max_hops: int,
    reenter_topic: bool = False,
    sample: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> TemplateControl:
    """Fit the template control on training questions, of which the gold chains are not looked at.

    At most ``sample`` questions per masked text are looked at, on paths of up to ``max_hops`` steps: see
    ``path_search.score_paths``. A masked text none of whose golds can be reached gets no path. ``progress`` is called
    with (masked texts done, masked texts in all).
    """
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[question.masked].append(question)
    paths: dict[str, RelationPath] = {}
    served: Counter[RelationPath] = Counter()
    for done, (masked, group) in enumerate(groups.items(), start=1):
        ranked = score_paths(graph, group, max_hops=max_hops, reenter_topic=reenter_topic, sample=sample)
        if ranked:
            paths[masked] = ranked[0].path
            served[ranked[0].path] += len(group)
        if progress is not None:
            progress(done, len(groups))
    by_frequency = sorted(served, key=lambda path: (-served[path], len(path), path))
    return TemplateControl(graph, paths, tuple(by_frequency), reenter_topic)


def load_template_control(path: Path, graph: KnowledgeGraph) -> TemplateControl:
    """Read what ``TemplateControl.save`` wrote. Raises ``ArtifactError`` when it is damaged or of another graph."""
    advice = "fit the control again on this graph"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["relations"] != graph.relation_labels:
            raise ArtifactError(f"{shorten(str(path))} was fitted on a graph with other relations; {advice}")
        return TemplateControl(
            graph,
            {masked: tuple(steps) for masked, steps in content["paths"].items()},
            tuple(map(tuple, content["by_frequency"])),
            bool(content["reenter_topic"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{shorten(str(path))} is no template control ({shorten(str(error))}); {advice}") from error


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What following the right relation path gives."""

    name: CeilingName  # "gold-chain ceiling" only where every question has a gold chain
    num_chains: int  # questions answered by their gold chain; the others by the path that suits their own golds best
    predictions: list[Prediction]


def gold_chain_ceiling(
    graph: KnowledgeGraph, questions: Sequence[Question], *, max_hops: int, reenter_topic: bool = False
) -> Ceiling:
    """Follow every question's gold chain; where none is given, the single path best by F1 against its own golds.

    ``max_hops`` bounds the search where there is no chain. Such a search sees the golds: a bound, never a system.
    """
    predictions = []
    for question in questions:
        path = question.chain
        if path is None:
            ranked = score_paths(graph, [question], max_hops=max_hops, reenter_topic=reenter_topic)
            path = ranked[0].path if ranked else None
        predictions.append(answer_by_path(graph, question, path, reenter_topic=reenter_topic))
    num_chains = sum(question.chain is not None for question in questions)
    name: CeilingName = "gold-chain ceiling" if num_chains == len(questions) else "best-path ceiling"
    return Ceiling(name, num_chains, predictions)


def answer_by_path(
    graph: KnowledgeGraph,
    question: Question,
    path: RelationPath | None,
    *,
    reenter_topic: bool = False,
    num_paths: int = NUM_PATHS,
) -> Prediction:
    """Answer with all that ``path`` reaches from the topics, at equal scores; ``None`` or nothing reached abstains.

    A true/false question is answered true where its claim is reached. Evidence is found for the first ``num_paths``
    candidates and for a claim reached; the candidates between them get an empty path.
    """
    reached: list[int] = []
    if path is not None:
        reached = follow_topics(graph, question.topics, path, reenter_topic=reenter_topic).tolist()
    if path is None or not reached:
        return Prediction(question.id, (), (), (), abstained=True)
    found = set(reached)
    shown = set(reached[:num_paths])
    if question.claim is not None and question.claim in found:
        shown.add(question.claim)
    paths: list[ReasoningPath] = []
    for candidate in reached[: max(map(reached.index, shown)) + 1]:
        steps = None
        if candidate in shown:
            walks = reasoning_paths(graph, question.topics, path, ends=[candidate], reenter_topic=reenter_topic)
            steps = next(walks, None)
        paths.append(steps or ())
    return Prediction(
        question_id=question.id,
        candidates=tuple(reached),
        scores=(1.0 / len(reached),) * len(reached),
        answers=tuple(reached),
        paths=tuple(paths),
        covered=not found.isdisjoint(golds_of(question, reenter_topic=True)),
        verdict=None if question.claim is None else question.claim in found,
    )


# ------ The controls' figures on a set of questions, as rows of the report.


def score_controls(control: TemplateControl, questions: Sequence[Question], *, max_hops: int) -> list[dict[str, Any]]:
    """Return the report rows (as plain dictionaries) of the template control and of the ceiling."""
    ceiling = gold_chain_ceiling(control.graph, questions, max_hops=max_hops, reenter_topic=control.reenter_topic)
    answered = score_predictions(questions, control.answer(questions))
    bound = score_predictions(questions, ceiling.predictions)
    answerable = find_answerable(questions, control.graph)
    rows = (
        report_row("template control", "template control", answered, answerable),
        report_row(ceiling.name, "ceiling", bound, answerable),
    )
    return [asdict(row) for row in rows]
