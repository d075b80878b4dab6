# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Notices when a model keeps an input beyond execute.

Input arrays are views of shared memory that the host reuses for later requests. A model that stores one (in a cache, in
a list it concatenates later) would see it change under its hands. So after each batch the worker asks which requests
are still referred to, tells the host to leave their memory alone, and says so again once the model has let go.

Reference counts answer that question exactly in CPython, for 0.1 µs a tensor: views, slices, torch tensors and DLPack
capsules over an array all hold the array. What a count is when nobody else refers to an object differs between versions
of CPython, so it is measured at import, by this very code.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, List, NamedTuple

# Requests that are looked at in one go: a model may have thousands of them open, and none should wait for that.
LOOKS_MAX = 64


class _Counts(NamedTuple):
    request: int
    inputs: int
    tensor: int
    array: int


def still_held(requests: List[Any], alone: _Counts) -> List[int]:
    """Indexes of the requests that something besides the list `requests` refers to, directly or through an input."""
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
    """Whether the tensor's array looks into shared memory: None, which everybody holds, and BYTES do not."""
    return tensor._array is not None and tensor._datatype != "BYTES"


class _Sample:
    """Stands for a request, and for a tensor, while the counts are measured."""

    def __init__(self, inputs: Any, array: Any) -> None:
        self._inputs = inputs
        self._array = array
        self._datatype = ""


def _measure() -> _Counts:
    """The highest counts at which nothing but the list refers to a sample: raise each until it no longer counts."""
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
# For a watched request, in whose place stands what watches it.
_INPUTS_ONLY = _Counts(sys.maxsize, *ALONE[1:])


class _Watched:
    """A request that was held when its batch ended. It is not kept alive here: whether it is, is the question."""

    def __init__(self, request: Any) -> None:
        self._request = weakref.ref(request)
        # What the model may make of the request later is made of these.
        self._inputs: List[Any] = list(request.inputs())

    def is_held(self) -> bool:
        """Whether the model can still see the request's memory."""
        if self._request() is not None:
            return True
        return bool(still_held([self], _INPUTS_ONLY))


class Retained:
    """The requests whose inputs the model still holds, by the serial that the host knows them by. Not thread-safe."""

    def __init__(self) -> None:
        self._watched: Dict[int, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def look(self, batch: int, requests: List[Any]) -> Dict[int, Any]:
        """Those of `requests` that are still held, by serial: for `watch`, when the host has been told of them."""
        everything = sys.getrefcount(requests) > _LIST_ALONE
        held = list(range(len(requests))) if everything else still_held(requests, ALONE)
        return {batch + index: _Watched(requests[index]) for index in held}

    def watch(self, held: Dict[int, Any]) -> None:
        """Keep watch on these from now on. The caller drops its own references."""
        self._watched.update(held)

    def let_go(self) -> List[int]:
        """The serials of requests that nobody holds any more; they are forgotten."""
        gone = []
        watched = self._watched
        for _ in range(min(LOOKS_MAX, len(watched))):
            serial = next(iter(watched), None)
            if serial is None:  # a destructor has looked meanwhile
                break
            request = watched.pop(serial)
            if request.is_held():
                watched[serial] = request  # behind the others, so that every one has its turn
            else:
                gone.append(serial)
        return gone


def _count_of_list(requests: List[Any]) -> int:
    return sys.getrefcount(requests)


def _count_from_caller() -> int:
    requests: List[Any] = []
    return _count_of_list(requests)


_LIST_ALONE = _count_from_caller()
