"""The hooks' part in a session call, as in `MonitoredSession.run`.

The training loop makes its call with these two functions. So the loop's own work, which must be
done right before or right after the call, is written between them:

    requested = before_run(hooks, context)          before_run of each hook, in order
    outputs = session.run(own fetches + requested)  one call
    after_run(hooks, context, outputs, ...)         after_run of each hook, in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues


@dataclass(kw_only=True)
class HookRequests:
    """The additions of all hooks to one session call.

    Attributes:
      fetches: The tensors and ops that each hook asks for, by hook.
      feeds: Values for tensors.
      options: The options of all hooks together.
    """

    fetches: dict[Any, Any] = field(default_factory=dict)
    feeds: dict[Any, Any] = field(default_factory=dict)
    options: v1.RunOptions = field(default_factory=v1.RunOptions)


def before_run(
    hooks: Sequence[v1.train.SessionRunHook], context: SessionRunContext
) -> HookRequests:
    """Calls `before_run` of each hook and collects the requests.

    Raises:
      RuntimeError: If two hooks feed the same tensor.
    """
    requested = HookRequests()
    for hook in hooks:
        request = hook.before_run(context)
        if request is None:
            continue
        if request.fetches is not None:
            requested.fetches[hook] = request.fetches
        if request.feed_dict:
            conflicts = list(requested.feeds.keys() & request.feed_dict.keys())
            if conflicts:
                raise RuntimeError(f"Same tensor is fed by two hooks. Conflict(s): {conflicts}")
            requested.feeds.update(request.feed_dict)
        if request.options:
            _merge_options(requested.options, request.options)
    return requested


def after_run(
    hooks: Sequence[v1.train.SessionRunHook],
    context: SessionRunContext,
    outputs: Mapping[Any, Any],
    options: v1.RunOptions,
    run_metadata: v1.RunMetadata,
) -> None:
    """Calls `after_run` of each hook with the values that it has requested."""
    for hook in hooks:
        values = SessionRunValues(
            results=outputs.get(hook), options=options, run_metadata=run_metadata
        )
        hook.after_run(context, values)


def _merge_options(options: v1.RunOptions, more: v1.RunOptions) -> None:
    """Adds a hook's options to the options of the hooks before it."""
    for name in (
        "trace_level",
        "timeout_in_ms",
        "inter_op_thread_pool",
        "output_partition_graphs",
        "report_tensor_allocations_upon_oom",
    ):
        setattr(options, name, max(getattr(options, name), getattr(more, name)))
    debug = options.debug_options
    debug.debug_tensor_watch_opts.extend(more.debug_options.debug_tensor_watch_opts)
    debug.reset_disk_byte_usage |= more.debug_options.reset_disk_byte_usage
