"""Relation paths by label: what is written is read again, whatever a relation is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.kg import KnowledgeGraph, flip_step, read_step, to_labels, to_relations, unsigned, write_step

AWKWARD = st.text(st.sampled_from("^\\ab .|é"), max_size=5)


@pytest.mark.parametrize(
    ("label", "forward", "backward"),
    [("born in", "born in", "^born in"), ("^odd", "\\^odd", "^\\^odd"), ("\\odd", "\\\\odd", "^\\\\odd")],
)
def test_a_step_is_a_label_with_its_direction(label, forward, backward):
    assert (write_step(label), write_step(label, backward=True)) == (forward, backward)
    assert flip_step(forward) == backward and flip_step(backward) == forward


@given(label=AWKWARD, backward=st.booleans())
def test_what_is_written_is_read_again(label, backward):
    assert read_step(write_step(label, backward)) == (label, backward)


@given(step=AWKWARD)
def test_any_text_is_some_step(step):
    label, backward = read_step(step)
    assert read_step(write_step(label, backward)) == (label, backward)


def test_files_without_directions_hold_plain_labels():
    assert unsigned(("born in", "^\\^odd")) == ("born in", "^odd")


def test_a_relation_path_of_a_graph_is_written_by_label(films: KnowledgeGraph):
    path = ("directed_by", "^directed_by", "release_year")
    relations = to_relations(films, path)
    directed_by, release_year = films.relation_ids["directed_by"], films.relation_ids["release_year"]
    assert relations == (directed_by, directed_by + films.num_relations, release_year)
    assert to_labels(films, relations) == path


def test_staying_is_no_step(films: KnowledgeGraph):
    assert to_labels(films, (films.identity,)) == ()


def test_a_relation_that_the_graph_lacks_makes_no_path(films: KnowledgeGraph):
    assert to_relations(films, ("directed_by", "^composed_by")) is None
