# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a response on its way to an HTTP client: classes, a document, and fewer bytes. (pure)"""

from __future__ import annotations

from typing import NamedTuple

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress_all
from pyruntime.runtime.frontends.http.kserve_request import OutputOptions
from pyruntime.runtime.frontends.http.kserve_response import encode_infer
from pyruntime.runtime.requests.types import InferResponse


class Answer(NamedTuple):
    """A body in parts. `document_length` is its Inference-Header-Content-Length, 0 for none, in bytes.

    `encoding` is what the body is compressed with, "" for nothing.
    """

    document_length: int
    parts: list[bytes | memoryview]
    encoding: str = ""


def make_answer(response: InferResponse, options: OutputOptions, spec: ModelSpec, encoding: str) -> Answer:
    """The answer that a client gets who wants its outputs as `options` say, and all of it in `encoding`.

    Unless that is "", its parts have nothing to do with the response's memory. Raises InferenceError as `classify` and
    `encode_infer`.
    """
    if options.classes:
        response = classified(response, options.classes, spec)
    document, document_length, binary = encode_infer(response, options)
    parts = [document, *binary]
    return Answer(document_length, [compress_all(parts, encoding)] if encoding else parts, encoding)


def costs_time(response: InferResponse, options: OutputOptions, encoding: str, nbytes_max: int) -> bool:
    """Whether making the answer goes through more than `nbytes_max` bytes of contents, one by one."""
    nbytes = 0
    for output in response.outputs:
        if encoding or output.name in options.classes or not options.is_binary(output.name):
            nbytes += len(output.data)
    return nbytes > nbytes_max
