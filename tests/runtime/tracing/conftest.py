# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traces without a server: a clock that tests set, and jobs of a model of straw."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.tracing.sampling import Sampler, Values
from pyruntime.runtime.tracing.trace import SpanIds, Trace, Tree
from pyruntime.utils.request_codec import RequestOptions


class Traces:
    """Makes traces, and has those that are complete."""

    def __init__(self):
        self.now_ns = 1000
        self.ended = []
        self.memory = bytearray(1 << 12)
        self.region = SimpleNamespace(number=5, view=memoryview(self.memory))

    def tree(self, timestamps=True, tensors=False, rate=1, count=-1, log_frequency=0):
        """A tree that a sampler has picked."""
        sampler = Sampler(Values(("TIMESTAMPS",), rate, count, log_frequency))
        assert sampler.pick()
        return Tree(sampler, timestamps, tensors)

    def trace(self, tree=None, id=1, parent_id=0, request_id="", spans=None, context="1"):
        """A trace of a request to version 3 of model "m"."""
        tree = self.tree() if tree is None else tree
        return Trace(tree, id, parent_id, ("m", 3), request_id, context, spans, lambda: self.now_ns, self.ended.append)

    def job(self, *tensors, respond=lambda outcome, final: None, context=""):
        """A job that came at 900 ns."""
        return Job("7", RequestOptions(), list(tensors), 1, None, [], respond, 900, context)


@pytest.fixture
def traces():
    return Traces()


@pytest.fixture
def spans():
    """The spans of a client's request, and of a call that is made for it."""
    request = SpanIds("a" * 32, "b" * 16, "1" * 16, "2" * 16, "3" * 16)
    return request, SpanIds("a" * 32, "2" * 16, "", "4" * 16, "5" * 16)
