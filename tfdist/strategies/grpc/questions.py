"""Questions to a TensorFlow server of this process, past its sessions."""

from __future__ import annotations

import tensorflow.compat.v1 as v1

_SERVICE = "/tensorflow.WorkerService"
_LIMIT_S = 10.0


def ask(target: str, method: str, request: bytes) -> bytes:
    """Returns the answer of a server; empty if it does not know the question.

    Args:
      target: The target of its sessions, "grpc://host:port".
      method: A method of TensorFlow's WorkerService.
      request: The serialized request.
    """
    import grpc  # It comes with TensorFlow; not every program needs it.

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(target.removeprefix("grpc://"), options) as channel:
        try:
            call = channel.unary_unary(f"{_SERVICE}/{method}")
            return bytes(call(request, timeout=_LIMIT_S))
        except grpc.RpcError as error:
            v1.logging.debug("TensorFlow's server has not answered %s: %s", method, error)
            return b""
