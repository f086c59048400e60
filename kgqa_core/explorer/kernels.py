"""The integer side of a merged exploration step, compiled: one pass over the walked edges, flat memory per question.

Per edge this reads the tail, looks it up in a table of one question's entities (4 bytes per entity of the graph, so on
a small graph it stays in cache), and adds two 64-bit codes to the tail's multiset hash: about 30 bytes moved.
The tests hold it against a plain version in numpy (tests/explorer/plain_walk.py).

Shapes: B questions, N nodes (question, entity), C state classes, M distinct (class, relation) messages, G groups headed
by the nodes, E walked edges. The last C messages and the last edges of each question are the identity.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from kgqa_core.graph.csr import I32, I64, Bools, Ints, compiled

Arrays = tuple[Any, ...]  # several at once; the docstrings name them

EMPTY, BLOCKED = -1, -2
FIRST_CAPACITY = 1 << 12  # of a hash table; doubled when half full
GOLDEN = 0x9E3779B97F4A7C15 >> 1  # multiplicative hashing (Knuth 6.4): an odd number near 2^63 / golden ratio
SMALL = 48  # groups of one head up to which insertion sort is quicker than a library sort

_kept = threading.local()  # of each thread, a table of one number per entity, made once


def scratch(num_entities: int) -> I32:
    """Return a table that kernels leave EMPTY, as they find it."""
    place: I32 | None = getattr(_kept, "place", None)
    if place is None or len(place) < num_entities:
        place = _kept.place = np.full(num_entities, EMPTY, np.int32)
    return place


@compiled
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


@compiled
def _grow(table: I32, keys: I64, used: int) -> tuple[I32, I64]:
    """Return a table and key list of twice the capacity with the same ``used`` entries."""
    bigger = np.full(2 * len(table), EMPTY, np.int32)
    more = np.empty(2 * len(keys), np.int64)
    for number in range(used):
        _number(bigger, more, number, keys[number])
    return bigger, more


@compiled
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


@compiled
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
                table, keys = _grow(table, keys, used)
            number = _number(table, keys, used, sender * num_codes + relation)
            if number == used:
                used += 1
            message[at] = number
            known_class[relation], known[relation] = sender, number
    return first, message, keys[:used].copy()


@compiled
def enter_groups(csr: Arrays, node_entity: I64, groups: Arrays, attention: Arrays, budget: int) -> tuple[Bools, I64]:
    """Say of each group [G] whether it enters, highest attention first until K edges, and count each node's edges [N].

    ``csr``: group_ptr and edge_ptr of the graph; ``groups``: first [N+1] and message [G], from ``number_messages``;
    ``attention``: of each message [M], a number that orders the groups of one head, and whether it may enter at all;
    ``budget``: K.
    """
    group_ptr, edge_ptr = csr
    first, message = groups
    preference, admitted = attention
    entered = np.zeros(len(message), np.bool_)
    num_edges = np.zeros(len(node_entity), np.int64)
    for node in range(len(node_entity)):
        start = group_ptr[node_entity[node]]
        low, count = first[node], first[node + 1] - first[node]
        degree = 0
        for group in range(count):
            if admitted[message[low + group]]:
                entered[low + group] = True
                degree += edge_ptr[start + group + 1] - edge_ptr[start + group]
        if degree <= budget:
            num_edges[node] = degree
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
        num_edges[node] = taken
    return entered, num_edges


@compiled
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


@compiled
def walk_edges(
    csr: Arrays, nodes: Arrays, groups: Arrays, topics: Arrays, codes: I64, place: I32, sizes: Arrays
) -> tuple[Arrays, I64, Arrays, int, bool]:
    """Walk the entered groups and the identity edges, question by question, and merge equal nodes to state classes.

    ``csr``: group_ptr, edge_ptr, edge_tail; ``nodes``: question (ascending), entity, class [N], and the order to visit
    them in; ``groups``: first [N+1], message and entered [G]; ``topics``: pointer [B+1] and entities that no edge may
    arrive at; ``codes`` [M, 2]: of the messages, identity last; ``place``: scratch per entity of the graph, EMPTY
    before and after; ``sizes``: edges of each node [N] from ``enter_groups``, and the first identity message.

    Returns question, entity and class of the nodes reached [N']; ``class_question`` [C'] that a class occurs in first;
    of each class what its first node received: class, message and how often [I]; the edges walked; and whether two
    nodes agreed in the first hash and not in the second: then nothing of this is to be used. Classes are numbered, and
    a class's messages listed, in order of first occurrence.
    """
    node_question, (node_edges, identity) = nodes[0], sizes
    most = node_edges.sum() + len(node_question)
    question, entity, node_class = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    table, keys = np.full(FIRST_CAPACITY, EMPTY, np.int32), np.empty(FIRST_CAPACITY // 2, np.int64)
    check, class_question = np.empty_like(keys), np.empty_like(keys)
    owner, message, count = np.empty_like(keys), np.empty_like(keys), np.empty_like(keys)
    seen = np.full((len(codes), 2), EMPTY, np.int64)
    work = _room(0)
    used = num_classes = walked = end = received = 0
    while end < len(node_question):
        begin, size = end, 0
        while end < len(node_question) and node_question[end] == node_question[begin]:
            size += node_edges[end] + 1
            end += 1
        if size > len(work[0]):
            work = _room(size)
        at = (begin, end, identity)
        edges, reached = _walk_question(at, csr, nodes, groups, topics, codes, place, work, entity[used:])
        while num_classes + reached > len(keys):
            table, keys = _grow(table, keys, num_classes)
            check, class_question = np.append(check, check), np.append(class_question, class_question)
        while received + edges > len(owner):
            owner, message, count = np.append(owner, owner), np.append(message, message), np.append(count, count)
        first = num_classes
        classes = (table, keys, check, num_classes)
        num_classes = _number_nodes(reached, work, classes, node_class[used:])
        if num_classes < 0:
            break
        question[used : used + reached] = class_question[first:num_classes] = node_question[begin]
        received = _collect_inbox(work, (first, num_classes), (owner, message, count, received), seen)
        walked, used = walked + edges, used + reached
    after = (question[:used], entity[:used], node_class[:used])
    inbox = (owner[:received], message[:received], count[:received])
    return after, class_question[: max(num_classes, 0)], inbox, walked, num_classes < 0


@compiled
def _room(size: int) -> Arrays:
    """Return what the edges of one question fill.

    Of each edge its message and the next edge to the same node; of each node its hash [2], first and last edge; and of
    each new class its first node.
    """
    each = np.empty((4, size), np.int32)
    return each[0], np.empty(size, np.int32), np.empty((size, 2), np.int64), each[1], each[2], each[3]


@compiled
def _number_nodes(reached: int, work: Arrays, classes: Arrays, node_class: I64) -> int:
    """Number the classes of one question's nodes, and note the first node of each new one; -1 where a hash collided.

    ``classes``: table and first hashes of those known, their second hashes, and how many they are, with room for more.
    """
    hashes, first_node = work[2], work[5]
    table, keys, check, num_classes = classes
    first, capacity = num_classes, 2
    while capacity < 2 * reached:
        capacity *= 2
    local, last = np.full(capacity, EMPTY, np.int32), capacity - 1  # of this question's classes: it stays in cache
    for node in range(reached):
        key = hashes[node, 0]
        slot = (key >> 32) & last
        while local[slot] != EMPTY and hashes[local[slot], 0] != key:
            slot = (slot + 1) & last
        if local[slot] != EMPTY:
            number = node_class[local[slot]]
        else:
            local[slot] = node
            number = _number(table, keys, num_classes, key)
        node_class[node] = number
        if number == num_classes:
            check[number], first_node[number - first] = hashes[node, 1], node
            num_classes += 1
        elif check[number] != hashes[node, 1]:
            return -1
    return int(num_classes)


@compiled
def _walk_question(
    bounds: Arrays,
    csr: Arrays,
    nodes: Arrays,
    groups: Arrays,
    topics: Arrays,
    codes: I64,
    place: I32,
    work: Arrays,
    entity: I64,
) -> tuple[int, int]:
    """Walk the nodes begin..end of one question, which are visited class by class; then they stay where they are.

    Returns how many edges that are, and nodes reached; ``work`` is of ``_room``, ``entity`` gets what was reached.
    """
    begin, end, identity = bounds
    group_ptr, edge_ptr, edge_tail = csr
    node_question, node_entity, node_class, visit = nodes
    first, message, entered = groups
    topic_ptr, topic_entity = topics
    sent, following, hashes, first_edge, last_edge, _ = work
    blocked = topic_entity[topic_ptr[node_question[begin]] : topic_ptr[node_question[begin] + 1]]
    place[blocked] = BLOCKED
    used = edge = 0
    for node in visit[begin:end]:
        start = group_ptr[node_entity[node]] - first[node]
        for at in range(first[node], first[node + 1]):
            if not entered[at]:
                continue
            code = message[at]
            name, second = codes[code, 0], codes[code, 1]
            for position in range(edge_ptr[start + at], edge_ptr[start + at + 1]):
                tail = edge_tail[position]
                reached = place[tail]
                if reached >= 0:
                    hashes[reached, 0] += name
                    hashes[reached, 1] += second
                    following[last_edge[reached]] = edge
                elif reached == BLOCKED:
                    continue
                else:
                    reached = place[tail] = used
                    entity[used], first_edge[used] = tail, edge
                    hashes[used, 0], hashes[used, 1] = name, second
                    used += 1
                last_edge[reached], sent[edge] = edge, code
                edge += 1
    place[blocked] = EMPTY
    for node in range(begin, end):
        code, tail = identity + node_class[node], node_entity[node]
        reached = place[tail]
        if reached == EMPTY:
            reached = place[tail] = used
            entity[used], first_edge[used] = tail, edge
            hashes[used, 0], hashes[used, 1] = codes[code, 0], codes[code, 1]
            used += 1
        else:
            hashes[reached, 0] += codes[code, 0]
            hashes[reached, 1] += codes[code, 1]
            following[last_edge[reached]] = edge
        last_edge[reached], sent[edge] = edge, code
        edge += 1
    for reached in range(used):
        place[entity[reached]] = EMPTY
    return edge, used


@compiled
def _collect_inbox(work: Arrays, numbers: Arrays, inbox: Arrays, seen: I64) -> int:
    """Add what the first nodes of some new classes received to the inbox; return how many entries it has then.

    ``inbox``: class, message and count, with room for more, and how many there are; ``seen`` [M, 2]: of each message
    the last class that received it, and with which entry.
    """
    sent, following, _, first_edge, last_edge, first_node = work
    first, end = numbers
    owner, message, count, used = inbox
    for number in range(first, end):
        node = first_node[number - first]
        edge, last = first_edge[node], last_edge[node]
        while True:
            code = sent[edge]
            if seen[code, 0] == number:
                count[seen[code, 1]] += 1
            else:
                owner[used], message[used], count[used] = number, code, 1
                seen[code, 0], seen[code, 1] = number, used
                used += 1
            if edge == last:
                break
            edge = following[edge]
    return int(used)
