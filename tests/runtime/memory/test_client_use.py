# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long a request keeps the regions of clients that it refers to."""

import os

import pytest

from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import ClientContents, InferRequest, InputTensor, OutputPlace
from pyruntime.utils.addresses import address


class Holder:
    """A stub that was given a region."""

    def __init__(self):
        self.revoked = []

    def revoke(self, region):
        self.revoked.append(region)


@pytest.fixture
def holder():
    return Holder()


@pytest.fixture
def a_region(holder):
    def make():
        region = ClientRegion(os.memfd_create("a client's"))
        os.ftruncate(region.fileno(), 4096)
        region.holders.add(holder)
        return region

    return make


def input_in(region):
    where = address(region.number, 0)
    return InputTensor("X", "INT8", [4], b"", where, ClientContents(region, where, 4))


def place_in(region):
    return OutputPlace("r", 0, 4, ClientContents(region, address(region.number, 0), 4))


def test_none():
    """Nearly all requests have nothing to do with the memory of clients."""
    request = InferRequest("m", inputs=[InputTensor("X", "INT8", [1], b"1")])
    assert ClientUse.of(request, lambda *_: None) is None


def test_input_is_kept_as_long_as_request_memory(a_region, holder):
    """The response is no end: a model may hold on to its inputs."""
    region, answers = a_region(), []
    use = ClientUse.of(InferRequest("m", inputs=[input_in(region), input_in(region)]), lambda *a: answers.append(a))
    assert use.regions == [region]
    region.close()  # it is unregistered
    use.respond(None, True)
    assert (answers, holder.revoked) == ([(None, True)], [])
    use.inputs.free()
    assert holder.revoked == [region]


def test_output_is_kept_to_the_last_response(a_region, holder):
    """Every response goes to the same place; request memory may be free long before."""
    region, answers = a_region(), []
    request = InferRequest("m", output_places={"Y": place_in(region), "Z": place_in(region)})
    use = ClientUse.of(request, lambda *a: answers.append(a))
    assert use.places == request.output_places
    region.close()
    use.inputs.free()
    use.respond(None, False)
    assert holder.revoked == []
    use.respond(None, True)
    assert (len(answers), holder.revoked) == (2, [region])


def test_end_without_a_response(a_region, holder):
    """A request that cannot be queued is not answered; ending it twice has no effect."""
    region = a_region()
    use = ClientUse(InferRequest("m", output_places={"Y": place_in(region)}), lambda *_: None)
    region.close()
    use.end()
    use.end()
    assert holder.revoked == [region]


def test_both(a_region, holder):
    """One region for inputs and outputs, and a second one."""
    one, two = a_region(), a_region()
    request = InferRequest("m", inputs=[input_in(one)], output_places={"Y": place_in(one), "Z": place_in(two)})
    use = ClientUse(request, lambda *_: None)
    assert use.regions == [one, two]
    one.close()
    two.close()
    use.end()
    assert holder.revoked == [two]
    use.inputs.free()
    assert holder.revoked == [two, one]
    with pytest.raises(OSError, match="Bad file descriptor"):
        one.size()
