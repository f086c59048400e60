"""Questions of a system, call by call, as traces in MLflow: which ones, and what is shown of them.

They are made after the run, from the tables that it left, and their spans are written in one go: a trace made as its
calls happen costs 13 to 27 ms. MLflow's fluent interface could not do that, and goes through the global tracking URI,
which may be the user's. What was measured are tokens and seconds of a whole question: rounds are laid out evenly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.evaluation.runs import read_system_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Span, TraceInfo

Kind = Literal["failed", "stopped", "wrong", "right"]
KINDS: tuple[Kind, ...] = ("failed", "stopped", "wrong", "right")  # whoever opens a run looks for what went wrong
UNASKED = "budget"  # the problem of a call that a budget forbade: it costs nothing
PREVIEW_CHARACTERS = 1000  # of question and answer in the list of traces
TRACES_AT_ONCE = 100  # that MLflow ties to a run, or deletes, in one call
NS_PER_SECOND, NS_PER_MS = 1_000_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class TracedQuestion:
    """One question with all that a system did for it."""

    kind: Kind
    is_right: bool  # was its answer, by the fixed pick among ties? Also where a budget stopped it
    row: dict[str, Any]  # of schemas.SYSTEM_PREDICTIONS
    calls: list[dict[str, Any]]  # of schemas.SYSTEM_CALLS by number, each with its ``num_prompt_tokens``

    @property
    def duration_ns(self) -> int:
        """The time of its calls, and no less than MLflow shows."""
        return max(int(self.row["seconds"] * NS_PER_SECOND), NS_PER_MS * max(1, len(self.calls)))


def traced_questions(predictions: Path, calls: Path, *, limit: int) -> list[TracedQuestion]:
    """Return at most ``limit`` questions: those that failed first, then stopped, wrong and right ones.

    Among those of a kind, questions that made calls come first, then they go by their ids. Skipped questions, of which
    there is nothing to see, are left out. Raises InputError where the predictions are damaged or empty.
    """
    if not limit:
        return []
    judged = read_system_run(predictions)
    right = dict(zip(judged.scores.question_ids, judged.picked_right.tolist(), strict=True))
    table = pq.read_table(predictions, columns=["question_id", "status", "stopped", "num_calls"], partitioning=None)
    kinds = {
        row["question_id"]: (_kind(row, right[row["question_id"]]), not row["num_calls"])
        for row in table.to_pylist()
        if row["status"] != "skipped"
    }
    chosen = sorted(kinds, key=lambda id: (KINDS.index(kinds[id][0]), kinds[id][1], id))[:limit]
    rows = {row["question_id"]: row for row in _rows_of(predictions, chosen)}
    asked: dict[str, list[dict[str, Any]]] = {id: [] for id in chosen}
    for row in _rows_of(calls, chosen):
        asked[row["question_id"]].append(row)
    return [TracedQuestion(kinds[id][0], right[id], rows[id], with_tokens(rows[id], asked[id])) for id in chosen]


def _kind(row: dict[str, Any], right: bool) -> Kind:
    judged: Kind = "right" if right else "wrong"
    return "failed" if row["status"] == "failed" else "stopped" if row["stopped"] else judged


def _rows_of(path: Path, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some questions, batch by batch: a table of calls may be large."""
    wanted = pa.array(ids, pa.string())
    with pq.ParquetFile(path) as file:
        batches = (
            batch.filter(pc.is_in(batch["question_id"], value_set=wanted)).to_pylist() for batch in file.iter_batches()
        )
        return [row for batch in batches for row in batch]


def with_tokens(row: Mapping[str, Any], asked: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a question's calls in order, its prompt tokens shared out by their lengths: only their sum is known."""
    calls = sorted(asked, key=lambda call: int(call["number"]))
    lengths = [0 if call["problem"] == UNASKED else len(call["prompt"]) + len(call["system_prompt"]) for call in calls]
    shares = share_out(row.get("num_prompt_tokens") or 0, lengths)
    return [{**call, "num_prompt_tokens": tokens} for call, tokens in zip(calls, shares, strict=True)]


def share_out(total: int, weights: Sequence[int]) -> list[int]:
    """Return ``total`` shared out by ``weights``, whole numbers that sum to it; zeros without any weight."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    ends = [total * passed // whole for passed in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def log_traces(
    client: MlflowClient, experiment: str, run_id: str, predictions: Path, calls: Path, *, limit: int
) -> list[str]:
    """Show questions of a finished system in MLflow, failures first; return the ids of their traces, in that order.

    ``experiment`` and ``run_id`` are of the system's run; the tables and ``limit`` are those of ``traced_questions``.
    """
    from mlflow.tracing.client import TracingClient

    questions = traced_questions(predictions, calls, limit=limit)
    if not questions:
        return []
    run = client.get_run(run_id)
    name, begun = str(run.info.run_name), int(run.info.start_time)
    store = TracingClient(client.tracking_uri)
    infos = [_info(question, experiment, run_id, name, begun) for question in questions]
    for info in infos:
        store.start_trace(info)
    pairs = zip(questions, infos, strict=True)
    store.log_spans(experiment, [span for question, info in pairs for span in _spans(question, info, name)])
    ids = [str(info.trace_id) for info in infos]
    for start in range(0, len(ids), TRACES_AT_ONCE):
        client.link_traces_to_run(ids[start : start + TRACES_AT_ONCE], run_id)
    return ids


def delete_traces(client: MlflowClient, experiment: str, run_id: str) -> int:
    """Delete the traces of a run, such as one that a killed publisher left; return how many there were."""
    from mlflow.tracing.constant import TraceMetadataKey

    deleted = 0
    while found := client.search_traces(
        locations=[experiment],
        filter_string=f"request_metadata.`{TraceMetadataKey.SOURCE_RUN}` = '{run_id}'",
        max_results=TRACES_AT_ONCE,
        include_spans=False,
    ):
        deleted += client.delete_traces(experiment_id=experiment, trace_ids=[one.info.trace_id for one in found])
    return deleted


def _info(question: TracedQuestion, experiment: str, run_id: str, name: str, begun_ms: int) -> TraceInfo:
    """Return what the list of traces shows, with the verdicts that it can be sorted and filtered by."""
    from mlflow.entities import AssessmentSource, AssessmentSourceType, Feedback, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.constant import TraceMetadataKey, TraceTagKey

    row = question.row
    verdicts = {"correct": question.is_right}
    if row["faithful"]:
        verdicts["supported"] = all(row["faithful"]) and not row["unmatched"]
    source = AssessmentSource(source_type=AssessmentSourceType.CODE, source_id="kgqa")
    return TraceInfo(
        trace_id=f"tr-{_digest(run_id, row['question_id'])}",  # equal when it is told again
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=begun_ms,
        execution_duration=question.duration_ns // NS_PER_MS,
        state=TraceState.ERROR if question.kind == "failed" else TraceState.OK,
        client_request_id=row["question_id"],
        request_preview=row["question"][:PREVIEW_CHARACTERS],
        response_preview=" | ".join(row["prediction"])[:PREVIEW_CHARACTERS],
        trace_metadata={TraceMetadataKey.SOURCE_RUN: run_id, TraceMetadataKey.TOKEN_USAGE: json.dumps(_usage(row))},
        tags={
            TraceTagKey.TRACE_NAME: name,
            "verdict": question.kind,
            "hops": "unknown" if row["hops"] is None else str(row["hops"]),
        },
        assessments=[Feedback(name=verdict, value=value, source=source) for verdict, value in verdicts.items()],
    )


def _spans(question: TracedQuestion, info: TraceInfo, name: str) -> Iterator[Span]:
    """Yield the span of the question, then those of its calls; calls of a round stand beside each other."""
    from mlflow.entities import SpanType
    from mlflow.tracing.constant import SpanAttributeKey

    row, begun = question.row, int(info.request_time) * NS_PER_MS
    root = _digest(info.trace_id)[:16]
    told = {
        SpanAttributeKey.SPAN_TYPE: SpanType.CHAIN,
        SpanAttributeKey.INPUTS: {"question": row["question"]},
        SpanAttributeKey.OUTPUTS: _outcome(question),
        **{key: row[key] for key in ("question_id", "status", "stopped", "seconds", "money", "topic_source")},
    }
    problem = row["error"] if question.kind == "failed" else ""
    yield _span(info, name, (root, None), (begun, begun + question.duration_ns), problem, told)
    length = question.duration_ns // max((call["round"] for call in question.calls), default=1)
    for number, call in enumerate(question.calls):
        start = begun + (call["round"] - 1) * length
        system = [{"role": "system", "content": call["system_prompt"]}] if call["system_prompt"] else []
        said = [{"role": "assistant", "content": text} for text in call["texts"]]
        told = {  # as MLflow shows conversations
            SpanAttributeKey.SPAN_TYPE: SpanType.CHAT_MODEL,
            SpanAttributeKey.INPUTS: {"messages": [*system, {"role": "user", "content": call["prompt"]}]},
            SpanAttributeKey.OUTPUTS: {"choices": [{"index": i, "message": one} for i, one in enumerate(said)]},
            SpanAttributeKey.CHAT_USAGE: _usage(call),
            "round": call["round"],
            "problem": call["problem"],
        }
        ids = (_digest(info.trace_id, str(number))[:16], root)
        yield _span(info, call["instruction"], ids, (start, start + length), call["problem"], told)


def _outcome(question: TracedQuestion) -> dict[str, Any]:
    """Return what was answered, on what evidence, and what would have been right."""
    row = question.row
    paths = dict(zip(row["candidate_ids"], row["paths"], strict=False))
    answers = zip(row["prediction"], row["answer_ids"], row["faithful"], strict=True)
    shown: dict[str, Any] = {
        "answers": [
            {"name": name, "evidence": paths.get(id, ""), "supported": has_path} for name, id, has_path in answers
        ],
        "gold": row["ground_truth"],
        "verdict": question.kind,
    }
    if row["unmatched"]:
        shown["not in the graph"] = row["unmatched"]
    if row["gold_verdict"] is not None:
        shown |= {"claim is": row["verdict"], "claim should be": row["gold_verdict"]}
    return shown


def _span(
    info: TraceInfo,
    name: str,
    ids: tuple[str, str | None],
    times: tuple[int, int],
    problem: str,
    attributes: Mapping[str, Any],
) -> Span:
    """Return a span of the trace ``info``: ``ids`` of itself and its parent, ``times`` in ns, and what went wrong."""
    from mlflow.entities import Span
    from mlflow.tracing.constant import SpanAttributeKey

    given = {SpanAttributeKey.REQUEST_ID: info.trace_id, **attributes}
    return Span.from_dict({
        "trace_id": info.trace_id,
        "span_id": ids[0],
        "parent_span_id": ids[1],
        "name": name,
        "start_time_unix_nano": times[0],
        "end_time_unix_nano": times[1],
        "status": {"code": "ERROR" if problem else "OK", "message": problem},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in given.items()},
        "events": [],
    })  # fmt: skip


def _usage(row: Mapping[str, Any]) -> dict[str, int]:
    read, given = row["num_prompt_tokens"], row["num_tokens"]
    return {"input_tokens": read, "output_tokens": given, "total_tokens": read + given}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]
