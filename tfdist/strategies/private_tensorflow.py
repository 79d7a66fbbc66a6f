"""Private names of TensorFlow that tfdist uses, each with the reason.

Only this file and `private_runtime` import `tensorflow.python`, or read a private attribute of
TensorFlow's objects (ruff's rules TID251 and SLF001 check this). A name is here because
TensorFlow 2.16 to 2.21 has no public equivalent; a new TensorFlow is checked against this file.
Where an import names something twice, other modules import it from here.
Subclasses override private methods where TensorFlow's base class calls them: `extended.py` those of
`StrategyExtended`, `sync_on_read.py` and `eager/` those of a variable. Keras' private names are in
`tfdist.estimator.private_keras` and the room `tfdist.strategies.keras`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
import tensorflow.compat.v1 as v1

# The list of packages whose functions AutoGraph converts or leaves as they are.
from tensorflow.python.autograph.core import config as autograph

# The module that writes AutoGraph's code to files.
from tensorflow.python.autograph.pyct import loader

# The functions that write the file `checkpoint`, and delete a checkpoint's files.
from tensorflow.python.checkpoint import checkpoint_management

# Writes the values of a tf.train.Checkpoint and of a SavedModel.
from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver

# Lists the variables that a tf.train.Checkpoint saves, for a Saver, as a Scaffold does on finalize.
from tensorflow.python.checkpoint.graph_view import ObjectGraphView

# The class of every session, which is announced, as its calls are; what finds a call's fetches.
from tensorflow.python.client.session import BaseSession, _FetchHandler

# mirrored_run runs a function in one thread per replica; the threads wait for each other where
# gradients are reduced.
from tensorflow.python.distribute import mirrored_run

# The argument of functions that make one value per replica: replica index and number of replicas.
from tensorflow.python.distribute.distribute_lib import ValueContext as ValueContext

# A value that differs between replicas, as a strategy's functions take and return it.
from tensorflow.python.distribute.values import PerReplica as PerReplica

# The program's seed, where TensorFlow executes eagerly. A GradientTape's record of operations:
# whether there is one, and additions to it.
from tensorflow.python.eager import context, record

# The name of a resource without a name: each execution makes a new one, freed after its last use.
from tensorflow.python.eager.context import anonymous_name as anonymous_name

# The part of a tf.function's key that says where a trace may be used. A trace: its calls.
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

# op_callbacks: what is called with each operation that a thread executes eagerly. random_seed: the
# function that gives each op and dataset its two seeds.
from tensorflow.python.framework import op_callbacks, random_seed

# The store of `get_variable`, which makes the parts of a partitioned variable.
from tensorflow.python.ops import variable_scope

# The graphs of loops' bodies and of branches.
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

# The error of a tensor that cannot be copied out of a function, since it depends on its input.
from tensorflow.python.ops.op_selector import UnliftableError

# The class behind `tf.Variable` in a v1 graph: the base class of sync-on-read variables; and its
# own, which makes a variable of a handle. The function tells the tapes that a variable is read.
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, variable_accessed
from tensorflow.python.ops.resource_variable_ops import ResourceVariable as ResourceVariable

# Writes a SavedModel, for `tf.saved_model.save` and tf_keras.
from tensorflow.python.saved_model import save as saved_model_writer

# Whether a SavedModel is being written, whose functions are traced for it.
from tensorflow.python.saved_model import save_context

# AutoGraph skips our functions, as it skips TensorFlow's: converting them would add a second to the
# first step. A program's own functions are converted before a strategy gets them.
autograph.CONVERSION_RULES = (
    autograph.DoNotConvert("tfdist.strategies"),
    autograph.DoNotConvert("tfdist.training.optimizers"),
    autograph.DoNotConvert("tfdist.training.wrappers"),
    *autograph.CONVERSION_RULES,
)

_LARGEST_SEED = 2**31 - 1  # As in `random_seed`.

# The variables of a layer over feature columns, and the features of a batch as its columns have
# transformed them. Keras' DenseFeatures uses both; the layer for linear models was tf.estimator's.
ColumnVariables = tf.__internal__.feature_column.StateManager
TransformedFeatures = tf.__internal__.feature_column.FeatureTransformationCache


def is_dense_column(column: Any) -> bool:
    """Returns whether a feature column makes a dense tensor of numbers."""
    return isinstance(column, tf.__internal__.feature_column.DenseColumn)


def is_v2_column(column: Any) -> bool:
    """Returns whether a feature column is of `tf.feature_column` and not of TensorFlow 1."""
    return bool(getattr(column, "_is_v2_column", False))


@contextmanager
def loss_scaled_by_optimizer(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes `Optimizer.compute_gradients` divide the loss by the number of replicas.

    v1 optimizers do so only if the strategy says that an Estimator is running.
    """
    with strategy._scale_loss_for_estimator_enabled():
        yield


def run_independently(op: tf.Operation) -> None:
    """Takes an operation out of the order in which a tf.function runs stateful operations.

    It still runs before the function returns. A v1 graph has no such order.
    """
    dependencies = getattr(op.graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(op)


def add_control_inputs(op: tf.Operation, waits_for: Sequence[tf.Operation]) -> None:
    """Makes an operation that exists already wait for others.

    `tf.control_dependencies` is for operations that are made later.
    """
    op._add_control_inputs(waits_for)


def is_in_loop_or_branch(place: tf.Operation | tf.Graph) -> bool:
    """Returns whether a v1 operation is part of a `tf.while_loop` or `tf.cond`.

    Of a graph: whether operations that are made in it now are. There is no public way to ask. Loops
    and branches in functions have separate graphs.
    """
    return place._get_control_flow_context() is not None


def is_inside_control_flow(outside: tf.Graph | None) -> bool:
    """Returns whether the current graph is part of a loop or branch of the graph `outside`.

    So is a function that is called there.
    """
    graph = v1.get_default_graph()
    while graph is not None and graph is not outside:
        if isinstance(graph, ControlFlowFuncGraph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def lifted(tensor: tf.Tensor) -> tf.Tensor | None:
    """Returns a copy of a tensor, and of what it is computed from, outside of functions and loops.

    A tensor outside of them is returned itself. None if it depends on an input of the function, or
    is part of an old loop, whose operations have no graph of their own.
    """
    if is_in_loop_or_branch(tensor.op):
        return None
    with tf.init_scope():
        graph = v1.get_default_graph()
        if tensor.graph is graph:
            return tensor
        try:
            return tf.__internal__.lift_to_graph([tensor], graph)[tensor]
        except UnliftableError:
            return None


def has_control_dependencies(graph: tf.Graph) -> bool:
    """Returns whether an operation made in this graph now would wait for others.

    True in a `with tf.control_dependencies(...)` block, which has no public way to ask.
    """
    return bool(graph._current_control_dependencies())


def is_recorded_by_tape() -> bool:
    """Returns whether a `tf.GradientTape` may record the operations that are made now."""
    return bool(record.could_possibly_record())


def read_on_tape(
    variable: tf.Variable,
    copy: tf.Tensor,
    device: str,
    gradient: Callable[[Any], Any] = lambda upstream: upstream,
) -> tf.Tensor:
    """Returns a copy of a variable which the tapes record as a read of the variable.

    A tape follows operations from the variable's handle on, and the copy, in the default graph, was
    made before the tape. `gradient` makes the variable's gradient from that of the copy.
    """
    variable_accessed(variable)
    with (
        record.stop_recording(),
        v1.get_default_graph().colocate_with(None, ignore_existing=True),
        tf.device(device),
    ):
        value = tf.identity(copy)

    def backward(upstream: Any) -> list[Any]:
        return [gradient(upstream)]

    record.record_operation(
        "ReadVariableOp", [value], [variable.handle], backward, forward_function=backward
    )
    return value


def mark_as_read(variable: tf.Variable) -> None:
    """Tells the tapes that a variable is read: they watch it from now on."""
    variable_accessed(variable)


def make_partitioned_whole(is_whole: Callable[[str, Sequence[int], Any], bool]) -> None:
    """Makes `get_variable` make one variable of what a partitioner divides, where `is_whole`.

    It gets the variable's name, the partitioner's numbers of parts and the variable's shape.
    """
    store = variable_scope._VariableStore
    get_parts = store._get_partitioned_variable

    def get(self: Any, name: str, partitioner: Any, **options: Any) -> Any:
        shape = tf.TensorShape(options.get("shape"))
        if shape.is_fully_defined() and shape.rank:
            dtype = options.get("dtype") or tf.float32
            parts = partitioner(shape=shape, dtype=dtype)
            if is_whole(name, [int(number) for number in parts], shape):
                return self._get_single_variable(name=name, **options)
        return get_parts(self, name, partitioner=partitioner, **options)

    store._get_partitioned_variable = get


def nested_layers(model: Any) -> list[Any]:
    """Returns the layers inside a Keras layer or model, at any depth.

    Keras 2 and 3 both have the private method; `submodules`, which is public, has only Keras 2. It
    stands here and not in the Estimator's list of Keras' names because a pipeline needs it.
    """
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers(include_self=False))
    return list(getattr(model, "submodules", ()))


def replace_input(op: tf.Operation, old: tf.Tensor, new: tf.Tensor) -> None:
    """Replaces an input of an operation that exists already.

    Both tensors have the same dtype and shape. There is no public way to change a graph.
    """
    for index, tensor in enumerate(op.inputs):
        if tensor is old or tensor.name == old.name:
            op._update_input(index, new)


def divide_traces(part: Callable[[], Hashable]) -> None:
    """Makes tf.functions trace again where `part` gives another value; None changes nothing.

    TensorFlow keeps one trace for all code on a device that is not in cross-replica context.
    """
    make_context = function_context.make_function_context

    def make_divided(scope_type: Any = None) -> Any:
        made, own = make_context(scope_type), part()
        if own is None:
            return made
        context = made.context
        return made._replace(
            context=context._replace(device_functions=(own, *context.device_functions))
        )

    function_context.make_function_context = make_divided


def announce_function_calls(around: Callable[[tf.Graph, Callable[[], Any]], Any]) -> None:
    """Makes `around` get each call of a traced function: its graph, and what calls it.

    There is no public way to learn of the calls of a program's tf.functions.
    """
    call_flat = ConcreteFunction._call_flat

    def announce(function: Any, inputs: Any, captured_inputs: Any) -> Any:
        return around(function._func_graph, lambda: call_flat(function, inputs, captured_inputs))

    ConcreteFunction._call_flat = announce


def write_converted_code_into(folder: str) -> None:
    """Makes AutoGraph write the Python code that it makes of functions into a folder.

    Its files lie in the folder for temporary files else, and stay there if the process is killed.
    """
    make = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
    loader.tempfile = SimpleNamespace(NamedTemporaryFile=make)


def copy_of_function(
    function: Any, python_function: Callable[..., Any], keeps_signature: bool
) -> Any:
    """Returns a tf.function of other Python code, with the options of a tf.function."""
    if keeps_signature or function.input_signature is None:
        return function._clone(python_function)
    return tf.function(
        python_function,
        reduce_retracing=True,
        autograph=function._autograph,
        jit_compile=function._jit_compile,
    )


def converted(python_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Python code as AutoGraph converts it, if the tf.function that is traced does so."""
    autograph_of = tf.__internal__.autograph
    return autograph_of.tf_convert(python_function, autograph_of.control_status_ctx())


def run_in_replica_threads(
    strategy: tf.distribute.Strategy, function: Any, args: Any, kwargs: Any
) -> Any:
    """Calls a function once for each replica of this worker, as MirroredStrategy does.

    Each call has its own thread, device (`extended.worker_devices`) and replica context. The first
    one makes the variables; the others get the same variables, in the order of creation. The
    results are `PerReplica` values if they differ.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with tf.variable_creator_scope(_named_as_in_the_first_replica):
            return function(*args, **kwargs)

    return mirrored_run.call_for_each_replica(strategy, call, args, kwargs)


def _named_as_in_the_first_replica(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Leaves a replica's name scope out of a variable's name.

    The variables of `tf.compat.v1.metrics.recall_at_k` are named after their name scope, and the
    other replicas find those of the first by their names.
    """
    name = kwargs.get("name")
    if isinstance(name, str):
        kwargs["name"] = re.sub(r"(^|/)replica_[1-9]\d*/", r"\1", name, count=1)
    return next_creator(**kwargs)


def replica_in_sync_group() -> int:
    """Returns the index, over all workers, of the running replica.

    The public property returns a tensor.
    """
    return int(tf.distribute.get_replica_context()._replica_id_in_sync_group)


def saver_of_checkpoint(root: Any, **extra: Any) -> v1.train.Saver:
    """Makes a Saver, in the current graph, that reads and writes an object-based checkpoint.

    The root is a `tf.train.Checkpoint`, or another object that tracks its variables. More variables
    are saved as if they were attributes of the root.
    """
    reference = tf.__internal__.tracking.TrackableReference
    attached = [reference(name, variable) for name, variable in extra.items()]
    view = ObjectGraphView(root, attached_dependencies=attached)
    return v1.train.Saver(var_list=view.frozen_saveable_objects(), sharded=True)


def value_of_checkpoint(initial_value: Any) -> Any:
    """Returns an initial value that a `tf.train.Checkpoint` gives a new variable; None if another.

    It has the `checkpoint_position`, and is called with the whole shape and a `shard_info`.
    """
    value = initial_value
    function = value.func if isinstance(value, functools.partial) else value
    kind = tf.__internal__.tracking.CheckpointInitialValueCallable
    return function if isinstance(function, kind) else None


@dataclass(frozen=True, kw_only=True)
class ObjectSave:
    """A save of a `tf.train.Checkpoint`, or of the values of a SavedModel, in TensorFlow 2.

    Attributes:
      path: The checkpoint's path, without endings.
      objects: The objects that have values, and the name of each value in the checkpoint.
      write: Writes all values to a path.
      read: Reads all values as `write` does, and writes nothing.
    """

    path: str
    objects: Sequence[tuple[str, Any]]
    write: Callable[[str], Any]
    read: Callable[[], Any]


def announce_object_saves(around: Callable[[ObjectSave], Any]) -> None:
    """Makes `around` do each save of a `tf.train.Checkpoint` that is executed eagerly."""
    save = MultiDeviceSaver.save

    def announce(self: Any, file_prefix: Any, options: Any = None) -> Any:
        if not tf.executing_eagerly():
            return save(self, file_prefix, options)
        restores = self._keys_to_restore_fn.items()  # Methods of the objects.
        return around(
            ObjectSave(
                path=tf.convert_to_tensor(file_prefix).numpy().decode(),
                objects=[(key, getattr(method, "__self__", None)) for (key, _), method in restores],
                write=lambda path: save(self, tf.constant(path), options),
                read=lambda: self._get_shards_by_task(None),
            )
        )

    MultiDeviceSaver.save = announce


def announce_saved_models(around: Callable[[Any, str, Callable[[str], Any]], Any]) -> None:
    """Makes `around` write each SavedModel of TensorFlow 2.

    It gets the object, the folder, and a function that writes the model to a folder.
    """
    write = saved_model_writer.save_and_return_nodes

    def announce(obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
        return around(obj, str(export_dir), lambda folder: write(obj, folder, *args, **kwargs))

    saved_model_writer.save_and_return_nodes = announce


def objects_in(root: Any) -> list[Any]:
    """Returns an object that TensorFlow tracks, and those that it has, at any depth."""
    objects, _ = ObjectGraphView(root).breadth_first_traversal()
    return list(objects)


def leave_checkpoints_alone(are_of_others: Callable[[str], bool]) -> None:
    """Makes TensorFlow neither note nor delete checkpoints of another worker, given by a path."""
    module = checkpoint_management
    note, delete = module.update_checkpoint_state_internal, module._delete_file_if_exists

    def note_own(save_dir: str, model_checkpoint_path: str, *args: Any, **kwargs: Any) -> None:
        if not are_of_others(model_checkpoint_path):
            note(save_dir, model_checkpoint_path, *args, **kwargs)

    def delete_own(filespec: str) -> None:
        if not are_of_others(filespec):
            delete(filespec)

    module.update_checkpoint_state_internal = note_own
    module._delete_file_if_exists = delete_own


def listeners_of(saver: v1.train.CheckpointSaverHook) -> list[v1.train.CheckpointSaverListener]:
    """Returns the list of a saver's listeners, which may be changed.

    A saver takes listeners only when it is made, and a user's saver is made already.
    """
    listeners: list[v1.train.CheckpointSaverListener] = saver._listeners
    return listeners


def replace_saver(
    hook: v1.train.CheckpointSaverHook, make: Callable[[Any, Callable[[], v1.train.Saver]], Any]
) -> None:
    """Gives a hook another saver; a hook takes one only when it is made.

    It is made from the hook's saver (None if it uses its scaffold's) and a function that finds the
    one in use, once the graph is complete.
    """
    hook._saver = make(hook._saver, copy.copy(hook)._get_saver)


def replace_timer(hook: v1.train.CheckpointSaverHook, timer: v1.train.SecondOrStepTimer) -> None:
    """Gives a hook another timer; a hook makes its own."""
    hook._timer = timer


def save_first(hook: v1.train.CheckpointSaverHook, session: v1.Session) -> None:
    """Saves as a hook does when a session opens, without its writing of the graph before."""
    step = session.run(hook._global_step_tensor)
    hook._save(session, step)
    hook._timer.update_last_triggered_step(step)


def set_steps_per_call(hook: v1.train.SessionRunHook, steps_per_call: int) -> None:
    """Sets how many steps a session call makes, on those of TensorFlow's hooks that count steps.

    tf.estimator's TPUEstimator set it in this way. Other hooks stay as they are.
    """
    if hasattr(hook, "_set_steps_per_run"):
        hook._set_steps_per_run(steps_per_call)


def stop_limit_of(hook: v1.train.StopAtStepHook) -> tuple[int | None, int | None]:
    """Returns a StopAtStepHook's arguments, of which one is None: (num_steps, last_step)."""
    return hook._num_steps, hook._last_step


def is_closed(session: v1.Session) -> bool:
    """Returns whether a session has been closed, which a prepared call does not check."""
    return bool(session._closed)


def call_prepared(session: v1.Session, call: Callable[[], Any]) -> Any:
    """Calls what `Session.make_callable` returned, with the error messages of `Session.run`.

    `make_callable` alone reports a failed operation without the place where it was made.
    """
    return session._do_call(call)


def nodes_in_functions(op: tf.Operation) -> list[Any]:
    """Returns the NodeDefs of the functions of a loop, a branch or a call, and of theirs."""
    found, waiting = [], [op.node_def]
    while waiting:
        attributes = waiting.pop().attr.values()
        for function in [
            f for attribute in attributes for f in (attribute.func, *attribute.list.func) if f.name
        ]:
            nodes = op.graph._get_function(function.name).cached_definition.node_def
            found += nodes
            waiting += nodes
    return found


def announce_calls(target: str, announce: Callable[[list[tf.Operation]], None]) -> None:
    """Announces each new call of the sessions of a target, before it is made.

    Args:
      target: The target of the sessions: "grpc://host:port".
      announce: It gets the operations that the call fetches or runs.
    """
    announced: WeakKeyDictionary[v1.Session, set[tuple[str, ...]]] = WeakKeyDictionary()
    do_run, make_callable = BaseSession._do_run, BaseSession.make_callable

    def announce_new(session: v1.Session, needed: Sequence[tf.Tensor | tf.Operation]) -> None:
        names = tuple(op_type.name for op_type in needed)
        known = announced.setdefault(session, set())
        if names not in known:
            known.add(names)
            announce(
                [op_type.op if isinstance(op_type, tf.Tensor) else op_type for op_type in needed]
            )

    def run(session: v1.Session, handle: Any, ops: Any, tensors: Any, *rest: Any) -> Any:
        if session.sess_str == target.encode():
            announce_new(session, [*ops, *tensors])
        return do_run(session, handle, ops, tensors, *rest)

    def make(
        session: v1.Session, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        if session.sess_str == target.encode() and feed_list is None:  # With it, `run` is called.
            found = _FetchHandler(session.graph, fetches, {})
            announce_new(session, [*found.targets(), *found.fetches()])
        return make_callable(session, fetches, feed_list, accept_options)

    BaseSession._do_run, BaseSession.make_callable = run, make


def announce_sessions(target: str, announce: Callable[[v1.Session], None]) -> None:
    """Announces each new session of a target, before its first call.

    Args:
      target: The target of the sessions: "grpc://host:port".
      announce: It gets the session.
    """
    make = BaseSession.__init__

    def make_and_announce(session: v1.Session, *args: Any, **kwargs: Any) -> None:
        make(session, *args, **kwargs)
        if session.sess_str == target.encode():
            announce(session)

    BaseSession.__init__ = make_and_announce


def put_into_container(graph: tf.Graph, name: str, *, instead_of: str) -> set[str]:
    """Puts the resources of a graph, those made later as well, into a container of a server.

    What is in a container whose name begins otherwise than `instead_of` stays there.
    `tf.Graph.container` is for resources that are made later.

    Returns:
      The names of the containers that the graph has resources in.
    """
    value = v1.AttrValue(s=name.encode())
    graph._container = name
    names, have_container = set(), {}
    for op in graph.get_operations():
        if op.type not in have_container:
            have_container[op.type] = any(
                attribute.name == "container" for attribute in op.op_def.attr
            )
        if not have_container[op.type]:
            continue
        given = op.get_attr("container").decode()
        if not given or given.startswith(instead_of):
            if given != name:
                op._set_attr("container", value)
            given = name
        names.add(given)
    return names


def note_checkpoint(saver: v1.train.Saver, path: str) -> None:
    """Makes a saver remember a checkpoint as its newest one, without naming it in a file."""
    saver._RecordLastCheckpoint(path)


def delete_oldest_checkpoint(saver: v1.train.Saver, meta_graph_suffix: str) -> None:
    """Makes a saver delete the checkpoint that is one too many, unless it is kept longer."""
    saver._MaybeDeleteOldCheckpoints(meta_graph_suffix=meta_graph_suffix)


def constructor_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns those of a variable creator's arguments that `ResourceVariable` takes."""
    names = (
        "initial_value", "trainable", "collections", "validate_shape", "name", "dtype",
        "constraint", "distribute_strategy", "synchronization", "aggregation", "shape",
    )  # fmt: skip
    return {name: kwargs[name] for name in names if name in kwargs}


def arguments_of_copy(variable: Any) -> dict[str, Any]:
    """Returns the arguments of a resource variable that is a copy of another, but for its value.

    The base class' `__deepcopy__` makes a variable of the base class.
    """
    if not tf.executing_eagerly():
        raise NotImplementedError("a variable is copied outside of functions and graphs")
    return {
        "trainable": variable.trainable,
        "constraint": variable.constraint,
        "dtype": variable.dtype,
        "name": variable._shared_name,
        "distribute_strategy": variable._distribute_strategy,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
    }


class HiddenHandle:
    """A variable's handle with its attributes that is no tensor for TensorFlow.

    TensorFlow then reads the variable by a call of `value`.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self._hidden = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hidden, name)


def variable_of_handle(handle: tf.Tensor, like: Any) -> tf.Variable:
    """Returns another variable of the value that a handle names, which no checkpoint has."""
    return BaseResourceVariable(
        handle=handle,
        trainable=False,
        shape=like.shape,
        dtype=like.dtype,
        name=like.name,
        unique_id=like._unique_id,
        handle_name=like._handle_name,
    )


def is_written_as_saved_model() -> bool:
    """Returns whether functions are traced for a SavedModel, which knows no strategy."""
    return bool(save_context.in_save_context())


def next_seeds() -> tuple[int, int] | None:
    """Returns the two seeds of an op without one; None if TensorFlow draws them in the session."""
    first, second = random_seed.get_seed(None)
    return None if first is None else (first, second)


def vary_seeds(replica: Callable[[], tuple[int, int]], step: int) -> None:
    """Gives ops that have no seed of their own, in a program with a seed, one of their replica.

    TensorFlow takes the program's seed and a number that it counts in the graph. The numbers that
    are counted outside of replicas, and by the first of a worker, stay those of one process:

        first replica of all      program's seed               the graph's count
        first of another worker   program's seed + r * step    the graph's count
        another in this worker    program's seed + r * step    a count of its own

    Args:
      replica: Returns r, the number over all workers of the running replica, and its
        number in this worker; (0, 0) outside of replicas.
      step: The distance of the replicas' seeds.
    """
    get_seed = random_seed.get_seed
    own_counts: WeakKeyDictionary[Any, dict[int, Callable[[], int]]] = WeakKeyDictionary()

    def count_own(in_worker: int) -> tuple[int | None, int]:
        graph = None if tf.executing_eagerly() else v1.get_default_graph()
        program_seed = context.global_seed() if graph is None else graph.seed
        if program_seed is None:
            return None, 0
        # Without a graph it counts at random, and begins again where the program sets its seed.
        counted, new = graph, itertools.count().__next__
        if graph is None:
            counted = context.context()._rng
            new = functools.partial(random.Random(program_seed).randint, 0, _LARGEST_SEED)
        return program_seed, own_counts.setdefault(counted, {}).setdefault(in_worker, new)()

    def get_own_seed(op_seed: Any) -> tuple[Any, Any]:
        in_sync, in_worker = (0, 0) if op_seed is not None else replica()
        if in_sync == 0:
            return get_seed(op_seed)
        first, second = get_seed(None) if in_worker == 0 else count_own(in_worker)
        return (None, None) if first is None else ((first + in_sync * step) % _LARGEST_SEED, second)

    random_seed.get_seed = get_own_seed


@contextmanager
def op_callback(
    note: Callable[[str, Sequence[tf.Tensor], Sequence[tf.Tensor]], None],
) -> Iterator[None]:
    """Calls a function after each operation that this thread executes eagerly in the `with` block.

    It gets the operation's type, its inputs and its results.
    """

    def noted(
        kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None:  # Else an operation of a function that is traced.
            note(kind, inputs, outputs)

    op_callbacks.add_op_callback(noted)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(noted)


@contextmanager
def seeds_of_run(seed: int) -> Iterator[None]:
    """Gives the ops and datasets that have no seed, of their own or their graph's, one of the run.

    In the `with` block, in this thread. Without it TensorFlow draws other seeds in each session. A
    graph's seed would change the numbers of those that have one of their own. The seed of the run
    is at least 1.
    """
    get_seed, thread = random_seed.get_seed, threading.current_thread()
    numbers = itertools.count()

    def get_seed_of_run(op_seed: Any) -> tuple[Any, Any]:
        has_seed = op_seed is not None or v1.get_default_graph().seed is not None
        if has_seed or tf.executing_eagerly() or threading.current_thread() is not thread:
            return get_seed(op_seed)
        return seed % _LARGEST_SEED, next(numbers)

    random_seed.get_seed = get_seed_of_run
    try:
        yield
    finally:
        random_seed.get_seed = get_seed
