"""Sessions: what they run on, and how their variables get their first values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.progress import in_phase
from tfdist.estimator.pipelined import num_devices_in
from tfdist.estimator.prepared_calls import PreparedCalls
from tfdist.estimator.run_config import RunConfig, default_session_config
from tfdist.strategies.placement import Placement


def with_defaults(config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Returns the user's config, or tf.estimator's: soft placement, one pass of optimisation."""
    return config if config is not None else default_session_config()


def configured(placement: Placement, config: RunConfig) -> v1.ConfigProto:
    """Returns the session's config with the devices that the model in the current graph needs."""
    needed = num_devices_in(v1.get_default_graph())
    return placement.with_devices(needed).configure(with_defaults(config.session_config))


def add_saver(scaffold: v1.train.Scaffold, config: RunConfig) -> None:
    """Adds tf.estimator's saver to the graph where the scaffold has none.

    It is sharded, writes relative paths, and keeps as many checkpoints as the config says.
    """
    if scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
        saver = v1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


def restored_by_worker_0(
    scaffold: v1.train.Scaffold, broadcast: tf.Operation, checkpoint_dir: str | None
) -> v1.train.Scaffold:
    """Makes a scaffold with which worker 0 restores its checkpoint and all get its values.

    Args:
      scaffold: The model's.
      broadcast: Sets every variable to worker 0's value; a collective.
      checkpoint_dir: On worker 0 the folder to restore from; None on the others.
    """
    user_init_fn = scaffold.init_fn

    def initialize(new: v1.train.Scaffold, session: v1.Session) -> None:
        state = checkpoint_dir and tf.train.get_checkpoint_state(checkpoint_dir)
        if state and state.model_checkpoint_path:
            new.saver.restore(session, state.model_checkpoint_path)
            new.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        elif user_init_fn is not None:
            user_init_fn(session)
        with in_phase("waiting"):
            session.run(broadcast)

    return v1.train.Scaffold(init_fn=initialize, copy_from_scaffold=scaffold)


def training_session(
    hooks: Sequence[Any],
    scaffold: Any,
    *,
    master: str,
    config: v1.ConfigProto,
    checkpoint_dir: str | None = None,
) -> v1.train.SingularMonitoredSession:
    """Opens a session that ends when its input does.

    It is never made anew after a failure: other workers would not follow.
    """
    return v1.train.SingularMonitoredSession(
        hooks=[PreparedCalls(), *hooks],
        scaffold=scaffold,
        master=master,
        config=config,
        checkpoint_dir=checkpoint_dir,
    )
