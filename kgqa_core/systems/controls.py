"""Controls: what can be had without learning anything from the graph's structure or the question's meaning.

*Template control*: per masked question text, the relation path that served its training questions best. A learned model
that does not beat it has shown nothing. *Ceiling*: the gold relation path; what it misses, no explorer can get.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.evaluation.figures import report_row
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.follow import follow_layers, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph, golds_of
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.questions.coverage import find_answerable
from kgqa_core.types import Prediction, Question, ReasoningPath, RelationPath

NUM_PATHS = 3  # candidates of a prediction that get an evidence path
FORMAT = 1  # of the saved control
SAMPLE = 20  # questions of one kind that are looked at
FOLLOWED = 20  # paths of one length
ROUNDING = 1e-9  # means that differ by less are equal: the sums behind them round


@dataclass(frozen=True, slots=True)
class TemplateControl:
    """The best relation path per masked question text, ready to answer questions over one graph.

    A text never seen in training gets the path of most training questions among those that lead anywhere from its
    topics: to use likeness of wordings would be the beginning of a model.
    """

    search: SearchGraph
    paths: Mapping[str, RelationPath]  # by masked text
    by_frequency: tuple[RelationPath, ...]  # distinct paths, those of most training questions first

    def answer(self, questions: Sequence[Question]) -> list[Prediction]:
        """Return one prediction per question: the entities reached, all with the same score."""
        return [answer_by_path(self.search, question, self.pick_path(question)) for question in questions]

    def pick_path(self, question: Question) -> RelationPath | None:
        """Return the path to follow for a question; ``None`` where no known path leads anywhere."""
        if question.masked in self.paths:
            return self.paths[question.masked]
        for path in self.by_frequency:
            if len(follow_topics(self.search, question.topics, path)):
                return path
        return None

    def save(self, path: Path) -> None:
        """Write the control as JSON; relation labels stand beside the ids, so that no other graph is taken for this."""
        content = {
            "format": FORMAT,
            "relations": self.search.relation_names,
            "reenter_topic": self.search.reenter_topic,
            "by_frequency": self.by_frequency,
            "paths": dict(sorted(self.paths.items())),
        }
        with written_whole(path) as unfinished:
            unfinished.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def fit_template_control(
    search: SearchGraph,
    questions: Sequence[Question],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TemplateControl:
    """Fit the template control on training questions, whose gold chains are not looked at; see ``score_paths``.

    A masked text none of whose golds can be reached gets no path. ``progress``: (masked texts done, in all).
    """
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[question.masked].append(question)
    paths: dict[str, RelationPath] = {}
    served: Counter[RelationPath] = Counter()
    for done, (masked, group) in enumerate(groups.items(), start=1):
        if ranked := score_paths(search, group):
            paths[masked] = ranked[0].path
            served[ranked[0].path] += len(group)
        progress(done, len(groups))
    by_frequency = sorted(served, key=lambda path: (-served[path], len(path), path))
    return TemplateControl(search, paths, tuple(by_frequency))


def load_template_control(path: Path, search: SearchGraph) -> TemplateControl:
    """Read what ``TemplateControl.save`` wrote. Raises ``ArtifactError`` when it is damaged or of another graph."""
    advice = "fit the control again on this graph"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["relations"] != search.relation_names:
            raise ArtifactError(f"{shorten(str(path))} was fitted on a graph with other relations; {advice}")
        paths = {masked: tuple(steps) for masked, steps in content["paths"].items()}
        as_fitted = replace(search, reenter_topic=bool(content["reenter_topic"]))
        return TemplateControl(as_fitted, paths, tuple(map(tuple, content["by_frequency"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{shorten(str(path))} is no template control ({shorten(str(error))}); {advice}") from error


def follow_gold_chains(search: SearchGraph, questions: Sequence[Question]) -> tuple[str, list[Prediction]]:
    """Follow every question's gold chain; where none is given, the single path best by F1 against its own golds.

    To look for that path sees the golds: a bound, never a system. Returned are a prediction per question, and before
    them a name: ``gold-chain ceiling`` where all have a gold chain, else ``best-path ceiling``.
    """
    predictions = []
    for question in questions:
        path = question.chain
        if path is None:
            ranked = score_paths(search, [question])
            path = ranked[0].path if ranked else None
        if path is None and question.verdict is False:  # what leads elsewhere than to the claim speaks against it
            around = sorted_distinct(search.graph.edges_of(np.asarray(question.topics, dtype=np.int64))[1]).tolist()
            ways = (((relation,), follow_topics(search, question.topics, (relation,))) for relation in around)
            path = next((way for way, ends in ways if len(ends) and question.claim not in ends), None)
        predictions.append(answer_by_path(search, question, path))
    has_chains = all(question.chain is not None for question in questions)
    return "gold-chain ceiling" if has_chains else "best-path ceiling", predictions


def answer_by_path(search: SearchGraph, question: Question, path: RelationPath | None) -> Prediction:
    """Answer with all that ``path`` reaches from the topics, at equal scores; ``None`` or nothing reached abstains.

    A claim is true where it is reached. It gets evidence, as the first ``NUM_PATHS`` candidates do.
    """
    reached: list[int] = follow_topics(search, question.topics, path).tolist() if path is not None else []
    if path is None or not reached:
        return Prediction(question.id, (), (), ())
    found = set(reached)
    shown = {*reached[:NUM_PATHS], *(one for one in reached if one == question.claim)}
    paths: list[ReasoningPath] = []
    for end in reached[: max(map(reached.index, shown)) + 1]:
        walks = reasoning_paths(search.graph, question.topics, path, ends=[end], reenter_topic=search.reenter_topic)
        paths.append(next(walks, ()) if end in shown else ())
    return Prediction(
        question_id=question.id,
        candidates=tuple(reached),
        scores=(1.0 / len(reached),) * len(reached),
        answers=tuple(reached),
        paths=tuple(paths),
        covered=not found.isdisjoint(golds_of(question, reenter_topic=True)),
        verdict=None if question.claim is None else question.claim in found,
    )


def score_controls(control: TemplateControl, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Return the report rows (as plain dictionaries) of the template control and of the ceiling."""
    ceiling, bound = follow_gold_chains(control.search, questions)
    answerable = find_answerable(questions, control.search.graph)
    answered = score_predictions(questions, control.answer(questions))
    bounds = report_row(ceiling, "ceiling", score_predictions(questions, bound), answerable)
    return [asdict(report_row("template control", "template control", answered, answerable)), asdict(bounds)]


# ------ The relation path that serves a group of questions best: the heart of the controls.
#
# Enumerating and following every path is hopeless near hubs (a genre reaches thousands of films, each with ten edges),
# so the last step is never walked forwards. It is looked up backwards from the golds instead, which says how many golds
# each path reaches (its recall) at a fraction of the price. Recall r bounds F1 by 2r / (1 + r); only paths whose mean
# bound can still beat the best mean F1 found are followed, and each is dropped as soon as it cannot.


Case = tuple[Question, frozenset[int]]
"""A question with its golds."""


class ScoredPath(NamedTuple):
    """One relation path and how well what it reaches agrees with the golds."""

    path: RelationPath
    f1: float  # mean over the questions looked at, 0..1


class _Frontiers(NamedTuple):
    """What every relation path of one length reaches from one question's topics; rows sorted by path, then entity."""

    paths: list[RelationPath]
    owner: Ints  # [rows], place in paths
    entity: Ints  # [rows]


def score_paths(search: SearchGraph, questions: Sequence[Question]) -> list[ScoredPath]:
    """Return relation paths of 1..``max_hops`` steps for questions of one kind, by mean F1 against their golds.

    Best first; ties go to the shorter path, then to the smaller relation ids. At most ``SAMPLE`` questions, evenly
    spaced, are looked at, and at most ``FOLLOWED`` paths per length are followed, those first that reach most golds,
    from fewest entities. Listed are the paths followed on every question looked at: those that could be best at their
    time. A perfect path ends the search for longer ones.
    """
    num = min(SAMPLE, len(questions))
    looked_at = [questions[place * len(questions) // num] for place in range(num)]
    cases = [(question, golds_of(question, reenter_topic=search.reenter_topic)) for question in looked_at]
    cases = [(question, golds) for question, golds in cases if golds]
    starts = [sorted_distinct(np.asarray(question.topics, dtype=np.int64)) for question, _ in cases]
    frontiers = [_Frontiers([()], np.zeros(len(topics), dtype=np.int64), topics) for topics in starts]
    found: list[ScoredPath] = []
    for hop in range(search.max_hops):
        if hop:
            frontiers = [
                _extend(search.graph, frontier, search.avoided(question.topics))
                for frontier, (question, _) in zip(frontiers, cases, strict=True)
            ]
        ranked = _rank_by_bound(search.graph, frontiers, cases)
        found += _follow_best(search, ranked[:FOLLOWED], cases, found)
        found.sort(key=lambda scored: (-round(scored.f1, 9), len(scored.path), scored.path))
        if found and found[0].f1 >= 1 - ROUNDING:
            break
    return found


def follow_topics(search: SearchGraph, topics: Sequence[int], path: RelationPath) -> Ints:
    """Return the entities, ascending, that ``path`` reaches from all ``topics`` at once; where from none, from any.

    A question with two topics mostly asks for what they share.
    """
    how: Any = {"topics": topics, "reenter_topic": search.reenter_topic}
    reached = [follow_layers(search.graph, [topic], path, **how)[-1] for topic in topics]
    if not reached:
        return np.empty(0, dtype=np.int64)
    shared: Ints = reduce(np.intersect1d, reached)
    return shared if len(shared) else sorted_distinct(np.concatenate(reached))


def _extend(graph: KnowledgeGraph, frontiers: _Frontiers, barred: Ints) -> _Frontiers:
    """Return the frontiers one step further: every path continued by every relation that its entities have."""
    place, relation, tail = graph.edges_of(frontiers.entity)
    rows: Ints = sorted_distinct((frontiers.owner[place] * graph.identity + relation) * graph.num_entities + tail)
    rows = rows[~np.isin(rows % graph.num_entities, barred)]
    reached_by = rows // graph.num_entities
    is_new = np.diff(reached_by, prepend=-1) > 0
    paths = [(*frontiers.paths[key // graph.identity], key % graph.identity) for key in reached_by[is_new].tolist()]
    return _Frontiers(paths, np.cumsum(is_new) - 1, rows % graph.num_entities)


def _rank_by_bound(
    graph: KnowledgeGraph, frontiers: Sequence[_Frontiers], cases: Sequence[Case]
) -> list[tuple[RelationPath, dict[int, float]]]:
    """Return (path, F1 bound by place of the question), most promising first."""
    bounds: dict[RelationPath, dict[int, float]] = defaultdict(dict)
    sizes: dict[RelationPath, int] = defaultdict(int)
    for place, (frontier, (_, golds)) in enumerate(zip(frontiers, cases, strict=True)):
        num_entities = np.bincount(frontier.owner, minlength=len(frontier.paths)).tolist()
        for owner, relation, num_reached in _count_golds(graph, frontier, golds):
            path = (*frontier.paths[owner], relation)
            bounds[path][place] = 2 * num_reached / (num_reached + len(golds))
            sizes[path] += num_entities[owner]
    return sorted(bounds.items(), key=lambda item: (-round(sum(item[1].values()), 9), sizes[item[0]], item[0]))


def _count_golds(graph: KnowledgeGraph, frontier: _Frontiers, golds: frozenset[int]) -> list[tuple[int, int, int]]:
    """Return (place of the path, last relation, golds reached by it) for every continuation that reaches a gold."""
    ids = np.array(sorted(golds), dtype=np.int64)
    gold, relation, before = graph.edges_of(ids)
    # seen from a gold an edge has the opposite direction of the step that arrives by it
    arriving = (relation.astype(np.int64) + graph.num_relations) % graph.identity
    order = np.argsort(before, kind="stable")
    before, into = before[order], (arriving * len(ids) + gold)[order]
    low, high = np.searchsorted(before, frontier.entity), np.searchsorted(before, frontier.entity, side="right")
    width = graph.identity * len(ids)
    hits = sorted_distinct(np.repeat(frontier.owner, high - low) * width + into[expand_ranges(low, high)])
    keys, counts = np.unique(hits // len(ids), return_counts=True)
    return list(zip((keys // graph.identity).tolist(), (keys % graph.identity).tolist(), counts.tolist(), strict=True))


def _follow_best(
    search: SearchGraph,
    ranked: Sequence[tuple[RelationPath, dict[int, float]]],
    cases: Sequence[Case],
    found: Sequence[ScoredPath],
) -> list[ScoredPath]:
    """Follow paths in order of their bounds; give one up when it can no longer reach the best mean F1."""
    best = max((scored.f1 for scored in found), default=0.0)
    followed: list[ScoredPath] = []
    for path, bounds in ranked:
        left, total = sum(bounds.values()), 0.0
        for place, bound in bounds.items():
            if (total + left) / len(cases) < best - ROUNDING:
                break
            question, golds = cases[place]
            reached = follow_topics(search, question.topics, path)
            right = int(np.isin(reached, list(golds)).sum())
            total += 2 * right / (len(reached) + len(golds))
            left -= bound
        else:
            if total:  # nothing is right where topics share something else than what one of them reaches
                followed.append(ScoredPath(path, total / len(cases)))
                best = max(best, followed[-1].f1)
    return followed
