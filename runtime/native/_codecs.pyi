# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads plain requests, and writes plain responses. Pure functions over buffers.

What a reader accepts it has read and checked whole.

What is not plain is a miss (None): the reference in Python reads it, and words the errors if it is wrong. A request
that is accepted means what it means there.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from typing_extensions import Buffer

from pyruntime.runtime.frontends.http.kserve_request import OutputOptions
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.header_pattern import Forwarded
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.request_codec import TensorRef

class PlainHeadReader:
    """Reads heads of HTTP/1.1 requests to models. It does not change. Any thread may use it."""

    def __init__(self, heads: dict[str, Head]) -> None:
        """`heads` are those of requests for each action, such as "infer", of any model.

        `asks_to_stay` says of those that a connection of HTTP/1.0 may stay.
        """

    def read(self, head: Buffer, /) -> Head | None:
        """The head in some bytes, which end with the empty line; None if it is not plain.

        It is that of its action, with what this request says, but for chunks, forwarded headers and access. Accepted
        are printable ASCII, POST, and paths without escapes; not accepted are bodies in chunks, `Upgrade`, `Connection`
        with another value than `keep-alive` and `close`, weights in `Accept-Encoding`, and unknown formats of a load
        report. All other headers have no effect.
        """

    def read_all(self, head: Buffer, /) -> tuple[Head, list[tuple[str, str]]] | None:
        """The same, and the names and values of all headers, in order and as they were written."""

def read_call(packed: bytes, /) -> tuple[str, bytes, str, bytes, Forwarded, str, str] | None:
    """The head of a call of gRPC, whose headers are packed as _http2.pyi says: the fields of CallHead.

    Nothing of it is forwarded to the model. Accepted are calls whose content type is `application/grpc` or
    `application/grpc+proto`, and whose encoding is known; not accepted are headers that matter and are there twice, and
    the format of a load report.
    """

def read_target(message: Buffer, /) -> tuple[str, int, str, int] | None:
    """The target of a ModelInferRequest: `(model, version, id, size)`.

    The version is LATEST if the request names none. `size` is how many bytes the contents of its inputs take, raw ones
    or typed ones: see InferReader.read_message.
    """

def write_answer(
    response: InferResponse, parameters: bytes, options: OutputOptions, lines: bytes, joined_max: int, /
) -> tuple[list[bytes | memoryview], int, int] | None:
    """A whole response over HTTP, with its outputs as `options` say, of which `classes` are not read.

    `(parts, the length of the body in bytes, the length of the document, 0 if nothing follows it)`. `parameters` are a
    JSON object, or nothing, and `lines` are headers besides the usual ones. The only part has all bytes of a body of no
    more than `joined_max` bytes; otherwise the first part has head and document, and each other one the contents of an
    output. None for responses as in `write_document`.
    """

def write_document(
    response: InferResponse, parameters: bytes, options: OutputOptions, /
) -> tuple[bytes, list[memoryview | bytes]] | None:
    """The document of a response over HTTP, and the contents of the outputs that follow it as binary data.

    None for texts that are not UTF-8, dimensions of more than 64 bits, and outputs that lie elsewhere than in `data`;
    of outputs in the document for those without a form in JSON or whose contents do not fill them, numbers that are not
    finite or from 1e16 on, contents of more than 4 KiB that are such numbers, and more than 64 KiB together.
    """

def write_message(response: InferResponse, final: bool | None, /) -> list[bytes | memoryview] | None:
    """The parts of a ModelInferResponse, or, unless `final` is None, of a ModelStreamInferResponse.

    `final`: it is the last response to its request. None for outputs that lie elsewhere than in `data`, and for texts
    and numbers that protobuf cannot express.
    """

# What is read of a request: (id, options, tensors, rows, priority, outputs are binary, slot). `options` has the fields
# of RequestOptions. The names, datatypes, shapes, sizes and strings of the tensors, the batch size, and the names of
# outputs are as the model declares them. Outputs are binary, or are not, all in one way or each as a dict says. `slot`
# is the memory of tensors whose contents were made, None if there are none.
Plain: TypeAlias = tuple[
    str,
    tuple[int | str, int, int, list[str] | None, str],
    list[TensorRef],
    int,
    int,
    bool | dict[str, bool],
    RequestSlot | None,
]

class InferReader:
    """Reads inference requests to one model. It does not change. Any thread may use it."""

    def __init__(
        self,
        inputs: Sequence[tuple[str, str, int, Sequence[int], bool]],
        outputs: Sequence[str],
        max_batch_size: int,
    ) -> None:
        """`inputs`: name, datatype, bytes of an element (0 for BYTES), shape with the batch dimension, if required.

        Raises ValueError for more than 64 inputs, 64 outputs, or 32 dimensions.
        """

    def read_document(
        self, body: Buffer, document_length: int, address: int, allocate: Callable[[int, int, bytes], RequestSlot], /
    ) -> Plain | None:
        """A request over HTTP, whose tensors are in the document or follow it as binary data.

        The document is the first `document_length` bytes of `body`, and the body lies at `address`, from which those of
        the tensors are counted. `allocate`, with a size, 0 and the bytes, gives memory to the contents of tensors in
        the document. What it raises is raised.
        """

    def read_generate(self, body: Buffer, allocate: Callable[[int, int, bytes], RequestSlot], /) -> Plain | None:
        """A request of the generate extension, whose members are inputs and parameters. `allocate` as above.

        Accepted are parameters that are texts, numbers and Booleans, also in "parameters", and inputs beside that.
        """

    def read_message(self, id: str, message: Buffer, memory: Buffer, address: int, /) -> Plain | None:
        """A ModelInferRequest whose target was read. The contents are copied to `memory`, which lies at `address`.

        Each of them is at the next multiple of 64. On a miss, what is in the memory has no meaning.
        """

class OutputReader:
    """Reads the outputs of responses of one stub, which lie in its region.

    It does not change. Any thread may use it.
    """

    def __init__(
        self,
        outputs: Sequence[tuple[str, str, Sequence[int]]],
        region: memoryview,
        limit: int,
        address: int,
        output_type: type[OutputTensor],
    ) -> None:
        """`outputs`: name, datatype, shape with the batch dimension, of those that the model declares.

        The region has `limit` bytes at `address`. Raises ValueError for more than 64 outputs, or 32 dimensions.
        """

    def read(self, tensors: list[object], /) -> tuple[list[OutputTensor], int] | None:
        """The outputs that these references to tensors describe, and their size in bytes.

        None unless each lies in the region, and has name, datatype and shape as they are declared.
        """
