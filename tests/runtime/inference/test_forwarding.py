# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.header_pattern import HeaderPattern
from pyruntime.runtime.inference.forwarding import RESERVED, forward
from pyruntime.runtime.inference.plain_requests import PlainRequest
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.errors import Code, InferenceError


def test_parameters():
    """A header is a parameter under its name as it was written; of several the last counts, and before a parameter."""
    request = InferRequest("m", parameters={"X-A": 1, "x-a": 2})
    forward(request.parameters, (("X-A", "3"), ("X-B", "4"), ("X-B", "5")))
    assert request.parameters == {"X-A": "3", "x-a": 2, "X-B": "5"}


@pytest.mark.parametrize("name", [*sorted(RESERVED), "Timeout", "triton_", "TRITON_ANY"])
def test_reserved_names(name):
    """A header whose name is reserved for Triton cannot be forwarded."""
    request = InferRequest("m")
    with pytest.raises(InferenceError) as caught:
        forward(request.parameters, ((name, "1"),))
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_heads():
    """A head has the forwarded headers, the first time and each later time."""
    reader = HeadReader(pattern="^x-")
    head = "POST /v2/models/m/infer HTTP/1.1\r\nX-A: é\r\nHost: any\r\nx-a:  b \r\n\r\n".encode()
    for _ in range(2):
        assert reader.read(head).forwarded == (("X-A", "é"), ("x-a", "b"))
    assert reader.read(b"GET /v2 HTTP/1.1\r\nX-Bytes: \xff\r\n\r\n").forwarded == (("X-Bytes", "\ufffd"),)
    assert HeadReader().read(head).forwarded == ()


@given(st.lists(st.tuples(st.text(max_size=10), st.text(max_size=10)), max_size=5))
def test_any_headers(headers):
    """The selected headers keep their order."""
    found = HeaderPattern("[a-m]").select(headers)
    assert found == tuple(each for each in headers if each in found)


@pytest.mark.parametrize(("text", "expected"), [("", '{"b":"é"}'), ('{"a":-7,"b":true}', '{"a":-7,"b":"é"}')])
def test_a_plain_request_has_forwarded_headers_among_its_parameters(text, expected):
    request = PlainRequest("7", (9, 1, 5, ["Y"], text), [], 1, 3, True)
    assert request.forwarding((("b", "é"),)) == request._replace(options=(9, 1, 5, ["Y"], expected))
    with pytest.raises(InferenceError, match="reserved"):
        request.forwarding((("timeout", "1"),))
