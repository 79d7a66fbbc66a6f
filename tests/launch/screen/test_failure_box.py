"""The box at the end of a run that failed."""

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tfdist.launch.failures.advice import advice
from tfdist.launch.failures.failure import (
    Failure,
    exit_code_text,
    joined_names,
    names_text,
    numbers_text,
    signal_text,
)
from tfdist.launch.screen.failure_box import (
    Aftermath,
    failure_box,
    how_text,
    log_tail,
    others_text,
)
from tfdist.process.exit_codes import LOST_WORKER, NO_SPACE

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 17, in <module>',
    "    raise ValueError(text)",
    "          ^^^^^^^^^^^^^^^^",
    "ValueError: 17 is too many",
)


Failed = Callable[..., Failure]


def drawn(
    failure: Failure, aftermath: Aftermath, *, width: int, encoding: str = "utf-8", **colors: Any
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, **{"color_system": None, **colors})
    with console.capture() as capture:
        console.print(failure_box(failure, aftermath, width=width), crop=False)
    return capture.get().rstrip("\n")


THREE = Aftermath(num_workers=3, stopped=("worker 0", "worker 2"), restarts=1, max_restarts=3)

BOX = """\
╭──────────────────────────── worker 1 failed first ────────────────────────────╮
│ its error, without frames of packages                                         │
│ Traceback (most recent call last):                                            │
│   File "train.py", line 17, in <module>                                       │
│     raise ValueError(text)                                                    │
│ ValueError: 17 is too many                                                    │
│                                                                               │
│ where     node2, process 4711                                                 │
│ when      2026-11-03 12:04:31, 12.3 s after the start                         │
│ how       exit code 3                                                         │
│ error     ValueError: 17 is too many                                          │
│ step      412                                                                 │
│ others    workers 0 and 2 were then stopped (TERM); none had to be killed     │
│ restarts  1 of 3 were used                                                    │
│ log       logs/worker-1.txt                                                   │
╰───────────────────────────────────────────────────────────────────────────────╯"""


def test_the_box_names_the_worker_the_failure_and_the_end_of_the_others(failed: Failed) -> None:
    failure = failed(log_tail=("step 412: loss = 0.3", *TRACEBACK))
    assert drawn(failure, THREE, width=81) == BOX


def test_a_nan_loss_is_not_answered_by_a_restart(failed: Failed) -> None:
    lines = (*TRACEBACK[:-1], "NanLossDuringTrainingError: NaN loss during training.")
    shown = drawn(failed(log_tail=lines), Aftermath(num_workers=1), width=100)
    assert "lower the learning rate" in shown
    assert "LossScaleOptimizer" in shown
    assert "--max-restarts" not in shown


@pytest.mark.parametrize(
    ("facts", "is_advised"),
    [
        ({"exception": ""}, True),
        ({"exception": "SyntaxError: invalid syntax", "after_s": 600.0}, False),
        ({"exception": "KeyError: 1"}, False),
        ({"exception": "KeyError: 1", "after_s": 600.0}, True),
        ({"exception": "KeyError: 1", "has_trained": True}, True),
        ({"exception": "KeyError: 1", "has_trained": False, "after_s": 600.0}, False),
    ],
)
def test_restarts_are_proposed_where_one_may_help(
    failed: Failed, facts: dict[str, Any], is_advised: bool
) -> None:
    shown = drawn(failed(**facts), Aftermath(num_workers=1), width=100)
    assert ("With --max-restarts N" in shown) == is_advised
    on_nodes = drawn(failed(**facts), Aftermath(num_workers=1, can_restart=False), width=100)
    assert "With --max-restarts N" not in on_nodes


def test_a_worker_that_mpi_ended_without_a_word_has_the_reason_of_mpirun(failed: Failed) -> None:
    lines = (
        "It appears as if there is not enough space for /dev/shm/vader_segment.vm.3d9e0001.0 (the",
        "shared-memory backing file). It is likely that your MPI job will now either abort or",
        "experience performance degradation.",
    )
    box = drawn(failed(code=1, mpirun_lines=lines), THREE, width=100)
    assert "mpirun's last 3 lines" in box
    assert "vader_segment" in box
    assert "Shared memory ran out: enlarge /dev/shm" in box
    # As recorded where /dev/shm has 1 MiB: Open MPI cannot show its help text then.
    line = "[vm:20832] ORTE_ERROR_LOG: Out of resource in file orte/util/show_help.c at line 507"
    assert "enlarge /dev/shm" in drawn(failed(code=1, mpirun_lines=[line]), THREE, width=100)


def test_without_unicode_the_box_is_ascii_and_without_a_process_it_says_so(failed: Failed) -> None:
    box = drawn(failed(pid=None), THREE, width=80, encoding="ascii")
    assert box.isascii()
    assert "node2, not started" in box


def test_the_exception_is_red_unless_there_are_no_colours_or_the_worker_has_stalled(
    failed: Failed,
) -> None:
    failure = failed(log_tail=TRACEBACK)
    shown = drawn(failure, THREE, width=80, color_system="standard")
    assert shown.count("\x1b[1;31mValueError: 17 is too many") == 1
    stalled = failed(kind="stalled", code=None, log_tail=TRACEBACK)
    assert "error" not in drawn(stalled, THREE, width=80)
    assert "\x1b" not in drawn(failure, THREE, width=80)


def test_no_line_is_wider_than_the_terminal_or_than_100(failed: Failed) -> None:
    failure = failed(log_tail=("x" * 500, "a b " * 100, "日本語" * 40), detail="why " * 40)
    for width in (30, 40, 80, 100, 300):
        lines = drawn(failure, THREE, width=width).splitlines()
        box = [line for line in lines if line[0] in "╭│╰" and "日" not in line]
        assert {len(line) for line in box} == {min(width, 100)}


def test_a_path_that_does_not_fit_stays_whole_below_the_box(failed: Failed) -> None:
    path = Path("/") / "/".join(["folder"] * 12) / "worker-1.txt"
    lines = drawn(failed(log_path=path), THREE, width=60).splitlines()
    assert lines[-1] == f"log of worker 1: {path}"
    assert lines[-2].startswith("╰")


def test_the_last_lines_fill_at_most_10_rows_without_control_characters_and_bar_states(
    failed: Failed,
) -> None:
    tail = [f"line {number}" for number in range(50)] + ["x" * 100]
    tail += ["\r 1%|\r 50%|\r\x1b[32m100%|\x1b[0m\x1b[2J", "[markup] stays", "", ""]
    tail += [
        "W0000 00:00:1795387111.731098    7492 a.cc:1] TF-TRT Warning: Could not find TensorRT"
    ]
    shown = drawn(failed(log_tail=tail), THREE, width=80)
    assert "its last 9 lines" in shown  # One of them fills two rows.
    assert "line 44 " in shown and "line 43 " not in shown
    assert "│ 100%| " in shown and "50%" not in shown
    assert "│ [markup] stays " in shown
    assert "TensorRT" not in shown


def test_a_box_of_a_long_error_fits_into_26_rows_and_ends_with_the_facts(failed: Failed) -> None:
    frames = [f'  File "/x/site-packages/tensorflow/{n}.py", line {n}, in run' for n in range(30)]
    message = [f"detail {number} of what went wrong" for number in range(30)]
    tail = (*TRACEBACK[:-1], *frames, "tensorflow.python.errors_impl.AbortedError: no", *message)
    lines = drawn(failed(log_tail=tail), THREE, width=80).splitlines()
    assert len(lines) <= 26
    assert "log       logs/worker-1.txt" in lines[-2]
    assert any("error     AbortedError: no " in line for line in lines)


def test_the_box_of_one_worker_names_no_first_worker_and_no_others(failed: Failed) -> None:
    shown = drawn(failed(name="worker 0"), Aftermath(num_workers=1), width=80)
    assert " worker 0 failed ─" in shown
    assert "others" not in shown
    assert "With --max-restarts N the run is started again from its last" in shown


def test_the_end_of_the_other_workers_is_reported() -> None:
    one = ("worker 0",)
    three = ("worker 0", "worker 2", "evaluator")
    expected = {
        ((), ()): "none of them ran any more",
        (one, ()): "worker 0 was then stopped (TERM) and did not have to be killed",
        (one, one): "worker 0 was then stopped (TERM) and had to be killed",
        (three, ()): "workers 0 and 2 and the evaluator were then stopped (TERM); none had to be "
        "killed",
        (three, ("worker 2",)): "workers 0 and 2 and the evaluator were then stopped (TERM); "
        "worker 2 had to be killed",
        (three, three): "workers 0 and 2 and the evaluator were then stopped (TERM); all of them "
        "had to be killed",
    }
    for (stopped, killed), text in expected.items():
        assert others_text(Aftermath(num_workers=4, stopped=stopped, killed=killed)) == text


def test_the_kind_of_failure_is_described_in_words(failed: Failed) -> None:
    killed = "signal SIGKILL (9): killed, often: out of memory; see dmesg"
    codes = {
        3: "exit code 3",
        2: "exit code 2: bad configuration",
        NO_SPACE: "exit code 28: no room for a checkpoint",
        127: "exit code 127: the command was not found",
        LOST_WORKER: "exit code 200: it lost another worker",
        143: "exit code 143: it saved and stopped on SIGTERM",
        137: f"exit code 137 = 128 + 9, {killed}",
    }
    assert {code: how_text(failed(code=code)) for code in codes} == codes
    signals = {
        9: killed,
        11: "signal SIGSEGV (11): a forbidden memory access, in native code",
        40: "signal 40",
    }
    assert {code: how_text(failed(kind="signal", code=code)) for code in signals} == signals
    details = {
        ("stalled", "made no step for 60 s"): "stalled: made no step for 60 s",
        ("silent", "does not answer since 12:04"): "silent: does not answer since 12:04",
        ("caught", "ValueError: no"): "its training failed, and its program caught the error",
        ("ended early", "worker 0 needed it"): "exit code 0, but too early: worker 0 needed it",
    }
    for (kind, detail), text in details.items():
        assert how_text(failed(kind=kind, code=None, detail=detail)) == text


def test_every_signal_and_every_code_has_a_text() -> None:
    for number in signal.valid_signals():
        assert str(int(number)) in signal_text(number)
    for code in range(256):
        assert exit_code_text(code).startswith(str(code))


def test_advice_follows_the_signal_in_an_exit_code_or_a_sign_in_the_output(failed: Failed) -> None:
    # All other advice stands in docs/troubleshooting.md, and is compared with that.
    assert "memory ran out" in advice(failed(code=137))
    assert "smaller batches" in advice(failed(code=1, log_tail=("x RESOURCE_EXHAUSTED: OOM",)))
    assert advice(failed(code=1)) == ""


def test_each_way_to_miss_tf_estimator_or_tf_contrib_has_its_advice(failed: Failed) -> None:
    for error in (
        "AttributeError: module 'tensorflow' has no attribute '{}'",
        "AttributeError: module 'tensorflow.compat.v1' has no attribute '{}'",
        "ModuleNotFoundError: No module named 'tensorflow.{}'",
        "ImportError: cannot import name '{}' from 'tensorflow' (tensorflow/__init__.py)",
    ):
        assert "enable_compat()" in advice(failed(log_tail=(error.format("estimator"),)))
        said = advice(failed(log_tail=(error.format("contrib"),)))
        assert "ended with TensorFlow 1" in said
    other = "AttributeError: module 'tensorflow' has no attribute 'estimators'"
    assert advice(failed(log_tail=(other,))) == ""


def test_the_messages_of_tensorflow_without_a_gpu_give_no_advice(failed: Failed) -> None:
    head = "E0000 00:00:1795387127.837629    7494 cuda_platform.cc:52] failed call to cuInit: "
    no_driver = f"{head}INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)"
    broken = f"{head}CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver"
    assert advice(failed(code=1, log_tail=(no_driver, *TRACEBACK))) == ""
    assert "Check the GPUs and their drivers" in advice(failed(code=1, log_tail=(broken,)))
    error = "InternalError: CUDNN_STATUS_NOT_INITIALIZED"
    assert "Check the GPUs" in advice(failed(code=1, log_tail=(no_driver, error)))


def test_the_end_of_a_log_with_any_content_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.txt"
    assert log_tail(path) == ()
    path.write_bytes(b"")
    assert log_tail(path) == ()
    path.write_bytes(b"\n\none\xff\r\n\x1b[31mtwo\x1b[0m\n\nthree\n\n")
    assert log_tail(path) == ("one\ufffd", "two", "", "three")
    path.write_bytes(b"x" * 200_000 + b"\n" + b"0123456789\n" * 100_000)
    lines = log_tail(path)
    assert set(lines) == {"0123456789"} and len(lines) > 1_000
    path.write_bytes(b"x" * 200_000)
    assert log_tail(path) == ("x" * 65_536,)


def test_workers_are_named_in_a_sentence() -> None:
    assert names_text([1]) == "worker 1"
    assert names_text([0, 1, 2]) == "workers 0, 1 and 2"
    assert names_text([*range(12), *range(13, 64)]) == "workers 0-11,13-63"
    assert joined_names(["evaluator"]) == "the evaluator"
    assert numbers_text([0, 1, 2, 5]) == "0-2,5"
    assert numbers_text(range(0, 64, 8)) == "0,8,...,56"
