"""The part of a graph that some targets need, and the order of what it takes from outside."""

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.training.layers.graph_slices import slice_graph


def test_a_slice_has_the_ops_inside_and_its_inputs_in_the_order_of_first_use() -> None:
    with tf.Graph().as_default():
        a, b, c, given = (
            v1.placeholder(tf.float32, [], name=name) for name in ("a", "b", "c", "g")
        )
        left = tf.add(a, b, name="left")
        right = tf.add(c, b, name="right")
        with tf.control_dependencies([tf.negative(a, name="waited_for"), given]):
            total = tf.multiply(left, right, name="total")
        tf.square(total, name="after")
        inside = {"left", "right", "total", "waited_for"}
        part = slice_graph([given, total, total], lambda op: op.name in inside)
    assert [op.name for op in part.operations] == ["total", "left", "right", "waited_for"]
    # The walk goes on from the op found last.
    assert [tensor.name for tensor in part.inputs] == ["g:0", "a:0", "c:0", "b:0"]


def test_a_target_op_is_part_of_a_slice_even_if_it_is_outside() -> None:
    with tf.Graph().as_default():
        value = tf.constant(1.0, name="value")
        update = tf.raw_ops.Print(input=value, data=[], name="update")
        part = slice_graph([update.op, update], lambda op: False)
    assert [op.name for op in part.operations] == ["update"]
    assert [tensor.name for tensor in part.inputs] == ["update:0", "value:0"]
