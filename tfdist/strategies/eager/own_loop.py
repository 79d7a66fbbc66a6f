"""A program's own loop in TensorFlow 2: its steps, for the launcher, the other workers and signals.

A step is a call of `strategy.run` whose replicas combine values. It is seen where Python calls it,
eagerly or as part of a tf.function, whose trace says what is in it (`reductions.contents`). A loop
within a function is one call; a variable counts its steps, and a thread reads it.

    worker 0                     worker 1
    train_step(batch)  --------  train_step(batch)     step 7
    SIGTERM
    asks: do all stop?           train_step(batch)     waits for worker 0, which learns: not yet
    train_step(batch)  --------                        step 8
    asks: do all stop?  -------  asks: do all stop?    it has heard of the signal by now
    SystemExit(143)              SystemExit(143)       both after step 8

`fit` has the same of its own (`keras.fit`), and so have Estimators.
"""

from __future__ import annotations

import atexit
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_state import CallClock
from tfdist.process.endings import print_to_stderr
from tfdist.process.progress_file import find_progress_file, set_phase
from tfdist.strategies.eager import run
from tfdist.strategies.eager.step import NOW, first_tensor, rows_of
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import (
    ResourceVariable,
    announce_function_calls,
    is_written_as_saved_model,
)
from tfdist.strategies.reductions.contents import (
    contents_here,
    contents_of,
    is_outermost,
    note_call,
    note_contents,
)
from tfdist.strategies.reductions.engine import Collectives
from tfdist.strategies.stop_signals import (
    StopOrder,
    StopSignals,
    describe_exit,
    ignore_repeated,
    listening,
)

_READ_EVERY_S = 0.5  # As often as the launcher looks.


class OwnLoop:
    """The loop of this process, from its first step to the program's end.

    Attributes:
      steps: The steps of this process; -1 before a call that makes some.
      rows: The rows of this worker's batches in them, as far as they are known.
    """

    def __init__(self) -> None:
        self.steps, self.rows = -1, 0
        self._collectives: Collectives | None = None
        self._is_inside = False  # A call that may make steps.
        self._has_stepped: set[str] = set()  # The code of eager steps.
        self._signals: StopSignals | None = None
        self._stack = ExitStack()
        self._counter: tf.Variable | None = None  # int64 [2]: steps and rows in functions.
        self._counted = [0, 0]  # What was read of it last.
        self._counting = threading.Lock()

    def install(self, collectives: Collectives) -> None:
        """Sees calls from now on; called when the program enters its strategy."""
        if self._collectives is None:
            announce_function_calls(self.call_function)
        self._collectives = collectives

    def call_function(self, graph: tf.Graph, call: Callable[[], Any]) -> Any:
        """Calls a traced function; see `private_tensorflow.announce_function_calls`.

        Raises:
          SystemExit: Before a step, if all workers follow a signal.
        """
        is_eager = tf.executing_eagerly()
        contents = None if is_eager and not self._is_of_program() else contents_of(graph)
        if contents is None:
            return call()
        note_call(graph)
        if not is_eager:
            return call()
        has_steps = contents.steps + contents.counts > 0 and not self._is_inside
        if has_steps:
            self._begin()
            self._follow_signals()
        kind = "a call of " + re.sub(r"^__inference_|^_+|_\d+$", "", graph.name)
        needs_all = contents.messages > 0
        marked = run.needs_all_workers(kind, self._place(kind)) if needs_all else nullcontext()
        counted = self._counted_beside() if contents.counts and has_steps else nullcontext()
        with marked, counted:
            results = call()
        self._note(contents.steps if has_steps else 0, contents.rows if has_steps else 0)
        return results

    @contextmanager
    def step(self, kind: str) -> Iterator[None]:
        """Marks a step that Keras makes outside of `fit` in the `with` block."""
        if self._is_of_program():
            self._begin()
            self._follow_signals()
        with run.needs_all_workers(kind, self._place(kind)):
            yield
        self._note(1, 0)

    def run(self, name: str, batches: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs the code of all replicas, which has a name, or traces it; returns its results.

        Raises:
          SystemExit: As `call_function`.
        """
        before = contents_here().reductions
        firsts = [first for batch in batches if (first := first_tensor(batch)) is not None]
        if not tf.executing_eagerly():
            results = call()
            self._note_traced(firsts, is_step=contents_here().reductions > before)
            return results
        if not self._is_of_program():
            return call()
        if name in self._has_stepped:
            self._follow_signals()
        self._is_inside = True
        try:
            results = call()
        finally:
            self._is_inside = False
        is_step = contents_here().reductions > before
        if is_step:
            self._has_stepped.add(name)
            self._begin()
        self._note(int(is_step), is_step * sum(int(first.shape[0]) for first in firsts))
        return results

    def _note_traced(self, firsts: Sequence[Any], *, is_step: bool) -> None:
        """Notes that the function that is being traced runs replicas' code on these batches."""
        rows = [first.shape[0] for first in firsts]
        is_once = is_outermost(v1.get_default_graph())
        if not is_step or is_written_as_saved_model():
            note_contents(runs=1)
        elif is_once and None not in rows:
            note_contents(runs=1, steps=1, rows=sum(rows))
        else:
            note_contents(runs=1, steps=int(is_once), counts=1)
            with tf.device(HOST):
                number = tf.add_n([rows_of(first) for first in firsts]) if firsts else 0  # []
                own = [tf.constant(0 if is_once else 1, tf.int64), tf.cast(number, tf.int64)]
                self._find_counter().assign_add(tf.stack(own), read_value=False)

    def _is_of_program(self) -> bool:
        """Returns whether this is the program's own code, rather than `fit` or a thread."""
        return NOW.fit is None and threading.current_thread() is threading.main_thread()

    def _place(self, kind: str) -> Callable[[], str]:
        steps = self.steps
        return lambda: kind if steps < 0 else f"step {steps + 1} of its loop"

    def _begin(self) -> None:
        """Notes that steps begin. From now on stop signals are followed between steps."""
        if self.steps >= 0:
            return
        self.steps = 0
        assert self._collectives is not None
        if self._collectives.num_workers == 1 or run.membership_of_program() is not None:
            signals = self._stack.enter_context(listening())
            self._stack.enter_context(signals.noted())
            signals.is_in_own_code = lambda: NOW.fit is None
            atexit.register(self.end)
            self._signals = signals
        run.begin_loop(CallClock() if self._signals is None else self._signals.calls)

    def end(self) -> None:
        """Ends the loop: a signal ends the program at once again, and a new loop may begin."""
        has_stopped = self._signals is not None and self._signals.order is not None
        self.steps, self.rows, self._signals = -1, 0, None
        run.end_loop()
        self._stack.close()
        if has_stopped:
            ignore_repeated()

    def _note(self, steps: int, rows: int) -> None:
        if self.steps < 0:
            return
        with self._counting:
            self.steps += steps
            self.rows += rows
            file = find_progress_file()
            if file is not None:
                file.step_ends(step=self.steps, loss=math.nan, examples=float(self.rows))

    def _follow_signals(self) -> None:
        """Ends the program before a step if a worker got a signal, and all are before this step.

        Raises:
          SystemExit: On all workers before the same step; each got, or heard of, a signal.
        """
        signals, membership = self._signals, run.membership_of_program()
        if signals is None or signals.order is not None:
            return
        own = signals.own or 0
        if membership is None:
            order = StopOrder(number=own) if own else None
        elif own or membership.stop_requests():
            order = self._agree_to_stop(membership, signals)
        else:
            return
        if order is None:
            return
        signals.order = order
        set_phase("stopping")
        assert self._collectives is not None
        if self._collectives.worker_index == 0:
            print_to_stderr(describe_exit(order, self.steps, self._collectives.num_workers))
        signals.leave()

    def _agree_to_stop(self, membership: Membership, signals: StopSignals) -> StopOrder | None:
        """Returns what all workers follow; None if one of them is in the coming step already."""
        membership.request_stop(signals.own or 0)
        signals.calls.begin()
        try:
            if not run.all_stop():
                return None
        finally:
            signals.calls.end()
        requests = membership.stop_requests()
        number = signal.SIGTERM if signal.SIGTERM in requests.values() else signal.SIGUSR1
        return StopOrder(number=number, receivers=len(requests), receiver=min(requests))

    # Steps in loops of functions.

    def _find_counter(self) -> tf.Variable:
        if self._counter is None:
            with tf.init_scope(), tf.device(HOST):
                self._counter = ResourceVariable([0, 0], dtype=tf.int64, trainable=False)
        return self._counter

    @contextmanager
    def _counted_beside(self) -> Iterator[None]:
        """Notes the steps of a function in the `with` block, from another thread as well."""
        is_over = threading.Event()

        def read() -> None:
            while not is_over.wait(_READ_EVERY_S):
                if self._read_counter():
                    run.note_progress()

        thread = threading.Thread(target=read, name="tfdist-steps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        self._read_counter()

    def _read_counter(self) -> bool:
        """Notes what the counter has counted since it was read last; returns whether it has."""
        steps, rows = (int(number) for number in self._find_counter().numpy())
        new = steps - self._counted[0], rows - self._counted[1]
        self._counted = [steps, rows]
        if any(new):
            self._note(*new)
        return new[0] > 0


LOOP = OwnLoop()
