"""Devices to compute on beside the host."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow as tf

from tfdist.pipeline import devices
from tfdist.pipeline.devices import HOST, compute_devices, set_cpu_devices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes TensorFlow report so many logical devices, and count those that it is told to make."""

    def machine(*, gpus: int = 0, cpus: int = 1, is_running: bool = False) -> Any:
        state = {"CPU": cpus, "GPU": gpus, "threads": None}

        def configure(device: Any, devices: list[Any]) -> None:
            if is_running:
                raise RuntimeError("Virtual devices cannot be modified after being initialized")
            state["CPU"] = len(devices)

        def logical(kind: str) -> list[Any]:
            return [
                tf.config.LogicalDevice(f"/device:{kind}:{i}", kind) for i in range(state[kind])
            ]

        def configuration(device: Any) -> list[Any] | None:
            return None if state["CPU"] == 1 else [None] * state["CPU"]

        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: logical(kind))
        monkeypatch.setattr(tf.config, "list_logical_devices", logical)
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", configuration)
        monkeypatch.setattr(tf.config, "set_logical_device_configuration", configure)
        monkeypatch.setattr(devices, "limit_threads", partial(state.__setitem__, "threads"))
        return state

    return machine


def _names(kind: str, first: int, count: int) -> tuple[str, ...]:
    return tuple(f"/device:{kind}:{index}" for index in range(first, first + count))


# In this process, whose logical devices were set before TensorFlow started.


def test_this_process_computes_on_eight_logical_cpus_beside_the_host() -> None:
    assert compute_devices()[:8] == _names("CPU", 1, 8)
    assert HOST not in compute_devices()


def test_each_device_computes() -> None:
    for device in compute_devices()[:8]:
        with tf.device(device):
            assert tf.square(3.0).device.endswith(device)


def test_asking_for_fewer_after_the_start_changes_nothing() -> None:
    before = compute_devices()
    set_cpu_devices(1)
    set_cpu_devices(8)
    assert compute_devices() == before


def test_asking_for_more_after_the_start_is_refused() -> None:
    present = 1 + len(compute_devices())
    with pytest.raises(RuntimeError) as caught:
        set_cpu_devices(present)
    assert str(caught.value) == (
        f"set_cpu_devices({present}) came too late: TensorFlow is running with {present} logical "
        f"CPU devices, and {present} beside the host need {present + 1}. Call it before the first "
        "operation, tensor or optimizer, right after the imports."
    )
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "2", None])
def test_a_count_that_is_no_number_of_devices_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match=r"^count must be an integer of at least 1, got "):
        set_cpu_devices(count)


# On other machines.


def test_the_host_is_one_device_more(machine: Callable[..., Any]) -> None:
    state = machine()
    set_cpu_devices(4)
    assert state["CPU"] == 5
    assert compute_devices() == _names("CPU", 1, 4)


def test_the_devices_divide_the_threads_of_operations(
    machine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "8")
    state = machine()
    set_cpu_devices(3)
    assert state["threads"] == 2


def test_a_later_call_never_takes_devices_away(machine: Callable[..., Any]) -> None:
    state = machine()
    set_cpu_devices(4)
    set_cpu_devices(2)
    assert state["CPU"] == 5
    set_cpu_devices(6)
    assert state["CPU"] == 7


def test_alone_the_host_computes(machine: Callable[..., Any]) -> None:
    machine()
    assert compute_devices() == (HOST,)


def test_a_running_tensorflow_with_one_cpu_is_told_in_the_singular(
    machine: Callable[..., Any],
) -> None:
    machine(is_running=True)
    with pytest.raises(RuntimeError, match=r"running with 1 logical CPU device, and 2 beside"):
        set_cpu_devices(2)


def test_gpus_compute_where_there_are_any(machine: Callable[..., Any]) -> None:
    machine(gpus=2, cpus=5)
    assert compute_devices() == _names("GPU", 0, 2)


def test_beside_gpus_no_cpu_devices_are_made_and_a_line_says_so(
    machine: Callable[..., Any], logged: list[str]
) -> None:
    state = machine(gpus=2)
    set_cpu_devices(4)
    assert state["CPU"] == 1
    assert logged == [
        "set_cpu_devices(4) changes nothing here: stages compute on this machine's GPUs, of which "
        'there are 2. Set CUDA_VISIBLE_DEVICES="" to compute on CPU devices.'
    ]


def test_devices_of_other_workers_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/job:worker/replica:0/task:{task}/device:CPU:{i}" for task in (1, 0) for i in (0, 1)]
    found = {"CPU": [tf.config.LogicalDevice(name, "CPU") for name in names], "GPU": []}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: found[kind])
    assert compute_devices() == ("/device:CPU:1",)
