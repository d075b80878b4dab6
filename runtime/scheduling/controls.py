# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the control inputs, which tell a model the position of a request in its sequence. (pure)

Padding has control inputs too: not READY, neither START nor END, and no correlation id.
"""

from __future__ import annotations

from itertools import count

from pyruntime.runtime.config.spec import ControlSpec, ModelSpec
from pyruntime.runtime.requests.types import InputTensor, request_failure
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code

# Where the ids begin that the server gives to sequences, by the datatype of the input for them: in the upper half
# of its positive numbers, because clients number their sequences from 1. All of the half is used, and then again.
_OWN_IDS_FROM = {"INT32": 1 << 30, "UINT32": 1 << 31, "INT64": 1 << 62, "UINT64": 1 << 63}


class Controls:
    """The control inputs of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        batching = spec.sequence_batching
        self._controls = batching.controls if batching is not None else ()
        self._shape = [1, 1] if spec.max_batch_size > 0 else [1]
        self.names = frozenset(control.name for control in self._controls)
        correlated = [control for control in self._controls if control.kind == "CORRID"]
        self._id_control = correlated[0] if correlated else None
        self._model_name = spec.name
        datatype = correlated[0].datatype if correlated else "UINT64"
        self._has_texts = datatype == "BYTES"
        self._own_ids_from = _OWN_IDS_FROM["UINT64" if self._has_texts else datatype]
        self._numbers = count()

    def own_id(self) -> int | str:
        """The next id of a sequence to which the server gives one."""
        first = self._own_ids_from
        id = first + next(self._numbers) % first
        return str(id) if self._has_texts else id

    def check(self, request_id: str, sequence_id: int | str) -> None:
        """Raise InferenceError if the id of a sequence is a text and the model's input for it a number, or reverse."""
        control = self._id_control
        if control is not None and sequence_id and isinstance(sequence_id, str) != self._has_texts:
            found = "BYTES" if isinstance(sequence_id, str) else "UINT64"
            raise request_failure(
                request_id,
                f"sequence batching control '{control.name}' data-type is '{found}', but model '{self._model_name}' "
                f"expects '{control.datatype}'",
                Code.INVALID_ARG,
            )

    def tensors(self, sequence_id: int | str, start: bool, end: bool, ready: bool = True) -> list[InputTensor]:
        """The inputs of one request, whose id `check` has accepted."""
        flags = {"START": start, "END": end, "READY": ready}
        return [
            InputTensor(control.name, control.datatype, list(self._shape), _contents(control, flags, sequence_id))
            for control in self._controls
        ]


def _contents(control: ControlSpec, flags: dict[str, bool], sequence_id: int | str) -> bytes:
    if control.kind in flags:
        return control.true if flags[control.kind] else control.false
    if control.datatype == "BYTES":
        text = str(sequence_id or "").encode()
        return len(text).to_bytes(BYTES_PREFIX_SIZE, "little") + text
    assert isinstance(sequence_id, int)  # or `check` refuses it
    size = BY_NAME[control.datatype].size
    # As in Triton, an id that is too large for the input is truncated.
    return (sequence_id & ((1 << 8 * size) - 1)).to_bytes(size, "little")
