"""Questions in words, and an explorer away from its run: what it finds where it is served, and what it says if not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgqa_core.config import LocalEncoderSection, RunConfig
from kgqa_core.errors import ArtifactError, ConfigError, InputError, LinkError
from kgqa_core.run.ask import (
    Answerer,
    Asked,
    ServedCard,
    open_answerer,
    open_served,
    read_card,
    read_encoder_name,
    write_served,
)
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.text.encoder import HashEncoder, RememberedEncodings
from tests.conftest import kgqa

LOCAL = LocalEncoderSection(kind="local", path=Path("/nowhere/e5"))
DAMAGED: dict[str, Any] = {}  # nothing of the card is changed, but the graph


def test_a_seed_that_trained_no_explorer_opens_none(tiny_config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="run 'tiny' has no seed 7; it has 0"):
        open_system(Pipeline(tiny_config), 7)


@pytest.fixture(scope="module")
def answerer(tiny_config: RunConfig) -> Answerer:
    return open_answerer(Pipeline(tiny_config))


@pytest.fixture(scope="module")
def card(tiny_config: RunConfig) -> ServedCard:
    pipeline = Pipeline(tiny_config)
    explorer, graph = pipeline.artifact("explorer-seed0"), pipeline.artifact("graph")
    return ServedCard(
        kgqa="0.1.0",
        run="tiny",
        config_hash="c0ffee",
        dataset="tiny",
        seed=0,
        fingerprint=explorer.fingerprint,
        graph=graph.content,
        graph_fingerprint=graph.fingerprint,
        encoder=tiny_config.encoder,
        encoder_name=read_encoder_name(explorer),
        evaluation=tiny_config.evaluation,
        batch_size=5,
    )


def served(folder: Path, config: RunConfig, card: ServedCard, **changes: Any) -> Path:
    """Write a served explorer and return its folder."""
    made = card.model_copy(update=changes)
    write_served(folder / "explorer", made, Pipeline(config).artifact("explorer-seed0"))
    return folder / "explorer"


# Questions in words


def test_an_answer_names_the_topic_and_ranks_candidates_with_evidence(answerer: Answerer) -> None:
    name = answerer.system.graph.name_of(0)
    answer = answerer.ask("who is that?", name)
    assert (answer.question, answer.topics, answer.error, answer.nearest) == ("who is that?", (name,), "", ())
    paths = [candidate.path for candidate in answer.candidates]
    assert name in paths[0]
    assert [path for path in paths if path] == paths[: answerer.system.evidence_paths]
    with pytest.raises(LinkError) as problem:
        answerer.ask("who is that?", f"{name}x")
    assert problem.value.nearest[0] == name  # data, too
    with pytest.raises(InputError, match="the question is empty"):
        answerer.ask(" ", name)


def test_all_topics_that_are_named_are_walked_from(
    answerer: Answerer, tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tiny_config.runtime.home))
    conf, names = tiny_config.runtime.home.parent / "tiny.yaml", [answerer.system.graph.name_of(at) for at in (2, 3)]
    named = [word for name in names for word in ("--topic", name)]
    found = json.loads(kgqa("ask", str(conf), "who is that?", *named, "--json").stdout)
    assert found["topics"] == names
    alone = answerer.ask("who is that?", names[1])
    assert [one["label"] for one in found["candidates"]] != [one.label for one in alone.candidates]


def test_among_many_questions_a_bad_one_is_an_answer_that_says_why(answerer: Answerer) -> None:
    names = [answerer.system.graph.name_of(entity) for entity in (2, 3)]
    rows = [Asked("who?", names[0]), Asked("who?", "nobody at all"), Asked(""), Asked(f"who knows {names[1]}?")]
    answers = answerer.ask_all(rows)
    assert [answer.question for answer in answers] == [row.question for row in rows]
    assert [bool(answer.error) for answer in answers] == [False, True, True, False]
    assert (answers[0], answers[3]) == (answerer.ask("who?", names[0]), answerer.ask(f"who knows {names[1]}?"))
    assert len(answers[1].nearest) == 5
    assert answerer.ask_all([]) == []


def test_a_request_of_many_unknown_names_reads_all_names_of_the_graph_a_few_times_only(
    answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[str]()

    def look(value: str, _: object) -> list[str]:
        looked.append(value)
        return ["a name"]

    monkeypatch.setattr("kgqa_core.questions.link.nearest_names", look)
    answers = answerer.ask_all([Asked("zzqx?"), Asked("who?", "zzqx")] * 100)
    assert len(looked) == 20 and [bool(answer.nearest) for answer in answers] == [True] * 20 + [False] * 180
    assert all("zzqx" in answer.error and "Nearest names" not in answer.error for answer in answers[20:])
    with pytest.raises(LinkError, match="Nearest names"):
        answerer.ask("zzqx?")


def test_one_thread_computes_whichever_thread_asks_and_others_are_left_alone(answerer: Answerer) -> None:
    used: list[int] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        used.append(torch.get_num_threads())
        return HashEncoder(31).encode(texts)

    spied = Answerer(replace(answerer.system, encode=encode))
    name = answerer.system.graph.name_of(0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        spied.ask("who is that?", name)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(spied.ask_all, [Asked("who is that?", name)]).result()
    assert set(used) == {1}


# Away from the run


def test_a_served_explorer_answers_as_its_run_does(
    answerer: Answerer, card: ServedCard, tiny_config: RunConfig, tmp_path: Path
) -> None:
    folder = served(tmp_path, tiny_config, card)
    elsewhere = tmp_path / "another machine"
    graphs = tiny_config.runtime.home / "artifacts" / "graph"
    shutil.copytree(graphs / card.graph_fingerprint, elsewhere / "artifacts" / "graph" / card.graph_fingerprint)
    opened = open_served(folder, elsewhere)
    assert opened.system.batch_size == 5
    limits = tiny_config.evaluation.model_copy(update={"edge_budget": 3, "evidence_paths": 1})
    limited = open_served(served(tmp_path / "limited", tiny_config, card, evaluation=limits), elsewhere).system
    assert (limited.card.edge_budget, limited.evidence_paths) == (3, 1)
    rows = [Asked("who is that?", opened.system.graph.name_of(entity)) for entity in range(7)]
    for one, other in zip(opened.ask_all(rows), answerer.ask_all(rows), strict=True):
        assert [line.label for line in one.candidates] == [line.label for line in other.candidates]
        assert [line.score for line in one.candidates] == pytest.approx([line.score for line in other.candidates])
        assert [line.path for line in one.candidates] == [line.path for line in other.candidates]


@pytest.mark.parametrize(
    ("changes", "encoder_path", "said"),
    [
        ({"graph": "0" * 64}, None, ["0" * 64, "HOME/artifacts/graph", "kgqa build CONF", "'tiny'"]),
        ({"encoder_name": "hash-v0-d31"}, None, ["encoded by hash-v0-d31, and here is hash-v1-d31"]),
        ({"encoder": LOCAL, "encoder_name": "local-abc"}, None, ["local-abc", "/nowhere/e5", "encoder_path"]),
        ({"encoder": LOCAL, "encoder_name": "local-abc"}, Path("/elsewhere/e5"), ["is not in /elsewhere/e5"]),
        (DAMAGED, None, ["the graph with the content hash"]),
    ],
)
def test_what_is_not_here_is_named_with_where_it_was_looked_for_and_what_helps(
    card: ServedCard,
    tiny_copy: RunConfig,
    tmp_path: Path,
    changes: dict[str, Any],
    encoder_path: Path | None,
    said: list[str],
) -> None:
    home, folder = tiny_copy.runtime.home, served(tmp_path, tiny_copy, card, **changes)
    if changes is DAMAGED:
        (Pipeline(tiny_copy).artifact("graph").folder / "edge_tail.npy").unlink()
    with pytest.raises(ArtifactError) as problem:
        open_served(folder, home, encoder_path=encoder_path)
    for named in said:
        assert named.replace("HOME", str(home)) in str(problem.value)


def test_a_card_of_another_version_says_which_field_it_has_too_many(
    card: ServedCard, tiny_config: RunConfig, tmp_path: Path
) -> None:
    folder = served(tmp_path, tiny_config, card)
    assert read_card(folder) == card
    written = json.loads((folder / "served.json").read_text())
    (folder / "served.json").write_text(json.dumps({**written, "colour": "blue"}))
    with pytest.raises(ArtifactError, match=r"(?s)colour.*Register it again"):
        read_card(folder)
    (folder / "served.json").unlink()
    with pytest.raises(ArtifactError, match="holds no served explorer"):
        read_card(folder)


# Encodings in memory


class CountingEncoder(HashEncoder):
    """Remembers what it was asked to encode."""

    def __init__(self) -> None:
        super().__init__(13)
        self.asked: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.asked.append(list(texts))
        return super().encode(texts)


def test_relations_are_encoded_once_and_questions_only_when_new() -> None:
    encoder = CountingEncoder()
    encode = RememberedEncodings(encoder.encode, ["written_by", "directed_by"])
    assert encoder.asked == [["written_by", "directed_by"]]
    first = encode(["who?", "where?", "who?"])
    assert encoder.asked[1:] == [["who?", "where?"]]
    assert first.shape == (3, 13)
    assert np.array_equal(first[0], first[2])
    second = encode(["where?", "directed_by"])
    assert encoder.asked[2:] == []
    assert np.array_equal(second[0], first[1])
    assert np.array_equal(second[1], HashEncoder(13).encode(["directed_by"])[0])
    assert encode([]).shape == (0, 13)


def test_questions_asked_long_ago_are_forgotten_and_relations_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.text.encoder.RECENT_TEXTS", 2)
    encoder = CountingEncoder()
    encode = RememberedEncodings(encoder.encode, ["directed_by"])
    for text in ("one", "two", "one", "three", "one", "two", "directed_by"):
        encode([text])
    assert [texts for texts in encoder.asked if texts] == [["directed_by"], ["one"], ["two"], ["three"], ["two"]]
    assert encode(["a", "b", "c", "d"]).shape == (4, 13)  # more at once than are kept
