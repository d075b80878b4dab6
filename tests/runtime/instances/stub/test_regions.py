# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The regions that a stub may use, and for how long."""

import os

import pytest

from pyruntime.runtime.regions import ClientRegion, GpuRegion, create_region
from pyruntime.utils.channel import State
from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.messages import MapGpu, Unmap, UnmapGpu

from .far_end import Stub

GPU = GpuProperties(0, "GPU-0", "G", (8, 0), 100, 100, False)


class Lessor:
    """Has memory on a GPU."""

    def writer_ended(self, region):
        """See regions.Lessor."""

    def unused(self, region):
        """See regions.Lessor."""


@pytest.fixture
def other(new_region):
    """Another model's memory."""
    return new_region()


class TestRegions:
    def test_of_its_own(self, stub, requests):
        """A stub knows its own two regions, one of them as 0."""
        assert stub.connection.regions.find(0) is stub.connection.responses
        assert stub.connection.regions.find(requests.number) is requests

    def test_of_another(self, stub, other):
        """A stub may use the regions that it was granted; each is granted once."""
        with pytest.raises(PeerError, match=f"there is no region {other.number}, or it is none of the stub's business"):
            stub.connection.regions.find(other.number)
        stub.connection.regions.grant(other)
        stub.connection.regions.grant(other)
        assert stub.granted() == [other.number]
        assert stub.connection.regions.find(other.number) is other

    def test_of_a_client(self, stub):
        """A client's memory can be granted, but no call of the stub's may refer to it."""
        region = ClientRegion(os.memfd_create("a client's"))
        stub.connection.regions.grant(region)
        assert stub.granted() == [region.number]
        with pytest.raises(PeerError, match="none of the stub's business"):
            stub.connection.regions.find(region.number)
        region.close()
        assert stub.hear() == [Unmap([region.number])]

    def test_that_need_not_be_granted(self, stub, requests):
        """Its request region it has from the beginning."""
        stub.connection.regions.grant(requests)
        assert stub.granted() == []

    def test_its_responses_as_others_know_them(self, stub):
        """Its response region it may be given again, under the number that others know it by."""
        stub.connection.regions.grant(stub.connection.responses)
        assert stub.granted() == [stub.connection.responses.number]

    def test_that_is_closed(self, stub, other):
        """A closed region is unmapped by the stub, which may not use it any more."""
        stub.connection.regions.grant(other)
        other.close()
        assert stub.hear() == [Unmap([other.number])]
        with pytest.raises(PeerError):
            stub.connection.regions.find(other.number)

    def test_that_was_not_granted(self, stub, other):
        """A region that was not granted is not revoked."""
        stub.connection.regions.revoke(other)
        assert stub.hear() == []

    def test_while_it_loads(self, requests, other):
        """Regions are also unmapped while the model loads, because it may have called others."""
        stub = Stub("m_0", requests, State.LOADING)
        stub.connection.regions.grant(other)
        other.close()
        assert stub.hear() == [Unmap([other.number])]
        stub.close()

    def test_of_a_stub_that_is_gone(self, stub, other):
        """A stub that is gone gets no messages and holds no regions."""
        stub.connection.regions.grant(other)
        stub.connection._close()
        assert other.holders == set()
        stub.connection.regions.grant(other)
        assert other.holders == set()
        other.close()
        assert stub.hear() == []

    def test_whose_writer_has_ended(self, stub):
        """A stub that reads memory on a GPU is told to use the event of its writer no longer, if it still has it."""
        region = GpuRegion(GPU, b"handle", 16, b"event", Lessor())
        stub.connection.regions.grant(region)
        region.writer_ended()
        region.close()
        region.writer_ended()
        described = region.number, "GPU-0", b"handle"
        messages = [MapGpu(*described, event, 16) for event in (b"event", b"")]
        assert stub.hear() == [*messages, UnmapGpu(region.number)]

    def test_more_than_the_socket_holds(self, stub):
        """A stub that does not take its grants gets no more of them, and the host does not wait."""
        made = []

        def grant_another():
            made.append(create_region("a test"))
            stub.connection.regions.grant(made[-1])

        with pytest.raises(LocalError, match="m_0 cannot be given a region of shared memory"):
            [grant_another() for _ in range(10_000)]
        assert made[-1].holders == set()
        for region in made:
            region.close()
