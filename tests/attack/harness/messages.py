# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of gRPC that are small on the wire and large in a parser: few fields, millions of elements. (pure)

A message is a list of runs, so that its lengths are known before its contents are made.
"""

from .bombs import MIB, Run, fill, size_of

# Below the limit for a decompressed message, which is 64 MiB.
SIZE = 60 * MIB
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
# Fields of ModelInferRequest.
MODEL, VERSION, ID, PARAMETERS, INPUTS, OUTPUTS, RAWS = range(1, 8)
# Fields of InferInputTensor.
NAME, DATATYPE, SHAPE, INPUT_PARAMETERS, CONTENTS = range(1, 6)
# Fields of InferTensorContents.
BOOL, INT, INT64, UINT, UINT64, FP32, FP64, BYTES_CONTENTS = range(1, 9)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    text = bytearray()
    while number > 127:
        text.append(number & 127 | 128)
        number >>= 7
    return bytes([*text, number])


def tag(number: int, kind: int = BYTES) -> bytes:
    """The tag of a field."""
    return varint(number << 3 | kind)


def field(number: int, *runs: Run) -> list[Run]:
    """A field of bytes, text or a message."""
    return [Run(tag(number) + varint(size_of(*runs))), *runs]


def text(number: int, value: str) -> list[Run]:
    """A field of text."""
    return field(number, Run(value.encode()))


def infer(*runs: Run, model: str = "numbers") -> list[Run]:
    """A ModelInferRequest that goes on with these."""
    return [*text(MODEL, model), *runs]


def tensor(*runs: Run, datatype: str = "INT64", shape: bytes = b"\x01") -> list[Run]:
    """An input that goes on with these."""
    head = [*text(NAME, "IN"), *text(DATATYPE, datatype), *field(SHAPE, Run(shape))]
    return field(INPUTS, *head, *runs)


def contents(*runs: Run, **about: str) -> list[Run]:
    """A ModelInferRequest whose one input has these contents."""
    return infer(*tensor(*field(CONTENTS, *runs), **about))


def repeated_empty(number: int, size: int = SIZE) -> Run:
    """Empty fields without end."""
    return fill(tag(number) + b"\0", size)


def raw_strings(size: int = SIZE) -> list[Run]:
    """A request of empty strings in raw contents, one fewer than its shape says: all of them are counted."""
    head = tensor(datatype="BYTES", shape=varint(size // 4 + 1))
    return infer(*head, *field(RAWS, fill(bytes(4), size)), model="texts")


def infer_bombs(size: int = SIZE) -> dict[str, list[Run]]:
    """Requests for ModelInfer and ModelStreamInfer, by the field that is repeated."""
    zeros = fill(b"\0", size)
    return {
        "empty bytes_contents": contents(repeated_empty(BYTES_CONTENTS, size), datatype="BYTES"),
        "packed int_contents": contents(*field(INT, zeros)),
        "packed int64_contents": contents(*field(INT64, zeros)),
        "packed bool_contents": contents(*field(BOOL, zeros), datatype="BOOL"),
        "packed fp32_contents": contents(*field(FP32, zeros), datatype="FP32"),
        "unpacked uint_contents": contents(fill(tag(UINT, VARINT) + b"\0", size)),
        "many packed contents of one": contents(fill(tag(INT64) + b"\1\0", size)),
        "many contents": infer(*tensor(repeated_empty(CONTENTS, size))),
        "dimensions": infer(*field(INPUTS, *text(NAME, "IN"), *field(SHAPE, zeros))),
        "empty inputs": infer(repeated_empty(INPUTS, size)),
        "empty outputs": infer(repeated_empty(OUTPUTS, size)),
        "empty raw contents": infer(repeated_empty(RAWS, size)),
        "empty parameters": infer(repeated_empty(PARAMETERS, size)),
        "parameters of an input": infer(*tensor(repeated_empty(INPUT_PARAMETERS, size))),
        "model names": infer(fill(tag(MODEL) + b"\1m", size)),
        "unknown fields": infer(fill(tag(1000, VARINT) + b"\0", size)),
        "groups": infer(fill(tag(1000, GROUP), size)),
        "long id": infer(*field(ID, fill(b"x", size))),
    }


def other_bombs(size: int = SIZE) -> dict[str, list[Run]]:
    """The same for the other procedures, by their path."""
    service = "/inference.GRPCInferenceService"
    return {
        f"{service}/ServerLive": [fill(tag(1000, VARINT) + b"\0", size)],
        f"{service}/RepositoryIndex": [fill(tag(1) + b"\1m", size)],
        f"{service}/RepositoryModelLoad": [fill(tag(3) + b"\0", size)],
        f"{service}/RepositoryModelUnload": [fill(tag(3) + b"\0", size)],
        f"{service}/ModelStatistics": [fill(tag(1) + b"\0", size)],
        f"{service}/TraceSetting": [fill(tag(1) + b"\0", size)],
        f"{service}/LogSettings": [fill(tag(1) + b"\0", size)],
        f"{service}/SystemSharedMemoryRegister": [fill(tag(1) + b"\1m", size)],
        "/grpc.health.v1.Health/Check": [fill(tag(1) + b"\1m", size)],
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": [fill(tag(5) + b"\0", size)],
    }
