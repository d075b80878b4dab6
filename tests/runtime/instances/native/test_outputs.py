# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import weakref

import pytest

from pyruntime.runtime.instances.native import outputs as module
from pyruntime.runtime.instances.native.outputs import NativeOutputs
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import OutOfMemoryError


class Buffer:
    """The contents of an output, at an address."""

    def __init__(self, at):
        self.address = at


class Native:
    """The extension. `failure` is what it raises."""

    def __init__(self, failure=None):
        self.failure = failure
        self.regions = []

    def OutputRegion(self, *args):
        if self.failure is not None:
            raise self.failure
        self.regions.append(args)
        return args


@pytest.fixture
def native():
    return Native()


@pytest.fixture
def outputs(native):
    made = NativeOutputs(native, "m_0")
    yield made
    made.close()


def response(*buffers):
    """A response with these outputs, shared by `outputs`."""
    tensors = [OutputTensor(f"OUT{index}", "INT8", [1], b"x") for index, _ in enumerate(buffers)]
    return InferResponse("m", 1, "", tensors)


def test_no_region_before_it_is_needed(outputs, native):
    assert outputs.region is None
    assert outputs.used_bytes == 0
    assert native.regions == []


def test_region(outputs, native):
    """There is one for all requests. Native code gets all of it but the flags."""
    made = outputs.allocating()
    assert outputs.allocating() is made
    region = outputs.region
    ((descriptor, size, first, _),) = native.regions
    assert (descriptor, size, first) == (region.fileno(), region.limit, address(region.number, 0))
    region.commit(0, 1 << 20)
    assert outputs.used_bytes >= 1 << 20


def test_outputs_in_the_region(outputs):
    """Those in the region are kept until the response is released, though nothing else refers to them."""
    outputs.allocating()
    region = outputs.region
    buffers = [Buffer(address(region.number, 4096)), Buffer(0), Buffer(address(region.number + 1, 64))]
    made = response(*buffers)
    outputs.share(made, buffers)
    assert [each.address for each in made.outputs] == [buffers[0].address, 0, 0]
    assert list(made.regions) == [region]
    kept = weakref.ref(buffers[0])
    buffers.clear()
    assert kept() is not None
    made.release()
    assert kept() is None


def test_no_output_in_the_region(outputs):
    """Such a response refers to no region."""
    outputs.allocating()
    made = response(Buffer(0))
    outputs.share(made, [Buffer(0)])
    assert (made.outputs[0].address, list(made.regions)) == (0, [])
    made.release()


@pytest.mark.parametrize("is_created", [True, False])
def test_no_memory(outputs, native, monkeypatch, caplog, is_created):
    """Without a region outputs stay in the process's own memory. The next request has another one tried."""

    def fail(purpose):
        raise OutOfMemoryError("none left")

    if is_created:
        native.failure = OSError("no addresses")
    else:
        monkeypatch.setattr(module, "create_region", fail)
    assert outputs.allocating() is None
    assert outputs.region is None
    assert "m_0: no shared memory for outputs: " in caplog.text
    monkeypatch.undo()
    native.failure = None
    assert outputs.allocating() is not None


def test_close(outputs):
    """What others still read stays until they are done."""
    outputs.allocating()
    region = outputs.region
    region.count_on()
    outputs.close()
    outputs.close()
    assert outputs.region is None
    assert region.used_bytes > 0
    region.close()
    assert region.used_bytes == 0
