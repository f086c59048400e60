"""State classes and the compiled kernels that find them, against naive ones; a hash that never merges silently."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.explorer import explore, kernels
from kgqa_core.explorer.explore import message_codes
from kgqa_core.graph.csr import Floats, compiled
from kgqa_core.graph.kg import KnowledgeGraph
from tests.explorer.plain_walk import owned_by, select_groups
from tests.explorer.worlds import World, make_graph, make_model, make_question, star, unit_vectors, worlds

quick = settings(deadline=None, derandomize=True, max_examples=100)
Inboxes = list[list[int]]  # per node, the messages (0..4) that it received

inboxes = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=13)


def classes_of(received: Inboxes) -> list[int]:
    seen: dict[tuple[int, ...], int] = {}
    return [seen.setdefault(tuple(sorted(messages)), len(seen)) for messages in received]


def walk_to(received: Inboxes, num_messages: int, salt: int = 0) -> tuple[list[int], list[Counter[int]]]:
    """Let nodes receive messages, each from a head of its own; return their classes, and what each class received."""
    pairs = [(node, message) for node, messages in enumerate(received) for message in messages]
    num = len(received)
    graph = make_graph(
        [(num + at, 0, node) for at, (node, _) in enumerate(pairs)], num_entities=num + len(pairs), num_relations=1
    )
    entity, node_class = np.arange(num, num + len(pairs)), np.array([message for _, message in pairs])
    visit = kernels.order_by_class(entity * 0, node_class, num_messages)
    first, message, key = kernels.number_messages((graph.group_ptr, graph.group_relation), entity, node_class, visit, 3)
    (_, reached, after), _, (owner, code, count), walked, collided = kernels.walk_edges(
        (graph.group_ptr, graph.edge_ptr, graph.edge_tail),
        (entity * 0, entity, node_class, visit),
        (first, message, np.ones(len(message), dtype=bool)),
        (np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64)),
        message_codes(len(key) + num_messages, salt),
        np.full(graph.num_entities, kernels.EMPTY, np.int32),
        (np.ones(len(entity), dtype=np.int64), len(key)),
    )
    assert not collided
    assert walked == 2 * len(pairs)
    class_of = dict(zip(reached.tolist(), after.tolist(), strict=True))
    inbox = [Counter[int]() for _ in range(max(after) + 1)]
    for to, sent, times in zip(owner.tolist(), code.tolist(), count.tolist(), strict=True):
        inbox[to][int(key[sent] // 3) if sent < len(key) else -1] += times
    return [class_of[node] for node in range(num)], [inbox[class_of[node]] for node in range(num)]


@quick
@given(received=inboxes, salt=st.integers(0, 4))
def test_nodes_share_a_class_exactly_when_they_received_the_same_messages(received: Inboxes, salt: int) -> None:
    node_class, inbox = walk_to(received, 5, salt)
    renumbered = {one: number for number, one in enumerate(dict.fromkeys(node_class))}
    assert [renumbered[one] for one in node_class] == classes_of(received)
    assert inbox == list(map(Counter, received))


def test_how_often_counts_and_a_sum_beyond_64_bits_wraps() -> None:
    one, two, three, four = walk_to([[3], [3, 3], [3], [3, 3, 3]], 5)[0]
    assert one == three and len({one, two, four}) == 3
    one, two, three = walk_to([[0] * 1009 + [1], [1] + [0] * 1009, [0] * 1010], 2)[0]
    assert one == two != three


def test_tables_grow_beyond_their_first_capacity() -> None:
    num_nodes = 3 * kernels.FIRST_CAPACITY + 1
    received = [[node % (num_nodes - 7)] for node in range(num_nodes)]
    node_class, inbox = walk_to(received, num_nodes)
    assert node_class[-7:] == node_class[:7]
    assert len(set(node_class)) == num_nodes - 7
    assert inbox == list(map(Counter, received))
    graph, each = make_graph([(0, 0, 1)], num_entities=2, num_relations=1), np.arange(num_nodes)
    _, message, key = kernels.number_messages((graph.group_ptr, graph.group_relation), each * 0, each, each, 3)
    assert message.tolist() == (key // 3).tolist() == each.tolist()


@quick
@given(nodes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=23))
def test_nodes_of_a_question_are_visited_class_by_class(nodes: list[tuple[int, int]]) -> None:
    question, node_class = np.array(sorted(nodes, key=lambda node: node[0]), dtype=np.int64).reshape(-1, 2).T.copy()
    visit = kernels.order_by_class(question, node_class, 5)
    assert sorted(visit.tolist()) == list(range(len(nodes)))
    assert question[visit].tolist() == question.tolist()
    for asked in set(question.tolist()):
        runs = [node for node in visit.tolist() if question[node] == asked]
        classes = node_class[runs].tolist()
        assert [key for key, _ in groupby(classes)] == list(dict.fromkeys(node_class[question == asked].tolist()))
        for one in set(classes):
            mine = [node for node in runs if node_class[node] == one]
            assert mine == sorted(mine)


def relations_of(graph: KnowledgeGraph, entity: int) -> list[int]:
    return graph.group_relation[graph.group_ptr[entity] : graph.group_ptr[entity + 1]].tolist()


@quick
@given(
    triples=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=31),
    nodes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=7),
)
def test_messages_are_numbered_in_order_of_first_use(
    triples: set[tuple[int, int, int]], nodes: list[tuple[int, int]]
) -> None:
    graph = make_graph(triples, num_entities=7, num_relations=5)
    entity, node_class = np.array(nodes, dtype=np.int64).T.copy()
    visit = kernels.order_by_class(entity * 0, node_class, 3)
    first, message, key = kernels.number_messages(
        (graph.group_ptr, graph.group_relation), entity, node_class, visit, 11
    )
    owner, group = owned_by(graph.group_ptr, entity)
    expected = (node_class[owner] * 11 + graph.group_relation[group]).tolist()
    used = [(node_class[node] * 11 + relation) for node in visit for relation in relations_of(graph, entity[node])]
    assert key.tolist() == list(dict.fromkeys(used))
    assert key[message].tolist() == expected
    assert first.tolist() == [int((owner < node).sum()) for node in range(len(nodes) + 1)]


@quick
@given(
    num_groups=st.sampled_from([1, 2, 5, kernels.SMALL, kernels.SMALL + 1, 97]),
    budget=st.sampled_from([1, 2, 3, 29, 1000]),
    num_values=st.sampled_from([1, 2, 1000]),
    least=st.sampled_from([-1, 1, 500, 2000]),
    seed=st.integers(0, 1000),
)
def test_groups_enter_as_in_numpy(num_groups: int, budget: int, num_values: int, least: int, seed: int) -> None:
    """Both ways of sorting one head's groups, few values among them so that many tie."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, (2, num_groups))
    group_ptr, edge_ptr = np.array([0, num_groups, 2 * num_groups]), np.cumsum([0, *sizes.flatten()])
    preference = random.integers(0, num_values, 2 * num_groups).astype(np.float32)
    message = random.permutation(2 * num_groups).astype(np.int32)
    entered, num_edges = kernels.enter_groups(
        (group_ptr, edge_ptr),
        np.array([1, 0]),
        (np.array([0, num_groups, 2 * num_groups]), message),
        (preference, preference >= least),
        budget,
    )
    owner = np.repeat([0, 1], num_groups)
    may, sizes = preference[message] >= least, sizes[::-1].flatten()
    expected = np.zeros(2 * num_groups, dtype=bool)
    expected[may] = select_groups(owner[may], sizes[may], preference[message][may], budget)
    assert entered.tolist() == expected.tolist()
    assert num_edges.tolist() == np.bincount(owner[expected], weights=sizes[expected], minlength=2).tolist()


def fan(num_leaves: int) -> World:
    """A topic with one relation to each of its neighbours: after one step, every node is a class of its own."""
    triples = [(0, leaf, 1 + leaf) for leaf in range(num_leaves)]
    sizes = {"num_entities": num_leaves + 1, "relation_vectors": unit_vectors(num_leaves)}
    return replace(star(1), triples=triples, questions=[make_question([0], masked="0")], steps=1, **sizes)


@contextmanager
def hashed_to(bits: int) -> Iterator[None]:
    """Let the first code of every message have so few bits."""

    def short(num_messages: int, salt: int) -> np.ndarray:
        codes = message_codes(num_messages, salt)
        codes[:, 0] &= (1 << bits) - 1
        return codes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explore, "message_codes", short)
        yield


def collides(num_classes: int, salt: int, bits: int) -> bool:
    """Do two of this many different messages share a hash of ``bits`` bits?"""
    return len(set((message_codes(num_classes, salt)[:, 0] & ((1 << bits) - 1)).tolist())) < num_classes


def test_a_collision_is_escaped_by_another_salt() -> None:
    num_classes, bits = next(
        (n, bits)
        for bits in (16, 17, 18)
        for n in range(101, 997)
        if collides(n, 0, bits) and not all(collides(n, salt, bits) for salt in range(1, 4))
    )
    world, model = fan(num_classes - 1), make_model(steps=1)
    wide = world.explore(model)
    with hashed_to(bits):
        found = world.explore(model)
    assert len(found.class_score) == num_classes
    assert found.node_class.tolist() == wide.node_class.tolist()
    assert found.class_score.tolist() == wide.class_score.tolist()


def test_a_hash_that_collides_with_every_salt_is_an_error() -> None:
    with hashed_to(4), pytest.raises(RuntimeError, match="hash collided with 4 salts"):
        fan(17).explore(make_model(steps=1))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(world=worlds())
def test_an_exploration_does_not_depend_on_the_hash(world: World) -> None:
    model = make_model(steps=world.steps, seed=world.seed)
    wide = world.explore(model)
    with hashed_to(20):
        narrow = world.explore(model)
    assert wide.node_class.tolist() == narrow.node_class.tolist()
    assert wide.class_score.tolist() == narrow.class_score.tolist()


def spin(rounds: int) -> tuple[Floats, Floats]:
    value = np.zeros(1)
    for number in range(rounds):
        value[0] = 0.5 * value[0] + number
    return value, value


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Let SIGALRM be what Ctrl-C is."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


def test_a_signal_that_comes_while_a_kernel_runs_raises_what_its_handler_raises(interrupted: None) -> None:
    spin_fast = compiled(spin)
    spin_fast(1)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with pytest.raises(KeyboardInterrupt):
        spin_fast(10**8)
