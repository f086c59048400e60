"""The other wordings: whole, of two halves, and put in the place of a question's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.choosing import write_questions
from benchmarks.paraphrases import FILE, HALVES, TOPIC, reword, wordings_of
from kgqa_core.types import Question
from tests.loading import graph_of_text


def test_every_chain_has_wordings_in_both_halves_and_none_is_in_both() -> None:
    lines = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines()[1:]]
    halves = Counter((chain, half) for chain, half, _ in lines)
    assert set(halves) == {(chain, half) for chain, _, _ in lines for half in HALVES}
    assert all(wording.count(TOPIC) == 1 for _, _, wording in lines)
    assert len({(chain, wording) for chain, _, wording in lines}) == len(lines)


def test_a_question_is_asked_in_every_wording_of_its_chain_and_half(tmp_path: Path) -> None:
    films = graph_of_text(tmp_path, "Alien\tdirected_by\tScott\nHeat\tdirected_by\tMann\n")
    chain = (films.relation_labels.index("directed_by"),)
    own = [Question(str(at), "old", "old", (at,), (), "dev", chain=chain) for at in range(3)]
    asked = reword([*own, Question("no chain", "old", "old", (0,), (), "dev")], films, "dev", per_chain=2)
    count = sum(line.startswith("directed_by\tdev") for line in FILE.read_text(encoding="utf-8").splitlines())
    assert len(asked) == len({one.id for one in asked}) == 2 * count
    assert all(one.text == one.masked.replace(TOPIC, films.name_of(one.topics[0])) for one in asked)


def test_a_metaqa_folder_keeps_its_training_and_asks_dev_and_test_in_other_words(tmp_path: Path) -> None:
    for hops, kind in ((1, "movie_to_director"), (2, "movie_to_director_to_movie")):
        own = tmp_path / f"old/{hops}-hop"
        own.mkdir(parents=True)
        for split in ("train", "dev", "test"):
            own.joinpath(f"qa_{split}.txt").write_text("old words of [Alien [4]]\tRidley Scott|Mann\n")
            own.joinpath(f"qa_{split}_qtype.txt").write_text(f"{kind}\n")
    write_questions(tmp_path / "old", tmp_path / "new")
    for hops, chain in ((1, "directed_by"), (2, "directed_by ^directed_by")):
        old, new = (tmp_path / f"{folder}/{hops}-hop" for folder in ("old", "new"))
        assert new.joinpath("qa_train.txt").read_bytes() == old.joinpath("qa_train.txt").read_bytes()
        for half in HALVES:
            asked, kinds = (new.joinpath(f"qa_{half}{what}.txt").read_text().splitlines() for what in ("", "_qtype"))
            worded = [one.replace(TOPIC, "[Alien [4]]") for one in wordings_of(half)[chain]]
            assert asked == [f"{one}\tRidley Scott|Mann" for one in worded]
            assert asked and kinds == [old.joinpath(f"qa_{half}_qtype.txt").read_text().strip()] * len(asked)
