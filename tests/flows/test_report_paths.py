"""The report says which answers no path leads to, whatever hops their file gives."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from unittest.mock import Mock

from flows.report import Beside, build
from flows.report_about import paths_to
from kgqa_core.run.open import read_with_hops
from kgqa_core.run.pipeline import Pipeline
from tests.flows.test_report import NOTHING, data, write_run


def test_the_graph_says_whether_a_path_of_the_steps_leads_to_an_answer(compared: Pipeline) -> None:
    asked = {one.id: one for one in read_with_hops(compared, "test")}
    assert paths_to(compared, [*asked, "of no file"]) == dict.fromkeys(asked, True)
    near = copy(compared)
    near.config = near.config.model_copy(update={"explorer": near.config.exploration.model_copy(update={"steps": 1})})
    assert paths_to(near, [*asked]) == {id: one.hops == 1 for id, one in asked.items()}


def test_answers_without_a_path_are_counted_as_such(tmp_path: Path) -> None:
    runs = [(name, write_run(tmp_path, name, (1,), *rest)) for name, rest in (("a", [(1,), ()]), ("b", [(3,), ()]))]
    has_path = Mock(return_value={"q01": True, "q02": False})
    build(runs, tmp_path / "report", title="two", beside=Beside(NOTHING, has_path=has_path))
    assert has_path.call_args.args == (["q01", "q02"],)  # those that any of the two has wrong
    assert [(own["no path"], own["pruned"]) for own in data(tmp_path / "report", "overview")["lost"]] == [
        (1, 0),
        (1, 1),
    ]
