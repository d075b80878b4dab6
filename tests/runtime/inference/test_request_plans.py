# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""RequestPlans: which requests they stand for, and where their jobs' tensors lie."""

import pytest

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY
from pyruntime.runtime.inference.request_plans import HEADER_KEPT_BYTES_MAX, PLANS_KEPT_MAX, RequestPlans
from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.request_codec import RequestOptions

HEADER = b'{"inputs": []}'


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 16, 1 << 16)
    yield made
    made.close()


def job(slot, *tensors, id=""):
    """A job whose tensors are (datatype, bytes from the slot's offset, size)."""
    refs = [(f"IN{n}", kind, [size], slot.offset + at, size, 0, 0) for n, (kind, at, size) in enumerate(tensors)]
    return Job(id, RequestOptions(), refs, 3, "s", [slot], print, 1)


def test_stands_for_requests_with_the_same_header(memory):
    """Another body of that size gets a job that differs in nothing but where its tensors lie."""
    plans = RequestPlans()
    first, second = memory.allocate(100, 20), memory.allocate(100, 20)
    plans.remember((HEADER, 100), job(first, ("FP32", 20, 64), ("INT8", 84, 16)), first, ALL_BINARY)
    plan = plans.find((HEADER, 100))
    made = plan.job(second, print, 7)
    assert made.tensors == job(second, ("FP32", 20, 64), ("INT8", 84, 16)).tensors
    assert (made.rows, made.signature, made.slots, made.arrived_ns) == (3, "s", [second], 7)
    assert plan.options is ALL_BINARY
    assert plans.find((HEADER, 101)) is None
    assert plans.find((b"{}", 100)) is None


def test_an_id_is_that_of_the_request(memory):
    """Where the header does not hold the id, requests with different ones have the same plan."""
    plans = RequestPlans()
    slot = memory.allocate(64)
    plans.remember((HEADER, 64), job(slot, ("FP32", 0, 64), id="first"), slot, ALL_BINARY)
    plan = plans.find((HEADER, 64))
    assert plans.find((HEADER, 60)) is None
    second = plan.job(slot, print, 7, "second")
    assert second.id == "second"
    assert plan.job(slot, print, 7).id == ""


def test_headers_of_other_lengths(memory):
    """The tensors lie behind the header, however long that is: its id has any length."""
    plans = RequestPlans()
    first, second = memory.allocate(100, 20), memory.allocate(107, 27)
    plans.remember((HEADER, 80), job(first, ("FP32", 20, 64), ("INT8", 84, 16)), first, ALL_BINARY, 20)
    made = plans.find((HEADER, 80)).job(second, print, 7, lead=27)
    assert made.tensors == job(second, ("FP32", 27, 64), ("INT8", 91, 16)).tensors


def test_a_sequence_is_that_of_the_request(memory):
    """Where the header does not hold the sequence, its requests have all other options of the plan."""
    plans = RequestPlans()
    slot = memory.allocate(64)
    first = job(slot, ("FP32", 0, 64))
    first.options = RequestOptions(7, 1, 1000, ["OUT"], "{}")
    plans.remember((HEADER, 64), first, slot, ALL_BINARY)
    plan = plans.find((HEADER, 64))
    assert plan.job(slot, print, 7, sequence=(8, 2)).options == RequestOptions(8, 2, 1000, ["OUT"], "{}")
    assert plan.job(slot, print, 7).options is first.options


@pytest.mark.parametrize(
    "tensor",
    [
        ("BYTES", 20, 8),  # its contents have to be looked at
        ("FP32", 4096, 64),  # came as JSON, and lies in a slot of its own
    ],
)
def test_what_is_not_remembered(memory, tensor):
    """A request is only remembered if every other one with its header is as right, and all of it lies in the body."""
    plans = RequestPlans()
    slot = memory.allocate(100, 20)
    plans.remember((HEADER, 100), job(slot, ("FP32", 20, 4), tensor), slot, ALL_BINARY)
    assert plans.find((HEADER, 100)) is None


def test_one_with_the_memory_of_a_client_is_not_remembered(memory):
    """Regions come and go."""
    plans = RequestPlans()
    slot = memory.allocate(100, 20)
    made = job(slot, ("FP32", 20, 64))
    made.client = ClientUse(InferRequest("m"), print)
    plans.remember((HEADER, 100), made, slot, ALL_BINARY)
    assert plans.find((HEADER, 100)) is None


def test_limits(memory):
    """Long headers are not kept, and the number of kept ones is limited."""
    plans = RequestPlans()
    slot = memory.allocate(100)
    plans.remember((b" " * (HEADER_KEPT_BYTES_MAX + 1), 100), job(slot), slot, ALL_BINARY)
    assert plans.find((b" " * (HEADER_KEPT_BYTES_MAX + 1), 100)) is None
    headers = [b"%d" % number for number in range(PLANS_KEPT_MAX + 1)]
    for header in headers:
        plans.remember((header, 100), job(slot), slot, ALL_BINARY)
    assert [header for header in headers if plans.find((header, 100))] == headers[-1:]


class TestKnown:
    """RequestPlans by what frontends have that goes with them."""

    @pytest.fixture
    def plan(self, memory):
        plans = RequestPlans()
        slot = memory.allocate(100, 20)
        plans.remember((HEADER, 80), job(slot, ("FP32", 20, 64), ("INT8", 84, 16)), slot, ALL_BINARY, 20)
        return plans.find((HEADER, 80))

    def test_by_identity(self, plan):
        """A plan is found by the identity of its head: an equal head does not find it."""
        plans, head, other = RequestPlans(), ["head"], ["head"]
        assert plan.known is None
        assert plans.find_known(head) is None
        plans.remember_known(head, plan)
        assert plans.find_known(head) is plan
        assert plans.find_known(other) is None

    def test_the_latest(self, plan, memory):
        """Another plan takes its place."""
        plans, head, slot = RequestPlans(), ("head",), memory.allocate(64)
        plans.remember((HEADER, 64), job(slot, ("FP32", 0, 64)), slot, ALL_BINARY)
        plans.remember_known(head, plan)
        plans.remember_known(head, plans.find((HEADER, 64)))
        assert plans.find_known(head) is plans.find((HEADER, 64))

    def test_limit(self, plan):
        """As many as plans are kept, and none is found by a head that has come to be where another one was."""
        plans = RequestPlans()
        for number in range(3 * PLANS_KEPT_MAX):
            head = [number]
            assert plans.find_known(head) is None
            plans.remember_known(head, plan)
            assert plans.find_known(head) is plan
            assert len(plans._by_head) <= PLANS_KEPT_MAX

    def test_on_the_wire(self, plan):
        """Without an id, and its tensors counted from where the contents begin."""
        wire = plan.pattern()
        assert wire == [
            "",
            0,
            0,
            0,
            None,
            "",
            [("IN0", "FP32", [64], 0, 64, 0, 0), ("IN1", "INT8", [16], 64, 16, 0, 0)],
            "",
            None,
        ]
        wire[5] = "changed"
        assert plan.pattern()[5:7] == ["", [("IN0", "FP32", [64], 0, 64, 0, 0), ("IN1", "INT8", [16], 64, 16, 0, 0)]]
