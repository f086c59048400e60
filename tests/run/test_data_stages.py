"""The stages that read data, of a run whose graph gives inverses and whose questions are cut."""

from __future__ import annotations

import pytest

from kgqa_core.config_file import read_config
from kgqa_core.questions.build import read_questions
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import graph_of, read_encodings
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import read_record

RUN = """\
dataset:
  name: cup
  source: files
  graph: {format: tsv, path: kb.txt, inverse_suffix: _inverse}
  questions: {format: wc2014, path: ., train_size: 20, hold_out_templates: 0.4, draw: 1}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, edge_budget: 5, epochs: 1}
"""
CLUBS = {f"Player_{number}": f"Club_{number % 7}" for number in range(53)}
WORDINGS = ["where does {} play ?", "club of {} ?", "who pays {} ?", "which team has {} ?", "team of {} ?"]


@pytest.fixture(scope="module")
def cup(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Five wordings about 53 players: 2 are held out, 20 training questions are drawn from the other three."""
    folder = tmp_path_factory.mktemp("cup")
    rows = [
        f"{player}\tplays_in_club\t{club}\n{club}\tplays_in_club_inverse\t{player}\n" for player, club in CLUBS.items()
    ]
    (folder / "kb.txt").write_text("".join(rows), encoding="utf-8")
    asked = [
        f"{wording.format(player)}\t{club}\t{player}#plays_in_club#{club}#<end>#{club}\t{club}/\t\n"
        for player, club in CLUBS.items()
        for wording in WORDINGS
    ]
    (folder / "1-hop.txt").write_text("".join(asked), encoding="utf-8")
    (folder / "cup.yaml").write_text(RUN, encoding="utf-8")
    pipeline = Pipeline(read_config(folder / "cup.yaml", [f"runtime.home={folder / 'home'}"]))
    ensure(pipeline, ["encodings"])
    return pipeline


def test_their_figures_say_what_was_merged_and_left_out(cup: Pipeline) -> None:
    assert graph_of(cup).inverse_labels == ["plays_in_club_inverse"]
    graph = read_record(cup.artifact("graph").folder).metrics
    assert (graph["num_triples"], graph["num_duplicates"], graph["num_given_inverses"]) == (53, 0, 1)
    asked = read_record(cup.artifact("questions").folder).metrics
    assert (asked["num_masked_texts"], asked["num_masked_texts_held_out"], asked["num_train"]) == (5, 2, 20)
    held = {question.masked for question in read_questions(cup.artifact("questions").folder, "test")}
    assert len(held) == 2


def test_the_text_of_a_given_inverse_is_encoded_and_that_of_a_held_out_wording_too(cup: Pipeline) -> None:
    texts = set(read_encodings(cup.artifact("encodings").folder))
    assert texts == {"plays_in_club", "plays_in_club_inverse"} | {wording.format("[topic]") for wording in WORDINGS}
