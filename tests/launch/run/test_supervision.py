"""The starts of a run, without processes: restarts, and hosts that go and come."""

import asyncio
import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.errors import StartError
from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run import supervision
from tfdist.launch.run.ending import Result
from tfdist.launch.screen.terminal import Terminal


def options(words: str) -> RunOptions:
    return parse_run_options([*words.split(), "--max-restarts", "3", "cat"])


Failed = Callable[..., Failure]


Play = Callable[..., tuple[int, list[int], str]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays a run whose starts do what the given functions do; the host c is lost.

    Returns the exit code, the number of instances of each start, and what the launcher said.
    """

    async def lost_hosts(*_: Any) -> frozenset[str]:
        return frozenset({"c"})

    async def call_on_hosts(names: Any, _: Any, *command: str) -> None:
        (tmp_path / "called").write_text(f"{','.join(names)}: {' '.join(command)}")

    monkeypatch.setattr(supervision, "lost_hosts", lost_hosts)
    monkeypatch.setattr(supervision, "call_on_hosts", call_on_hosts)

    def play(*starts: Callable[[Any], Any]) -> tuple[int, list[int], str]:
        err, sizes = io.StringIO(), []

        async def run() -> int:
            terminal = Terminal(io.StringIO(), err)
            run = supervision.Supervision(
                options("--host a,b,c --num-instances 3 --min-instances 2"), tmp_path, terminal
            )

            async def run_once(plan: Any) -> Any:
                sizes.append(len(plan.workers))
                return starts[len(sizes) - 1](run)

            monkeypatch.setattr(run, "_run_once", run_once)
            code = await run.run()
            terminal.close()
            return code

        return asyncio.run(run()), sizes, err.getvalue()

    return play


def no_agent(_: Any) -> Any:
    raise StartError("worker 2 (c) did not start")


def success(_: Any) -> Any:
    return Result(verdict=Verdict(exit_code=0))


def saved_for_c(run: Any) -> Any:
    """The end of a start whose workers saved and left because host c is back."""
    run._joining = run._full_size
    return Result(verdict=Verdict(exit_code=128 + signal.SIGUSR1))


def stopped_meanwhile(run: Any) -> Any:
    run._stop.ask(signal.SIGTERM, 0.0, 1.0)
    return saved_for_c(run)


def test_a_start_without_a_host_counts_as_an_interruption_and_the_host_is_taken_in_again(
    play: Play,
) -> None:
    code, sizes, said = play(no_agent, saved_for_c, success)
    assert (code, sizes) == (0, [3, 2, 3])
    assert "c cannot be reached: going on with 2 of 3 instances" in said
    assert "a step has 2/3 of its examples now if the batch size is each worker's" in said
    assert "a step has all of its examples again" in said
    assert "tfdist: interrupted once\n" in said


def test_a_users_stop_while_a_host_is_taken_in_ends_the_run(play: Play) -> None:
    code, sizes, said = play(no_agent, stopped_meanwhile)
    assert (code, sizes) == (128 + signal.SIGTERM, [3, 2])
    assert "stopped by SIGTERM" in said


@pytest.mark.parametrize(("code", "is_a_restart"), [(137, True), (128 + signal.SIGUSR1, False)])
def test_a_failure_while_a_host_is_taken_in_starts_the_larger_run_and_an_early_save_is_none(
    play: Play, failed: Failed, code: int, is_a_restart: bool
) -> None:
    def ended_meanwhile(run: Any) -> Any:
        run._joining = run._full_size
        return Result(verdict=Verdict(exit_code=code, worker=1), failure=failed(index=1))

    *end, said = play(no_agent, ended_meanwhile, success)
    assert end == [0, [3, 2, 3]]
    assert ("restart 2 of 3: worker 1 failed" in said) == is_a_restart
    assert ("restart 2" in said) == is_a_restart


def test_the_snapshots_of_a_host_that_was_left_out_are_removed_after_a_success(
    play: Play, tmp_path: Path
) -> None:
    play(success)
    assert not (tmp_path / "called").exists()
    play(no_agent, success)
    assert "a,b,c: rm -rf /dev/shm/tfdist-snapshots-" in (tmp_path / "called").read_text()


def test_a_restart_that_fails_although_all_hosts_answer_is_tried_once_more(
    play: Play, failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_is_lost(*_: Any) -> frozenset[str]:
        return frozenset()

    def lost(_: Any) -> Any:
        verdict = Verdict(exit_code=124, worker=1)
        return Result(verdict=verdict, failure=failed(index=1, kind="silent"))

    monkeypatch.setattr(supervision, "lost_hosts", none_is_lost)
    code, sizes, said = play(lost, no_agent, success)
    assert (code, sizes) == (0, [3, 3, 3])
    assert "restart 2 of 3: worker 2 (c) did not start" in said
    code, sizes, said = play(lost, no_agent, no_agent)
    assert (code, sizes) == (1, [3, 3, 3])
    assert "the workers could not be started: worker 2 (c) did not start" in said
    assert play(no_agent)[:2] == (1, [3])


def test_workers_are_asked_to_save_for_a_host_only_once_they_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []

    async def start(*_: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        order.append("started")

    async def take_in_hosts() -> None:
        order.append("asked")

    async def watch(*_: Any) -> Verdict:
        for _ in range(10):
            await asyncio.sleep(0)
        return Verdict(exit_code=0)

    async def run() -> None:
        three = options("--host a,b,c --num-instances 3 --min-instances 2")
        run = supervision.Supervision(three, tmp_path, Terminal(io.StringIO(), io.StringIO()))
        run._lost_hosts = frozenset({"c"})
        monkeypatch.setattr(run._processes, "start", start)
        monkeypatch.setattr(run, "_take_in_hosts", take_in_hosts)
        monkeypatch.setattr(run, "_watch", watch)
        await run.run()

    asyncio.run(run())
    assert order == ["started", "asked"]
