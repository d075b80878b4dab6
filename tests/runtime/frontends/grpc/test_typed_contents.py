# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Typed contents, as native code packs them from the wire, are what protobuf reads and struct packs.

Messages are of any fields in any order, and of any damage; the reference parses all of them with protobuf.
"""

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc.infer_request import decode_infer, describe_typed, read_target
from pyruntime.runtime.native._http2 import pack, split
from pyruntime.utils.errors import InferenceError

ALIGNMENT = 64
BASE = 1 << 20
UNREADABLE = "unreadable"

CONTENTS = (
    ("bool_contents", "BOOL", {"BOOL": "?"}),
    ("int_contents", "INT32", {"INT8": "b", "INT16": "h", "INT32": "i"}),
    ("int64_contents", "INT64", {"INT64": "q"}),
    ("uint_contents", "UINT32", {"UINT8": "B", "UINT16": "H", "UINT32": "I"}),
    ("uint64_contents", "UINT64", {"UINT64": "Q"}),
    ("fp32_contents", "FP32", {"FP32": "f"}),
    ("fp64_contents", "FP64", {"FP64": "d"}),
    ("bytes_contents", "BYTES", {"BYTES": ""}),
)
DATATYPES = [*(name for _, _, codes in CONTENTS for name in codes), "FP16", "BF16", "", "INT", "BYTES2"]


class NoMemory:
    """A client's shared memory, which has no regions."""

    def input(self, *place):
        raise InferenceError("there is no region")

    output = input


def packed_by_struct(model, name, datatype, contents):
    """The contents of one input, or the refusal: the rules of Triton, over what protobuf has parsed."""
    packed = b""
    for member, kind, codes in CONTENTS:
        values = getattr(contents, member)
        if not values:
            continue
        if datatype not in codes:
            return (
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{kind}', "
                f"expected datatype '{datatype}'"
            )
        code = codes[datatype]
        if not code:
            packed = b"".join(struct.pack("<I", len(value)) + value for value in values)
        elif code == "f":
            # Python makes a double of each, and so may make another NaN: the bits on the wire count.
            packed = b"".join(nan_or(value, struct.pack("<f", value)) for value in values)
        else:
            try:
                packed = struct.pack(f"<{len(values)}{code}", *values)
            except struct.error:
                return f"'{member}' of input '{name}' has values out of the range of {datatype}"
    return packed


def nan_or(value, packed):
    return packed if value == value else b"nan!"


def by_protobuf(data):
    """The contents of all inputs, the first refusal, or UNREADABLE, as protobuf reads them."""
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return UNREADABLE
    found = []
    for entry in message.inputs:
        if not entry.HasField("contents"):
            return f"unable to find data for input tensor '{entry.name}' for model '{message.model_name}' in request."
        packed = packed_by_struct(message.model_name, entry.name, entry.datatype, entry.contents)
        if isinstance(packed, str):
            return packed
        found.append((entry.name, entry.datatype, list(entry.shape), packed))
    return found


def by_native_code(data):
    """The same, as the server reads it."""
    parts = split(data, ALIGNMENT)
    if parts is None:
        return UNREADABLE
    key, id, raws, size, typed = parts
    destination = bytearray(b"\xaa" * size)
    fits = pack(data, typed, destination, ALIGNMENT)
    try:
        id.decode()
        view = memoryview(destination)
        request, _ = decode_infer(read_target(key), "", raws, describe_typed(typed, fits), view, BASE, NoMemory())
    except UnicodeDecodeError:
        return UNREADABLE
    except InferenceError as exc:
        return UNREADABLE if "cannot be parsed" in exc.message else exc.message
    for tensor in request.inputs:
        assert tensor.offset % ALIGNMENT == 0
        assert tensor.datatype != "BYTES" or tensor.strings == count_strings(tensor.data)
    return [(tensor.name, tensor.datatype, tensor.shape, contents_of(tensor)) for tensor in request.inputs]


def count_strings(data):
    at = count = 0
    while at < len(data):
        at += 4 + struct.unpack_from("<I", data, at)[0]
        count += 1
    assert at == len(data)
    return count


def contents_of(tensor):
    data = bytes(tensor.data)
    if tensor.datatype != "FP32":
        return data
    return b"".join(nan_or(value, data[4 * i : 4 * i + 4]) for i, (value,) in enumerate(struct.iter_unpack("<f", data)))


def varint(number):
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def field(number, kind, value=b""):
    """A field of protobuf; of type 2 with its length."""
    return varint(number << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value


numbers = st.one_of(
    st.integers(0, 300),
    st.sampled_from([2**7, 2**8, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**63, 2**64 - 129]),
    st.integers(1, 2**31).map(lambda value: 2**64 - value),
    st.integers(0, 2**64 - 1),
)
varints = numbers.map(varint)
scalars = {
    0: varints,
    1: st.binary(min_size=8, max_size=8),
    2: st.binary(max_size=9),
    5: st.binary(min_size=4, max_size=4),
}
any_field = st.sampled_from([0, 1, 2, 5]).flatmap(
    lambda kind: st.builds(field, st.integers(1, 9), st.just(kind), scalars[kind])
)


def pieces_of(member):
    """Fields that hold elements of a member: one of them, or several together."""
    if member == 8:
        return st.builds(field, st.just(8), st.just(2), st.binary(max_size=9))
    kind = {6: 5, 7: 1}.get(member, 0)
    together = st.lists(scalars[kind], max_size=5).map(b"".join)
    return st.one_of(
        st.builds(field, st.just(member), st.just(kind), scalars[kind]),
        st.builds(field, st.just(member), st.just(2), together),
    )


contents = st.lists(st.one_of(*map(pieces_of, range(1, 9)), any_field), max_size=3).map(b"".join)
inputs = st.builds(
    lambda datatype, parts: (datatype, parts),
    st.sampled_from(DATATYPES),
    st.lists(
        st.one_of(
            contents.map(lambda body: field(5, 2, body)),
            st.sampled_from(DATATYPES).map(lambda name: field(2, 2, name.encode())),
            st.just(field(1, 2, b"IN")),
            st.lists(st.integers(0, 300).map(varint), max_size=2).map(lambda dims: field(3, 2, b"".join(dims))),
            st.builds(field, st.integers(6, 20), st.just(0), varints),
        ),
        max_size=5,
    ),
)


def member_of(datatype):
    return next((i for i, (_, _, codes) in enumerate(CONTENTS, 1) if datatype in codes), 1)


@st.composite
def likely_inputs(draw):
    """Inputs whose contents belong to their datatype, in several pieces and at any place."""
    datatype = draw(st.sampled_from(DATATYPES))
    bodies = draw(st.lists(st.lists(pieces_of(member_of(datatype)), max_size=4).map(b"".join), min_size=1, max_size=3))
    parts = [field(5, 2, body) for body in bodies] + [field(2, 2, datatype.encode()), field(1, 2, b"A")]
    return field(5, 2, b"".join(draw(st.permutations(parts))))


messages = st.lists(
    st.one_of(
        inputs.map(lambda entry: field(5, 2, field(2, 2, entry[0].encode()) + b"".join(entry[1]))),
        likely_inputs(),
        st.just(field(1, 2, b"m")),
        st.builds(field, st.integers(8, 20), st.just(0), varints),
    ),
    max_size=4,
).map(b"".join)


@given(messages)
@example(field(5, 2, field(2, 2, b"BOOL") + field(5, 2, field(1, 2, b"\x00\x80\x01\x02"))))
@example(field(5, 2, field(2, 2, b"INT8") + field(5, 2, field(2, 0, varint(2**32 + 127)))))
@example(field(5, 2, field(2, 2, b"INT8") + field(5, 2, field(2, 0, varint(128)))))
@example(field(5, 2, field(5, 2, field(8, 2, b"late")) + field(2, 2, b"INT8") + field(2, 2, b"BYTES")))
@example(field(5, 2, field(2, 2, b"FP32") + field(5, 2)))
@example(field(5, 2, field(2, 2, b"FP32") + field(5, 2, field(6, 2, b"1234567"))))
def test_packed_as_by_protobuf(message):
    """Arbitrary fields have the same result as with protobuf."""
    assert by_native_code(message) == by_protobuf(message)


def has_group(data):
    """Whether a tag of a group, or one that native code takes for such, may be there."""
    return any(byte & 7 in (3, 4) for byte in data)


@given(messages.filter(bool), st.data())
def test_damaged(message, data):
    """A damaged message is read as protobuf reads it, or refused like it. Only groups are always refused."""
    at = data.draw(st.integers(0, len(message) - 1))
    damage = data.draw(st.sampled_from(["cut", "change", "insert", "drop"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    after = {"cut": b"", "change": byte + message[at + 1 :], "insert": byte + message[at:], "drop": message[at + 1 :]}
    damaged = message[:at] + after[damage]
    try:
        found = by_native_code(damaged)
    except ValueError:  # raw contents or limits: they have tests of their own
        return
    expected = by_protobuf(damaged)
    if found != expected and not is_of_other_fields(damaged):
        assert found == UNREADABLE
        assert has_group(damaged)


def is_of_other_fields(data):
    """Whether the damage made another field of a request, which the reference knows nothing about."""
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return False
    entries = [*message.inputs, *message.outputs]
    known = message.raw_input_contents or message.parameters or message.model_version
    return bool(
        known or any(entry.parameters for entry in entries) or any(min(e.shape, default=0) < 0 for e in entries)
    )


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 8])
def test_without_the_lock(size):
    """Long messages are read without Python's lock, with the same result."""
    message = service_pb2.ModelInferRequest(model_name="m")
    for _ in range(2):
        entry = message.inputs.add(name="A", datatype="INT16", shape=[size])
        entry.contents.int_contents.extend([-1, 5] * (size // 2))
    data = message.SerializeToString()
    found = by_native_code(data)
    assert [contents for *_, contents in found] == [struct.pack("<2h", -1, 5) * (size // 2)] * 2


def test_another_message():
    """Contents are not packed from a message that is not the one that was split."""
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(datatype="INT16").contents.int_contents.extend([1, 2])
    data = message.SerializeToString()
    _, _, _, size, typed = split(data, ALIGNMENT)
    for other in (data[:-1], b"", data.replace(b"INT16", b"INT32"), data.replace(b"INT16", b"INT99"), b"\xff" * 40):
        with pytest.raises(ValueError, match="do not lie in the message, or do not fit"):
            pack(other, typed, bytearray(size), ALIGNMENT)
    with pytest.raises(ValueError, match="do not fit"):
        pack(data, typed, bytearray(size - 1), ALIGNMENT)
