# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a response is kept under: equal for requests that are the same to the model. (pure)

Counted are the model and its version, every input by name, datatype, shape and contents, and the outputs that are asked
for. As in Triton the parameters of a request do not count, nor does anything else that it carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import orjson

# Of keys of this size two that are equal by chance are not met with.
_DIGEST_BYTES = 32


def request_key(
    model: str,
    version: int,
    outputs: Iterable[str],
    inputs: Sequence[tuple[str, str, Sequence[int], bytes | memoryview]],
) -> str:
    """The key, a hexadecimal number. `inputs` are (name, datatype, shape, contents)."""
    ordered = sorted(inputs, key=lambda tensor: tensor[0])
    described = [(name, datatype, list(shape), len(contents)) for name, datatype, shape, contents in ordered]
    digest = blake2b(orjson.dumps([model, version, sorted(set(outputs)), described]), digest_size=_DIGEST_BYTES)
    for *_, contents in ordered:
        digest.update(contents)
    return digest.hexdigest()
