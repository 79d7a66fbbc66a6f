"""Sessions: their configuration, initial values, prepared calls, and a limit on closing them.

`Session.run` examines the structure of its fetches in each call. That took half of a small model's
time in Python: 379 microseconds a step, where a prepared call took 198. So the fetches of a
training step are prepared once.
"""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.config.settings import default_session_config
from tfdist.estimator.pipelined.spec import num_devices_in
from tfdist.process.progress_file import find_progress_file, in_phase
from tfdist.strategies.divided.pieces import GraphPieces
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_tensorflow import call_prepared, is_closed

# Hooks ask for other fetches every few steps. The limit is for calls that always have new ones.
_MOST_PREPARED = 64
_CLOSE_LIMIT_S = 5.0
_DEPRECATED_IN_SAVERS = re.compile(
    r"saver\.py:\d+: (?:get_checkpoint_mtimes|remove_checkpoint) \(from"
)
# At the end of the program; TensorFlow's own wait for an input's autotuning is 60 s at most.
_LAST_CLOSE_LIMIT_S = 75.0
_CLOSE_BEAT_S = 1.0


def with_defaults(config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Returns the config of a session: a copy of the user's, else of tf.estimator's default.

    Without a GPU two of TensorFlow's graph optimizers are off, unless the user has set them. The
    layout optimizer would only cost time. The memory optimizer adds three or more large tensors in
    an arbitrary order, so the last bits would differ from step to step.
    """
    chosen = v1.ConfigProto()
    chosen.CopyFrom(default_session_config() if config is None else config)
    rewrites = chosen.graph_options.rewrite_options
    if not tf.config.list_physical_devices("GPU"):
        rewrites.layout_optimizer = rewrites.layout_optimizer or 2  # OFF
        rewrites.memory_optimization = rewrites.memory_optimization or 1  # NO_MEM_OPT
    return chosen


def configured(placement: Placement, config: RunConfig) -> v1.ConfigProto:
    """Returns the session config with the devices that the current graph's model needs."""
    needed = num_devices_in(v1.get_default_graph())
    return placement.with_devices(needed).configure(with_defaults(config.session_config))


def add_saver(scaffold: v1.train.Scaffold, config: RunConfig) -> None:
    """Adds tf.estimator's saver to the graph if the scaffold has none.

    It is sharded, writes relative paths, and keeps the number of checkpoints set in the config.
    The warnings of TensorFlow's savers that they call deprecated functions are not shown.
    """
    tf.get_logger().addFilter(_is_for_users)  # Twice is once.
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        saver = v1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


def _is_for_users(record: logging.LogRecord) -> bool:
    return not _DEPRECATED_IN_SAVERS.search(record.getMessage())


def restored_by_worker_0(
    scaffold: v1.train.Scaffold,
    broadcast: tf.Operation,
    checkpoint_dir: str | None,
    tables: GraphPieces | None,
) -> v1.train.Scaffold:
    """Makes a scaffold that restores worker 0's checkpoint and sends its values to all workers.

    `broadcast` sets every variable to worker 0's value; a collective. Worker 0 alone has a
    `checkpoint_dir`, to restore from. `tables` moves the rows of divided tables in a checkpoint;
    None without a checkpoint.
    """
    user_init_fn = scaffold.init_fn

    def initialize(new: v1.train.Scaffold, session: v1.Session) -> None:
        state = checkpoint_dir and tf.train.get_checkpoint_state(checkpoint_dir)
        path = state.model_checkpoint_path if state else None
        if state and path:
            new.saver.restore(session, state.model_checkpoint_path)
            new.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        elif user_init_fn is not None:
            user_init_fn(session)
        with in_phase("waiting"):
            session.run(broadcast)
            if tables is not None:
                tables.restore(session, path or None)

    return v1.train.Scaffold(init_fn=initialize, copy_from_scaffold=scaffold)


def training_session(
    hooks: Sequence[v1.train.SessionRunHook],
    scaffold: v1.train.Scaffold | None,
    *,
    master: str,
    config: v1.ConfigProto,
    checkpoint_dir: str | None = None,
) -> v1.train.SingularMonitoredSession:
    """Opens a session with prepared calls, as TensorFlow does with the hooks.

    After a failure no second session is opened, as other workers would not follow.
    """
    session = v1.train.SingularMonitoredSession(hooks, scaffold, master, config, checkpoint_dir)
    prepare_calls(session.raw_session())
    limit_close(session.raw_session())
    return session


def limit_close(session: v1.Session) -> None:
    """Makes `session.close` return after at most 5 s; a slower one goes on in a thread.

    TensorFlow waits for the answers of all workers that a session has used, and for the thread that
    tunes a tf.data input: woken a moment before it is marked as cancelled, that may sleep on for up
    to 60 s. The program's end waits for the thread that closes, which must not return from
    TensorFlow while Python ends: the process would abort.
    """
    close = session.close
    is_first = True

    def close_in_time() -> None:
        nonlocal is_first
        if not is_first or sys.is_finalizing():  # The session's destructor closes it again.
            return
        is_first = False
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(_CLOSE_LIMIT_S)
        if closing.is_alive():
            v1.logging.debug(
                "The session was not closed within %.0f s: TensorFlow goes on closing it beside "
                "what follows.",
                _CLOSE_LIMIT_S,
            )
            atexit.register(_wait_for_close, closing)

    session.close = close_in_time


def _wait_for_close(closing: threading.Thread) -> None:
    closing.join(_CLOSE_LIMIT_S)  # Most are closed by then.
    if closing.is_alive():
        print(
            f"Waiting for TensorFlow to close a session, for {_LAST_CLOSE_LIMIT_S:.0f} s at most.",
            file=sys.stderr,
            flush=True,
        )
        give_up_s = time.monotonic() + _LAST_CLOSE_LIMIT_S
        while closing.is_alive() and time.monotonic() < give_up_s:
            file = find_progress_file()
            if file is not None:  # The training is over: this wait, which has a limit, is no stall.
                file.write(phase="leaving")
            closing.join(_CLOSE_BEAT_S)


def prepare_calls(session: v1.Session) -> None:
    """Makes a session prepare each set of fetches once, also for calls by hooks."""
    session.run = _PreparedRun(session)


class _PreparedRun:
    """A replacement for a session's `run`, with the same arguments, results and errors."""

    def __init__(self, session: v1.Session) -> None:
        self._session = session
        self._run = session.run
        # The fetches are kept with the call, so that no other object gets their ids.
        self._prepared: dict[Any, tuple[Callable[[], Any], Any]] = {}

    def __call__(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: v1.RunOptions | None = None,
        run_metadata: v1.RunMetadata | None = None,
    ) -> Any:
        has_options = options is not None and options.ByteSize() > 0
        key = None if feed_dict or has_options else _key_of(fetches)
        if key is None or is_closed(self._session):  # An ordinary call reports a closed session.
            return self._run(fetches, feed_dict, options, run_metadata)
        if key not in self._prepared:
            if len(self._prepared) == _MOST_PREPARED:
                return self._run(fetches, feed_dict, options, run_metadata)
            self._prepared[key] = self._session.make_callable(fetches), fetches
        return call_prepared(self._session, self._prepared[key][0])


def _key_of(fetches: Any) -> Any:
    """Returns a key that is equal for the same fetches in the same structure; None if unknown."""
    if isinstance(fetches, (tf.Tensor, tf.Operation, tf.Variable)):
        return id(fetches)
    if isinstance(fetches, dict):
        inside = [_key_of(fetch) for fetch in fetches.values()]
        inside += fetches.keys()
    elif isinstance(fetches, (list, tuple)):
        inside = [_key_of(fetch) for fetch in fetches]
    else:
        return None
    # An ordinary call handles empty fetches.
    return None if not inside or None in inside else (type(fetches), *inside)
