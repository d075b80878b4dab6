# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Plain requests, which native code reads and checks in one pass over their bytes. (pure)

Native code accepts a request whole, or leaves it to the reference: the decoder of its protocol and config/inputs.py,
which word the errors. What it accepts means the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import orjson

from pyruntime.runtime.config.plain import declared_inputs
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.header_pattern import Forwarded
from pyruntime.runtime.inference.forwarding import forward
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.native.plain import InferReader
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import TensorRef

# A slot for so many bytes, placed so that byte `lead` of it is aligned, with a copy of the data.
Allocate: TypeAlias = Callable[[int, int, bytes], RequestSlot]


class PlainRequest(NamedTuple):
    """What native code has read: the id, the fields of RequestOptions, the inputs, the batch size, the priority.

    `binary`: the client wants its outputs as binary data, all of them or none; or whether it wants each one so, by its
    name. `slot` is the memory of inputs whose contents were made from the document, None if there are none.
    """

    id: str
    options: tuple[int | str, int, int, list[str] | None, str]
    tensors: list[TensorRef]
    rows: int
    priority: int
    binary: bool | dict[str, bool]
    slot: RequestSlot | None = None

    def forwarding(self, forwarded: Forwarded) -> PlainRequest:
        """The same request with headers among its parameters.

        Raises InferenceError for a reserved name, and frees the slot.
        """
        sequence_id, flags, timeout_us, outputs, text = self.options
        parameters = orjson.loads(text) if text else {}
        try:
            forward(parameters, forwarded)
        except InferenceError:
            if self.slot is not None:
                self.slot.free()
            raise
        return self._replace(options=(sequence_id, flags, timeout_us, outputs, orjson.dumps(parameters).decode()))


class PlainRequests:
    """Reads the plain requests to one model."""

    def __init__(self, spec: ModelSpec) -> None:
        inputs = declared_inputs(spec)
        # None if there are no plain requests to this model.
        self._reader: InferReader | None = None
        if inputs is not None:
            self._reader = InferReader(inputs, list(spec.outputs), spec.max_batch_size)

    def read_document(
        self, body: memoryview | bytes | bytearray, document_length: int, address: int, allocate: Allocate
    ) -> PlainRequest | None:
        """A request over HTTP, whose document is the first `document_length` bytes of `body`; None if it is not plain.

        The body lies at `address`, from which the addresses of its tensors are counted. `allocate` gives memory to
        those whose contents are in the document: RequestMemory.allocate. If there is none, the reference says so.
        """
        if self._reader is None:
            return None
        try:
            fields = self._reader.read_document(body, document_length, address, allocate)
        except InferenceError:
            return None
        # As the constructor does, which costs a call.
        return None if fields is None else tuple.__new__(PlainRequest, fields)

    def read_generate(self, body: bytes | bytearray, allocate: Allocate) -> PlainRequest | None:
        """A request of the generate extension; None if it is not plain. `allocate` as in `read_document`."""
        if self._reader is None:
            return None
        try:
            fields = self._reader.read_generate(body, allocate)
        except InferenceError:
            return None
        # As the constructor does, which costs a call.
        return None if fields is None else tuple.__new__(PlainRequest, fields)

    def read_message(
        self, id: str, message: bytes, memory: memoryview | bytearray, address: int
    ) -> PlainRequest | None:
        """A message of gRPC whose target was read; None if it is not plain.

        The contents of its inputs are copied to `memory`, which lies at `address`.
        """
        if self._reader is None:
            return None
        fields = self._reader.read_message(id, message, memory, address)
        # As the constructor does, which costs a call.
        return None if fields is None else tuple.__new__(PlainRequest, fields)
