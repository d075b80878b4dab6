# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Detects inputs that a model keeps after execute.

Input arrays are views of shared memory that the host reuses for later requests. A model that stores one (in a cache, or
in a list that it concatenates later) would see it change. So after each batch the worker finds the requests that are
still referenced, tells the host to keep their memory, and tells it again when the model has released them.

In CPython, reference counts answer this exactly, for 0.1 µs per tensor: views, slices, torch tensors and DLPack
capsules of an array all hold a reference to it. The count of an unreferenced object differs between versions of
CPython, so this module measures it at import, with the same code.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional

# The number of requests that one call examines: a model may keep thousands, and no batch should wait for all of them.
LOOKS_MAX = 64


class _Counts(NamedTuple):
    request: int
    inputs: int
    tensor: int
    array: int


def still_held(requests: List[Any], alone: _Counts) -> List[int]:
    """The indexes of requests that something else than the list `requests` references, directly or by an input."""
    held = []
    count = sys.getrefcount
    alone_request, alone_inputs, alone_tensor, alone_array = alone
    for index, request in enumerate(requests):
        inputs = request._inputs
        if count(request) > alone_request or (inputs is not None and count(inputs) > alone_inputs):
            held.append(index)
            continue
        for tensor in inputs or ():
            if count(tensor) > alone_tensor or (count(tensor._array) > alone_array and _is_view(tensor)):
                held.append(index)
                break
    return held


def _is_view(tensor: Any) -> bool:
    """Whether the tensor's array is a view of shared memory. None (a shared singleton) and BYTES are not."""
    return tensor._array is not None and tensor._datatype != "BYTES"


class _Sample:
    """A stand-in for a request and for a tensor, for the measurement of counts."""

    def __init__(self, inputs: Any, array: Any) -> None:
        self._inputs = inputs
        self._array = array
        self._datatype = ""


def _measure() -> _Counts:
    """The counts of a sample that only the list references: increases each until `still_held` no longer reports it."""
    requests = [_Sample([_Sample(None, object())], None)]
    counts = [0, 0, 0, 0]
    for field in (3, 2, 1, 0):
        others = [sys.maxsize] * 4
        while True:
            others[field] = counts[field]
            if not still_held(requests, _Counts(*others)):
                break
            counts[field] += 1
    return _Counts(*counts)


ALONE = _measure()


def held_alone(requests: List[Any]) -> List[int]:
    """As `still_held`, of the requests of a batch."""
    return still_held(requests, ALONE)


# For a _KeptRequest in place of its request: only the counts of its inputs matter.
_INPUTS_ONLY = _Counts(sys.maxsize, *ALONE[1:])


class _KeptRequest:
    """A request that was referenced when its batch ended. Refers to it weakly, to see when the model drops it."""

    def __init__(self, request: Any) -> None:
        self._request = weakref.ref(request)
        # A model that still has the request gets these inputs from it.
        self._inputs: List[Any] = list(request.inputs())

    def is_held(self) -> bool:
        """Whether the model can still access the request's memory."""
        if self._request() is not None:
            return True
        return bool(still_held([self], _INPUTS_ONLY))


class KeptInputs:
    """The requests whose inputs the model keeps, by serial. Not thread-safe."""

    def __init__(self, look: Optional[Callable[[List[Any]], List[int]]] = None) -> None:
        """`look` takes the place of `held_alone`."""
        self._look = look or held_alone
        # Callers only ask whether there are any.
        self.watched: Dict[int, _KeptRequest] = {}

    def find(self, batch: int, requests: List[Any]) -> Dict[int, Any]:
        """Those of `requests` that are still referenced, by serial. Pass them to `watch` after informing the host."""
        everything = sys.getrefcount(requests) > _LIST_ALONE
        held = list(range(len(requests))) if everything else self._look(requests)
        return {batch + index: _KeptRequest(requests[index]) for index in held} if held else {}

    def watch(self, held: Dict[int, Any]) -> None:
        """Track these requests. The caller must drop its own references."""
        self.watched.update(held)

    def released(self) -> List[int]:
        """Remove requests that the model no longer references, and return their serials."""
        gone = []
        watched = self.watched
        for _ in range(min(LOOKS_MAX, len(watched))):
            serial = next(iter(watched), None)
            if serial is None:  # a destructor has called this meanwhile
                break
            request = watched.pop(serial)
            if request.is_held():
                watched[serial] = request  # at the end, so that later calls examine the others
            else:
                gone.append(serial)
        return gone


def _count_of_list(requests: List[Any]) -> int:
    return sys.getrefcount(requests)


def _count_from_caller() -> int:
    requests: List[Any] = []
    return _count_of_list(requests)


_LIST_ALONE = _count_from_caller()
