# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that a library reads and writes: that of the requests, and memory that becomes the response's."""

import ctypes
import shutil
import weakref

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.backends.custom.abi import CustomPayload
from pyruntime.backends.custom.payload import Payload
from pyruntime.stub.memory import Source

DATATYPES = {"A": "FP32", "B": "BYTES", "C": "BF16"}


class Memory(Source):
    """Where tensors of a region are, for a test to write to."""

    def __init__(self, contents):
        self.contents = bytearray(contents)

    def buffer(self, at, size):
        return self.contents, at

    def read(self, at, size):
        return bytes(self.contents[at : at + size])


def request(*tensors, outputs=("A", "B", "C")):
    return pb_utils.InferenceRequest(inputs=tensors, requested_output_names=outputs, model_name="m")


def address_of(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


@pytest.mark.parametrize(("datatype", "shape"), [("FP32", [2]), ("BYTES", [2]), ("BF16", [4])])
def test_inputs_are_where_they_are(datatype, shape):
    """A block is a part of the region of the request, for every datatype and shape."""
    memory = Memory(range(32))
    payload = Payload(
        request(pb_utils.Tensor._from_region(memory, ["IN", datatype, shape, 8, 8, 0, 0])), DATATYPES, False
    )
    assert payload.next_input(b"IN", None) == (address_of(memory.contents) + 8, 8, None)
    assert payload.next_input(b"IN", None) == (None, 0, None)
    assert payload.next_input(b"IN", None) == (None, 0, None)


def test_arrays_are_where_they_are():
    """An array that is in order is not copied, and one that is not comes in order."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    payload = Payload(request(pb_utils.Tensor("X", array), pb_utils.Tensor("Y", array.T)), DATATYPES, False)
    assert payload.next_input(b"X", None) == (array.ctypes.data, 24, None)
    address, size, _ = payload.next_input(b"Y", None)
    assert list((ctypes.c_int32 * 6).from_address(address)) == [0, 3, 1, 4, 2, 5]
    assert size == 24


def test_no_such_input():
    """An input that the request does not have is a KeyError."""
    with pytest.raises(KeyError):
        Payload(request(), DATATYPES, False).next_input(b"X", None)


def test_description():
    """Names, shapes without the batch, and the outputs that are asked for, in the configuration's order."""
    inputs = [pb_utils.Tensor("X", np.zeros((3, 2, 5), np.int8)), pb_utils.Tensor("Y", np.zeros((3,), np.int8))]
    described = CustomPayload()
    Payload(request(*inputs, outputs=("C", "A")), DATATYPES, True).describe(described, 7)
    assert (described.batch_size, described.input_cnt, described.output_cnt, described.error_code) == (3, 2, 2, 0)
    assert [described.input_names[index] for index in range(2)] == [b"X", b"Y"]
    assert [described.input_shape_dim_cnts[index] for index in range(2)] == [2, 0]
    assert described.input_shape_dims[0][:2] == [2, 5]
    assert [described.required_output_names[index] for index in range(2)] == [b"A", b"C"]
    assert (described.input_context, described.output_context) == (7, 7)


@pytest.mark.parametrize(("shape", "batch_size"), [((4, 1), 4), ((0, 1), 1)])
def test_batch_size(shape, batch_size):
    """The first dimension where the model batches; never less than 1."""
    tensor = pb_utils.Tensor("X", np.zeros(shape, np.int8))
    assert Payload(request(tensor), DATATYPES, True).batch_size == batch_size
    assert Payload(request(tensor), DATATYPES, False).batch_size == 1
    assert Payload(request(), DATATYPES, True).batch_size == 1


def test_outputs_are_what_was_written():
    """The memory that the library gets is the tensor's."""
    payload = Payload(request(), DATATYPES, False)
    address, _ = payload.output(b"A", [2], 8, None)
    (ctypes.c_float * 2).from_address(address)[:] = [1.5, 2.5]
    bits, _ = payload.output(b"C", [1], 2, None)
    ctypes.c_uint16.from_address(bits).value = 0x3F80
    texts, _ = payload.output(b"B", [1, 2], 9, None)
    ctypes.memmove(texts, b"\1\0\0\0x\0\0\0\0", 9)
    a, c, b = payload.response().output_tensors()
    assert a.as_numpy().tolist() == [1.5, 2.5]
    assert a.as_numpy().ctypes.data == address
    assert c._encoded().tolist() == [0x3F80]
    assert b.as_numpy().tolist() == [[b"x", b""]]


@pytest.mark.parametrize(
    "encoded", [b"", b"\1\0\0\0x", b"\1\0\0\0x\0\0\0", b"\1\0\0\0x\2\0\0\0y", b"\0\0\0\0" * 3, b"\xff\xff\xff\xff" * 2]
)
def test_what_are_no_two_texts(encoded):
    """Two elements are two elements, and the last one ends with the contents."""
    payload = Payload(request(), DATATYPES, False)
    ctypes.memmove(payload.output(b"B", [2], len(encoded), None)[0], encoded, len(encoded))
    assert payload.response().error().message() == "output 'B' is no BYTES of the shape [2]"


def test_nothing_of_a_request_is_kept(load_model, compile_library, tmp_path, monkeypatch):
    """When the library has answered, nothing refers to the memory of its requests any longer."""
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text("""
        platform: "custom" parameters { key: "NO_BATCH" value { string_value: "" } }
        input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
    """)
    shutil.copy(compile_library("custom/identity.c"), tmp_path / "m/1/libcustom.so")
    model = load_model(tmp_path / "m")
    seen = []

    class Seen(Payload):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(weakref.ref(self))

    monkeypatch.setattr(model.module, "Payload", Seen)
    assert model.infer({"INPUT0": ["text"]})["OUTPUT0"].tolist() == [b"text"]
    assert [each() for each in seen] == [None]
