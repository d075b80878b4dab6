# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Errors, names of enumerators, parameters, messages and attributes of buffers, as native code has them."""

import ctypes
from ctypes import byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_void_p

import pytest

CODES = ["Unknown", "Internal", "Not found", "Invalid argument", "Unavailable", "Unsupported", "Already exists"]
ACTIVITIES = """
    REQUEST_START QUEUE_START COMPUTE_START COMPUTE_INPUT_END COMPUTE_OUTPUT_START COMPUTE_END REQUEST_END
    TENSOR_QUEUE_INPUT TENSOR_BACKEND_INPUT TENSOR_BACKEND_OUTPUT CUSTOM_ACTIVITY <unknown>
"""
DATATYPES = "<invalid> BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16 <invalid>"
NAMES = {
    "DataTypeString": DATATYPES,
    "MemoryTypeString": "CPU CPU_PINNED GPU <invalid>",
    "ParameterTypeString": "STRING INT BOOL DOUBLE BYTES <invalid>",
    "InstanceGroupKindString": "AUTO CPU GPU MODEL <invalid>",
    "InferenceTraceLevelString": "DISABLED MIN MAX <unknown> TIMESTAMPS <unknown> <unknown> <unknown> TENSORS",
    "InferenceTraceActivityString": ACTIVITIES,
}
SIZES = [0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2, 0]


class TestErrors:
    @pytest.mark.parametrize(("code", "name"), [*enumerate(CODES), (7, "Cancelled")])
    def test_new(self, interface, code, name):
        """An error has the code and the message that it was made with, and its code has a name."""
        error = interface.get(c_void_p, "ErrorNew", c_int(code), b"a reason")
        assert interface.get(c_int, "ErrorCode", error) == code
        assert interface.get(c_char_p, "ErrorCodeString", error).decode() == name
        assert interface.get(c_char_p, "ErrorMessage", error) == b"a reason"
        interface.get(None, "ErrorDelete", error)

    @pytest.mark.parametrize("code", [-1, 8, 1000])
    def test_code_that_is_none(self, interface, code):
        """An unknown code is UNKNOWN."""
        error = interface.get(c_void_p, "ErrorNew", c_int(code), b"")
        assert interface.get(c_int, "ErrorCode", error) == 0
        interface.get(None, "ErrorDelete", error)

    def test_null(self, interface):
        """No message is an empty one, and no error has nothing to say."""
        error = interface.get(c_void_p, "ErrorNew", c_int(interface.INTERNAL), None)
        assert interface.get(c_char_p, "ErrorMessage", error) == b""
        interface.get(None, "ErrorDelete", error)
        interface.get(None, "ErrorDelete", None)
        assert interface.get(c_char_p, "ErrorMessage", None) == b""

    def test_message_is_copied(self, interface):
        """The text that an error was made of may change."""
        text = ctypes.create_string_buffer(b"before")
        error = interface.get(c_void_p, "ErrorNew", c_int(interface.INTERNAL), text)
        text.value = b"after"
        assert interface.get(c_char_p, "ErrorMessage", error) == b"before"
        interface.get(None, "ErrorDelete", error)


class TestNames:
    @pytest.mark.parametrize("function", NAMES)
    def test_names(self, interface, function):
        """Each enumerator has the name that Triton has for it."""
        names = NAMES[function].split()
        assert [interface.get(c_char_p, function, c_int(n)).decode() for n in range(len(names))] == names
        assert interface.get(c_char_p, function, c_int(-1)).decode() in ("<invalid>", "<unknown>")

    def test_datatypes(self, interface):
        """A datatype is found by its name, and only by that."""
        for number, name in enumerate(DATATYPES.split()[1:-1], start=1):
            assert interface.get(c_int, "StringToDataType", name.encode()) == number
        for name in (b"TYPE_FP32", b"fp32", b"STRING", b"<invalid>", b"", None):
            assert interface.get(c_int, "StringToDataType", name) == 0

    def test_sizes(self, interface):
        """Elements have their sizes; those of BYTES vary, which is 0."""
        assert [interface.get(c_uint32, "DataTypeByteSize", c_int(number)) for number in range(16)] == SIZES
        assert interface.get(c_uint32, "DataTypeByteSize", c_int(-1)) == 0

    @pytest.mark.parametrize(
        ("prefix", "version"),
        [("TRITONSERVER", (1, 34)), ("TRITONBACKEND", (1, 19)), ("TRITONREPOAGENT", (0, 1)), ("TRITONCACHE", (0, 1))],
    )
    def test_versions(self, interface, prefix, version):
        """The interfaces have the versions that libraries for today's Triton ask for."""
        major, minor = c_uint32(), c_uint32()
        function = interface.function(f"{prefix}_ApiVersion", c_void_p, c_void_p, c_void_p)
        assert function(byref(major), byref(minor)) is None
        assert (major.value, minor.value) == version


class TestParameters:
    @pytest.mark.parametrize(
        ("kind", "value"), [("STRING", b"a"), ("INT", -(1 << 62)), ("BOOL", True), ("DOUBLE", 0.5), ("BYTES", b"\0a")]
    )
    def test_new(self, interface, kind, value):
        """There are parameters of five types."""
        parameter = interface.parameter(b"name", value, getattr(interface, kind))
        assert parameter
        interface.get(None, "ParameterDelete", parameter)

    @pytest.mark.parametrize("kind", [-1, 4, 5])
    def test_type_that_is_none(self, interface, kind):
        """There is no parameter of a type that there is not; bytes, which have a size, are made otherwise."""
        assert interface.get(c_void_p, "ParameterNew", b"name", c_int(kind), b"12345678") is None

    def test_null(self, interface):
        """A parameter needs a name and a value; only empty bytes may be null."""
        assert interface.get(c_void_p, "ParameterNew", None, c_int(interface.STRING), b"") is None
        assert interface.get(c_void_p, "ParameterNew", b"name", c_int(interface.STRING), None) is None
        assert interface.get(c_void_p, "ParameterBytesNew", b"name", None, c_size_t(1)) is None
        parameter = interface.get(c_void_p, "ParameterBytesNew", b"name", None, c_size_t(0))
        assert parameter
        interface.get(None, "ParameterDelete", parameter)
        interface.get(None, "ParameterDelete", None)

    def test_too_large(self, interface):
        """There is no parameter where there is no memory for it: nothing is thrown at the library that asks."""
        assert interface.get(c_void_p, "ParameterBytesNew", b"name", b"", c_size_t(-1)) is None


class TestMessages:
    @pytest.mark.parametrize("text", [b'{"a": [1, 2.50]}', b"", b"{no JSON", b"a\0b", "é".encode()])
    def test_text(self, interface, text):
        """A message returns any text unchanged, with a NUL after it."""
        message, base, size = interface.message(text), c_void_p(), c_size_t()
        assert interface.call("MessageSerializeToJson", message, byref(base), byref(size)) is None
        assert ctypes.string_at(base, size.value + 1) == text + b"\0"
        assert interface.call("MessageDelete", message) is None


class TestBufferAttributes:
    FIELDS = [("MemoryType", c_int, 2), ("MemoryTypeId", c_int64, 7), ("ByteSize", c_size_t, 1 << 40)]

    def test_new(self, interface):
        """At first they are those of no bytes of the CPU."""
        attributes = interface.make("BufferAttributesNew")
        for name, kind, _ in self.FIELDS:
            value = kind(5)
            assert interface.call(f"BufferAttributes{name}", attributes, byref(value)) is None
            assert value.value == 0
        handle = c_void_p(5)
        assert interface.call("BufferAttributesCudaIpcHandle", attributes, byref(handle)) is None
        assert handle.value is None
        assert interface.call("BufferAttributesDelete", attributes) is None

    def test_set(self, interface):
        """Each attribute has the value that was set."""
        attributes = interface.make("BufferAttributesNew")
        handle = ctypes.create_string_buffer(64)
        for name, kind, wanted in self.FIELDS:
            assert interface.call(f"BufferAttributesSet{name}", attributes, kind(wanted)) is None
        assert interface.call("BufferAttributesSetCudaIpcHandle", attributes, handle) is None
        for name, kind, wanted in self.FIELDS:
            value = kind()
            assert interface.call(f"BufferAttributes{name}", attributes, byref(value)) is None
            assert value.value == wanted
        found = c_void_p()
        assert interface.call("BufferAttributesCudaIpcHandle", attributes, byref(found)) is None
        assert found.value == ctypes.addressof(handle)
        assert interface.call("BufferAttributesDelete", attributes) is None


class TestNulls:
    CALLS = {
        "ApiVersion": (None, None),
        "MessageNewFromSerializedJson": (None, b"", c_size_t(0)),
        "MessageSerializeToJson": (None, None, None),
        "BufferAttributesNew": (None,),
        "BufferAttributesSetMemoryType": (None, c_int(0)),
        "BufferAttributesSetMemoryTypeId": (None, c_int64(0)),
        "BufferAttributesSetCudaIpcHandle": (None, None),
        "BufferAttributesSetByteSize": (None, c_size_t(0)),
        "BufferAttributesMemoryType": (None, None),
        "BufferAttributesMemoryTypeId": (None, None),
        "BufferAttributesCudaIpcHandle": (None, None),
        "BufferAttributesByteSize": (None, None),
        "MetricFamilyNew": (None, c_int(0), b"a", b""),
        "GetMetricFamilyKind": (None, None),
        "MetricArgsNew": (None,),
        "MetricArgsSetHistogram": (None, None, c_size_t(0)),
        "MetricNew": (None, None, None, c_size_t(0)),
        "MetricValue": (None, None),
        "MetricIncrement": (None, c_double(1)),
        "MetricSet": (None, c_double(1)),
        "MetricObserve": (None, c_double(1)),
        "GetMetricKind": (None, None),
        "LogMessage": (c_int(0), None, c_int(1), b""),
        "InferenceTraceId": (None, None),
        "InferenceTraceParentId": (None, None),
        "InferenceTraceModelName": (None, None),
        "InferenceTraceModelVersion": (None, None),
        "InferenceTraceRequestId": (None, None),
        "InferenceTraceContext": (None, None),
        "InferenceTraceSetContext": (None, b""),
    }

    @pytest.mark.parametrize("function", CALLS)
    def test_refused(self, interface, function):
        """Where there must be something, nothing is an error that names the function, and no crash."""
        code, message = interface.call(function, *self.CALLS[function])
        assert code == interface.INVALID_ARG
        # MetricNew calls MetricNewWithArgs, whose name is in the message.
        assert message.startswith(f"TRITONSERVER_{function}")
        assert message.endswith(" is null")

    @pytest.mark.parametrize(
        "function",
        ["MessageDelete", "BufferAttributesDelete", "MetricFamilyDelete", "MetricArgsDelete", "MetricDelete"],
    )
    def test_deleted(self, interface, function):
        """To delete nothing is no error."""
        assert interface.call(function, None) is None

    def test_trace(self, interface):
        """A request that is not traced has no trace: functions with a null trace have no effect."""
        child = c_void_p(1)
        assert interface.call("InferenceTraceSpawnChildTrace", None, byref(child)) is None
        assert child.value is None
        assert interface.call("InferenceTraceReportActivity", None, c_size_t(1), b"a") is None
        assert interface.call("InferenceTraceDelete", None) is None
