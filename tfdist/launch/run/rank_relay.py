"""A relay: the process that mpirun starts for a rank that has an agent of the launcher's already.

It sends the launcher the variables of its rank, with which the agent starts the worker, and ends
with 0 at the launcher's "bye". It also ends if the launcher is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from tfdist.launch.run.agent import connect
from tfdist.launch.workers.channel import ADDRESSES_VARIABLE, TOKEN_VARIABLE


async def _run(index: int) -> None:
    channel = await connect(os.environ[ADDRESSES_VARIABLE], os.environ[TOKEN_VARIABLE])
    channel.send("rank", index=index, environment=dict(os.environ))
    while message := await channel.receive():
        if message["kind"] == "bye":
            return


def main(index: str) -> None:
    """Runs the relay of the worker with this index; exits with 1 if there is no launcher."""
    try:
        asyncio.run(_run(int(index)))
    except ConnectionError as error:
        print(f"rank {index}, {socket.gethostname()}: {error}", file=sys.stderr)
        sys.exit(1)
