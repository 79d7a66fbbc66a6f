"""The scaffold that sessions get: variables without a value are named, and looked at once."""

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.scaffold import CheckedScaffold, checked


@pytest.mark.parametrize("has_own", [False, True])
def test_variables_are_looked_at_once_for_values_unless_the_user_asks_twice(
    graph: tf.Graph, has_own: bool
) -> None:
    v1.get_variable("kernel", [2])
    own = tf.constant([], tf.string) if has_own else None
    scaffold = v1.train.Scaffold(ready_for_local_init_op=own)
    given = CheckedScaffold(scaffold, lambda saver: None).finalize()
    assert given.ready_for_local_init_op is own
    assert given.ready_op is scaffold.ready_op is not None
    added = [op.type for op in graph.get_operations() if op.name.startswith("without_value/")]
    assert added.count("VarIsInitializedOp") == 1


@pytest.mark.parametrize("use_resource", [True, False])
def test_each_variable_that_nothing_initializes_is_named(
    graph: tf.Graph, use_resource: bool
) -> None:
    local = [v1.GraphKeys.LOCAL_VARIABLES]
    v1.get_variable("bias", initializer=1.0)
    with tf.device("/device:CPU:1"):
        v1.get_variable("kernel", [2], use_resource=use_resource)
    v1.get_variable("total", [2], use_resource=use_resource, collections=local)
    init_op = v1.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)[0].initializer
    scaffold = v1.train.Scaffold(init_op=init_op, local_init_op=tf.no_op())
    config = v1.ConfigProto(device_count={"CPU": 2})
    creator = v1.train.ChiefSessionCreator(checked(scaffold, None), config=config)
    with pytest.raises(RuntimeError, match="Variables not initialized: kernel, total"):
        creator.create_session()


def test_a_graph_has_both_lists_for_those_that_load_it(graph: tf.Graph) -> None:
    v1.get_variable("kernel", [2])
    v1.get_variable("total", [2], collections=[v1.GraphKeys.LOCAL_VARIABLES])
    checked(v1.train.Scaffold(), None).finalize()
    keys = v1.GraphKeys.READY_FOR_LOCAL_INIT_OP, v1.GraphKeys.READY_OP
    of_global, of_all = (graph.get_collection(key) for key in keys)
    with v1.Session() as session:
        assert session.run([*of_global, *of_all])[0].tolist() == [b"kernel"]
        assert session.run(of_all)[0].tolist() == [b"kernel", b"total"]
