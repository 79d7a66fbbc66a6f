"""The first bytes between launcher and agent, by which each proves that it has the run's token.

    launcher                                          agent
    challenge: 32 random bytes        ------------->
                                      <-------------  nonce: 32 random bytes,
                                                      HMAC of both, as "agent"
    HMAC of both, as "launcher"       ------------->

The token itself is never sent. The launcher reads 64 bytes from a process that is not an agent, and
an agent starts no command for a process that is not its launcher. A connection that the other side
closes is an OSError. `multiprocessing.connection` does the same with blocking sockets.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from typing import Literal

NONCE_BYTES = 32
PROOF_BYTES = 32  # of SHA-256


def proof_of(
    side: Literal["agent", "launcher"], token: str, challenge: bytes, nonce: bytes
) -> bytes:
    """Returns this side's proof that it has the token."""
    return hmac.digest(token.encode(), side.encode() + challenge + nonce, "sha256")


async def admit(connection: socket.socket, token: str) -> bool:
    """Returns whether the other side of the connection is an agent of this run.

    The connection is the launcher's end of a new one, and must not block.
    """
    challenge = secrets.token_bytes(NONCE_BYTES)
    await asyncio.get_running_loop().sock_sendall(connection, challenge)
    answer = await _receive(connection, NONCE_BYTES + PROOF_BYTES)
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, proof_of("agent", token, challenge, nonce)):
        return False
    proof = proof_of("launcher", token, challenge, nonce)
    await asyncio.get_running_loop().sock_sendall(connection, proof)
    return True


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> bool:
    """Returns whether the other side of the connection is the launcher of this run."""
    try:
        challenge = await reader.readexactly(NONCE_BYTES)
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(nonce + proof_of("agent", token, challenge, nonce))
        proof = await reader.readexactly(PROOF_BYTES)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("it closed the connection") from None
    return hmac.compare_digest(proof, proof_of("launcher", token, challenge, nonce))


async def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = await asyncio.get_running_loop().sock_recv(connection, count - len(received))
        if not data:
            raise ConnectionResetError("it closed the connection")
        received += data
    return received
