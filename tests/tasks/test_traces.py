"""Questions of a system in MLflow, call by call: failures first, with their tokens, tied to the system's run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import SpanStatusCode, Trace, TraceState

from kgqa_core.systems.tables import write_calls
from kgqa_core.types import Question
from tasks.mlflow_store import import_mlflow, tracking_uri
from tasks.traces import delete_traces, log_traces, share_out, traced_questions
from tests.evaluation.made_up import Reply, ask, write_system
from tests.tasks.conftest import copy_store

ASKED: list[tuple[Question, Reply]] = [
    (ask("q1", 1, hops=1), Reply((1, 4), supported=(1,), unmatched=("Nobody",), calls=2, tokens=100, money=0.5)),
    (ask("q2", 2, 3), Reply((9,), calls=1, tokens=7)),
    (ask("q3", 3), Reply((3,), supported=(3,), calls=3, tokens=50, stopped="calls")),
    (ask("q4", 4), Reply(status="failed", error="Traceback\nValueError: no", calls=1, tokens=9)),
    (ask("q5", 5), Reply(status="skipped")),
    (ask("q6", 6), Reply((6,))),  # right without a call
    (ask("q0", 1, claim=1, verdict=True), Reply((1,), supported=(1,), verdict=True, calls=1, tokens=5)),
]
IN_ORDER = ["q4", "q3", "q2", "q0", "q1", "q6"]


@dataclass(frozen=True)
class Store:
    """A store with a run of a system, and the tables that it left."""

    client: MlflowClient
    experiment: str
    run_id: str
    predictions: Path
    calls: Path

    def log(self, limit: int = 50) -> list[str]:
        return log_traces(self.client, self.experiment, self.run_id, self.predictions, self.calls, limit=limit)

    def traces(self) -> list[Trace]:
        return list(self.client.search_traces(locations=[self.experiment], run_id=self.run_id))


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = copy_store(empty_store, tmp_path / "home")
    import_mlflow()
    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.create_experiment("demo", artifact_location=(home / "artifacts").as_uri())
    run_id = client.create_run(experiment, run_name="rog seed 0", start_time=1_000_000).info.run_id
    calls = tmp_path / "calls.parquet"
    write_calls(calls, [reply.answered(question) for question, reply in ASKED])
    return Store(client, experiment, run_id, write_system(tmp_path, "rog", *zip(*ASKED, strict=True)), calls)


def test_failures_come_first_and_no_more_than_asked_for(store: Store) -> None:
    def shown(limit: int) -> list[str]:
        return [one.row["question_id"] for one in traced_questions(store.predictions, store.calls, limit=limit)]

    assert shown(50) == IN_ORDER  # what was skipped has nothing to show
    assert (shown(2), shown(0)) == (IN_ORDER[:2], [])
    assert len(store.log(3)) == len(store.traces()) == 3
    assert store.log(0) == []


def test_a_trace_shows_prompts_answers_evidence_tokens_and_verdict(store: Store) -> None:
    before = mlflow.get_tracking_uri()
    ids = store.log()
    assert mlflow.get_tracking_uri() == before  # whatever the user has set
    found = {trace.info.client_request_id: trace for trace in store.traces()}
    assert sorted(found) == sorted(IN_ORDER)
    trace = found["q1"]
    assert trace.info.trace_id == ids[IN_ORDER.index("q1")]
    assert trace.info.token_usage == {"input_tokens": 200, "output_tokens": 20, "total_tokens": 220}
    assert (trace.info.state, trace.info.execution_duration) == (TraceState.OK, 500)
    assert (trace.info.tags["verdict"], trace.info.tags["hops"]) == ("right", "1")
    assert (trace.info.request_preview, trace.info.response_preview) == ("what is q1?", "entity 1 | entity 4")
    assert {one.name: one.value for one in trace.info.assessments} == {"correct": True, "supported": False}
    root, first, second = trace.data.spans
    assert root.inputs == {"question": "what is q1?"}
    assert root.outputs["gold"] == ["entity 1"]
    assert [answer["supported"] for answer in root.outputs["answers"]] == [True, False]
    assert root.outputs["not in the graph"] == ["Nobody"]
    assert root.attributes["money"] == 1.0
    assert first.inputs == {"messages": [{"role": "user", "content": "prompt 0"}]}
    assert first.outputs["choices"][0]["message"] == {"role": "assistant", "content": "text 0"}
    assert (first.name, first.span_type, first.parent_id) == ("reason", "CHAT_MODEL", root.span_id)
    usages = [span.attributes["mlflow.chat.tokenUsage"]["input_tokens"] for span in (first, second)]
    assert sum(usages) == 200


def test_failures_show_their_traceback_and_claims_their_verdict(store: Store) -> None:
    store.log()
    roots = {}
    for trace in store.traces():
        (roots[trace.info.client_request_id],) = (span for span in trace.data.spans if span.parent_id is None)
        assert (trace.info.state == TraceState.ERROR) == (trace.info.client_request_id == "q4")
    assert roots["q4"].status.status_code == SpanStatusCode.ERROR
    assert roots["q4"].status.description.endswith("ValueError: no")
    assert (roots["q0"].outputs["claim is"], roots["q0"].outputs["claim should be"]) == (True, True)
    assert roots["q3"].attributes["stopped"] == "calls"


def test_the_traces_of_a_run_go_with_it_and_others_stay(store: Store) -> None:
    store.log()
    other = store.client.create_run(store.experiment, run_name="rog seed 1").info.run_id
    log_traces(store.client, store.experiment, other, store.predictions, store.calls, limit=2)
    assert delete_traces(store.client, store.experiment, store.run_id) == len(IN_ORDER)
    assert not store.traces()
    assert len(store.client.search_traces(locations=[store.experiment], run_id=other)) == 2
    assert delete_traces(store.client, store.experiment, store.run_id) == 0


@given(st.integers(0, 10_000), st.lists(st.integers(0, 500), max_size=7))
def test_tokens_are_shared_out_whole_and_by_length(total: int, lengths: list[int]) -> None:
    shares = share_out(total, lengths)
    assert len(shares) == len(lengths)
    assert sum(shares) == (total if sum(lengths) else 0)
    assert all(
        abs(share - total * size / max(1, sum(lengths))) < 1 for share, size in zip(shares, lengths, strict=True)
    )
