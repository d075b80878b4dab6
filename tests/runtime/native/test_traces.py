# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traces as backends see them, and activities that they report: see tests/native/traces.cc."""

import pytest

CONTEXT = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
OWN = "TRITONSERVER_InferenceTraceDelete: the trace belongs to its request"


@pytest.fixture
def backend(native):
    """Reports the traces that it sees."""
    return native("traces.cc", outputs=())


def test_none(backend, request_of):
    """A request that is not traced has no trace."""
    (job,) = backend.run(request_of("r", trace=""))
    assert job.parameters == {"traced": False}
    assert job.activities == []


@pytest.mark.parametrize(("trace", "context"), [(CONTEXT, CONTEXT), ("17", "")])
def test_context(backend, request_of, trace, context):
    """A backend sees the context that other services understand; of a number, which is the server's own, nothing."""
    (job,) = backend.run(request_of("r", trace=trace))
    told = job.parameters
    assert told["context"] == told["child_context"] == context
    assert told["context_now"] == "{}"


def test_names(backend, request_of):
    """A trace has the properties of its request; it ends with the request and cannot be deleted."""
    (job,) = backend.run(request_of("r", trace=CONTEXT))
    told = job.parameters
    assert (told["model"], told["version"], told["request"], told["refused"]) == ("model", 1, "r", OWN)


def test_ids(backend, request_of):
    """Each trace has a number of its own; a child knows its parent's."""
    jobs = backend.run(*(request_of("r", trace=CONTEXT) for _ in range(3)))
    told = [job.parameters for job in jobs]
    assert [one["parent"] for one in told] == [one["id"] for one in told]
    assert len({number for one in told for number in (one["id"], one["child"])}) == 6


def test_activities(backend, request_of):
    """Activities that a backend reports, also for a child, are events of the request's job before its end."""
    (job,) = backend.run(request_of("r", trace=CONTEXT))
    assert job.activities == [(1000, "CUSTOM_ACTIVITY", "BEGIN"), (2000, "CUSTOM_ACTIVITY", "CHILD")]
    assert [kind for kind, _ in job.events][:2] == ["activity", "activity"]
