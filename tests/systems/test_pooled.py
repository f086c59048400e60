"""Hard pools in place of an explorer: one candidate of each plan, none better than another."""

from __future__ import annotations

from collections.abc import Sequence

from kgqa_core.graph.search_graph import is_evidence
from kgqa_core.systems.plans import HardNegativeCandidates
from kgqa_core.types import Prediction
from tests.forty_triples import Forty


def candidates(forty: Forty, id: str, *plans: str) -> Prediction:
    pool: dict[str, Sequence[tuple[str, ...]]] = {id: [tuple(plan.split()) for plan in plans]}
    (found,) = HardNegativeCandidates(forty.search, pool).answer([forty.question(id)])
    return found


def test_each_plan_gives_its_first_end_with_the_path_to_it_all_as_probable(forty: Forty) -> None:
    found = candidates(forty, "directed", "starred", "directed_by", "year")
    assert forty.labels(found.candidates) == ["Mara Quill", "Ida Moon", "1989"]  # ends of a plan by id
    assert found.scores == (1 / 3,) * 3
    assert (found.answers, found.covered, found.abstained) == ((), True, False)
    for entity, path in zip(found.candidates, found.paths, strict=True):
        assert is_evidence(forty.graph, path, entity)


def test_an_end_that_a_plan_before_it_has_is_passed_over(forty: Forty) -> None:
    """Both plans lead to Port Amber; the second to Westerby, too, third plans and others to nothing new."""
    found = candidates(forty, "born", "directed_by born_in", "starred born_in", "directed_by born_in")
    assert forty.labels(found.candidates) == ["Port Amber", "Westerby"]
    assert found.scores == (0.5, 0.5)


def test_plans_that_lead_nowhere_give_nothing(forty: Forty) -> None:
    found = candidates(forty, "directed", "painted_by", "no_such_relation")
    assert found == Prediction("directed", (), (), (), abstained=True)
    (unknown,) = HardNegativeCandidates(forty.search, {}).answer([forty.question("born")])
    assert unknown.abstained


def test_golds_that_are_no_candidates_are_not_covered(forty: Forty) -> None:
    assert not candidates(forty, "directed", "year", "genre").covered
