# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of a stub that are plain: see plain.py. What is not goes to the functions that `use` was told of."""

from collections.abc import Callable
from typing import Any, Self

from pyruntime.stub.pb_utils.request import InferenceRequest

def use(
    tensor: type[Any],
    request: type[Any],
    response: type[Any],
    regions: type[Any],
    ndarray: type[Any],
    dtypes: dict[str, tuple[Any, int]],
    datatypes: dict[Any, str],
    functions: dict[str, Callable[..., Any]],
    /,
) -> None:
    """Learn of the classes of models, and put native methods in the place of some of theirs.

    `functions` are those in Python that native ones stand for. Raises ImportError if the classes are not as expected.
    """

def make_requests(wires: list[Any], region: Any, outputs: set[str], batch: int, /) -> list[InferenceRequest]: ...
def still_held(requests: list[Any], /) -> list[int]: ...
def result(tag: int, batch: int, outcomes: bytes, retained: list[int], start_ns: int, end_ns: int, /) -> bytes:
    """The frame of a Result with this tag, whose outcomes are written already."""

def get_input_tensor_by_name(inference_request: Any, name: str) -> Any: ...

class Responses:
    """Writes responses to the memory that an arena allocates, where those who allocate have a lock."""

    def __new__(cls, lock: Any, arena: Any, taken_back: Any, map: Any, outputs: set[str], /) -> Self: ...
    def write(self, responses: Any, requests: list[InferenceRequest], /) -> bytes | None:
        """The outcomes of a Result, or None if any response is not plain: then nothing has changed."""
