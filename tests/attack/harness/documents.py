# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""JSON that is small on the wire or short to say, and large in a parser. (pure)"""

from .bombs import MIB, Run, fill

SIZE = 60 * MIB
# Paths that take a document.
INFER = ("/v2/models/numbers/infer", "/v2/models/native/infer")
GENERATE = ("/v2/models/numbers/generate", "/v2/models/steps/generate_stream")
SETTINGS = (
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/numbers/trace/setting",
    "/v2/repository/index",
    "/v2/repository/models/numbers/load",
    "/v2/repository/models/numbers/unload",
    "/v2/systemsharedmemory/region/a/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/region/a/register",
)
PATHS = (*INFER, *GENERATE, *SETTINGS)
INPUT = b'{"inputs":[{"name":"IN","datatype":"%b","shape":[%b],"data":[%b'


def one_input(datatype: bytes, shape: bytes, first: bytes, rest: Run, end: bytes = b"]}]}") -> list[Run]:
    """A request of one input with many elements."""
    return [Run(INPUT % (datatype, shape, first)), rest, Run(end)]


def documents(size: int = SIZE) -> dict[str, list[Run]]:
    """Documents, by the member that is repeated. Some are requests; all are JSON, except those that end too early."""
    keys = b"".join(b'"%x":0,' % number for number in range(2000))
    return {
        "empty objects": [Run(b'{"a":[{}'), fill(b",{}", size), Run(b"]}")],
        "empty lists": [Run(b'{"a":[[]'), fill(b",[]", size), Run(b"]}")],
        "empty inputs": [Run(b'{"inputs":[{}'), fill(b",{}", size), Run(b"]}")],
        "outputs": [Run(b'{"outputs":[{}'), fill(b',{"name":"OUT"}', size), Run(b"]}")],
        "keys": [Run(b"{"), fill(keys, size), Run(b'"a":0}')],
        "keys of parameters": [Run(b'{"parameters":{'), fill(keys, size), Run(b'"a":0}}')],
        "one key": [Run(b"{"), fill(b'"a":0,', size), Run(b'"a":0}')],
        "depth": [fill(b"[", size)],
        "depth of objects": [fill(b'{"a":', size)],
        "a long number": [Run(b'{"a":1'), fill(b"1", size), Run(b"}")],
        "a long fraction": [Run(b'{"a":0.1'), fill(b"1", size), Run(b"}")],
        "escapes": [Run(b'{"a":"'), fill(rb"\u0041", size), Run(b'"}')],
        "surrogates": [Run(b'{"a":"'), fill(rb"\ud83d\ude00", size), Run(b'"}')],
        "blanks": [Run(b'{"inputs":['), fill(b" ", size), Run(b"]}")],
        "blanks behind a request": [
            Run(INPUT % (b"INT64", b"1", b"1") + b"]}]}"),
            fill(b"\n", size),
        ],
        "elements": one_input(b"INT64", b"%d" % (size // 2 + 1), b"1", fill(b",1", size)),
        "elements without a shape": one_input(b"INT64", b"1", b"1", fill(b",1", size)),
        "lists of elements": one_input(b"INT64", b"1", b"[1]", fill(b",[1]", size)),
        "empty texts": one_input(b"BYTES", b"%d" % (size // 3 + 1), b'""', fill(b',""', size)),
        "NaN": one_input(b"FP32", b"%d" % (size // 4 + 1), b"NaN", fill(b",NaN", size)),
        "dimensions": [Run(b'{"inputs":[{"name":"IN","datatype":"INT64","shape":[1'), fill(b",1", size), Run(b"]}]}")],
    }
