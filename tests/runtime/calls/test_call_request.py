# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that are known to be right, and calls that only look like these. test_calls.py has malformed requests."""

import pytest

from pyruntime.runtime.calls import call_request
from pyruntime.runtime.calls.call_request import ValidatedSignatures, read_call
from pyruntime.runtime.regions import GpuRegion
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.messages import Call
from pyruntime.utils.request_codec import IN_MAIN_MEMORY, MEMORY_GPU

from ..model_specs import spec_from

CONFIG = "name: 'm' max_batch_size: 4 output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
ONE = "input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
RESHAPED = "input { name: 'IN' data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } "
BYTES = "input { name: 'IN' data_type: TYPE_STRING dims: 1 } "
BATCHING = "dynamic_batching { } "


class Version:
    """A model version that counts how often it is asked whether a call is right."""

    def __init__(self, text=ONE):
        self.spec = spec_from(CONFIG + text)
        self.validated = ValidatedSignatures()


@pytest.fixture
def checks(monkeypatch):
    """The requests that were held against a configuration."""
    made = []
    real = call_request.check_request

    def check_request(spec, request):
        made.append(request)
        real(spec, request)

    monkeypatch.setattr(call_request, "check_request", check_request)
    return made


def tensor(shape=(1, 2), contents=bytes(8), name="IN", datatype="FP32", size=None):
    return [name, datatype, list(shape), contents, len(contents) if size is None else size, 0, 0]


def request(*tensors, outputs=None, parameters="", priority=0):
    wire = ["7", 0, 0, 0, outputs, parameters, list(tensors), "", None]
    return read_call(Call(1, "m", -1, wire, False, 0, priority), lambda number: None)


def job(version, *args, **kwargs):
    return request(*args, **kwargs).make_job(version, [], print)


def test_priority():
    """A call has its own level in the queue, also one that is not checked again."""
    version = Version()
    assert [job(version, tensor(), priority=level).priority for level in (2, 0, 1)] == [2, 0, 1]


def test_gpus():
    """A call says whether inputs lie on GPUs, and that no output may if the caller wants them in main memory."""
    region = GpuRegion(GpuProperties(1, "GPU-1", "G", (8, 0), 100, 100, False), bytes(64), 64, b"", None)
    there = ["IN", "FP32", [1, 2], address(region.number, 8), 8, MEMORY_GPU, 1]
    reads = {}
    for tensors, places in (([tensor()], None), ([tensor(), there], IN_MAIN_MEMORY)):
        wire = ["7", 0, 0, 0, None, "", tensors, "", places]
        read = read_call(Call(1, "m", -1, wire, False, 0, 0), lambda number: region)
        reads[places == IN_MAIN_MEMORY] = (read.on_gpu, read.places)
    assert reads == {False: (False, None), True: (True, {})}
    assert job(Version(), tensor()).places is None


class TestKinds:
    def test_is_checked_once(self, checks):
        """Calls that differ only in contents are checked once, and have the same rows."""
        version = Version()
        first, second = job(version, tensor((3, 2), bytes(24))), job(version, tensor((3, 2), b"x" * 24))
        assert len(checks) == 1
        assert (first.rows, second.rows) == (3, 3)
        assert second.tensors == [("IN", "FP32", [3, 2], b"x" * 24, 24, 0, 0)]

    @pytest.mark.parametrize(
        ("tensors", "options"),
        [
            ([tensor((2, 2), bytes(16))], {}),
            ([tensor()], {"outputs": ["OUT"]}),
            ([tensor()], {"outputs": ["OUT", "OUT"]}),
        ],
    )
    def test_another_one_is_checked(self, checks, tensors, options):
        """A request that differs in anything that may matter is checked anew."""
        version = Version()
        job(version, tensor())
        job(version, *tensors, **options)
        assert len(checks) == 2

    @pytest.mark.parametrize(
        ("tensors", "options"),
        [
            ([tensor(name="OTHER")], {}), ([tensor(datatype="INT32")], {}), ([tensor((2, 1))], {}),
            ([tensor((1, 2), bytes(4))], {}), ([tensor(), tensor()], {}), ([], {}), ([tensor((2,))], {}),
            ([tensor((5, 2), bytes(40))], {}), ([tensor()], {"outputs": ["NONE"]}), ([tensor((1, 2, 1))], {}),
        ],
    )  # fmt: skip
    def test_that_is_wrong(self, checks, tensors, options):
        """A request that the configuration does not allow is refused each time, also after valid ones."""
        version = Version()
        job(version, tensor())
        for _ in range(2):
            with pytest.raises(InferenceError) as caught:
                job(version, *tensors, **options)
            assert caught.value.code is Code.INVALID_ARG
        assert len(checks) == 3

    @pytest.mark.parametrize("shape", [[1.0, 2], [True, 2], [1, 2.0]], ids=repr)
    def test_that_is_merely_equal(self, shape):
        """A shape that compares equal to a known one, with elements of other types, is malformed."""
        version = Version()
        job(version, tensor((1, 2)))
        with pytest.raises(PeerError):
            job(version, tensor(shape))

    @pytest.mark.parametrize("size", [8.0, True, None], ids=repr)
    def test_size_that_is_merely_equal(self, size):
        """A size that compares equal, and has another type, is malformed."""
        version = Version()
        job(version, tensor())
        with pytest.raises(PeerError):
            job(version, ["IN", "FP32", [1, 2], bytes(8), size, 0, 0])

    def test_with_parameters(self, checks):
        """A call with parameters is looked at each time: they may be anything."""
        version = Version()
        for _ in range(2):
            assert job(version, tensor(), parameters='{"a":1}').options.parameters == '{"a":1}'
        assert len(checks) == 2
        job(version, tensor())
        assert len(checks) == 3

    def test_with_bytes(self, checks):
        """Requests with BYTES are checked each time, because their elements may end anywhere."""
        version = Version(BYTES)
        job(version, tensor((1, 1), b"\x01\0\0\0a", datatype="BYTES"))
        with pytest.raises(InferenceError):
            job(version, tensor((1, 1), b"\x07\0\0\0a", datatype="BYTES"))
        assert len(checks) == 2

    def test_that_is_reshaped(self, checks):
        """The model sees the shape that it is configured to, each time."""
        version = Version(RESHAPED)
        for _ in range(2):
            made = job(version, tensor((3, 1), bytes(12)))
            assert made.tensors == [("IN", "FP32", [3], bytes(12), 12, 0, 0)]
            assert made.rows == 3

    def test_signature(self):
        """Requests that may share a batch have the same signature, whether they are known or not."""
        version = Version(ONE + BATCHING)
        first, second = job(version, tensor()), job(version, tensor())
        other = job(version, tensor(), outputs=["OUT"])
        assert first.signature == second.signature
        assert hash(first.signature) == hash(second.signature)
        assert other.options.requested_outputs == ["OUT"]

    def test_limit(self, monkeypatch):
        """However many kinds there are, no more than so many are remembered."""
        monkeypatch.setattr(call_request, "SIGNATURES_KEPT_MAX", 3)
        version = Version()
        for number in range(20):
            rows = number % 4 + 1
            job(version, tensor((rows, 2), bytes(8 * rows)), outputs=["OUT"] * (number // 4))
            assert len(version.validated._known) <= 3
