# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What native code makes of messages of gRPC, and what the reference makes of them."""

import json

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.execution.job import request_options, tensor_refs
from pyruntime.runtime.frontends.grpc import infer_request
from pyruntime.runtime.frontends.grpc.call_request import places_of
from pyruntime.runtime.frontends.http.kserve_request import NO_CLIENT_MEMORY
from pyruntime.runtime.inference.plain_requests import PlainRequest, PlainRequests
from pyruntime.runtime.native._codecs import read_target
from pyruntime.runtime.native._http2 import pack, scatter, split
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import InferenceError

from .plain_bodies import ADDRESS


def message_reference(message, spec):
    """What the reference makes of a message: the fields of PlainRequest and the memory, other options, or an error."""
    try:
        parts = split(message, ALIGNMENT)
        if parts is None:
            return InferenceError("no message"), None
        key, id, raws, size, typed = parts
        target, memory = infer_request.read_target(key), bytearray(size)
        if typed:
            fits = [True] * len(typed) if raws else pack(message, typed, memory, ALIGNMENT)
            typed = infer_request.describe_typed(typed, fits)
        else:
            scatter(message, raws, memory, ALIGNMENT)
        places = places_of([length for _, length in raws])
        view = memoryview(memory)
        request, options = infer_request.decode_infer(
            target, id.decode(), places, typed or {}, view, ADDRESS, NO_CLIENT_MEMORY
        )
        check_request(spec, request)
    except (InferenceError, ValueError) as exc:
        return exc, None
    if options is not infer_request.PLAIN:
        return options, None
    assert (request.model_name, request.version) == (target.model, target.version)
    refs, priority = tensor_refs(request.inputs), request.priority
    plain = PlainRequest(request.id, request_options(request), refs, request.batch_size, priority, True)
    return plain, (request.model_name, request.version, memory)


def read_message(spec, message):
    """What native code makes of a message, with its target and memory; None for one that is not plain."""
    target = read_target(message)
    if target is None:
        return None, None
    model, version, id, size = target
    memory = bytearray(size)
    plain = PlainRequests(spec).read_message(id, message, memory, ADDRESS)
    return plain, (model, version, memory)


def assert_alike(read, expected):
    """The order of parameters has no meaning: protobuf does not keep it."""
    plain, target = read
    same, same_target = expected
    assert isinstance(same, PlainRequest), same
    assert json.loads(plain.options[4] or "{}") == json.loads(same.options[4] or "{}")
    same = same._replace(options=same.options._replace(parameters=plain.options[4]))
    assert plain == same
    assert list(map(type, plain.options)) == list(map(type, same.options))
    assert target == same_target
