"""The devices on which ops ran, read from the graphs that the session executed."""

from typing import Any

import pytest

HOST, DEVICE = "CPU:0", "CPU:1"
VARIABLES = {"first", "bias_of_first", "second_"}


def _kinds(placed: dict[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Sorts the nodes that ran into gradients, variables, slots, reductions and updates."""
    kinds: dict[str, dict[str, str]] = {
        kind: {} for kind in ("gradients", "variables", "slots", "reductions", "updates")
    }
    for name, (op, device) in placed.items():
        place = device.rsplit("device:", 1)[-1]
        owner = name.split("/")[0]
        is_exchanged = op == "QueueEnqueueV2" and "_exchanged/" in name
        if is_exchanged or op in ("HorovodAllreduce", "HorovodGroupedAllreduce"):
            kinds["reductions"][name] = place
        elif op == "VarHandleOp" and name in VARIABLES:
            kinds["variables"][name] = place
        elif op == "VarHandleOp" and owner in VARIABLES and "/Adam" in name:
            kinds["slots"][name] = place
        elif op == "ResourceApplyAdam":
            kinds["updates"][name] = place
        elif name.startswith("gradients/") and op in ("MatMul", "Mul", "ReluGrad", "Sum"):
            kinds["gradients"][name] = place
    return kinds


@pytest.mark.parametrize(
    ("engine", "variables_on_host"), [("grpc", True), ("grpc", False), ("horovod", True)]
)
def test_gradients_are_on_the_device_and_reductions_on_the_host(
    train_once: Any, engine: str, variables_on_host: bool
) -> None:
    # What is computed with these options, test_same_numbers.py says.
    options = {} if variables_on_host else {"variables_on_host": False, "uses_host_call": True}
    workers = train_once(engine, optimizer="adam", local_batch=8, **options)
    rest = HOST if variables_on_host else DEVICE
    for worker in workers:
        kinds = _kinds(worker["placed"])
        assert {k: set(v.values()) for k, v in kinds.items()} == {
            "gradients": {DEVICE},
            "variables": {rest},
            "slots": {rest},
            "reductions": {HOST},
            "updates": {rest},
        }
        assert len(kinds["slots"]) == 2 * len(VARIABLES)


def test_a_host_variable_is_read_once_a_step(train_once: Any) -> None:
    placed = train_once("grpc", optimizer="adam", local_batch=8)[0]["placed"]
    reads = [name for name, (op, _) in placed.items() if op == "ReadVariableOp"]
    assert sum(name.startswith("first/") for name in reads) == 1
