# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What native code makes of requests of the generate extension, and what the reference makes of them."""

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.execution.job import request_options, tensor_refs
from pyruntime.runtime.frontends.http.generate_request import decode_generate
from pyruntime.runtime.frontends.http.long_strings import LongStrings
from pyruntime.runtime.inference.plain_requests import PlainRequest, PlainRequests
from pyruntime.utils.errors import InferenceError

from .plain_bodies import Memory, encode


def reference(spec, body):
    """What the reference makes of a request: the fields of PlainRequest, and contents; or an error."""
    memory = Memory()
    try:
        request = decode_generate(LongStrings(body), spec)
        check_request(spec, request)
    except InferenceError as exc:
        return exc, {}
    slot = memory.place(request)
    options, tensors = request_options(request), tensor_refs(request.inputs)
    plain = PlainRequest(request.id, options, tensors, request.batch_size, request.priority, False, slot)
    return plain._replace(slot=slot and slot.size), memory.find(plain.tensors)


def read(spec, body):
    """The same, as native code reads it; None for a miss, which took no memory."""
    memory = Memory()
    plain = PlainRequests(spec).read_generate(body, memory.allocate)
    if plain is None:
        assert memory.contents is None
        return None
    return plain._replace(slot=plain.slot and plain.slot.size), memory.find(plain.tensors)


def is_plain(spec, document):
    """Whether native code reads a request: then it does so as the reference does."""
    body = document if isinstance(document, bytes) else encode(document)
    found = read(spec, body)
    if found is None:
        return False
    expected = reference(spec, body)
    assert found == expected
    assert list(map(type, found[0].options)) == list(map(type, expected[0].options))
    return True
