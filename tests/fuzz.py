# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Any bytes, to every pure parser: run by scripts/fuzz, and no part of the tests.

A parser reads its input or refuses it with an error that it says it raises; any other exception is found.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["pyruntime"]):
    from pyruntime.runtime.config.build import model_spec
    from pyruntime.runtime.config.normalize import normalize
    from pyruntime.runtime.config.parse import parse_model_config
    from pyruntime.runtime.config.validate import validate
    from pyruntime.runtime.frontends.grpc import infer_request
    from pyruntime.runtime.frontends.http.generate_request import decode_generate
    from pyruntime.runtime.frontends.http.kserve_request import decode_infer
    from pyruntime.runtime.frontends.http.long_strings import LongStrings
    from pyruntime.runtime.frontends.http.raw_request import decode_raw
    from pyruntime.runtime.frontends.http.repository_request import decode_load, decode_unload
    from pyruntime.runtime.frontends.http.request_head import HEAD_END, BadRequest, ChunkedBody, HeadReader
    from pyruntime.runtime.native._http2 import pack, split
    from pyruntime.utils.errors import InferenceError, LoadError

CONFIG = b"""
backend: "python"
input [
  { name: "IN" data_type: TYPE_FP32 dims: [ -1, 2 ] },
  { name: "S" data_type: TYPE_STRING dims: [ -1 ] optional: true }
]
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
ONE_INPUT = b'backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
# Where raw contents of messages are to lie: see infer_request.py.
ALIGNMENT = 64


class NoMemory:
    """A client's shared memory, which has no regions."""

    def input(self, *place):
        raise InferenceError("there is no region")

    output = input


def spec_of(text):
    """The specification that requests are checked with."""
    return model_spec(normalize(parse_model_config(text, "m"), directory_name="m", files=["model.py"], gpus=()))


SPEC, ONE = spec_of(CONFIG), spec_of(ONE_INPUT)
read_head = HeadReader().read


def read_config(data):
    """The text of a configuration, as far as a server takes it before it starts anything."""
    config = normalize(parse_model_config(data, "m"), directory_name="m", files=["model.py"], gpus=())
    validate(config, ())
    model_spec(config)


def read_message(data):
    """A ModelInferRequest."""
    try:
        parts = split(data, ALIGNMENT)
    except ValueError:
        return
    if parts is not None:
        key, _, raws, size, typed = parts
        packed = bytearray(0 if raws else size)
        fits = [True] * len(typed) if raws else pack(data, typed, packed, ALIGNMENT)
        view = memoryview(data if raws else packed)
        described = infer_request.describe_typed(typed, fits)
        infer_request.decode_infer(infer_request.read_target(key), "", raws, described, view, 0, NoMemory())


PARSERS = [
    lambda data: read_head(data + HEAD_END),
    lambda data: ChunkedBody().feed(data),
    lambda data: decode_infer(memoryview(data), None, SPEC),
    lambda data: decode_infer(memoryview(data), len(data) // 2, SPEC),
    lambda data: decode_generate(LongStrings(data), SPEC),
    lambda data: decode_raw(memoryview(data), ONE, -1),
    decode_load,
    decode_unload,
    read_config,
    read_message,
]


def feed(data):
    """To all parsers, whole, and what follows a head without that head: the corpus is of whole requests."""
    head, _, body = data.partition(HEAD_END)
    for part in filter(None, {data, head, body}):
        for parse in PARSERS:
            with suppress(BadRequest, InferenceError, LoadError):
                parse(part)


atheris.Setup(sys.argv, feed)
atheris.Fuzz()
