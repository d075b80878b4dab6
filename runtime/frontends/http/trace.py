# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What HTTP notes in the traces of requests: when they came in, and when their responses went out."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.scheduling.job import Job
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.runtime.tracing.tracer import Tracer


def begin_trace(tracer: Tracer, model: ModelVersion, job: Job, traceparent: str, received_ns: int) -> Trace | None:
    """The trace of a job that is about to start, if it is to have one.

    Its request began to come in at `received_ns`, or at an unknown time if that is 0.
    """
    trace = tracer.sample(model, job.id, traceparent)
    if trace is not None:
        trace.note("HTTP_RECV_START", received_ns or job.arrived_ns)
        trace.note("HTTP_RECV_END", job.arrived_ns)
        trace.attach(job, model.memory.region)
    return trace


def sending(trace: Trace, release: Callable[[], None], last: bool) -> Callable[[], None]:
    """A response is about to be sent, or a piece of one: what is to be called, instead of `release`, once it is."""
    trace.note("HTTP_SEND_START", time.monotonic_ns())

    def sent() -> None:
        release()
        trace.note("HTTP_SEND_END", time.monotonic_ns())
        if last:
            trace.close()

    return sent
