# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long one inference of a native model takes without a network: `await` in the server's own process.

Usage: native_await.py FOLDER     FOLDER is what benchmarks/native made: backends/identity and models/native_identity

Every request goes the whole way behind the frontends: checks, request memory, scheduler, the backend's thread and back.
Prints the median of some thousand requests that follow each other, for two sizes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time

import uvloop

from pyruntime.runtime.app.server import Server
from pyruntime.runtime.frontends.listeners import Listeners
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferRequest, InferResponse, InputTensor
from pyruntime.runtime.settings import ServerSettings

# Requests that are measured, after as many that are not.
REQUESTS = 3000


async def infer(model: ModelVersion, contents: bytes) -> int:
    """One request and its response; how many bytes came back."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def respond(outcome: object, final: bool) -> None:
        assert isinstance(outcome, InferResponse), outcome
        future.set_result(len(outcome.outputs[0].data))
        outcome.release()

    tensor = InputTensor("INPUT0", "FP32", [len(contents) // 4], contents)
    model.infer(InferRequest(model.spec.name, inputs=[tensor]), respond)
    return await future


async def measure(model: ModelVersion, size: int) -> float:
    """The median time of a request of so many bytes, in microseconds."""
    contents = bytes(size)
    times = []
    for _ in range(2 * REQUESTS):
        begun = time.perf_counter_ns()
        assert await infer(model, contents) == size
        times.append(time.perf_counter_ns() - begun)
    return statistics.median(times[REQUESTS:]) / 1000


async def main(folder: str) -> None:
    """Serve the model, measure, stop."""
    settings = ServerSettings(
        model_repositories=(os.path.join(folder, "models"),),
        backend_directory=os.path.join(folder, "backends"),
        model_control_mode="explicit",
        load_models=("native_identity",),
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
    )
    server = Server(settings, Listeners)
    serving = asyncio.create_task(server.run())
    while not server.state.is_ready():
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.01)
    model = server.state.resolve("native_identity")
    for size in (64, 1 << 20):
        print(f"native_identity, {size} bytes, in process: median {await measure(model, size):.1f} us")
    server.stop()
    await serving


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
