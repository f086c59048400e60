"""Which published figure stands beside which row."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgqa_core.evaluation.compare import side_by_side
from kgqa_core.evaluation.runs import group_runs
from kgqa_core.evaluation.tables import paper_datasets, published_beside, read_published
from tests.evaluation.made_up import Reply, ask, make_system

TABLES = Path(__file__).parents[2] / "conf" / "papers" / "tables.yaml"


@pytest.mark.parametrize(
    ("name", "hops", "datasets"),
    [
        ("metaqa-joint", ["1", "2", "3"], ["MetaQA-1", "MetaQA-2", "MetaQA-3"]),
        ("metaqa-3hop-paper", ["3"], ["MetaQA-3"]),
        ("wc2014-2hop", ["2"], ["WC-2"]),
        ("wc2014-mixed", ["1", "2"], ["WC-m"]),
        ("freebase-webqsp", ["1", "2", "unknown"], ["WebQSP"]),
        ("demo", ["1", "2"], []),
    ],
)
def test_a_run_is_of_the_datasets_that_papers_know(name: str, hops: list[str], datasets: list[str]) -> None:
    assert paper_datasets(name, hops) == datasets


def test_a_row_gets_the_best_figures_of_its_own_system_by_metric(tmp_path: Path) -> None:
    players = {"etd": "lm", "explorer": "", "direct": "lm", "rog": "lm", "ours": "lm", "fiske": "random", "dualr": "lm"}
    runs = [
        make_system(tmp_path, system, [ask("q", 1)], [Reply((1,))], answered_by=player, model=player)
        for system, player in players.items()
    ]
    entrants, tables = side_by_side(group_runs(runs)).entrants, read_published(TABLES)
    metaqa = published_beside(tables, ["MetaQA-1", "MetaQA-2", "MetaQA-3"], entrants)
    assert metaqa == {
        "hits1": {
            "etd": "98.1 / 99.7 / 99.7 (EtD-ChatGPT)",
            "dualr": "98.3 / 99.9 / 99.9 (DualR-GPT-4)",
            "explorer alone": "97.6 / 99.1 / 99.5 (EtD-w.o.-AD)",
            "direct": "65.7 / 34.6 / 48.9 (GPT-4, topics: none)",
        }
    }  # RoG was run on 3-hop questions only
    webqsp = published_beside(tables, ["WebQSP"], entrants)
    assert (webqsp["hits1"]["rog"], webqsp["hit"]["rog"]) == ("80 (RoG)", "85.7 (RoG)")  # two metrics, told apart
    assert (webqsp["hits1"]["dualr"], webqsp["hit"]["dualr"]) == ("87.6 (DualR-GPT-4)", "84.9 (DualR)")  # tuned
    assert "partial_match" not in webqsp or "fiske (random)" not in webqsp["partial_match"]
    assert published_beside(tables, [], entrants) == {}
