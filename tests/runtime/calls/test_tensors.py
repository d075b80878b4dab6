# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long the memory stays in which models pass tensors to one another."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.calls.call_request import CallRequest, ValidatedSignatures
from pyruntime.runtime.calls.model_call import ModelCall
from pyruntime.runtime.calls.tensors import CallInputs, HeldResponse, LeftMemory
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address, split
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, RequestOptions

from ..model_specs import spec_from


def is_open(region):
    return region.fileno() >= 0


@pytest.fixture
def regions(new_region):
    return [new_region(), new_region()]


@pytest.fixture
def memory():
    memory = RequestMemory("callee", 1 << 20, 1 << 20)
    yield memory
    memory.close()


class TestInputs:
    def test_keep_their_regions(self, regions):
        """Regions that their owner has closed stay until the callee has read the inputs."""
        freed = []
        inputs = CallInputs(regions, lambda: freed.append([is_open(region) for region in regions]))
        for region in regions:
            region.close()
        assert all(map(is_open, regions))
        inputs.free()
        assert freed == [[True, True]]
        assert not any(map(is_open, regions))


class TestHeldResponse:
    def test_stays_where_it_is(self, regions, memory):
        """Outputs in shared memory are passed on as they are; the region stays as long as the response."""
        released = []
        region, _ = regions
        output = OutputTensor("OUT", "UINT8", [4], b"1234", address(region.number, 64))
        response = InferResponse("callee", 1, "7", [output], {}, lambda: released.append(1), regions=(region,))
        held = HeldResponse(response, memory)
        region.close()
        assert (held.response, held.regions, is_open(region), released) == (response, (region,), True, [])
        held.release()
        assert (is_open(region), released) == (False, [1])

    def test_is_copied(self, memory):
        """Outputs of a native model lie in the host alone: they are copied to where stubs can read them."""
        released = []
        outputs = [OutputTensor("A", "UINT8", [3], b"123"), OutputTensor("B", "UINT8", [70], b"x" * 70)]
        response = InferResponse("callee", 1, "7", outputs, {"p": 1}, lambda: released.append(1))
        held = HeldResponse(response, memory)
        assert held.regions == (memory.region,)
        assert held.response.parameters == {"p": 1}
        for output, copy in zip(outputs, held.response.outputs, strict=True):
            number, offset = split(copy.address)
            assert number == memory.region.number
            assert bytes(memory.region.view[offset : offset + len(output.data)]) == bytes(output.data)
        assert (memory.live, released) == (1, [])
        held.release()
        assert (memory.live, released) == (0, [1])

    def test_no_room(self):
        """Where there is no room for a copy the response is still its receiver's to release."""

        def allocate(size):
            raise InferenceError("no room", Code.UNAVAILABLE)

        output = OutputTensor("OUT", "UINT8", [1], b"1")
        response = InferResponse("callee", 1, "7", [output], {}, lambda: pytest.fail("it is released"))
        with pytest.raises(InferenceError, match="no room"):
            HeldResponse(response, SimpleNamespace(allocate=allocate))


class Version:
    """A model version that takes one input of any length."""

    spec = spec_from(
        "name: 'm' input { name: 'IN' data_type: TYPE_UINT8 dims: -1 } "
        "output { name: 'OUT' data_type: TYPE_UINT8 dims: -1 }"
    )

    def __init__(self):
        self.validated = ValidatedSignatures()
        self.jobs = []

    def start(self, job):
        self.jobs.append(job)


class TestFromCallToCall:
    def test_outputs_become_inputs(self, regions, memory):
        """The outputs of one call are the inputs of the next, without a copy, and are released when those are read."""
        released = []
        region, _ = regions
        region.view[64:68] = b"1234"
        output = OutputTensor("OUT", "UINT8", [4], region.view[64:68], address(region.number, 64))
        response = InferResponse("first", 1, "7", [output], {}, lambda: released.append(1), regions=(region,))
        held = HeldResponse(response, memory)
        region.close()
        tensors = [("IN", "UINT8", [4], output.address, 4, MEMORY_CPU, 0)]
        request = CallRequest("7", RequestOptions(), {}, tensors, held.regions)
        callee = Version()
        call = ModelCall(None, request, [CallInputs([], held.release)], lambda outcome, final: None)
        call.start(callee)
        (job,) = callee.jobs
        assert (job.tensors, job.regions, released) == (tensors, (region,), [])
        job.free()
        assert (released, is_open(region)) == ([1], False)


class TestLeftMemory:
    def test_nobody_reads(self, regions):
        """Memory that no call reads is freed at once."""
        left, freed = LeftMemory(), []
        left.leave(regions[:1], lambda: freed.append(0))
        left.free_unread()
        left.free_unread()
        assert freed == [0]

    def test_is_read(self, regions):
        """Memory is freed when the last call that reads its region has ended; other regions do not wait."""
        left, freed = LeftMemory(), []
        left.begin_reading(regions)
        left.begin_reading(regions[:1])
        left.leave(regions[:1], lambda: freed.append(0))
        left.leave(regions[1:], lambda: freed.append(1))
        left.free_unread()
        assert freed == []
        left.end_reading(regions)
        assert freed == [1]
        left.end_reading(regions[:1])
        assert freed == [1, 0]
