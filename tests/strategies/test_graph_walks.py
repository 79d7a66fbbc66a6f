"""Walks over a graph with a loop of TensorFlow 1, whose edges lead back, and control inputs.

start ------------> loop ---> looped ---> end
in_body ------------^          |          ^ waits for
beside --------------------> joined      guard <--- before_guard
"""

from collections.abc import Iterable

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.graph_walks import (
    ancestors,
    bits_behind,
    consumers_of,
    descendants,
    sources_of,
    walk,
)

NAMED = ("start", "in_body", "beside", "looped", "joined", "before_guard", "guard", "end")


@pytest.fixture(scope="module")
def graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        start, in_body, beside, before_guard = (
            tf.constant(1.0, name=name) for name in ("start", "in_body", "beside", "before_guard")
        )
        v1.disable_control_flow_v2()
        try:
            _, _, out = tf.while_loop(
                lambda i, *_: i < 3,
                # `in_body` reaches the second value in one round, the third in two.
                lambda i, x, y: (i + 1, x + in_body, y + x),
                (0, start, tf.constant(0.0)),
            )
        finally:
            v1.enable_control_flow_v2()
        looped = tf.identity(out, name="looped")
        tf.add(looped, beside, name="joined")
        guard = tf.identity(before_guard, name="guard")
        with tf.control_dependencies([guard]):
            tf.identity(looped, name="end")
    assert "NextIteration" in {op.type for op in graph.get_operations()}
    return graph


def named(ops: Iterable[tf.Operation]) -> set[str]:
    return {op.name for op in ops if op.name in NAMED}


def test_a_walk_goes_on_from_the_op_found_last_and_visits_each_once() -> None:
    follows = {"a": "bc", "b": "d", "c": "da", "d": "e"}
    visited = []

    def next_of(name: str) -> str:
        visited.append(name)
        return follows.get(name, "")

    assert list(walk("aa", next_of)) == ["a", "b", "c", "d", "e"]  # type: ignore[arg-type]
    assert visited == ["a", "c", "d", "e", "b"]


def test_sources_and_consumers_are_one_edge_away(graph: tf.Graph) -> None:
    end, looped = map(graph.get_operation_by_name, ("end", "looped"))
    assert sources_of(end, control_inputs=False) == [looped]
    assert named(sources_of(end, control_inputs=True)) == {"looped", "guard"}
    assert named(consumers_of(looped)) == {"joined", "end"}
    assert consumers_of(graph.get_operation_by_name("guard")) == []  # `end` only waits for it.


@pytest.mark.parametrize(
    ("name", "control_inputs", "expected"),
    [
        ("end", False, {"start", "in_body", "looped", "end"}),
        ("end", True, {"start", "in_body", "looped", "before_guard", "guard", "end"}),
        ("joined", True, {"start", "in_body", "looped", "beside", "joined"}),
        ("start", True, {"start"}),
    ],
)
def test_ancestors_are_found_through_a_loop(
    graph: tf.Graph, name: str, control_inputs: bool, expected: set[str]
) -> None:
    found = ancestors([graph.get_operation_by_name(name)], control_inputs=control_inputs)
    assert named(found) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("in_body", {"in_body", "looped", "joined", "end"}),
        ("beside", {"beside", "joined"}),
        ("before_guard", {"before_guard", "guard"}),
    ],
)
def test_descendants_are_found_through_a_loop_but_not_through_control_edges(
    graph: tf.Graph, name: str, expected: set[str]
) -> None:
    assert named(descendants([graph.get_operation_by_name(name)])) == expected


def test_a_walk_stays_inside(graph: tf.Graph) -> None:
    end, beside = map(graph.get_operation_by_name, ("end", "beside"))

    def is_inside(op: tf.Operation) -> bool:
        return op.name in ("guard", "before_guard")

    found = ancestors([end], control_inputs=True, is_inside=is_inside)
    assert named(found) == {"end", "guard", "before_guard"}
    assert list(descendants([beside], is_inside=is_inside)) == [beside]


@pytest.mark.parametrize("control_inputs", [False, True])
def test_bits_are_those_of_all_ancestors(graph: tf.Graph, control_inputs: bool) -> None:
    ops = graph.get_operations()
    own_bits = {op: 1 << number for number, op in enumerate(ops) if op.name in NAMED}
    bits = bits_behind(ops, own_bits, control_inputs=control_inputs)
    for op in ops:
        behind = ancestors([op], control_inputs=control_inputs)
        assert bits[op] == sum(own_bits.get(one, 0) for one in behind), op.name


def test_bits_of_a_part_of_the_graph_need_nothing_outside_of_it(graph: tf.Graph) -> None:
    joined = graph.get_operation_by_name("joined")
    part = ancestors([joined], control_inputs=False)
    in_order = [op for op in graph.get_operations() if op in part]
    bits = bits_behind(
        in_order,
        {graph.get_operation_by_name(name): 1 for name in ("in_body", "guard")},
        control_inputs=False,
    )
    assert set(bits) == part
    assert bits[joined] == 1
