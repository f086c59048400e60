"""Systems side by side: who is best, what ties, what the language model adds and overrules, and how it all is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.evaluation.compare import NOBODY, Entrant, SideBySide, compare_pair, holm, side_by_side
from kgqa_core.evaluation.runs import EvaluatedRun, group_runs
from kgqa_core.evaluation.tables import comparison_tables, merit_sentences, render_side_by_side
from tests.evaluation.made_up import Reply, ask, make_system

NUM = 60
QUESTIONS = [ask(f"q{n:02}", 1, *(() if n % 3 else (2, 3)), hops=n % 2 + 1) for n in range(NUM)]


class Bench:
    """Makes runs that are right on the first so many questions, or on those given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, system: str, right: int | Sequence[int], *, calls: int = 1, **about: Any) -> EvaluatedRun:
        chosen = set(range(right) if isinstance(right, int) else right)
        replies = [
            Reply(
                question.answers if n in chosen else (9,),
                supported=(1, 2, 3),
                calls=calls,
                tokens=100,
                counts={"num_paths": 3, "explorer_first": 1 if n % 5 else -1},
            )
            for n, question in enumerate(QUESTIONS)
        ]
        return make_system(self.folder, system, QUESTIONS, replies, **{"answered_by": "lm", "model": "a 7B", **about})

    def compare(self, *runs: EvaluatedRun) -> SideBySide:
        return side_by_side(group_runs(runs))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def named(found: SideBySide, name: str) -> Entrant:
    (one,) = [entrant for entrant in found.entrants if entrant.name == name]
    return one


def test_what_is_within_noise_of_the_best_ties_with_it(bench: Bench) -> None:
    found = bench.compare(bench.run("etd", 50), bench.run("rog", 53), bench.run("tog", 20))
    assert found.best["hits1"] == found.best["em"] == {"etd", "rog"}
    table = comparison_tables(found)[0]
    cells = {row[0]: row[3] for row in table.rows}
    assert cells["rog"].endswith("=")
    assert cells["etd"].endswith("=")
    assert cells["tog"][-1] == "]"
    found = bench.compare(bench.run("etd", 30), bench.run("rog", 53), bench.run("tog", 20))
    assert found.best["hits1"] == {"rog"}
    assert {row[0]: row[3][-1] for row in comparison_tables(found)[0].rows} == {"etd": "]", "rog": "*", "tog": "]"}


def test_an_oracle_is_the_best_of_oracles_alone(bench: Bench) -> None:
    oracles = [bench.run(name, right, answered_by="oracle", model="") for name, right in (("rog", 60), ("etd", 20))]
    found = bench.compare(*oracles, bench.run("eperm", 30), bench.run("tog", 10))
    assert found.best["hits1"] == {"eperm"}
    assert bench.compare(*oracles).best["hits1"] == {"rog (oracle)"}


def test_ties_are_paired_tests_corrected_for_their_number(bench: Bench) -> None:
    runs = [bench.run("etd", 52), bench.run("rog", 60), bench.run("tog", 53), bench.run("eperm", 54)]
    found = bench.compare(*runs)
    everything = runs[0].scores.values["hits1"] >= 0
    ps = [compare_pair(runs[1], other, everything).metrics["hits1"].p for other in runs if other is not runs[1]]
    assert [p < 0.05 for p in ps] == [True, True, True]
    assert [p < 0.05 for p in holm(ps)] == [True, True, True]
    assert found.best["hits1"] == {"rog"}
    rows = [row for row in found.pairs if row.first == "rog"]
    assert [row.metrics["hits1"].p_holm for row in rows] == holm(ps)


def test_seeds_share_a_row_and_are_averaged_before_they_are_tested(bench: Bench) -> None:
    found = bench.compare(bench.run("etd", 40, seed=0), bench.run("etd", 50, seed=1), bench.run("rog", 45))
    assert [entrant.name for entrant in found.entrants] == ["etd", "rog"]
    etd = named(found, "etd")
    assert len(etd.runs) == 2
    assert etd.row.overall["hits1"] == pytest.approx(75)
    assert etd.mean.picked_right.tolist() == [1] * 40 + [0.5] * 10 + [0] * 10
    assert found.best["hits1"] == {"etd", "rog"}


def test_a_model_tuned_anew_for_each_seed_is_one_row(bench: Bench) -> None:
    tuned = [bench.run("rog", 50, seed=seed, model=f"tuned {seed}") for seed in (0, 1)]
    assert {name: len(runs) for name, runs in group_runs(tuned).items()} == {"rog": 2}


def test_a_model_that_does_not_beat_chance_and_first_adds_nothing(bench: Bench) -> None:
    runs = [
        bench.run("etd", 50, settings={"num_candidates": 3}),
        bench.run("etd", 20, answered_by="random", model="random", settings={"num_candidates": 3}),
        bench.run("etd", 49, answered_by="first", model="first", settings={"num_candidates": 3}),
        bench.run("rog", 50),
        bench.run("rog", 20, answered_by="random", model="random"),
        bench.run("rog", 30, answered_by="first", model="first"),
        bench.run("tog", 50),  # nothing beside it: nothing is said
        bench.run("explorer", 50, calls=0, answered_by="", model=""),
    ]
    found = bench.compare(*runs)
    assert {merit.system: merit.adds for merit in found.merits} == {"etd": False, "rog": True}
    first, second = merit_sentences(found)
    assert first == (
        "etd: the LM adds nothing: Hits@1 83.33 against random 33.33 (p < 0.001), always first 81.67 (p = 1.000)."
    )
    assert second.startswith("rog: the LM adds to chance: Hits@1 83.33 against random 33.33 (p < 0.001), always first")
    assert "the LM adds nothing" in render_side_by_side(found)
    assert found.best["hits1"] == {"etd", "rog", "tog", "explorer alone"}  # stand-ins are no rivals


def test_a_model_is_only_judged_on_the_same_pool_and_settings(bench: Bench) -> None:
    stand_ins = [bench.run("rog", 20, answered_by=who, model=who, pool="hard") for who in ("random", "first")]
    assert not bench.compare(bench.run("rog", 50), *stand_ins).merits
    assert bench.compare(bench.run("rog", 50, pool="hard"), *stand_ins).merits[0].adds
    other = [bench.run("rog", 20, answered_by=who, model=who, settings={"num_plans": 5}) for who in ("random", "first")]
    assert not bench.compare(bench.run("rog", 50, settings={"num_plans": 3}), *other).merits


def test_lift_and_joined_answers_take_the_direct_of_the_same_untuned_model(bench: Bench) -> None:
    runs = (
        bench.run("rog", range(10, 50), model="a 7B+rog", base="a 7B", roles="plan, reason: 7b+rog"),
        bench.run("direct", 20, base="a 7B", roles="direct: 7b"),
        bench.run("direct", 10, answered_by="oracle", model="oracle"),
        bench.run("fiske", 30, answered_by="oracle", model="oracle"),
        bench.run("explorer", 50, calls=0, answered_by="", model=""),
    )
    tuned = bench.run("direct", 30, model="a 7B+rog", base="a 7B+rog", roles="direct: 7b+rog")
    found = side_by_side(group_runs(runs) | {"B direct": [tuned]})
    assert named(found, "rog").lift["lift.hits1"] == pytest.approx(100 * 20 / 60)
    assert named(found, "fiske (oracle)").lift["lift.hits1"] == pytest.approx(100 * 20 / 60)
    assert not named(found, "explorer alone").lift  # there are two to choose from
    assert not named(found, "direct").lift
    assert {row[0]: row[1] for row in comparison_tables(found)[0].rows} == {
        "rog": "plan, reason: 7b+rog",
        "direct": "direct: 7b",
        "B direct": "direct: 7b+rog",
        "direct (oracle)": "oracle",
        "fiske (oracle)": "oracle",
        "explorer alone": "no LM",
    }
    united = {row.system: row.overall for row in found.united}
    assert set(united) == {"rog + direct", "fiske (oracle) + direct"}
    assert united["rog + direct"]["partial"] == pytest.approx(100 * 50 / 60)  # direct knows the first ten
    assert united["rog + direct"]["hits1"] == pytest.approx(100 * 40 / 60)  # but rog ranks first


def test_who_was_right_where_the_model_could_overrule_is_counted_per_number_of_candidates(bench: Bench) -> None:
    runs = {f"{num} shown": [bench.run("etd", 50, settings={"num_candidates": num})] for num in (3, 4)}
    found = side_by_side(runs | {"rog": [bench.run("rog", 50)]})
    assert [(row.num_shown, row.num_questions) for row in found.lm_vs_explorer] == [(3, NUM), (4, NUM)]
    row = found.lm_vs_explorer[0]
    # The explorer is wrong on every fifth question, the model on the last ten.
    assert (row.both_right, row.only_explorer, row.only_lm, row.both_wrong) == (40, 8, 10, 2)
    assert "count.explorer_first" not in found.entrants[0].row.overall  # an entity is no number


def test_repetitions_by_other_seeds_are_no_questions_more(bench: Bench) -> None:
    """Ten gains of sixty questions stay ten, however often they are asked."""
    settings = {"num_candidates": 3}
    right = [n for n, _ in enumerate(QUESTIONS) if n % 5 or n < 30]  # the explorer is wrong on every fifth
    once, thrice = (
        bench.compare(
            *(bench.run("etd", right, settings=settings, seed=seed) for seed in range(seeds)), bench.run("rog", 50)
        )
        for seeds in (1, 3)
    )
    (one,), (three,) = once.lm_vs_explorer, thrice.lm_vs_explorer
    assert (three.only_lm, three.only_explorer) == (3 * one.only_lm, 3 * one.only_explorer) == (18, 0)
    assert three.p == pytest.approx(one.p, rel=0.2) == pytest.approx(2 / 2**6, rel=0.2)


def test_each_run_is_compared_with_its_own_direct(bench: Bench) -> None:
    """Two configurations by one model, with other prompts: what the model knows is told by the direct row of each."""
    runs = {"A direct": (10, "old"), "A rog": (50, "old"), "B direct": (40, "new"), "B rog": (50, "new")}
    made = {name: [bench.run(name.split()[1], right, prompts=prompts)] for name, (right, prompts) in runs.items()}
    found = side_by_side(made)
    lifts = {name: named(found, name).lift["lift.hits1"] for name in ("A rog", "B rog")}
    assert lifts == pytest.approx({"A rog": 100 * 40 / 60, "B rog": 100 * 10 / 60})


def test_every_row_shows_accuracy_cost_and_evidence_and_what_answered(bench: Bench) -> None:
    found = bench.compare(bench.run("rog", 50, prompts="c0de", topics="linked"), bench.run("direct", 20))
    tables = comparison_tables(found, {"hits1": {"direct": "40.0 (paper)"}, "hit": {"direct": "50.0 (paper)"}})
    main = tables[0]
    row = dict(zip(main.header, main.rows[0], strict=True))
    assert row["system"] == "rog (linked topics)"
    assert (row["answered by"], row["topics"], row["calls"], row["tokens"]) == ("lm", "linked", "1.00", "110")
    assert (row["s"], row["price"], row["supported"]) == ("0.250", "0.00000", "89.4")  # 84 of 94
    assert (main.header[-1], [row[-1] for row in main.rows]) == ("published Hits@1", ["", "40.0 (paper)"])
    assert (tables[1].header[-1], tables[1].rows[1][-1]) == ("published Hit", "50.0 (paper)")  # apart from Hits@1
    assert {"By the number of hops", "By the number of answers"} <= {table.title for table in tables}
    assert tables[-1].rows[0] == ("rog (linked topics)", "lm", "a 7B", "c0de", "linked", "none", "0")
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    assert "| rog (linked topics) | lm | linked | 83.33 [" in render_side_by_side(found)


def test_what_is_not_known_is_a_dash_and_one_alone_is_no_best(bench: Bench, tmp_path: Path) -> None:
    alone = bench.compare(bench.run("etd", 50))
    assert alone.best["hits1"] == frozenset()
    assert render_side_by_side(alone).startswith("**60 questions")
    dear = make_system(tmp_path, "tog", QUESTIONS, [Reply((1,), calls=1, money=None)] * NUM, answered_by="lm")
    main = comparison_tables(bench.compare(dear, bench.run("rog", 50)))[0]
    shown = [dict(zip(main.header, row, strict=True)) for row in main.rows]
    assert [row["price"] for row in shown] == ["–", "0.00000"]
    assert [row["lift"] for row in shown] == ["–", "–"]


def test_a_table_by_hand(tmp_path: Path) -> None:
    right, wrong, other = 1, 3, 5
    told = [
        (right, (right,)),  # kept
        *[(wrong, (right,))] * 2,  # mended
        (right, (wrong,)),  # spoilt
        (right, ()),  # silent
        (wrong, (other,)),  # wrong either way
        (NOBODY, ()),
    ]
    questions = [ask(f"q{n}", right) for n in range(len(told))]
    replies = [Reply(said, counts={"explorer_first": first}) for first, said in told]
    run = make_system(tmp_path, "etd", questions, replies, settings={"num_candidates": 3})
    (row,) = side_by_side({"etd": [run]}).lm_vs_explorer
    assert astuple(row) == ("etd", 3, 7, 4, 2, 1, 2, 2, 2, 1.0)
