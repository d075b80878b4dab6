# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which inputs a model keeps beyond execute: everything through which memory can be reached, and nothing else."""

import gc

import numpy as np
import pytest

from pyruntime.stub import input_lifetime, plain
from pyruntime.stub.input_lifetime import KeptInputs, held_alone
from pyruntime.stub.pb_utils import serialize_byte_tensor
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.utils.request_codec import WireRequest

BYTES = serialize_byte_tensor(np.array([b"a", b"bc"], object))


@pytest.fixture
def region(regions):
    regions.requests.map[256 : 256 + len(BYTES)] = BYTES
    return regions


@pytest.fixture(autouse=True, params=[held_alone, plain.still_held], ids=["Python", "native"])
def _look(request, monkeypatch):
    monkeypatch.setattr(input_lifetime, "held_alone", request.param)


def make(region, count=3):
    """Requests with one FP32, one askew FP64 and one BYTES input."""
    tensors = [
        ["A", "FP32", [2, 2], 0, 16, 0, 0],
        ["B", "BYTES", [2], 256, len(BYTES), 0, 0],
        ["C", "FP64", [2], 1025, 16, 0, 0],
    ]
    wires = [WireRequest("", 0, 0, 0, None, "", tensors) for _ in range(count)]
    return [InferenceRequest._from_wire(region, wire, set(), 7 + index) for index, wire in enumerate(wires)]


def executed(region, model, count=3, kept_inputs=None, batch=7):
    """Run `model` as the worker does; the indexes of retained requests, and the objects that the model kept."""
    kept_inputs = KeptInputs() if kept_inputs is None else kept_inputs
    requests = make(region, count)
    kept = model(requests)
    held = kept_inputs.find(batch, requests)
    requests = None
    kept_inputs.watch(held)
    return [serial - batch for serial in held], kept_inputs, kept


def arrays(requests):
    for request in requests:
        for tensor in request.inputs():
            tensor.as_numpy()


class Holder:
    """Holds a buffer of the array, as torch does with an array whose memory it shares."""

    def __init__(self, array):
        self.buffer = memoryview(array)


class TestNothingKept:
    def test_by_a_model_that_does_nothing(self, region):
        """Untouched requests are not kept."""
        held, kept_inputs, _ = executed(region, lambda requests: None)
        assert held == []
        assert len(kept_inputs.watched) == 0

    def test_by_a_model_that_reads(self, region):
        """Requests whose inputs were all read are not kept."""
        held, _, _ = executed(region, arrays)
        assert held == []

    def test_by_a_model_that_computes(self, region):
        """Results that are copies retain nothing."""
        held, _, kept = executed(region, lambda requests: [each.inputs()[0].as_numpy() + 1 for each in requests])
        assert held == []
        assert len(kept) == 3

    def test_small_things(self, region):
        """Ids, names, shapes and parameters are no memory."""

        def model(requests):
            each = requests[0]
            return each.request_id(), each.parameters(), each.requested_output_names(), each.inputs()[0].shape()

        assert executed(region, model)[0] == []

    def test_bytes_arrays(self, region):
        """Elements of BYTES are copies: keeping them, or their array, retains nothing."""

        def model(requests):
            array = requests[1].inputs()[1].as_numpy()
            return [array, array[0]]

        held, _, kept = executed(region, model)
        assert held == []
        assert kept[0].tolist() == [b"a", b"bc"]

    def test_no_requests(self, region):
        """A batch of none retains none."""
        assert executed(region, lambda requests: None, count=0)[0] == []

    def test_after_an_exception(self, region):
        """A failed execute that kept nothing retains nothing, once its traceback is gone."""

        def model(requests):
            array = requests[0].inputs()[0].as_numpy()
            try:
                raise ValueError(array.shape)
            except ValueError:
                pass

        assert executed(region, model)[0] == []


KEEPERS = {
    "array": lambda request: request.inputs()[0].as_numpy(),
    "view": lambda request: request.inputs()[0].as_numpy()[0],
    "view_of_a_view": lambda request: request.inputs()[0].as_numpy().T[1:].reshape(-1),
    "memoryview": lambda request: memoryview(request.inputs()[0].as_numpy()),
    "holder": lambda request: Holder(request.inputs()[0].as_numpy()),
    "dlpack": lambda request: request.inputs()[0].to_dlpack(),
    "from_dlpack": lambda request: np.from_dlpack(request.inputs()[0]),
    "tensor": lambda request: request.inputs()[0],
    "tensor_of_bytes": lambda request: request.inputs()[1],
    "inputs": lambda request: request.inputs(),
    "request": lambda request: request,
    "method": lambda request: request.inputs()[0].as_numpy,
    "closure": lambda request: lambda: request,
    "iterator": lambda request: iter(request.inputs()[0].as_numpy()),
}


class TestKept:
    @pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
    def test_of_one_request(self, region, keep):
        """Every object that leads to an input retains the request of that input, and only this request."""
        held, kept_inputs, kept = executed(region, lambda requests: keep(requests[1]))
        assert held == [1]
        assert len(kept_inputs.watched) == 1
        assert kept_inputs.released() == []
        del kept
        gc.collect()
        assert kept_inputs.released() == [8]
        assert len(kept_inputs.watched) == 0
        assert kept_inputs.released() == []

    def test_of_several(self, region):
        """Each request is watched for itself."""
        held, kept_inputs, kept = executed(
            region, lambda requests: {i: requests[i].inputs()[0].as_numpy() for i in (0, 2)}
        )
        assert held == [0, 2]
        del kept[2]
        assert kept_inputs.released() == [9]
        del kept[0]
        assert kept_inputs.released() == [7]

    def test_the_list_itself(self, region):
        """A model that keeps the list of requests retains all of them."""
        held, kept_inputs, kept = executed(region, lambda requests: requests)
        assert held == [0, 1, 2]
        assert kept_inputs.released() == []
        del kept
        assert kept_inputs.released() == [7, 8, 9]

    def test_the_list_untouched(self, region):
        """Even if nothing was read yet: it may be later."""
        held, _, _ = executed(region, lambda requests: [requests])
        assert held == [0, 1, 2]

    def test_a_request_untouched(self, region):
        """A request that is kept may be read later."""
        held, _, _ = executed(region, lambda requests: requests[2])
        assert held == [2]

    def test_a_part_of_the_list(self, region):
        """A slice of the list keeps the requests in it."""
        held, _, _ = executed(region, lambda requests: requests[:2])
        assert held == [0, 1]

    def test_as_an_output(self, region):
        """An input that a response carries on is kept for as long as the response is."""
        held, kept_inputs, kept = executed(region, lambda requests: [requests[0].inputs()[0]])
        assert held == [0]
        kept.clear()
        assert kept_inputs.released() == [7]

    def test_read_through_a_kept_request(self, region):
        """An array that is made after execute, from a request that was kept, keeps it as well."""
        held, kept_inputs, kept = executed(region, lambda requests: requests[0])
        assert held == [0]
        array = kept.inputs()[0].as_numpy()
        del kept
        assert kept_inputs.released() == []
        del array
        assert kept_inputs.released() == [7]

    def test_in_a_cycle(self, region):
        """A request in a reference cycle is retained until the garbage collector frees it."""

        def model(requests):
            cycle = [requests[0].inputs()[0].as_numpy()]
            cycle.append(cycle)

        gc.disable()
        try:
            held, kept_inputs, _ = executed(region, model)
        finally:
            gc.enable()
        assert held == [0]
        gc.collect()
        assert kept_inputs.released() == [7]

    def test_askew_inputs(self, region):
        """An array that had to be copied may be kept; whether it is counted, it is reported as gone in the end."""
        held, kept_inputs, kept = executed(region, lambda requests: requests[0].inputs()[2].as_numpy())
        assert held in ([], [0])
        del kept
        assert kept_inputs.released() == [7 + index for index in held]

    def test_over_several_batches(self, region):
        """Batches come and go; each request is reported once."""
        kept_inputs = KeptInputs()
        kept = []
        for batch in (7, 10, 13):
            executed(
                region,
                lambda requests: kept.append(requests[0].inputs()[0].as_numpy()),
                kept_inputs=kept_inputs,
                batch=batch,
            )
        assert len(kept_inputs.watched) == 3
        kept.pop(0)
        assert kept_inputs.released() == [7]
        kept.clear()
        assert kept_inputs.released() == [10, 13]
        assert len(kept_inputs.watched) == 0
