# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as the extension reads them in a process of its own: the addresses of inputs."""

from types import SimpleNamespace

import pytest

from pyruntime.backends.native.tensors import Inputs
from pyruntime.stub.memory import Source
from pyruntime.stub.pb_utils import TritonModelException
from pyruntime.utils.request_codec import MEMORY_GPU

REF = ("IN", "FP32", [2], 77, 8, MEMORY_GPU, 3)


class Region(Source):
    """Memory on a GPU, which is number 1 in this process; or it is gone."""

    def __init__(self, is_gone=False):
        self.done = []
        self._is_gone = is_gone

    def on_gpu(self, ref, hold):
        """See Source."""
        assert ref == REF
        if self._is_gone:
            raise TritonModelException("it is gone")
        return SimpleNamespace(_array=SimpleNamespace(pointer=4096, gpu=1, settle=lambda: self.done.append("settled")))


def encode(region, memory):
    """The tensors of a request for the extension."""
    request = SimpleNamespace(_region=region, _tensors=[REF], _encode=lambda tensors: ["", 0, 0, 0, None, "", tensors])
    return Inputs().encode(request, memory)[6]


def test_on_a_gpu():
    """The pointer and the number of this process; the contents are complete, and live as long as they are read."""
    region, memory = Region(), []
    assert encode(region, memory) == [("IN", "FP32", [2], 4096, 8, MEMORY_GPU, 1)]
    assert region.done == ["settled"]
    assert [each.pointer for each in memory] == [4096]


def test_on_a_gpu_that_is_lost():
    """The reason is that of the memory."""
    with pytest.raises(TritonModelException, match=r"^it is gone$"):
        encode(Region(is_gone=True), [])
