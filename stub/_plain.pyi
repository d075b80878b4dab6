# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of a stub that are plain: see plain.py. What is not goes to the functions that `use` was told of."""

from collections.abc import Callable
from typing import Any

from pyruntime.stub.pb_utils.request import InferenceRequest

def use(
    tensor: type[Any],
    request: type[Any],
    regions: type[Any],
    ndarray: type[Any],
    dtypes: dict[str, tuple[Any, int]],
    functions: dict[str, Callable[..., Any]],
    /,
) -> None:
    """Learn of the classes of models, and put native methods in the place of some of theirs.

    `functions` are those in Python that native ones stand for. Raises ImportError if the classes are not as expected.
    """

def make_requests(wires: list[Any], region: Any, outputs: set[str], batch: int, /) -> list[InferenceRequest]: ...
def still_held(requests: list[Any], /) -> list[int]: ...
def get_input_tensor_by_name(inference_request: Any, name: str) -> Any: ...
