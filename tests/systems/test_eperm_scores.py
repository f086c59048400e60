"""What EPERM's scores are worth: rows where another path's score, or none, stands in the place of a path's own."""

from __future__ import annotations

from dataclasses import replace

from tests.forty_triples import Forty
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all
from tests.systems.following import lines_under
from tests.systems.test_eperm import planned, system

SHARES = (("directed_by > born_in", 0.5), ("starred > born_in", 0.3), ("year > ^since", 0.2))


def read_by_scores(prompt: str) -> tuple[str, ...]:
    """Return the end of the path of the highest score; of paths without scores the first's."""
    lines = [line.rpartition(" (score ") for line in lines_under(prompt, "Paths:")]
    best = max(lines, key=lambda line: float(line[2].rstrip(")")) if line[1] else 0.0)
    return ((best[0] or best[2]).rpartition(" → ")[2],)


def shown_with(forty: Forty, seed: int, **settings: object) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines of the predictor's prompt, and what a reader of scores would answer."""
    plans = {"plans": planned(*SHARES), "retriever": False, "entity_scores": False}
    model = ScriptedModel().on("reason", "", "Port Amber")
    asked = replace(system(forty, **plans, **settings), seed=seed)  # type: ignore[arg-type]
    (answered,) = answer_all(asked, [forty.question("born")], forty.search, model)
    (prompt,) = model.prompts_of("reason")
    lines = lines_under(prompt, "Paths:")
    assert answered.error == "" and answered.faithful == (any("Port Amber" in line for line in lines),)
    assert ("score" in prompt) == (settings.get("scores") != "hidden")  # no wording about what is not there
    return lines, read_by_scores(prompt)


def test_whoever_reads_scores_loses_where_they_are_shuffled_or_hidden(forty: Forty) -> None:
    """In a drawn order nothing else tells the paths apart; the order is one for all three rows of a seed."""
    right = dict.fromkeys(("real", "shuffled", "hidden"), 0)
    for seed in range(20):
        rows = {scores: shown_with(forty, seed, scores=scores, order="drawn") for scores in right}
        texts = {name: [line.partition(" (score")[0] for line in lines] for name, (lines, _) in rows.items()}
        assert texts["real"] == texts["shuffled"] == texts["hidden"] == rows["hidden"][0]
        values = [sorted(line.rpartition(" ")[2] for line in rows[name][0]) for name in ("real", "shuffled")]
        assert values[0] == values[1]
        for name, (_, answer) in rows.items():
            right[name] += answer == ("Port Amber",)
    assert right["real"] == 20
    assert max(right["shuffled"], right["hidden"]) < 17  # half of the paths end there
    assert shown_with(forty, 3, scores="shuffled") == shown_with(forty, 3, scores="shuffled")
    assert shown_with(forty, 0, scores="real")[0] == shown_with(forty, 1, scores="real")[0]  # by score, unless told


def test_shuffled_scores_choose_the_paths_that_are_shown(forty: Forty) -> None:
    """The path that leads to the gold is the best; under another's score it may be left out before anyone reads it."""
    shown = {
        scores: [shown_with(forty, seed, scores=scores, least_share=1.0)[0] for seed in range(20)]
        for scores in ("real", "shuffled")
    }
    ((best,),) = {tuple(lines) for lines in shown["real"]}
    assert {len(lines) for lines in shown["shuffled"]} == {1}
    assert 0 < sum(lines == [best] for lines in shown["shuffled"]) < 20
