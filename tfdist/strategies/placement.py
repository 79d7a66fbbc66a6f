"""Devices of a worker: the one that computes, the one that holds the variables, and replicas.

The *device* computes forward and backward; the *host* (always `CPU:0`) reduces gradients and,
with `variables_on_host`, holds the variables and their slots. A machine without a GPU gets a
second logical CPU as its device, so that device and host differ on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.cluster.arguments import check_flag
from tfdist.cluster.environment import find_launched_replicas, read_num_threads
from tfdist.cluster.tasks import checked_count
from tfdist.process.endings import OneLineError, print_to_stderr
from tfdist.strategies.private_tensorflow import (
    has_control_dependencies,
    is_recorded_by_tape,
    lifted,
    read_on_tape,
)

HOST = "/device:CPU:0"

_DEVICE = re.compile(r"^(?:/device:|/)?(?P<kind>[A-Za-z]+):(?P<index>\d+)$")


class DeviceError(OneLineError, ValueError):
    """A device was asked for that this machine does not have."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The devices of one worker.

    Attributes:
      device: The device that computes gradients, such as "/device:GPU:0" or "/device:CPU:1"; with
        several replicas, that of the first.
      variables_on_host: Whether variables, slots and updates are on the host rather than
        on the device. Reductions are on the host in both cases.
      num_replicas: The number of copies of the model in this worker, each on another device. They
        share the variables.
      devices_per_replica: The number of devices of each replica, one after the other.
    """

    device: str
    variables_on_host: bool = True
    num_replicas: int = 1
    devices_per_replica: int = 1

    @property
    def devices(self) -> tuple[str, ...]:
        """The first device of each replica: `device`, then every `devices_per_replica`-th one."""
        kind, first = _split(self.device)
        step = self.devices_per_replica
        return tuple(f"/device:{kind}:{first + i * step}" for i in range(self.num_replicas))

    def device_of_stage(self, index: int, replica: int = 0) -> str:
        """Returns device `index` of a `replica`'s pipeline; both count from 0 in this worker."""
        kind, first = _split(self.devices[replica])
        return f"/device:{kind}:{first + index}"

    def with_devices(self, number: int) -> Placement:
        """Returns a placement with at least `number` devices for each replica.

        Raises:
          DeviceError: If this machine has fewer GPUs.
        """
        if number <= self.devices_per_replica:
            return self
        return place(
            self.device,
            variables_on_host=self.variables_on_host,
            num_replicas=self.num_replicas,
            devices_per_replica=number,
        )

    @property
    def variable_device(self) -> str:
        return HOST if self.variables_on_host else self.device

    @property
    def eager_devices(self) -> tuple[str, ...]:
        """The device of each replica in TensorFlow 2, where a CPU is one device.

        Its replicas are functions that run beside each other. More logical CPUs would have to be
        made before TensorFlow's first operation.
        """
        is_cpu = _split(self.device)[0] == "CPU"
        return (HOST,) * self.num_replicas if is_cpu else self.devices

    @property
    def eager_variable_device(self) -> str:
        """The device of variables in TensorFlow 2."""
        return HOST if self.variables_on_host else self.eager_devices[0]

    def on_device(self) -> AbstractContextManager[Any]:
        return tf.device(self.device)

    def on_host(self) -> AbstractContextManager[Any]:
        return tf.device(HOST)

    def create_variable(
        self, next_creator: Callable[..., tf.Variable], *, inside_loop: bool = False, **kwargs: Any
    ) -> tf.Variable:
        """Creates a variable on `variable_device`; weights are read through a copy on the device.

        The copy is made once per session call. An op under control dependencies may wait for an
        update, so it reads the variable itself. With `inside_loop`, of steps, the copy would be
        stale after the first step, so there every read fetches the value from the host. Variables
        that are not trainable (slots, counters) have no copy: they may be read again after their
        update in the same step. `next_creator` and `kwargs` are as in
        `tf.variable_creator_scope`; a slot variable's `colocate_with` is honoured.
        """
        kwargs = lift_initial_value(kwargs)
        # A variable made inside the body of a loop belongs to the graph around the loop.
        with tf.init_scope():
            colocate_with = kwargs.pop("colocate_with", None)
            if colocate_with is not None:
                with v1.get_default_graph().colocate_with(colocate_with):
                    return next_creator(**kwargs)
            is_weight = kwargs.get("trainable") is not False
            # Several replicas read from the host: a copy on one device is far from the others.
            has_copy = self.variables_on_host and is_weight and not inside_loop
            has_copy = has_copy and self.num_replicas == 1 and not kwargs.get("caching_device")
            if has_copy:
                kwargs["caching_device"] = self.device
            # Steps are counted on the host, even if the weights are on the device.
            is_counter = kwargs.get("name") == "global_step"
            with tf.device(HOST if is_counter else self.variable_device):
                variable = next_creator(**kwargs)
        if has_copy:
            _choose_between_copy_and_variable(variable, self.device)
        return variable

    def configure(self, config: v1.ConfigProto | None) -> v1.ConfigProto:
        """Returns a copy of a session's `config` in which the devices exist.

        Several CPU devices divide the threads that compute inside operations, unless the config
        sets them. Each stage or replica runs in a thread of its own: if its operations used all
        cores as well, threads would take the cores from each other.
        """
        configured = v1.ConfigProto()
        if config is not None:
            configured.CopyFrom(config)
        kind, index = _split(self.devices[-1])
        if kind == "CPU":
            count = configured.device_count
            count["CPU"] = max(count["CPU"] or 1, index + self.devices_per_replica)
            number = self.num_replicas * self.devices_per_replica
            if number > 1 and not configured.intra_op_parallelism_threads:
                configured.intra_op_parallelism_threads = max(1, read_num_threads() // number)
        return configured

    def divide_threads(self, config: v1.ConfigProto | None) -> None:
        """Limits the threads of operations in this process, as `configure` does in its `config`.

        Must be called before the graph is built if that traces functions: the first one starts
        TensorFlow's runtime, and the threads are those of the process from then on.
        """
        limit_threads(self.configure(config).intra_op_parallelism_threads)


def lift_initial_value(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns a variable's arguments, with an initial value that is not part of a loop of steps.

    Raises:
      ValueError: If the initial value is a tensor of the loop that depends on the step's input.
    """
    value = arguments.get("initial_value")
    if not isinstance(value, tf.Tensor) or not hasattr(value, "graph"):  # Eager ones have none.
        return arguments
    outside = lifted(value)
    if outside is None:
        raise ValueError(
            f"the initial value of the variable {arguments.get('name')!r} is a tensor of the loop "
            "of steps, which cannot be computed before it. Give a NumPy array, or a function: "
            "initializer=lambda: tf.ones([1])."
        )
    return {**arguments, "initial_value": outside}


def place(
    device: str | None,
    *,
    variables_on_host: bool = True,
    num_replicas: int = 1,
    devices_per_replica: int = 1,
) -> Placement:
    """Returns this worker's placement, after checking that its devices exist.

    The arguments are as in `Placement`. A device may be named in other ways ("GPU:1", "/gpu:1");
    None means the first GPU, or the second logical CPU on a machine without one. `CPU:n` exists for
    any n.

    Raises:
      DeviceError: If a device does not exist on this machine.
      ValueError: If num_replicas is not an integer of at least 1.
    """
    check_num_replicas(num_replicas)
    check_flag("variables_on_host", variables_on_host)
    gpus = tf.config.list_physical_devices("GPU")
    kind, index = _split(
        device if device is not None else ("/device:GPU:0" if gpus else "/device:CPU:1")
    )
    known = {"CPU": None, "GPU": len(gpus)}
    found = ", ".join(f"/device:GPU:{i}" for i in range(len(gpus))) or "no GPU"
    if kind not in known or (known[kind] is not None and index >= len(gpus)):
        raise DeviceError(
            f"device {device!r} does not exist: this machine has {found}, and /device:CPU:n for "
            "any n. Choose one of these, or leave device out."
        )
    needed = num_replicas * devices_per_replica
    if kind == "GPU" and index + needed > len(gpus):
        each = f" of {devices_per_replica} devices" if devices_per_replica > 1 else ""
        most = (len(gpus) - index) // devices_per_replica
        fewer = f"num_replicas to {most} at most, or " if most else ""
        raise DeviceError(
            f"{num_replicas} replicas{each} from /device:GPU:{index} on need {needed} GPUs: this "
            f"machine has {found}. Set {fewer}device to '/device:CPU:1'."
        )
    return Placement(
        device=f"/device:{kind}:{index}",
        variables_on_host=variables_on_host,
        num_replicas=num_replicas,
        devices_per_replica=devices_per_replica,
    )


def limit_threads(number: int) -> None:
    """Sets how many threads compute inside operations, unless the program has, or TensorFlow runs.

    0 changes nothing.
    """
    if number and not tf.config.threading.get_intra_op_parallelism_threads():
        with suppress(RuntimeError):  # TensorFlow runs.
            tf.config.threading.set_intra_op_parallelism_threads(number)


def check_num_replicas(number: int) -> None:
    """Raises a ValueError if the number of replicas is not an integer of at least 1."""
    checked_count("num_replicas", number, more=" 1 is one copy of the model.")


def own_gpu(local_index: int, num_devices: int) -> str | None:
    """Returns the first GPU of a worker with this index on its machine; None without GPUs.

    Each worker of a machine takes `num_devices`, one worker after the other. If there are not
    enough (or each worker sees only its own), they start again with the first.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    num_shares = max(1, len(gpus) // num_devices)
    return f"/device:GPU:{local_index % num_shares * num_devices}"


def _choose_between_copy_and_variable(variable: tf.Variable, device: str) -> None:
    """Makes each read use the copy on the device, or the variable where the copy would be wrong.

    The copy is made when the session call begins. Under control dependencies, a constraint, a
    moving average or clipping of the weights would read the value from before the step's update,
    and write it back. A function that a `tf.GradientTape` records would take the copy for an input
    of its own.
    """
    read_copy = variable.value

    def value() -> tf.Tensor:
        if must_wait():
            return variable.read_value()
        if not is_recorded_by_tape():
            return read_copy()
        if v1.get_default_graph() is not variable.graph:
            return variable.read_value()
        return read_on_tape(variable, read_copy(), device)

    variable.value = value


def must_wait() -> bool:
    """Returns whether an op made here would wait for others, by control dependencies."""
    graph = v1.get_default_graph()
    while graph is not None:
        if has_control_dependencies(graph):
            return True
        graph = getattr(graph, "outer_graph", None)  # Around the body of a loop or a branch.
    return False


def _split(device: str) -> tuple[str, int]:
    match = _DEVICE.match(device) if isinstance(device, str) else None
    if match is None:
        raise DeviceError(
            f"device {device!r} is not a device's name: write it like '/device:GPU:0' or "
            "'/device:CPU:1'."
        )
    return match["kind"].upper(), int(match["index"])


@dataclass(frozen=True, kw_only=True)
class ReplicaCount:
    """The replicas of this worker.

    Attributes:
      number: The number of replicas.
      devices_each: The number of devices of each.
    """

    number: int = 1
    devices_each: int = 1

    @property
    def num_devices(self) -> int:
        """The number of devices that this worker takes."""
        return self.number * self.devices_each


def count_replicas(requested: int | None) -> ReplicaCount:
    """Returns the number of replicas of this worker: the launcher's, or that of the program, or 1.

    If the launcher and the program disagree, the launcher wins, and the first instance reports it
    in one line.

    Raises:
      ValueError: If `requested` is not an integer of at least 1.
      ClusterError: If the launcher's variables contradict each other, or the instances have
        different numbers of replicas.
    """
    if requested is not None:
        check_num_replicas(requested)
    launched = find_launched_replicas()
    if launched is None:
        return ReplicaCount(number=requested or 1)
    if not launched.is_uniform:
        raise ClusterError(
            f"this instance has {launched.num_local_replicas} of {launched.num_total_replicas} "
            "replicas and others have more or fewer: the mean over workers would weigh them "
            "wrongly. Give every instance as many."
        )
    if requested not in (None, launched.num_local_replicas) and launched.index == 0:
        _report_overridden(launched.num_local_replicas)
    return ReplicaCount(
        number=launched.num_local_replicas, devices_each=launched.devices_per_replica
    )


@cache  # A program may give the number in several places.
def _report_overridden(number: int) -> None:
    print_to_stderr(
        f"The number of replicas is overridden by tfdist run. The new value is {number}."
    )
