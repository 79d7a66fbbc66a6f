"""Bad input: each is answered in one or two lines, soon, by every worker; none hangs."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tfdist

ENGINES = ["grpc", "horovod"]

TWO = ["localhost:3737", "localhost:3738"]
WORKER_0 = {"type": "worker", "index": 0}


def text_of(cluster: Any, task: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task})


def limit_s() -> float:
    """The seconds within which bad input is answered; more where others use the machine too.

    On two idle cores it takes 1 s; a peer that does not come is waited for far longer.
    """
    return 10.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def check_answer(answer: str, *fragments: str) -> None:
    """An answer has at most two lines, and names what was found, what is allowed, the fix."""
    assert len(answer.splitlines()) <= 2, answer
    for fragment in fragments:
        assert fragment in answer


# The cluster's description: refused before TensorFlow is imported.


def test_a_wrong_tf_config_is_refused_before_tensorflow_is_imported(
    fake_cluster: Any, tmp_path: Path
) -> None:
    # tests/cluster/test_tf_config.py has every refusal; this one shows when, where and how it ends.
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    index_2 = text_of({"worker": TWO}, {"type": "worker", "index": 2})
    env = {"TF_CONFIG": index_2, "PYTHONPATH": str(tmp_path)}
    start_s = time.monotonic()
    example = Path(__file__).parents[2] / "examples" / "mnist" / "train.py"
    [worker] = fake_cluster.run_script([str(example)], engine="none", env=env, check=False)
    assert time.monotonic() - start_s < limit_s()
    assert worker.returncode == 2
    assert worker.stdout == ""
    check_answer(
        worker.stderr,
        "ClusterError: TF_CONFIG task index 2 is out of range",
        "lists 2 workers (0 and 1)",
        "Set task.index to 0",
    )


# What can be known before the workers meet. Times count from after the import of TensorFlow.


@pytest.fixture
def taken_port() -> Any:
    """A port on which another process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_an_error_after_the_import_is_one_or_two_lines_and_has_its_exit_code(
    fake_cluster: Any, taken_port: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from tfdist.strategies import strategy_for_run\nstrategy_for_run().master\n"
    )
    addresses = [f"127.0.0.1:{taken_port}", "127.0.0.1:9"]
    env = {"TF_CONFIG": text_of({"worker": addresses}, WORKER_0), "TF_CPP_MIN_LOG_LEVEL": "3"}
    [worker] = fake_cluster.run_script(
        [str(program)], engine="none", env=env, check=False, forked=True
    )
    assert worker.returncode == 201
    assert worker.stdout == ""
    assert "Traceback" not in worker.stderr
    check_answer(
        "\n".join(worker.stderr.splitlines()[-2:]),
        "PortTakenError: port",
        "already in use",
        "another port",
    )


def test_a_peer_that_never_comes_is_named_after_the_limit(
    fake_cluster: Any, train_briefly: Any
) -> None:
    def worker_0_alone() -> Any:
        import os

        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        return None if index == 1 else train_briefly("grpc")

    end, _ = fake_cluster.run(worker_0_alone, env={"TFDIST_START_TIMEOUT_S": "1"})
    assert end["seconds"] < limit_s()
    check_answer(
        end["error"],
        "AbsentWorkerError: worker 1 (127.0.0.1:",
        "did not come within 1 s",
        "Start every worker",
        "TFDIST_START_TIMEOUT_S",
    )


def test_a_rank_with_another_tfdist_is_refused_by_all(
    fake_cluster: Any, train_briefly: Any
) -> None:
    # Over gRPC the rendezvous compares versions: tests/cluster/rendezvous has it.
    def with_an_old_tfdist_on_worker_1() -> Any:
        from tfdist.cluster import find_mpi_rank
        from tfdist.cluster.rendezvous import protocol

        if find_mpi_rank().rank == 1:
            protocol.__version__ = "0.0.1"
        return train_briefly("horovod")

    for end in fake_cluster.run(with_an_old_tfdist_on_worker_1, engine="horovod"):
        assert end["seconds"] < limit_s()
        check_answer(
            end["error"],
            "RendezvousError: worker 1 (",
            "has tfdist 0.0.1 with TensorFlow",
            f"has tfdist {tfdist.__version__} with TensorFlow",
            "Install the same versions for all workers.",
        )


_TWO_OF_GRPC = {"TF_CONFIG": text_of({"worker": TWO}, {"type": "worker", "index": 1})}
_TWO_OF_PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
_IS_PMI = ["ClusterError: PMI_SIZE is 2", "not supported", "unset PMI_SIZE"]


# Each would wait for the others on another engine, or train alone.
@pytest.mark.parametrize(
    ("environ", "engine", "fragments"),
    [
        (
            _TWO_OF_GRPC,
            "horovod",
            [
                "ClusterError: Horovod joins the processes that mpirun or horovodrun started",
                "TF_CONFIG says that this is worker 1 of 2, over gRPC",
                "Use MultiWorkerStrategy",
                "tfdist run --engine horovod",
            ],
        ),
        *((_TWO_OF_PMI, engine, _IS_PMI) for engine in ("none", "grpc", "horovod")),
    ],
)
def test_processes_that_an_engine_cannot_join_are_refused(
    train_briefly: Any,
    environ: dict[str, str],
    engine: str,
    fragments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    check_answer(train_briefly(engine)["error"], *fragments)


def test_a_missing_horovod_is_said_with_the_mend(fake_cluster: Any, train_briefly: Any) -> None:
    def without_horovod() -> Any:
        # Simulated: Python refuses to import a module whose entry is None as one that is missing.
        import sys

        for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
            sys.modules[name] = None  # type: ignore[assignment]
        sys.modules["horovod.tensorflow"] = None  # type: ignore[assignment]
        return train_briefly("horovod")

    [end] = fake_cluster.run(without_horovod, engine="none")
    needs = "HorovodNotFoundError: HorovodStrategy needs Horovod"
    check_answer(end["error"], needs, "tfdist horovod install", "MultiWorkerStrategy")


def test_a_missing_mpi_library_is_named_with_the_mend(
    fake_cluster: Any, train_briefly: Any, tmp_path: Path
) -> None:
    # Simulated: a copy of the installed Horovod whose library asks for an MPI that does not exist.
    horovod = pytest.importorskip("horovod")
    copy = tmp_path / "horovod"
    shutil.copytree(Path(horovod.__file__).parent, copy, ignore=shutil.ignore_patterns("*.pyc"))
    [library] = (copy / "tensorflow").glob("mpi_lib*.so")
    content = library.read_bytes()
    if b"libmpi.so.40\0" not in content:
        pytest.skip("this Horovod was built with another MPI than Open MPI 4 or 5")
    library.write_bytes(content.replace(b"libmpi.so.40\0", b"libmpi.so.99\0"))

    def with_the_copy() -> Any:
        import sys

        for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
            del sys.modules[name]
        sys.path.insert(0, str(tmp_path))
        return train_briefly("horovod")

    [end] = fake_cluster.run(with_the_copy, engine="none")
    cannot = "HorovodNotFoundError: HorovodStrategy cannot load Horovod: libmpi.so.99"
    check_answer(end["error"], cannot, "openmpi")


# What only the workers together can know: every one of them gets the error.


def numbers(index: int) -> Any:
    return lambda: [[1.0, 2.0]]


def one_more_variable(index: int, weight: Any, features: Any) -> Any:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    own = tf.reduce_mean(tf.matmul(features, weight))
    return own + tf.reduce_mean(v1.get_variable("more", [3])) if index == 1 else own


def another_shape(index: int, weight: Any, features: Any) -> Any:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    more = v1.get_variable("more", [3 + index])
    return tf.reduce_mean(tf.matmul(features, weight)) + tf.reduce_mean(more)


def another_scale(index: int, weight: Any, features: Any) -> Any:
    import tensorflow as tf

    from tfdist.training import SGD, FixedLossScale, LossScaleOptimizer

    own = tf.reduce_mean(tf.matmul(features, weight))
    LossScaleOptimizer(SGD(0.0), FixedLossScale(8 << index)).minimize(own)
    return own


def nan_on_worker_1(index: int, weight: Any, features: Any) -> Any:
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    own = tf.reduce_mean(tf.matmul(features, weight))
    is_bad = tf.logical_and(index == 1, v1.train.get_global_step() >= 3)
    return own * tf.where(is_bad, np.nan, 1.0)


def batches(*numbers: int) -> Callable[[int], Any]:
    """Input of so many batches on each worker."""

    def input_fn(index: int) -> Any:
        import tensorflow as tf

        return lambda: tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat(numbers[index])

    return input_fn


def stops_at_another_step(index: int) -> list[Any]:
    import tensorflow.compat.v1 as v1

    return [v1.train.StopAtStepHook(4 + index)]


def stops_in_third_step(stopping_worker: int) -> Callable[[int], list[Any]]:
    def hooks(index: int) -> list[Any]:
        from brief_training import Steps

        stop = Steps(lambda steps, run: run.request_stop() if steps == 3 else None)
        return [stop] if index == stopping_worker else []

    return hooks


DIFFER = "ModelMismatchError: The workers' models differ: "
SHORT = "The input of worker 1 is too short"
# Engine, arguments of the training, and the words of the error. The comparison of models is pure,
# and tests/estimator/loop/test_model_check.py has its other cases.
REFUSED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "numbers as input": (
        "grpc",
        {"input_fn": numbers},
        [
            "input_fn must return a tf.data.Dataset or tensors, got a float among them",
            "Return a tf.data.Dataset, such as",
        ],
    ),
    "a variable more": (
        "grpc",
        {"loss": one_more_variable},
        [f"{DIFFER}variable more (float32 (3,)) exists on worker 1 but not on worker 0."],
    ),
    "another shape": (
        "horovod",
        {"loss": another_shape},
        [f"{DIFFER}variable more is float32 (3,) on worker 0 and float32 (4,) on worker 1."],
    ),
    "another loss scale": (
        "grpc",
        {"loss": another_scale},
        [f"{DIFFER}the loss scale is fixed at 8 on worker 0 and fixed at 16 on worker 1."],
    ),
    "other loops": (
        "horovod",
        {"iterations": lambda index: 2 + index},
        [f"{DIFFER}iterations_per_loop is 2 on worker 0 and 3 on worker 1."],
    ),
    "other accumulation": (
        "grpc",
        {"accumulation": lambda index: 2 + index},
        [f"{DIFFER}gradient_accumulation is 2 on worker 0 and 3 on worker 1."],
    ),
    "another precision": (
        "horovod",
        {"precision": lambda index: ["float32", "mixed_bfloat16"][index]},
        [f"{DIFFER}precision is float32 on worker 0 and mixed_bfloat16 on worker 1."],
    ),
    "no input": (
        "grpc",
        {"input_fn": batches(9, 0)},
        [SHORT, "takes 1 batch(es) from each of 2 workers", "Give each worker some input"],
    ),
    "input for a part of a loop": (
        "horovod",
        {"input_fn": batches(9, 2), "iterations": lambda index: 3},
        [SHORT, "takes 3 batch(es) from each of 2 workers", "Give each worker some input"],
    ),
    "other steps": (
        "grpc",
        {"limits": lambda index: {"steps": 4 + index}},
        ["LimitMismatchError: steps is 4 on worker 0 and 5 on worker 1."],
    ),
    "hooks that stop at other steps": (
        "horovod",
        {"hooks": stops_at_another_step},
        ["the step to stop at (steps, max_steps, StopAtStepHook) is 4 on worker 0"],
    ),
}
# Engine, arguments, and the step at which both workers end.
ENDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "inputs of other lengths": ("grpc", {"input_fn": batches(12, 5)}, 5),
    "loops over other lengths": (
        "horovod",
        {"input_fn": batches(5, 9), "iterations": lambda index: 2},
        4,
    ),
    # The other worker learns of it in the step after.
    "a hook of worker 0": ("grpc", {"hooks": stops_in_third_step(0)}, 4),
    "a hook of worker 1": ("horovod", {"hooks": stops_in_third_step(1)}, 4),
}
NAN = {f"NaN over {engine}": (engine, {"loss": nan_on_worker_1}, 0) for engine in ENGINES}


@pytest.fixture
def ended(
    fake_cluster: Any, train_briefly: Any, made_before: dict[str, Any]
) -> Callable[[str], list[dict[str, Any]]]:
    """Returns how a training has ended on each worker; one run makes all those of an engine.

    What was refused is no obstacle to the trainings after it.
    """
    cases = {**REFUSED, **ENDS, **NAN}

    def ended(name: str) -> list[dict[str, Any]]:
        engine = cases[name][0]
        trainings = {one: given for one, (of, given, _) in cases.items() if of == engine}

        def train() -> dict[str, Any]:
            return {one: train_briefly(engine, **given) for one, given in trainings.items()}

        if engine not in made_before:
            made_before[engine] = fake_cluster.run(train, engine=engine)
        return [worker[name] for worker in made_before[engine]]

    return ended


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_between_workers_is_refused_by_all_in_the_same_words(
    ended: Any, name: str
) -> None:
    first, second = ended(name)
    _, _, fragments = REFUSED[name]
    if fragments[0].startswith(DIFFER):
        fragments = [*fragments, "Start all workers with the same program"]
    assert first["error"] == second["error"]
    assert first["seconds"] < limit_s()
    check_answer(first["error"], *fragments)


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_one_worker_ends_all_after_the_same_step(ended: Any, name: str) -> None:
    assert [(end["error"], end["step"]) for end in ended(name)] == [(None, ENDS[name][2])] * 2


@pytest.mark.parametrize("name", NAN)
def test_nan_on_one_worker_ends_all_and_the_others_name_it(ended: Any, name: str) -> None:
    reported = "NaN loss during training"
    assert [end["error"] for end in ended(name)] == [
        f"NanLossElsewhereError: {reported}: the loss of worker 1 became NaN.",
        f"NanLossDuringTrainingError: {reported}.",
    ]
