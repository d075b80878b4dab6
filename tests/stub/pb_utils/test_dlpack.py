# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import ctypes
import gc
import sys
import tracemalloc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.stub.pb_utils import dlpack
from pyruntime.stub.pb_utils.dlpack import (
    _DLManagedTensor,
    _DLManagedTensorVersioned,
    _get_pointer,
    _is_valid,
    as_array,
    from_capsule,
    import_tensor,
    to_capsule,
)
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.utils.dtypes import DATATYPES

WITHOUT_BYTES = [datatype for datatype in DATATYPES if datatype.name != "BYTES"]
# numpy itself exports and takes bool from 1.25 on.
UNKNOWN_TO_NUMPY = {"BF16", "BOOL"} if np.lib.NumpyVersion(np.__version__) < "1.25.0" else {"BF16"}
WITH_NUMPY = [datatype for datatype in WITHOUT_BYTES if datatype.name not in UNKNOWN_TO_NUMPY]
HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
SHAPES = [(), (0,), (1,), (3,), (2, 3, 4), (2, 0, 4), (1, 3, 1)]


class Exported:
    """An object with the DLPack methods around a capsule, as consumers such as numpy expect it."""

    def __init__(self, capsule, device_type=1):
        self.capsule = capsule
        self.device_type = device_type

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (self.device_type, 0)


class Owner:
    """Keeps an array, and can be watched by a weak reference."""

    def __init__(self, array):
        self.array = array


# Capsules point into producers, which are cycles, and keep none of them.
PRODUCERS = []


class Producer:
    """A foreign capsule, field by field; counts the calls of its deleter. Versioned ones have flags."""

    def __init__(
        self,
        *,
        shape=(2, 3),
        strides=None,
        device_type=1,
        code=2,
        bits=32,
        lanes=1,
        byte_offset=0,
        version=None,
        flags=0,
    ):
        PRODUCERS.append(self)
        self.deleted = 0
        self.memory = np.arange(24, dtype=np.float32)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.name = b"dltensor" if version is None else b"dltensor_versioned"
        self.managed = managed = _DLManagedTensor() if version is None else _DLManagedTensorVersioned()
        if version is not None:
            managed.major, managed.minor, managed.flags = *version, flags
        tensor = managed.dl_tensor
        tensor.data = self.memory.ctypes.data
        tensor.device_type, tensor.ndim, tensor.byte_offset = device_type, len(shape), byte_offset
        tensor.code, tensor.bits, tensor.lanes = code, bits, lanes
        if shape:
            tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if strides:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = type(managed.deleter)(self._delete)

    def _delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def capsule(self):
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        return new(ctypes.addressof(self.managed), self.name, None)


def export(array, name):
    return to_capsule(array, array.ctypes.data, array.shape, name)


def refused(message):
    return pytest.raises(TritonModelException, match=f"^{message}$")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("datatype", WITH_NUMPY, ids=lambda datatype: datatype.name)
def test_numpy_takes_our_capsule(datatype, shape):
    """numpy sees the same elements, at the same place."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(datatype.numpy)
    taken = np.from_dlpack(Exported(export(array, datatype.name)))
    assert (taken.dtype, taken.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(taken, array)
    assert taken.size == 0 or taken.ctypes.data == array.ctypes.data


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("datatype", WITH_NUMPY, ids=lambda datatype: datatype.name)
def test_we_take_numpys_array(datatype, shape):
    """An array of numpy's is imported where it lies."""
    array = np.ones(shape, dtype=datatype.numpy)
    taken = import_tensor(array)
    assert (taken.pointer, taken.shape, taken.datatype) == (array.ctypes.data, shape, datatype.name)


@pytest.mark.parametrize("datatype", WITHOUT_BYTES, ids=lambda datatype: datatype.name)
def test_we_take_our_own_capsule(datatype):
    """Every datatype but BYTES survives the round trip, those that numpy lacks too."""
    array = np.zeros(6 * datatype.size, dtype=np.uint8)
    taken = from_capsule(to_capsule(array, array.ctypes.data, [2, 3], datatype.name))
    assert (taken.pointer, taken.shape, taken.datatype) == (array.ctypes.data, (2, 3), datatype.name)


def test_no_memory_for_no_elements():
    """A tensor without elements needs no address."""
    taken = from_capsule(to_capsule(None, 0, (0, 3), "FP32"))
    assert (taken.shape, taken.datatype) == ((0, 3), "FP32")


def test_bytes_have_no_capsule():
    """DLPack knows numbers only."""
    with refused("DLPack does not have support for string tensors."):
        to_capsule(None, 0, (0,), "BYTES")


def test_owner_lives_as_long_as_the_consumer():
    """The consumer keeps the owner, and lets go of it when it is done."""
    owner = Owner(np.arange(3, dtype=np.int32))
    alive = weakref.ref(owner)
    taken = np.from_dlpack(Exported(to_capsule(owner, owner.array.ctypes.data, (3,), "INT32")))
    del owner
    gc.collect()
    assert alive() is not None
    assert taken.tolist() == [0, 1, 2]
    del taken
    gc.collect()
    assert alive() is None


def test_owner_of_an_unconsumed_capsule():
    """A capsule that was not consumed releases its owner when it is destroyed."""
    owner = Owner(np.arange(3, dtype=np.int32))
    alive = weakref.ref(owner)
    capsule = to_capsule(owner, owner.array.ctypes.data, (3,), "INT32")
    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_capsule_may_die_while_an_exception_is_on_its_way():
    """A consumer that refuses a temporary capsule is heard."""
    array = np.arange(3, dtype=np.int32)
    with pytest.raises(TypeError, match="has no len"):
        len(export(array, "INT32"))


def test_deleter_is_called_once():
    """The producer gets its tensor back when the last reference to the owner goes, not before and not twice."""
    producer = Producer()
    capsule = producer.capsule()
    taken = from_capsule(capsule)
    owner = taken.owner
    del taken, capsule
    gc.collect()
    assert producer.deleted == 0
    del owner
    gc.collect()
    assert producer.deleted == 1


def test_producer_without_deleter():
    """A producer may have nothing to free."""
    producer = Producer()
    producer.managed.deleter = type(producer.managed.deleter)()
    taken = from_capsule(producer.capsule())
    assert taken.pointer == producer.memory.ctypes.data
    del taken
    gc.collect()
    assert producer.deleted == 0


def test_producers_array_lives_as_long_as_ours():
    """An imported tensor keeps the producer's memory alive."""
    array = np.arange(3, dtype=np.int32)
    alive = weakref.ref(array)
    taken = import_tensor(array)
    del array
    gc.collect()
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


def test_capsule_is_used_once():
    """A capsule is renamed when it is taken, and cannot be taken again."""
    capsule = export(np.zeros(2), "FP64")
    taken = from_capsule(capsule)
    assert _is_valid(capsule, b"used_dltensor")
    with refused("DLPack capsule has been consumed before; a capsule can be used only once."):
        from_capsule(capsule)
    assert taken.shape == (2,)


@pytest.mark.parametrize("obj", [None, 3, [1.0], SimpleNamespace(__dlpack__=None)], ids=repr)
def test_not_a_capsule(obj):
    """An object that is not a capsule and does not export one is refused in Triton's words, with its gap."""
    with pytest.raises(TritonModelException) as caught:
        import_tensor(obj)
    assert str(caught.value) == (
        "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
        "`__dlpack_device__` attributes"
    )


def test_import_of_a_bare_capsule():
    """A capsule needs no object around it."""
    assert import_tensor(export(np.zeros((2, 1)), "FP64")).shape == (2, 1)


def test_byte_offset_counts():
    """The elements start where data and offset say."""
    producer = Producer(byte_offset=8)
    assert from_capsule(producer.capsule()).pointer == producer.memory.ctypes.data + 8


def test_without_dimensions():
    """A tensor without dimensions needs neither shape nor strides."""
    assert from_capsule(Producer(shape=()).capsule()).shape == ()


@pytest.mark.parametrize("device_type", [1, 3])
def test_main_memory(device_type):
    """Pinned memory is main memory."""
    capsule = Producer(device_type=device_type).capsule()
    assert import_tensor(Exported(capsule, device_type)).shape == (2, 3)


@pytest.mark.parametrize("device_type", [2, 8])
def test_other_devices(device_type, monkeypatch):
    """A tensor elsewhere is refused, whether the capsule says so or the object; it stays its producer's."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)  # there is no GPU
    producer = Producer(device_type=device_type)
    capsule = producer.capsule()
    message = rf"DLDevice type {device_type} is not support by Python backend\."
    with refused(message):
        from_capsule(capsule)
    with refused(message):
        import_tensor(Exported(None, device_type))
    assert _is_valid(capsule, b"dltensor")
    assert producer.deleted == 0


@pytest.mark.parametrize(
    ("code", "bits", "lanes"), [(2, 32, 4), (5, 64, 1), (2, 8, 1), (6, 1, 1), (7, 16, 1), (15, 6, 1)]
)
def test_other_datatypes(code, bits, lanes):
    """Vectors, complex numbers and odd widths are refused."""
    with refused(f"DLPack type with code {code}, {bits} bits and {lanes} lanes is not a datatype of Triton."):
        from_capsule(Producer(code=code, bits=bits, lanes=lanes).capsule())


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), None),
        ((2, 3), (3, 1)),
        ((1, 3), (77, 1)),
        ((2, 1, 3), (3, 77, 1)),
        ((2, 1), (1, 77)),
        ((2, 0, 3), (5, 5, 5)),
        ((0,), (9,)),
    ],
)
def test_c_order(shape, strides):
    """Strides are right, absent, or say nothing because their dimension has size 1 or there are no elements."""
    assert from_capsule(Producer(shape=shape, strides=strides).capsule()).shape == shape


@pytest.mark.parametrize(
    ("shape", "strides"), [((2, 3), (1, 2)), ((2, 3), (6, 2)), ((3,), (2,)), ((3,), (-1,)), ((2, 1, 3), (6, 3, 1))]
)
def test_not_c_order(shape, strides):
    """Transposed, gapped and reversed tensors are refused; the capsule stays its producer's."""
    producer = Producer(shape=shape, strides=strides)
    capsule = producer.capsule()
    with refused(
        r"DLPack tensor is not contiguous\. "
        r"Only contiguous DLPack tensors that are stored in C-Order are supported\."
    ):
        from_capsule(capsule)
    assert _is_valid(capsule, b"dltensor")
    assert producer.deleted == 0


def test_transposed_numpy_array():
    """numpy's own transposed arrays are refused too."""
    with pytest.raises(TritonModelException, match="not contiguous"):
        import_tensor(np.zeros((2, 3)).T)


@pytest.mark.parametrize("code", range(7, 15))
def test_float8(code):
    """Triton has no float8: the bits of any kind of it are UINT8."""
    assert from_capsule(Producer(code=code, bits=8).capsule()).datatype == "UINT8"


@pytest.mark.parametrize("version", [(1, 0), (1, 9)])
@pytest.mark.parametrize("flags", [0, 1, 2, 3])
def test_versioned_capsule(version, flags):
    """A capsule of the newer layout says whether it may be written to, and its tensor goes back once, too."""
    producer = Producer(version=version, flags=flags, byte_offset=4)
    capsule = producer.capsule()
    taken = from_capsule(capsule)
    assert (taken.pointer, taken.shape, taken.datatype) == (producer.memory.ctypes.data + 4, (2, 3), "FP32")
    assert taken.read_only is bool(flags & 1)
    with refused("DLPack capsule has been consumed before; a capsule can be used only once."):
        from_capsule(capsule)
    del taken
    gc.collect()
    assert producer.deleted == 1


def test_version_that_is_too_new():
    """The layout of another major version is not known."""
    producer = Producer(version=(2, 0))
    with refused("Expected a DLPack capsule of version 1, found 2."):
        from_capsule(producer.capsule())
    assert producer.deleted == 0


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_capsule_for_a_consumer(max_version, read_only):
    """A consumer that reads versioned capsules is told what is read-only. Our own import is such a consumer."""
    array = np.arange(4, dtype=np.float32)
    capsule = to_capsule(array, array.ctypes.data, [4], "FP32", None, max_version, read_only)
    is_versioned = HAS_VERSIONS and max_version is not None and max_version[0] >= 1
    assert _is_valid(capsule, b"dltensor_versioned" if is_versioned else b"dltensor")
    taken = from_capsule(capsule)
    assert (taken.pointer, taken.read_only) == (array.ctypes.data, is_versioned and read_only)


@pytest.mark.skipif(not HAS_VERSIONS, reason="this numpy has no versioned capsules")
def test_read_only_arrays():
    """numpy exports a read-only array in a versioned capsule only, and an array over it is read-only again."""
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    taken = import_tensor(array)
    assert (taken.pointer, taken.read_only) == (array.ctypes.data, True)
    view = as_array(taken.owner, taken.pointer, taken.shape, array.dtype, taken.read_only)
    assert not view.flags.writeable
    assert view.tolist() == [0, 1, 2]


@pytest.mark.parametrize("gpu", [None, 0])
def test_more_than_two_gib(gpu, monkeypatch):
    """Sizes and offsets beyond 32 bits: only numbers are computed, nothing is allocated or read."""
    monkeypatch.setattr(dlpack, "_check_device", lambda *_: None)
    pointer, elements = 1 << 40, 5 << 30
    taken = from_capsule(to_capsule(None, pointer, (2, elements), "FP64", gpu))
    assert (taken.pointer, taken.shape, taken.gpu) == (pointer, (2, elements), gpu)
    producer = Producer(shape=(3, elements), strides=(elements, 1), byte_offset=5 << 30)
    taken = from_capsule(producer.capsule())
    assert (taken.pointer, taken.shape) == (producer.memory.ctypes.data + (5 << 30), (3, elements))
    with pytest.raises(TritonModelException, match="not contiguous"):
        from_capsule(Producer(shape=(3, elements), strides=(elements % (1 << 32), 1)).capsule())


def test_many_capsules_take_no_memory():
    """Capsules that are dropped or consumed leave nothing. One that is kept keeps its owner, and nothing else."""
    owner = Owner(np.arange(1000, dtype=np.float32))

    def export():
        return to_capsule(owner, owner.array.ctypes.data, [1000], "FP32")

    for _ in range(3):  # what is made once
        from_capsule(export())
    references = sys.getrefcount(owner)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            export()
            from_capsule(export())
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sys.getrefcount(owner) == references
    assert grown < 20_000  # not 20 bytes for each, of which a capsule alone has more
    kept = [export() for _ in range(10)]
    assert sys.getrefcount(owner) == references + len(kept)
    kept.clear()
    assert sys.getrefcount(owner) == references


def test_bfloat16_is_told_to_the_consumer():
    """A capsule of BF16 has DLPack's own code for it."""
    array = np.zeros(4, dtype=np.uint16)
    capsule = export(array, "BF16")
    tensor = _DLManagedTensor.from_address(_get_pointer(capsule, b"dltensor")).dl_tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == (4, 16, 1)


def test_array_over_memory():
    """An array over an address shares the memory there, and keeps its owner alive."""
    owner = Owner(np.arange(6, dtype=np.int16))
    alive = weakref.ref(owner)
    array = as_array(owner, owner.array.ctypes.data, [2, 3], np.dtype(np.int16))
    array[1, 2] = 7
    assert owner.array.tolist() == [0, 1, 2, 3, 4, 7]
    del owner
    gc.collect()
    assert alive() is not None
    del array
    gc.collect()
    assert alive() is None


def test_array_over_nothing():
    """An array without elements needs no address."""
    assert as_array(None, 0, [0, 2], np.dtype(bool)).shape == (0, 2)
