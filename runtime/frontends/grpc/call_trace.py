# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What gRPC notes in the traces of requests: when they came in, and when their responses were handed to the session."""

from __future__ import annotations

import time

from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling.job import Job
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.utils.errors import InferenceError


def trace_call(tracer: Tracer, model: ModelVersion, job: Job, traceparent: str) -> None:
    """Have a job that is about to start traced, if it is to be."""
    trace = tracer.sample(model, job.id, traceparent)
    if trace is None:
        return
    respond = job.respond

    def send(outcome: InferResponse | InferenceError | None, final: bool) -> None:
        trace.note("GRPC_SEND_START", time.monotonic_ns())
        respond(outcome, final)
        trace.note("GRPC_SEND_END", time.monotonic_ns())

    job.respond = send
    trace.note("GRPC_WAITREAD_START", job.arrived_ns)
    trace.note("GRPC_WAITREAD_END", job.arrived_ns)
    trace.attach(job, model.memory.region)
    trace.close()  # nobody says more than the model does
