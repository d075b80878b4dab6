# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every parameter of `triton_python_backend_utils` takes what Triton's binding takes.

The tables say what Triton 2.51 did with each value. What it refuses with a TypeError is refused in the same way, unless
a test says otherwise.
"""

import enum
import logging
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from pyruntime.stub import host as host_module
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    InferenceRequest,
    InferenceResponse,
    Logger,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    is_model_ready,
    load_model,
    unload_model,
)
from pyruntime.stub.pb_utils.arguments import INT64, UINT32, UINT64
from pyruntime.stub.pb_utils.iterator import ResponseIterator
from pyruntime.stub.pb_utils.sender import InferenceResponseSender


class Name(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """What a text may be as well; `str()` of a member is its name."""

    MEMBER = "é"


class _Number:
    """A number by its methods. Its name is that of its class, so that names of tests do not change."""

    def __repr__(self):
        return type(self).__name__


class Index(_Number):
    def __index__(self):
        return 3


class Int(_Number):
    def __int__(self):
        return 3


class Float(_Number):
    def __float__(self):
        return 3.0


class Bool(_Number):
    def __bool__(self):
        return True


def name_of(value):
    """The name of a test with a value, without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


UTF8 = "é".encode()
TEXTS = ["é", UTF8, bytearray(UTF8), np.str_("é"), np.bytes_(UTF8), Name.MEMBER]
NO_TEXTS = [5, None, ["é"], memoryview(UTF8), np.array("é"), np.array(UTF8), 1.5]

# Each is 3 or 1.
INTEGERS = [
    3, True, np.int64(3), np.uint8(3), np.int32(3), np.bool_(True), Index(), Int(), np.array(3), Fraction(7, 2),
    Decimal("3.5"), np.float32(3.5), np.float16(3),
]  # fmt: skip
NO_INTEGERS = [
    3.0,
    np.float64(3),
    "3",
    b"3",
    np.str_("3"),
    None,
    [3],
    3 + 0j,
    Float(),
    np.array([3, 4]),
    2**70,
    -(2**70),
]

TRUE = [True, 1, 2, 1.0, np.bool_(True), np.int64(1), np.float64(1), np.array(1), Bool()]
FALSE = [False, 0, 0.0, np.bool_(False), np.int64(0)]
NO_BOOLS = [None, "x", b"x", [1], {1: 1}]

# Each is 3 or 3.5.
NUMBERS = [
    3,
    3.5,
    np.float32(3.5),
    np.float64(3.5),
    np.int64(3),
    Float(),
    Index(),
    np.array(3.5),
    Fraction(7, 2),
    Decimal("3.5"),
]
NO_NUMBERS = [None, "3", b"3", bytearray(b"3"), memoryview(b"3"), np.str_("3"), Int(), 3 + 0j, [3]]


class Call(Answers):
    """A call that is over."""

    def next(self):
        return None


class Server(Host):
    """Notes what it is asked."""

    def __init__(self):
        self.calls = []
        self.asked = []
        self.measured = []
        self.told = []

    def call(self, request, decoupled):
        self.calls.append((request, decoupled))
        return Call()

    def ask(self, method, arguments):
        self.asked.append((method, *arguments))
        return 1

    def tell(self, method, arguments):
        self.told.append((method, *arguments))

    def measure(self, metric, operation, value):
        self.measured.append((operation, value))


@pytest.fixture(autouse=True)
def server():
    made = Server()
    before = host_module.set_host(made)
    yield made
    host_module.set_host(before)


ARRAY = np.zeros(1)
TENSOR = Tensor("IN", ARRAY)


def request(**fields):
    return InferenceRequest(**{"model_name": "other", "inputs": [TENSOR], "requested_output_names": ["OUT"], **fields})


def asked(server, function, *arguments, **named):
    """The last question to the server that a function leads to."""
    function(*arguments, **named)
    return server.asked[-1]


def logged(log, *arguments):
    """What a function of the logger has logged."""
    records = []
    handler = type("Handler", (logging.Handler,), {"emit": lambda self, record: records.append(record)})()
    LOGGER.addHandler(handler)
    try:
        log(*arguments)
    finally:
        LOGGER.removeHandler(handler)
    return records[0].getMessage()


# Every parameter that is a text, and what becomes of it.
TEXT_PARAMETERS = {
    "Tensor": lambda text, server: Tensor(text, ARRAY).name(),
    "Tensor.from_dlpack": lambda text, server: Tensor.from_dlpack(text, ARRAY).name(),
    "TritonError": lambda text, server: TritonError(text).message(),
    "InferenceRequest request_id": lambda text, server: request(request_id=text).request_id(),
    "InferenceRequest model_name": lambda text, server: request(model_name=text)._target[0],
    "InferenceRequest requested_output_names": lambda text, server: (
        request(requested_output_names=[text]).requested_output_names().pop()
    ),
    "MetricFamily name": lambda text, server: asked(server, MetricFamily, text, "", MetricFamily.GAUGE)[1],
    "MetricFamily description": lambda text, server: asked(server, MetricFamily, "m", text, MetricFamily.GAUGE)[2],
    "load_model model_name": lambda text, server: asked(server, load_model, text)[1],
    "load_model config": lambda text, server: asked(server, load_model, "m", text)[2],
    "unload_model model_name": lambda text, server: asked(server, unload_model, text)[1],
    "is_model_ready model_name": lambda text, server: asked(server, is_model_ready, text)[1],
}
LOG_PARAMETERS = {
    log.__name__: lambda text, server, log=log: logged(log, text)
    for log in (Logger.log, Logger.log_info, Logger.log_warn, Logger.log_error, Logger.log_verbose)
}


@pytest.mark.parametrize("text", TEXTS, ids=name_of)
@pytest.mark.parametrize(
    "become", [*TEXT_PARAMETERS.values(), *LOG_PARAMETERS.values()], ids=[*TEXT_PARAMETERS, *LOG_PARAMETERS]
)
def test_texts(server, become, text):
    """A text may be bytes, and of any class; the model reads it back as a plain str."""
    found = become(text, server)
    assert (type(found), found) == (str, "é")


@pytest.mark.parametrize("wrong", NO_TEXTS, ids=name_of)
@pytest.mark.parametrize("become", TEXT_PARAMETERS.values(), ids=list(TEXT_PARAMETERS))
def test_no_texts(server, become, wrong):
    """Nothing else is a text."""
    with pytest.raises(TypeError):
        become(wrong, server)
    assert server.asked == []


@pytest.mark.parametrize("become", LOG_PARAMETERS.values(), ids=list(LOG_PARAMETERS))
def test_none_is_no_message_of_the_log(server, become):
    with pytest.raises(TypeError, match="message must be a str"):
        become(None, server)


@pytest.mark.parametrize("become", TEXT_PARAMETERS.values(), ids=list(TEXT_PARAMETERS))
def test_bytes_that_are_no_utf8(server, become):
    """They are escaped, so that a message with them still reaches somebody."""
    assert become(b"\xff", server) == "\\xff"


@pytest.mark.parametrize("version", ["3", b"3", bytearray(b"3"), np.str_("3")], ids=name_of)
def test_version_of_is_model_ready(server, version):
    """A version is a text there; a number is refused, as in Triton."""
    assert asked(server, is_model_ready, "m", version) == ("is_model_ready", "m", "3")
    with pytest.raises(TypeError, match="model_version must be a str"):
        is_model_ready("m", 3)


@pytest.mark.parametrize(
    "files",
    [{"file:1/a": b"x"}, {b"file:1/a": "x"}, {np.str_("file:1/a"): bytearray(b"x")}, {"file:1/a": np.bytes_(b"x")}],
    ids=name_of,
)
def test_files(server, files):
    """Paths are texts, contents are bytes."""
    (found,) = asked(server, load_model, "m", files=files)[3].items()
    assert found == ("file:1/a", b"x")
    assert [type(each) for each in found] == [str, bytes]


def send(flags):
    """The flags that a sender passes on."""
    sent = []
    stream = type("Stream", (), {"send": lambda self, response, flags: sent.append(flags)})()
    InferenceResponseSender(stream).send(InferenceResponse(), flags)
    return sent[0]


def changed(method, attribute):
    """What a method of a request sets an attribute of it to."""

    def change(value):
        made = request()
        getattr(made, method)(value)
        return getattr(made, attribute)

    return change


# Every parameter that is an integer, its limits, and what becomes of it.
INTEGER_PARAMETERS = {
    "InferenceRequest model_version": (INT64, lambda value: request(model_version=value)._target[1]),
    "InferenceRequest flags": (UINT32, lambda value: request(flags=value).flags()),
    "InferenceRequest timeout": (UINT64, lambda value: request(timeout=value).timeout()),
    "InferenceRequest.set_flags": (UINT32, changed("set_flags", "_flags")),
    "InferenceRequest.set_release_flags": (UINT32, changed("set_release_flags", "_release_flags")),
    "InferenceResponseSender.send": (UINT32, send),
    "PreferredMemory": (INT64, lambda value: PreferredMemory(TRITONSERVER_MEMORY_CPU, value)._device_id),
}


@pytest.mark.parametrize("value", INTEGERS, ids=name_of)
@pytest.mark.parametrize(("limits", "become"), INTEGER_PARAMETERS.values(), ids=list(INTEGER_PARAMETERS))
def test_integers(limits, become, value):
    """An integer may be numpy's, or anything that is a number and no float. The model reads it back as an int."""
    found = become(value)
    assert type(found) is int or found is True
    assert found == int(value)


@pytest.mark.parametrize("wrong", NO_INTEGERS, ids=name_of)
@pytest.mark.parametrize(("limits", "become"), INTEGER_PARAMETERS.values(), ids=list(INTEGER_PARAMETERS))
def test_no_integers(limits, become, wrong):
    """Floats and texts are none, nor what does not fit."""
    if become is send and type(wrong) is int:
        return  # the stream refuses unknown flags, in Triton's words
    with pytest.raises(TypeError):
        become(wrong)


@pytest.mark.parametrize(("limits", "become"), INTEGER_PARAMETERS.values(), ids=list(INTEGER_PARAMETERS))
def test_limits_of_integers(limits, become):
    """As wide as in Triton's binding."""
    least, most = limits
    assert (become(least), become(most)) == (least, most)
    if become is send:
        return
    for beyond in (least - 1, most + 1, np.array(most + 1, dtype=object).item()):
        with pytest.raises(TypeError, match=f"must be an int from {least} to {most}, found {beyond}"):
            become(beyond)


@pytest.mark.parametrize("id", [3, np.int64(3), np.uint8(3), np.uint64(3), Index()], ids=name_of)
def test_correlation_id_that_is_a_number(id):
    """Triton 2.51 refuses numpy's integers here."""
    found = request(correlation_id=id).correlation_id()
    assert (type(found), found) == (int, 3)


@pytest.mark.parametrize("id", ["é", np.str_("é"), Name.MEMBER], ids=name_of)
def test_correlation_id_that_is_a_text(id):
    """Any str; bytes are none, as in Triton."""
    found = request(correlation_id=id).correlation_id()
    assert (type(found), found) == (str, "é")


@pytest.mark.parametrize(
    "wrong", [UTF8, bytearray(UTF8), 1.5, np.float32(3), Float(), Decimal(3), [], None], ids=name_of
)
def test_no_correlation_id(wrong):
    """In Triton's words."""
    with pytest.raises(TritonModelException, match=r"^Correlation ID must be integer or string$"):
        request(correlation_id=wrong)


@pytest.mark.parametrize("beyond", [-1, 2**64])
def test_limits_of_correlation_ids(beyond):
    """A correlation id has 64 bits without a sign."""
    assert request(correlation_id=2**64 - 1).correlation_id() == 2**64 - 1
    with pytest.raises(TypeError, match="correlation_id must be an int from 0 to 18446744073709551615"):
        request(correlation_id=beyond)


@pytest.mark.parametrize(("values", "expected"), [(TRUE, True), (FALSE, False)])
def test_bools(server, values, expected):
    """A flag may be any number."""
    for value in values:
        assert isinstance(request().exec(value), ResponseIterator) is expected
        assert server.calls[-1][1] is expected
        assert asked(server, unload_model, "m", value)[2] is expected


@pytest.mark.parametrize("wrong", NO_BOOLS, ids=name_of)
def test_no_bools(server, wrong):
    """None and texts are no flags."""
    with pytest.raises(TypeError, match="decoupled must be a bool"):
        request().exec(wrong)
    with pytest.raises(TypeError, match="unload_dependents must be a bool"):
        unload_model("m", wrong)
    assert (server.calls, server.asked) == ([], [])


@pytest.mark.parametrize("value", NUMBERS, ids=name_of)
def test_numbers(server, value):
    """A metric takes any number, also as the bound of a bucket."""
    family = MetricFamily("m", "", MetricFamily.GAUGE)
    metric = family.Metric()
    metric.set(value)
    metric.increment(value)
    histogram = MetricFamily("h", "", MetricFamily.HISTOGRAM)
    observed = histogram.Metric(buckets=[value])
    observed.observe(value)
    expected = 3.5 if float(value if hasattr(value, "__float__") else 3) == 3.5 else 3.0
    assert server.measured == [("set", expected), ("increment", expected), ("observe", expected)]
    assert server.asked[-1][-1] == [expected]
    assert all(type(measured) is float for _, measured in server.measured)


@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=name_of)
def test_no_numbers(server, wrong):
    """Nor any text that looks like one."""
    family = MetricFamily("m", "", MetricFamily.GAUGE)
    metric = family.Metric()
    for operation in (metric.set, metric.increment):
        with pytest.raises(TypeError):
            operation(wrong)
    with pytest.raises(TritonModelException, match="Buckets must be a list of numbers"):
        MetricFamily("h", "", MetricFamily.HISTOGRAM).Metric(buckets=[wrong])
    assert server.measured == []


@pytest.mark.parametrize(
    "names",
    [["A", "B"], ("A", "B"), np.array(["A", "B"]), np.array([b"A", b"B"]), np.array(["A", b"B"], dtype=object)],
    ids=name_of,
)
def test_lists_of_names(names):
    """A list of names may be a tuple or an array, such as a tensor of BYTES."""
    assert request(requested_output_names=names).requested_output_names() == {"A", "B"}


@pytest.mark.parametrize("wrong", ["AB", b"AB", bytearray(b"AB"), None, 5], ids=name_of)
def test_no_lists_of_names(wrong):
    """One text is not a list of its letters."""
    with pytest.raises(TypeError):
        request(requested_output_names=wrong)


@pytest.mark.parametrize("names", [[""], [b""], [np.str_("")]], ids=name_of)
def test_lists_with_an_empty_name(names):
    """In Triton's words, whatever the text is."""
    with pytest.raises(
        TritonModelException, match=r"^Requested output name for request with id '7' and model name 'm' "
    ):
        request(requested_output_names=names, request_id=b"7", model_name=b"m")


def _tensors():
    array = np.empty(1, dtype=object)
    array[0] = TENSOR
    return [[TENSOR], (TENSOR,), array]


@pytest.mark.parametrize("tensors", _tensors(), ids=["list", "tuple", "array"])
def test_lists_of_tensors(tensors):
    """So may a list of tensors."""
    assert request(inputs=tensors).inputs() == [TENSOR]
    assert InferenceResponse(tensors).output_tensors() == [TENSOR]


@pytest.mark.parametrize("wrong", [None, "x", b"x", ["x"], {"a": TENSOR}, TENSOR, 5], ids=name_of)
def test_no_lists_of_tensors(wrong):
    with pytest.raises(TypeError):
        request(inputs=wrong)
    with pytest.raises(TypeError):
        InferenceResponse(wrong)


@pytest.mark.parametrize(
    "fields", [{"preferred_memory": 1}, {"preferred_memory": TRITONSERVER_MEMORY_CPU}, {"trace": "x"}], ids=repr
)
def test_objects(fields):
    """Objects are of their own class."""
    with pytest.raises(TypeError, match="must be"):
        request(**fields)


def test_parameters():
    """Keys and values are checked by type, so that numpy's texts are texts and its numbers are none."""
    assert request(parameters={np.str_("a"): np.str_("b"), "c": True}).parameters() == '{"a": "b", "c": true}'
    for wrong in (np.int64(1), np.bool_(True), b"x", 1.5, None):
        with pytest.raises(TritonModelException, match="Expect parameters values to have type bool/int/str"):
            request(parameters={"a": wrong})
    with pytest.raises(TritonModelException, match="Expect parameters keys to have type str"):
        request(parameters={b"a": 1})


def test_labels(server):
    """Labels are texts, numpy's among them."""
    MetricFamily("m", "", MetricFamily.GAUGE).Metric(labels={np.str_("a"): np.str_("b")})
    assert server.asked[-1][2] == {"a": "b"}


@pytest.mark.parametrize("level", [None, "INFO", 9, 0, 1, True, np.int64(2), logging.INFO], ids=name_of)
def test_no_level(level):
    """A level is one of the logger's, and not its number, as in Triton."""
    with pytest.raises(TypeError, match="level must be"):
        Logger.log("text", level)
