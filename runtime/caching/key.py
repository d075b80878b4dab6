# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes the key of a request in the cache: equal for requests that have the same response. (pure)

The key depends on the model and its version, the name, datatype, shape and contents of every input, and the requested
outputs. As in Triton, it does not depend on the parameters or anything else of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import itemgetter

import orjson

# Large enough that two different requests never have equal keys by chance.
_DIGEST_BYTES = 32


def request_key(
    model: str,
    version: int,
    outputs: Iterable[str],
    inputs: Sequence[tuple[str, str, Sequence[int], bytes | memoryview]],
) -> str:
    """The key, a hexadecimal number. `inputs` are (name, datatype, shape, contents)."""
    ordered = sorted(inputs, key=itemgetter(0))
    described = [(name, datatype, list(shape), len(contents)) for name, datatype, shape, contents in ordered]
    digest = blake2b(orjson.dumps([model, version, sorted(set(outputs)), described]), digest_size=_DIGEST_BYTES)
    for *_, contents in ordered:
        digest.update(contents)
    return digest.hexdigest()
