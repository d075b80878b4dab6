# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Tensor`, as models know it, over arrays and over a request region."""

import inspect

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pyruntime.runtime.regions import create_region
from pyruntime.stub.pb_utils import Tensor, TritonModelException, dlpack, serialize_byte_tensor
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.dtypes import BY_NAME, DATATYPES
from pyruntime.utils.request_codec import WireRequest

HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
NUMERIC = [datatype for datatype in DATATYPES if datatype.numpy and datatype.size]
each_numeric = pytest.mark.parametrize("datatype", NUMERIC, ids=lambda datatype: datatype.name)

BF16_MESSAGE = (
    "^Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack\\(\\) and from_dlpack\\(\\) instead.$"
)


def wire_request(*tensors, outputs=None):
    return WireRequest("", 0, 0, 0, outputs, "", list(tensors))


def input_tensor(regions, datatype, shape, contents, offset=64):
    """The tensor that a model gets for these bytes."""
    regions.requests.map[offset : offset + len(contents)] = contents
    wire = wire_request(["IN", datatype, list(shape), offset, len(contents), 0, 0])
    (tensor,) = InferenceRequest._from_wire(regions, wire, set(), 7).inputs()
    return tensor


def written(tensor):
    """(datatype, shape, bytes) of `tensor` as the host finds it in a response."""
    region = create_region("a test of responses")
    writer = ResponseWriter(region, 1 << 20, "m", {tensor.name()})
    code, _, _, ((_, datatype, shape, offset, size, _, _),), _ = writer.write(
        InferenceResponse([tensor]), {tensor.name()}
    )
    assert code == -1
    contents = region.map[offset : offset + size]
    region.close()
    return datatype, list(shape), contents


def values(datatype, count):
    return (np.arange(count) % 2 if datatype.name == "BOOL" else np.arange(count)).astype(datatype.numpy)


class TestNew:
    @each_numeric
    def test_of_every_datatype(self, datatype):
        """An array of any datatype is taken as it is."""
        array = values(datatype, 6).reshape(2, 3)
        tensor = Tensor("OUT", array)
        assert tensor.name() == "OUT"
        assert tensor.triton_dtype() == datatype.number
        assert tensor.shape() == [2, 3]
        assert tensor.is_cpu()
        assert tensor.as_numpy() is array or np.shares_memory(tensor.as_numpy(), array)
        assert written(tensor) == (datatype.name, [2, 3], array.tobytes())

    @pytest.mark.parametrize("name", ["longlong", "ulonglong", "long", "uintc", "float64", "half", "bool"])
    def test_of_every_c_type(self, name):
        """numpy has several types of the same width; all of them are taken."""
        assert Tensor("OUT", np.ones(3, name)).as_numpy().tolist() == [1, 1, 1]

    @pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "float128", "U3", "i4,f4", "V8"])
    def test_of_another_dtype(self, dtype):
        """A dtype without a Triton datatype is refused."""
        with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported.$"):
            Tensor("OUT", np.zeros(2, dtype))

    def test_of_bfloat16(self):
        """An array of a dtype that numpy itself lacks is refused: there is DLPack for these."""
        with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported.$"):
            Tensor("OUT", np.zeros(2, ml_dtypes.bfloat16))

    def test_without_a_name(self):
        """A tensor has a name."""
        with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string.$"):
            Tensor("", np.zeros(1))

    @pytest.mark.parametrize("name", [None, 5, ["OUT"]], ids=repr)
    def test_with_a_name_that_is_no_text(self, name):
        """A name that is not a str raises in the constructor, where the model's author sees it."""
        with pytest.raises((TypeError, TritonModelException)):
            Tensor(name, np.zeros(1))

    @pytest.mark.parametrize("name", ["OUT", "", b"", None])
    def test_without_contents(self, name):
        """None is no tensor of one text, as numpy has it; that is seen before the name."""
        with pytest.raises(TypeError, match="found None"):
            Tensor(name, None)

    @pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy before 2.0 has no StringDType")
    def test_strings_of_variable_width_have_the_message_of_other_dtypes(self):
        with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported.$"):
            Tensor("OUT", np.array(["x"], np.dtypes.StringDType()))

    def test_arguments_are_positional(self):
        """As in Triton there are no keywords."""
        with pytest.raises(TypeError):
            Tensor(name="OUT", numpy_array=np.zeros(1))
        assert all(name.startswith("__") or "__" in name for name in inspect.signature(Tensor).parameters)

    def test_of_no_dimensions(self):
        """A scalar has an empty shape."""
        tensor = Tensor("OUT", np.array(7, np.int32))
        assert tensor.shape() == []
        assert written(tensor) == ("INT32", [], b"\7\0\0\0")

    def test_of_no_elements(self):
        """A tensor may be empty."""
        tensor = Tensor("OUT", np.zeros((2, 0), np.float32))
        assert tensor.shape() == [2, 0]
        assert written(tensor) == ("FP32", [2, 0], b"")

    def test_shape_is_a_copy(self):
        """Changing the list that shape() returned does not change the tensor."""
        tensor = Tensor("OUT", np.zeros((2, 3)))
        tensor.shape().append(9)
        assert tensor.shape() == [2, 3]

    def test_repr(self):
        """The repr of a tensor has its name, datatype and shape, without its contents."""
        assert repr(Tensor("OUT", np.zeros((2, 3), np.float32))) == "<Tensor OUT FP32 [2, 3]>"


class TestMemoryOrder:
    @pytest.mark.parametrize("count", [12, 12_000], ids=["small", "large"])
    @pytest.mark.parametrize("make", [np.transpose, np.flip, lambda array: array[:, ::2]], ids=["T", "flip", "step"])
    def test_other_than_c(self, make, count):
        """An array of any memory layout is written in C order."""
        array = make(np.arange(count, dtype=np.int64).reshape(3, -1))
        assert written(Tensor("OUT", array)) == ("INT64", list(array.shape), array.tobytes())

    @pytest.mark.parametrize("count", [12, 12_000], ids=["small", "large"])
    @pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2", ">i8", ">f2"])
    def test_big_endian(self, dtype, count):
        """The host gets little-endian contents for arrays of any byte order."""
        array = np.arange(count).astype(dtype)
        datatype, _, contents = written(Tensor("OUT", array))
        assert BY_NAME[datatype].numpy == dtype.replace(">", "<")
        assert contents == array.astype(dtype.replace(">", "<")).tobytes()

    @pytest.mark.parametrize("make", [np.transpose, lambda array: array[:, ::2], lambda array: array.astype(">i4")])
    def test_dlpack_of_it(self, make):
        """A consumer sees the elements that the array has, in C order and of the machine's byte order."""
        array = make(np.arange(12, dtype=np.int32).reshape(3, 4))
        assert_array_equal(np.from_dlpack(Tensor("OUT", array)), array)

    def test_read_only_array(self):
        """An array that may not be written to can still be an output."""
        array = np.arange(3)
        array.flags.writeable = False
        assert written(Tensor("OUT", array))[2] == array.tobytes()


class TestInput:
    @each_numeric
    def test_is_a_writable_view(self, regions, datatype):
        """An input is not copied, and may be written to."""
        expected = values(datatype, 6).reshape(2, 3)
        tensor = input_tensor(regions, datatype.name, [2, 3], expected.tobytes())
        assert (tensor.name(), tensor.triton_dtype(), tensor.shape()) == ("IN", datatype.number, [2, 3])
        array = tensor.as_numpy()
        assert array.dtype == np.dtype(datatype.numpy)
        assert_array_equal(array, expected)
        array[0, 0] = 1
        assert regions.requests.map[64 : 64 + datatype.size] == np.array(1, datatype.numpy).tobytes()
        assert tensor.as_numpy() is array

    @pytest.mark.parametrize("offset", [65, 66, 67, 68, 71])
    def test_askew(self, regions, offset):
        """Where contents lie askew the array is aligned all the same."""
        tensor = input_tensor(regions, "FP64", [3], np.arange(3.0).tobytes(), offset)
        array = tensor.as_numpy()
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.tolist() == [0.0, 1.0, 2.0]
        assert np.from_dlpack(tensor).tolist() == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("shape", [[4], [2, 2], [4, 1, 1]], ids=str)
    def test_bytes(self, regions, shape):
        """BYTES become an object array of bytes in the tensor's shape."""
        elements = np.array([b"a", b"", "ü".encode(), b"\0\xff"], object).reshape(shape)
        tensor = input_tensor(regions, "BYTES", shape, serialize_byte_tensor(elements))
        array = tensor.as_numpy()
        assert array.dtype == object
        assert array.tolist() == elements.tolist()
        assert tensor.triton_dtype() == 13
        assert tensor.as_numpy() is array

    def test_no_bytes(self, regions):
        """BYTES without elements have their shape too."""
        tensor = input_tensor(regions, "BYTES", [0, 3], b"")
        assert tensor.as_numpy().shape == (0, 3)

    def test_bfloat16(self, regions):
        """numpy cannot have BF16, DLPack can."""
        tensor = input_tensor(regions, "BF16", [2], np.array([1.0, 2.0], ml_dtypes.bfloat16).tobytes())
        assert tensor.triton_dtype() == 14
        with pytest.raises(TritonModelException, match=BF16_MESSAGE):
            tensor.as_numpy()
        again = Tensor.from_dlpack("OUT", tensor)
        assert again.triton_dtype() == 14
        with pytest.raises(TritonModelException, match=BF16_MESSAGE):
            again.as_numpy()
        assert written(again) == ("BF16", [2], np.array([1.0, 2.0], ml_dtypes.bfloat16).tobytes())

    def test_as_output(self, regions):
        """An input of any datatype may be an output as it is, whether the model has read it or not."""
        for datatype, contents in [("INT16", b"\1\0\2\0"), ("BF16", b"\1\2\3\4"), ("BYTES", b"\1\0\0\0a\0\0\0\0")]:
            tensor = input_tensor(regions, datatype, [2], contents)
            assert written(tensor) == (datatype, [2], contents)
            if datatype != "BF16":
                tensor.as_numpy()
                assert written(tensor) == (datatype, [2], contents)

    def test_empty(self, regions):
        """An input without elements is an array without elements."""
        tensor = input_tensor(regions, "FP32", [0, 4], b"")
        assert tensor.as_numpy().shape == (0, 4)


class TestBytesOutput:
    @pytest.mark.parametrize(
        "array",
        [np.array([b"ab", b""], object), np.array(["ab", ""], object), np.array([b"ab", b""], "S2")],
        ids=["bytes", "str", "S"],
    )
    def test_of_every_kind(self, array):
        """Arrays of bytes, of text and of fixed-length bytes are BYTES."""
        assert written(Tensor("OUT", array)) == ("BYTES", [2], b"\2\0\0\0ab\0\0\0\0")

    def test_of_no_elements(self):
        """BYTES without elements have no contents."""
        assert written(Tensor("OUT", np.zeros((0, 2), object))) == ("BYTES", [0, 2], b"")

    def test_in_fortran_order(self):
        """Elements are written in C order."""
        array = np.array([[b"a", b"b"], [b"c", b"d"]], object).T
        assert written(Tensor("OUT", array))[2] == b"".join(b"\1\0\0\0" + each for each in (b"a", b"c", b"b", b"d"))


class TestDlpack:
    def test_device(self):
        """Tensors are in CPU memory."""
        assert Tensor("OUT", np.zeros(1)).__dlpack_device__() == (1, 0)

    def test_shares_memory(self):
        """Neither way of exchanging tensors makes a copy."""
        array = np.arange(4, dtype=np.float32)
        tensor = Tensor("OUT", array)
        assert np.shares_memory(np.from_dlpack(tensor), array)
        assert np.shares_memory(Tensor.from_dlpack("OUT", tensor.to_dlpack()).as_numpy(), array)

    @each_numeric
    def test_of_every_datatype(self, datatype):
        """Every datatype but BYTES comes back as it went."""
        array = values(datatype, 6).reshape(2, 3)
        again = Tensor.from_dlpack("AGAIN", Tensor("OUT", array))
        assert (again.name(), again.shape(), again.triton_dtype()) == ("AGAIN", [2, 3], datatype.number)
        assert_array_equal(again.as_numpy(), array)

    def test_stream_is_accepted(self):
        """Consumers name a stream; it means nothing here."""
        assert "dltensor" in repr(Tensor("OUT", np.zeros(1)).__dlpack__(stream=None))
        assert "dltensor" in repr(Tensor("OUT", np.zeros(1)).__dlpack__(stream=1))

    def test_of_bytes(self):
        """There is no DLPack of strings."""
        with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors.$"):
            Tensor("OUT", np.array([b"a"], object)).to_dlpack()

    def test_without_a_name(self):
        """A tensor has a name, and its capsule is not used up when it has none."""
        capsule = Tensor("OUT", np.zeros(1)).to_dlpack()
        with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string.$"):
            Tensor.from_dlpack("", capsule)
        assert Tensor.from_dlpack("OUT", capsule).as_numpy().tolist() == [0.0]

    def test_of_another_order(self):
        """A producer's tensor must be in C order."""
        with pytest.raises(
            TritonModelException,
            match=r"^DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
            "supported.$",
        ):
            Tensor.from_dlpack("OUT", np.zeros((2, 3)).T)

    def test_outlives_its_maker(self):
        """The memory stays as long as anybody has it."""
        kept = np.from_dlpack(Tensor("OUT", np.arange(1000)))
        assert kept.tolist() == list(range(1000))

    def test_is_an_output(self):
        """A tensor that was imported through DLPack is written like any other."""
        tensor = Tensor.from_dlpack("OUT", np.arange(3, dtype=np.int8))
        assert written(tensor) == ("INT8", [3], b"\0\1\2")


class TestProtocol:
    """`__dlpack__` of tensors in main memory, by the array API standard."""

    def test_versions(self):
        """A consumer that reads versioned capsules may write to what a model may write to, and to nothing else."""
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        for read_only in (False, True):
            array.flags.writeable = not read_only
            taken = dlpack.from_capsule(Tensor("A", array).__dlpack__(max_version=(1, 0)))
            assert (taken.pointer, taken.shape) == (array.ctypes.data, (2, 3))
            assert taken.read_only is (read_only and HAS_VERSIONS)

    def test_read_only_array(self):
        """An array that its producer exports as read-only stays so."""
        array = np.arange(3, dtype=np.float32)
        array.flags.writeable = False
        if not HAS_VERSIONS:
            pytest.skip("this numpy has no versioned capsules")
        taken = Tensor.from_dlpack("A", array).as_numpy()
        assert taken.ctypes.data == array.ctypes.data
        assert not taken.flags.writeable

    def test_copies(self):
        """A copy is made if the consumer asks for one, or if the array is not contiguous and it does not forbid it."""
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        for options in ({}, {"copy": False}, {"dl_device": (1, 0)}, {"stream": None}, {"stream": 5}):
            assert dlpack.from_capsule(Tensor("A", array).__dlpack__(**options)).pointer == array.ctypes.data
        taken = dlpack.from_capsule(Tensor("A", array).__dlpack__(copy=True))
        assert taken.pointer != array.ctypes.data
        turned = Tensor("A", array.T)
        taken = dlpack.from_capsule(turned.__dlpack__())
        assert dlpack.as_array(taken.owner, taken.pointer, taken.shape, array.dtype).tolist() == array.T.tolist()
        with pytest.raises(BufferError, match="not contiguous"):
            turned.__dlpack__(copy=False)

    def test_another_device(self):
        """A tensor in main memory goes to no GPU."""
        with pytest.raises(BufferError, match=r"on the DLPack device \(1, 0\) cannot be exported to \(2, 0\)"):
            Tensor("A", np.zeros(3)).__dlpack__(dl_device=(2, 0))

    def test_float8(self):
        """Triton has no float8: what a framework has of it comes as the bits, in UINT8."""
        array = np.arange(4, dtype=np.uint8)
        capsule = array.__dlpack__()
        dlpack._DLManagedTensor.from_address(dlpack._get_pointer(capsule, b"dltensor")).dl_tensor.code = 10
        tensor = Tensor.from_dlpack("A", capsule)
        assert (tensor.triton_dtype(), tensor.as_numpy().tolist()) == (2, [0, 1, 2, 3])
