"""The integer side of a merged exploration step, compiled: one pass over the walked edges, flat memory per question.

Per edge this reads the tail, looks it up in a table of one question's entities (4 bytes per entity of the graph, so on
a small graph it stays in cache), and adds two 64-bit codes to the tail's multiset hash: about 30 bytes moved.
The tests hold it against a plain version in numpy (tests/explorer/plain_walk.py).

Shapes: B questions, N nodes (question, entity), C state classes, M distinct (class, relation) messages, G groups headed
by the nodes, E walked edges. The last C messages and the last edges of each question are the identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]
Arrays = tuple[Any, ...]  # several at once; the docstrings name them

EMPTY, BLOCKED = -1, -2
FIRST_CAPACITY = 1 << 12  # of a hash table; doubled when half full
GOLDEN = 0x9E3779B97F4A7C15 >> 1  # multiplicative hashing (Knuth 6.4): an odd number near 2^63 / golden ratio
SMALL = 48  # groups of one head up to which insertion sort is quicker than a library sort


@njit(cache=True, nogil=True)
def _number(table: I32, keys: I64, used: int, key: int) -> np.int64:
    """Return the number of ``key`` in a hash table (linear probing), ``used`` where it is new; then it is added."""
    last = len(table) - 1
    mixed = np.uint64(key) * np.uint64(GOLDEN | 1)
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(last))
    while table[slot] != EMPTY:
        if keys[table[slot]] == key:
            return np.int64(table[slot])
        slot = (slot + 1) & last
    table[slot], keys[used] = used, key
    return np.int64(used)


@njit(cache=True, nogil=True)
def _grow(table: I32, keys: I64) -> tuple[I32, I64]:
    """Return a table and key list of twice the capacity with the same entries."""
    bigger = np.full(2 * len(table), EMPTY, np.int32)
    more = np.empty(2 * len(keys), np.int64)
    for number in range(len(keys)):
        _number(bigger, more, number, keys[number])
    return bigger, more


@njit(cache=True, nogil=True)
def order_by_class(node_question: I64, node_class: I64, num_classes: int) -> I64:
    """Return the order in which to visit the nodes: by question, and in a question the nodes of one class together.

    Nodes of one class send the same messages, so their messages come in runs: to the tables that number them, and to
    the hubs that hear thousands of them.
    """
    visit = np.empty(len(node_class), np.int64)
    count = np.zeros(num_classes, np.int64)  # of the current question; then where the next node of a class goes
    begin = 0
    while begin < len(node_class):
        end = begin
        while end < len(node_class) and node_question[end] == node_question[begin]:
            count[node_class[end]] += 1
            end += 1
        place = begin
        for node in range(begin, end):
            if count[node_class[node]] > 0:  # the first of its class: what is a count becomes a place, below zero
                size = count[node_class[node]]
                count[node_class[node]] = -1 - place
                place += size
        for node in range(begin, end):
            visit[-1 - count[node_class[node]]] = node
            count[node_class[node]] -= 1
        for node in range(begin, end):
            count[node_class[node]] = 0
        begin = end
    return visit


@njit(cache=True, nogil=True)
def number_messages(csr: Arrays, node_entity: I64, node_class: I64, visit: I64, num_codes: int) -> tuple[I64, I32, I64]:
    """Number the distinct (class, relation) messages that the nodes could send, in order of first use.

    ``csr``: group_ptr and group_relation of the graph; ``visit`` [N]: from ``order_by_class``; ``num_codes``: number of
    relation ids, identity included.

    Returns ``first`` [N+1] position of each node's first group, ``message`` [G] of each group, and ``key`` [M] of each
    message: ``class * num_codes + relation``.
    """
    group_ptr, group_relation = csr
    first = np.zeros(len(node_entity) + 1, np.int64)
    for node in range(len(node_entity)):
        entity = node_entity[node]
        first[node + 1] = first[node] + group_ptr[entity + 1] - group_ptr[entity]
    message = np.empty(first[-1], np.int32)
    table = np.full(FIRST_CAPACITY, EMPTY, np.int32)
    keys = np.empty(FIRST_CAPACITY // 2, np.int64)
    used = 0
    known_class, known = np.full(num_codes, EMPTY, np.int64), np.empty(num_codes, np.int32)  # per relation: the last
    for node in visit:
        start, sender = group_ptr[node_entity[node]], node_class[node]
        for at in range(first[node], first[node + 1]):
            relation = group_relation[start + at - first[node]]
            if known_class[relation] == sender:
                message[at] = known[relation]
                continue
            if used == len(keys):
                table, keys = _grow(table, keys)
            number = _number(table, keys, used, sender * num_codes + relation)
            if number == used:
                used += 1
            message[at] = number
            known_class[relation], known[relation] = sender, number
    return first, message, keys[:used].copy()


@njit(cache=True, nogil=True)
def enter_groups(csr: Arrays, node_entity: I64, groups: Arrays, attention: Arrays, budget: int) -> tuple[Bools, int]:
    """Say of each group [G] whether it enters, highest attention first until K edges, and count the edges.

    ``csr``: group_ptr and edge_ptr of the graph; ``groups``: first [N+1] and message [G], from ``number_messages``;
    ``attention``: of each message [M], a number that orders the groups of one head, and whether it may enter at all;
    ``budget``: K.
    """
    group_ptr, edge_ptr = csr
    first, message = groups
    preference, admitted = attention
    entered = np.zeros(len(message), np.bool_)
    num_edges = 0
    for node in range(len(node_entity)):
        start = group_ptr[node_entity[node]]
        low, count = first[node], first[node + 1] - first[node]
        degree = 0
        for group in range(count):
            if admitted[message[low + group]]:
                entered[low + group] = True
                degree += edge_ptr[start + group + 1] - edge_ptr[start + group]
        if degree <= budget:
            num_edges += degree
            continue
        order = _by_attention(preference, message[low : low + count])
        taken = 0
        for rank in range(count):
            group = order[rank]
            if not entered[low + group]:
                continue
            if taken >= budget:
                entered[low + group] = False
            else:
                taken += edge_ptr[start + group + 1] - edge_ptr[start + group]
        num_edges += taken
    return entered, num_edges


@njit(cache=True, nogil=True)
def _by_attention(preference: Any, message: Ints) -> I64:
    """Return the positions of one head's groups, highest attention first, ties in order of relation."""
    count = len(message)
    if count > SMALL:
        negated = np.empty(count, preference.dtype)
        for at in range(count):
            negated[at] = -preference[message[at]]
        return np.argsort(negated, kind="mergesort")
    order = np.arange(count)
    for at in range(1, count):
        moved, value, place = order[at], preference[message[order[at]]], at
        while place > 0 and preference[message[order[place - 1]]] < value:
            order[place] = order[place - 1]
            place -= 1
        order[place] = moved
    return order


@njit(cache=True, nogil=True)
def _stay(
    at: Arrays, nodes: Arrays, codes: I64, place: I32, reached: Arrays, edges: Arrays, keep_heads: bool
) -> tuple[int, int]:
    """Walk the identity edges of the nodes begin..end of one question; return how many nodes and edges there are."""
    begin, end, identity, used, edge = at
    node_question, node_entity, node_class, _ = nodes
    reached_question, reached_entity, hashes = reached
    head, target, sent = edges
    for stay in range(begin, end):
        entity, code = node_entity[stay], identity + node_class[stay]
        if place[entity] == EMPTY:
            place[entity] = used
            reached_question[used], reached_entity[used] = node_question[stay], entity
            used += 1
        hashes[place[entity], 0] += codes[code, 0]
        hashes[place[entity], 1] += codes[code, 1]
        target[edge], sent[edge] = place[entity], code
        if keep_heads:
            head[edge] = stay
        edge += 1
    return used, edge


@njit(cache=True, nogil=True)
def walk_edges(
    csr: Arrays, nodes: Arrays, groups: Arrays, topics: Arrays, codes: I64, place: I32, sizes: Arrays, keep_heads: bool
) -> tuple[I64, I64, I64, I32, I32, I32]:
    """Walk the entered groups and the identity edges, question by question, and hash what every node receives.

    ``csr``: group_ptr, edge_ptr, edge_tail; ``nodes``: question (ascending), entity, class [N], and the order to visit
    them in; ``groups``: first [N+1], message and entered [G]; ``topics``: pointer [B+1] and entities that no edge may
    arrive at; ``codes`` [M, 2]: of the messages, identity last; ``place``: scratch per entity of the graph, EMPTY
    before and after; ``sizes``: edges that ``enter_groups`` counted, and the first identity message.

    Returns question and entity of the nodes reached [N'], their hashes [N', 2], and head, target and message of each
    edge [E] (node indices before and after).
    """
    group_ptr, edge_ptr, edge_tail = csr
    node_question, node_entity, _, visit = nodes
    first, message, entered = groups
    topic_ptr, topic_entity = topics
    num_edges, identity = sizes
    most = num_edges + len(node_entity)
    reached_question, reached_entity = np.empty(most, np.int64), np.empty(most, np.int64)
    hashes = np.zeros((most, 2), np.int64)
    target, sent = np.empty(most, np.int32), np.empty(most, np.int32)
    head = np.empty(most if keep_heads else 0, np.int32)
    found, edges = (reached_question, reached_entity, hashes), (head, target, sent)
    used = edge = end = 0
    while end < len(node_entity):
        question, begin, first_reached = node_question[end], end, used
        blocked = topic_entity[topic_ptr[question] : topic_ptr[question + 1]]
        place[blocked] = BLOCKED
        while end < len(node_entity) and node_question[end] == question:
            node = visit[end]
            start = group_ptr[node_entity[node]]
            for at in range(first[node], first[node + 1]):
                if not entered[at]:
                    continue
                group, code = start + at - first[node], message[at]
                name, check = codes[code, 0], codes[code, 1]
                for position in range(edge_ptr[group], edge_ptr[group + 1]):
                    tail = edge_tail[position]
                    reached = place[tail]
                    if reached < 0:
                        if reached == BLOCKED:
                            continue
                        reached = place[tail] = used
                        reached_question[used], reached_entity[used] = question, tail
                        used += 1
                    hashes[reached, 0] += name
                    hashes[reached, 1] += check
                    target[edge], sent[edge] = reached, code
                    if keep_heads:
                        head[edge] = node
                    edge += 1
            end += 1
        place[blocked] = EMPTY
        used, edge = _stay((begin, end, identity, used, edge), nodes, codes, place, found, edges, keep_heads)
        for at in range(first_reached, used):
            place[reached_entity[at]] = EMPTY
    return reached_question[:used], reached_entity[:used], hashes[:used], head[:edge], target[:edge], sent[:edge]


@njit(cache=True, nogil=True)
def number_classes(hashes: I64) -> tuple[I64, I64, bool]:
    """Number the state classes of nodes by their first hash, in order of first occurrence.

    Returns ``node_class`` [N], ``representative`` [C] (the first node of each class), and whether two nodes agreed in
    the first hash [N, 2] and not in the second: then the numbering is not to be used.
    """
    node_class = np.empty(len(hashes), np.int64)
    representative = np.empty(len(hashes), np.int64)
    table = np.full(FIRST_CAPACITY, EMPTY, np.int32)
    keys = np.empty(FIRST_CAPACITY // 2, np.int64)
    used = 0
    for node in range(len(hashes)):
        if used == len(keys):
            table, keys = _grow(table, keys)
        number = node_class[node] = _number(table, keys, used, hashes[node, 0])
        if number == used:
            representative[used] = node
            used += 1
        elif hashes[representative[number], 1] != hashes[node, 1]:
            return node_class, representative[:used], True
    return node_class, representative[:used].copy(), False


@njit(cache=True, nogil=True)
def collect_inbox(target: I32, sent: I32, num_nodes: int, representative: I64, num_messages: int) -> tuple[I64, I64]:
    """Return what the representative of each class received: ``class * num_messages + message``, and how often."""
    table = np.full(FIRST_CAPACITY, EMPTY, np.int32)
    keys = np.empty(FIRST_CAPACITY // 2, np.int64)
    counts = np.zeros(FIRST_CAPACITY // 2, np.int64)
    used = 0
    speaks_for = np.full(num_nodes, EMPTY, np.int32)  # the class of a representative, else EMPTY
    for number in range(len(representative)):
        speaks_for[representative[number]] = number
    # Messages come in runs: that of the edge before, per receiver, needs no look-up.
    last = np.full(len(representative), EMPTY, np.int32)
    last_entry = np.empty(len(representative), np.int32)
    for edge in range(len(target)):
        owner = np.int64(speaks_for[target[edge]])
        if owner == EMPTY:
            continue
        if last[owner] == sent[edge]:
            counts[last_entry[owner]] += 1
            continue
        if used == len(keys):
            table, keys = _grow(table, keys)
            counts = np.append(counts, np.zeros(used, np.int64))
        entry = _number(table, keys, used, owner * num_messages + sent[edge])
        if entry == used:
            used += 1
        counts[entry] += 1
        last[owner], last_entry[owner] = sent[edge], entry
    return keys[:used].copy(), counts[:used].copy()
