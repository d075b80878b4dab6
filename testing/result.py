# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One response of a model under test, as a client would get it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from pyruntime.runtime.requests.types import OutputTensor, Parameter
from pyruntime.testing.tensors import to_array
from pyruntime.utils.errors import InferenceError


class Result:
    """One response. `error` is the reason why there are no outputs, or None.

    `is_final` says that it had the final flag. A decoupled model may send this flag later, without a response.
    `contradictions` are sentences about outputs that are not as the configuration says.
    """

    def __init__(
        self,
        tensors: Sequence[OutputTensor] = (),
        parameters: Mapping[str, Parameter] | None = None,
        error: InferenceError | None = None,
        is_final: bool = True,
        contradictions: Sequence[str] = (),
    ) -> None:
        self.tensors = tuple(tensors)
        self.parameters = dict(parameters or {})
        self.error = error
        self.is_final = is_final
        self.contradictions = tuple(contradictions)

    def __repr__(self) -> str:
        shown = self.error or [f"{each.name} {each.datatype} {each.shape}" for each in self.tensors]
        return f"<Result {shown!r}{' final' if self.is_final else ''}>"

    @cached_property
    def outputs(self) -> dict[str, NDArray[Any]]:
        """The outputs by name, in the model's order. Raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        return {each.name: to_array(each.datatype, each.shape, each.data) for each in self.tensors}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One output. Raises `error` if there is one, and KeyError for an unknown output."""
        try:
            return self.outputs[name]
        except KeyError:
            raise KeyError(f"there is no output '{name}'; there are {', '.join(self.outputs) or 'none'}") from None

    def __contains__(self, name: object) -> bool:
        """Whether there is an output of this name."""
        return any(each.name == name for each in self.tensors)
