# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Custom libraries, compiled here and run in this process: their arguments, their inputs and the results."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from pyruntime.runtime.config.schema import new_model_config
from pyruntime.testing import InferenceError, LoadError, Request

LIBRARIES = Path(__file__).parent.parent / "native/custom"
ADD_SUB = (LIBRARIES / "add_sub.pbtxt").read_text()
ACCUMULATOR = """
platform: "custom" max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "START" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "READY" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "CORRID" data_type: TYPE_UINT64 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
PARAMETERS = (LIBRARIES / "parameters.pbtxt").read_text()
FAULTY = (LIBRARIES / "faulty.pbtxt").read_text()
# The faults of faulty.c, by the value of its input.
NOTHING_WRONG, PAYLOAD_ERROR, PAYLOAD_WORDLESS, EXECUTE_ERROR, _, NO_OUTPUT = range(6)
UNKNOWN_INPUT, UNKNOWN_OUTPUT, WRONG_SIZE, NEGATIVE_SHAPE, NO_CONTEXT, HUGE_OUTPUT = range(6, 12)
OTHER_THREAD, TWICE, UNRESOLVED, CUT, OTHER_THREADS_CALL = range(12, 17)
WORDS = "it is the test's fault"


def identity(datatype, dims="[ -1 ]", max_batch_size=0, more=""):
    """A configuration of identity.c."""
    tensor = f"data_type: {datatype} dims: {dims} {more}"
    mark = "" if max_batch_size else 'parameters { key: "NO_BATCH" value { string_value: "" } }'
    return f"""
        platform: "custom" max_batch_size: {max_batch_size} {mark}
        input [ {{ name: "INPUT0" {tensor} }} ] output [ {{ name: "OUTPUT0" {tensor} }} ]
    """


@pytest.fixture
def custom(load_model, compile_library, tmp_path):
    """`custom(source, config, *options, filename="libcustom.so")`: a model "m" with a library compiled of `source`."""

    def custom(source, config, *options, filename="libcustom.so"):
        folder = tmp_path / "models" / "m"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        # Not linked: a library that is loaded already would be the same one once more.
        if source is not None:
            shutil.copy(compile_library(f"custom/{source}", *options), folder / "1" / filename)
        (folder / "config.pbtxt").write_text(config)
        return load_model(folder)

    return custom


def do(fault):
    """A request that has faulty.c do something."""
    return {"IN": [[fault]]}


class TestInputsAndOutputs:
    def test_add_sub(self, custom):
        """A library of version 1 gets its inputs, and the outputs that it writes are the response."""
        result = custom("add_sub.c", ADD_SUB).infer({"INPUT0": [[1, 2, 3]], "INPUT1": [[10, 20, 30]]})
        assert result["OUTPUT0"].tolist() == [[11, 22, 33]]
        assert result["OUTPUT1"].tolist() == [[-9, -18, -27]]

    def test_payloads(self, custom, capfd):
        """The requests of a batch are payloads of one call, each with a batch size and a shape of its own."""
        model = custom("add_sub.c", ADD_SUB)
        sizes = [(1, 2), (2, 3), (1, 0)]
        requests = [{"INPUT0": np.full(size, 5, np.int32), "INPUT1": np.ones(size, np.int32)} for size in sizes]
        results = model.execute(requests)
        assert [result["OUTPUT0"].tolist() for result in results] == [[[6, 6]], [[6, 6, 6], [6, 6, 6]], [[]]]
        assert capfd.readouterr().out == "add_sub executes 3 payloads\n"

    def test_output_that_nobody_asked_for(self, custom):
        """Only requested outputs are in the response."""
        inputs = {"INPUT0": [[1]], "INPUT1": [[2]]}
        result = custom("add_sub.c", ADD_SUB).infer(Request(inputs, requested_outputs=["OUTPUT1"]))
        assert {name: array.tolist() for name, array in result.outputs.items()} == {"OUTPUT1": [[-1]]}

    @pytest.mark.parametrize("number", ["BOOL", "UINT8", "INT16", "UINT64", "FP16", "FP32", "FP64", "INT64"])
    def test_numbers(self, custom, number):
        """A library of version 2 copies numbers of any datatype, from memory of the CPU to memory of the CPU."""
        model = custom("identity.c", identity(f"TYPE_{number}"))
        result = model.infer({"INPUT0": [0, 1, 1]})
        assert result["OUTPUT0"].tolist() == [0, 1, 1]

    def test_texts(self, custom):
        """BYTES are encoded as on the wire, in both directions."""
        model = custom("identity.c", identity("TYPE_STRING", "[ 2, 2 ]"))
        texts = [[b"one", b""], ["zw\u00f6lf".encode(), bytes(range(256))]]
        assert model.infer({"INPUT0": np.array(texts, object)})["OUTPUT0"].tolist() == texts

    def test_nothing(self, custom):
        """Inputs without elements are inputs, of no block."""
        model = custom("identity.c", identity("TYPE_STRING"))
        assert model.infer({"INPUT0": np.array([], object)})["OUTPUT0"].shape == (0,)

    def test_reshape(self, custom):
        """The library sees the shapes of the reshape, and the client does not."""
        config = identity("TYPE_INT32", "[ 4 ]", 2, "reshape { shape: [ 2, 2 ] }")
        assert custom("identity.c", config).infer({"INPUT0": [[1, 2, 3, 4]]})["OUTPUT0"].tolist() == [[1, 2, 3, 4]]

    def test_scalars(self, custom):
        """A reshape to nothing leaves the dimension of the batch."""
        config = identity("TYPE_INT32", "[ 1 ]", 2, "reshape { shape: [ ] }")
        assert custom("identity.c", config).infer({"INPUT0": [[1], [2]]})["OUTPUT0"].tolist() == [[1], [2]]

    def test_sequences(self, custom):
        """Control inputs are inputs; the sums of two sequences in one instance are their own."""
        model = custom("accumulator.c", ACCUMULATOR)

        def request(value, start, sequence, ready=1):
            return {"INPUT": [[value]], "START": [[start]], "READY": [[ready]], "CORRID": [[sequence]]}

        first = model.execute([request(1, 1, 7), request(100, 1, 8), request(50, 0, 7, ready=0)])
        then = model.execute([request(2, 0, 7), request(200, 0, 8)])
        again = model.execute([request(3, 1, 7), request(300, 0, 8)])
        assert [result["OUTPUT"].item() for result in [*first[:2], *then, *again]] == [1, 100, 3, 300, 3, 600]
        assert first[2].outputs == {}


class TestWhatAnInstanceIsTold:
    def test_everything(self, custom, tmp_path):
        """The normalised configuration, the instance's name, no GPU, the server's version and its repository."""
        more = """
            parameters { key: "k" value { string_value: "v" } } instance_group { name: "g" count: 2 }
            optimization { graph { level: 1 } } model_warmup { name: "w" inputs { key: "IN" value { dims: [ 1 ] } } }
        """
        model = custom("parameters.c", PARAMETERS + more)
        result = model.infer({"IN": [0]})
        texts = [b"g_0_cpu", version("pyruntime").encode(), os.fsencode(tmp_path / "models")]
        assert result["TEXTS"].tolist() == texts
        assert result["NUMBERS"].tolist() == [-1, 2]
        config = new_model_config()
        config.ParseFromString(result["CONFIG"].tobytes())
        assert (config.name, config.platform, config.default_model_filename) == ("m", "custom", "libcustom.so")
        assert config.parameters["k"].string_value == "v"
        assert config.instance_group[0].count == 2
        assert config.optimization.input_pinned_memory.enable
        assert config.model_warmup[0].inputs["IN"].dims == [1]

    def test_name_without_groups(self, custom):
        """Without instance groups the group has the model's name."""
        assert custom("parameters.c", PARAMETERS).infer({"IN": [0]})["TEXTS"][0] == b"m_0_cpu"

    def test_name_of_a_group_without_one(self, custom):
        """A group without a name has the model's and its number."""
        model = custom("parameters.c", PARAMETERS + "instance_group [ { kind: KIND_CPU } ]")
        assert model.infer({"IN": [0]})["TEXTS"][0] == b"m_0_0_cpu"


class TestLoading:
    def test_no_library(self, custom):
        """Without a library there is no model."""
        with pytest.raises(LoadError, match=r"^unable to find Custom model 'libcustom\.so' for m$"):
            custom(None, FAULTY)

    def test_another_filename(self, custom):
        """The library is the file that the configuration names."""
        model = custom("faulty.c", FAULTY + 'default_model_filename: "other.so"', filename="other.so")
        assert model.infer(do(NOTHING_WRONG))["OUT"].tolist() == [[NOTHING_WRONG]]
        with pytest.raises(LoadError, match=r"^unable to find Custom model 'another\.so' for m$"):
            custom(None, FAULTY + 'default_model_filename: "another.so"')

    def test_filename_elsewhere(self, custom):
        """No file outside the version's folder is a model's library."""
        with pytest.raises(LoadError, match=r"^unable to find Custom model '\.\./config\.pbtxt' for m$"):
            custom(None, FAULTY + 'default_model_filename: "../config.pbtxt"')

    def test_no_library_at_all(self, custom, tmp_path):
        """A file that is not a library is refused with the loader's reason."""
        (tmp_path / "models/m/1").mkdir(parents=True)
        (tmp_path / "models/m/1/libcustom.so").write_text("no library, and long enough for the loader to look into it")
        with pytest.raises(LoadError, match=r"^unable to load custom library: .*libcustom\.so: .+"):
            custom(None, FAULTY)

    @pytest.mark.processes
    def test_library_of_a_framework(self, custom, tmp_path, monkeypatch):
        """The library of a framework is that of its Python package; if it lacks it, the message says so."""
        packages, folder = tmp_path / "packages/openvino/libs", tmp_path / "models/m/1"
        for path in (packages, folder):
            path.mkdir(parents=True)
        # Before a real one, which another test may have imported.
        (tmp_path / "packages/openvino/__init__.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
        monkeypatch.syspath_prepend(tmp_path / "packages")
        monkeypatch.delitem(sys.modules, "openvino", raising=False)

        def compile_with(name, filename):
            """Compile a framework's library, and a custom library that needs it."""
            shared = ["gcc", "-shared", "-fPIC"]
            subprocess.run([*shared, "-x", "c", "/dev/null", f"-Wl,-soname,{name}", "-o", packages / name], check=True)
            needs = [f"-I{LIBRARIES.parents[2] / 'include'}", "-Wl,--no-as-needed", packages / name]
            subprocess.run([*shared, LIBRARIES / "faulty.c", *needs, "-o", folder / filename], check=True)

        compile_with("libopenvino.so.77", "libcustom.so")
        assert custom(None, FAULTY).infer(do(NOTHING_WRONG))["OUT"].tolist() == [[NOTHING_WRONG]]
        compile_with("libopenvino.so.78", "other.so")
        (packages / "libopenvino.so.78").unlink()
        with pytest.raises(
            LoadError,
            match=r"^unable to load custom library: libopenvino\.so\.78: cannot open shared object file: .*: "
            r"openvino is installed, but has libopenvino\.so\.77: install the version that has ",
        ):
            custom(None, FAULTY + 'default_model_filename: "other.so"')

    def test_symbol_that_is_nowhere(self, custom):
        """A library that needs a symbol which no library has cannot be loaded."""
        with pytest.raises(
            LoadError, match=r"^unable to load custom library: .*: undefined symbol: function_of_nobody$"
        ):
            custom("faulty.c", FAULTY, "-DNEEDS_MORE")

    def test_function_that_is_nowhere(self, custom):
        """A library with a call to a missing function can be loaded, and used as long as it does not call it."""
        assert custom("faulty.c", FAULTY, "-DUNRESOLVED").infer(do(NOTHING_WRONG))["OUT"].tolist() == [[NOTHING_WRONG]]

    @pytest.mark.parametrize(
        ("option", "symbol"),
        [
            ("-DNO_INITIALIZE", "CustomInitialize"),
            ("-DNO_FINALIZE", "CustomFinalize"),
            ("-DNO_ERROR_STRING", "CustomErrorString"),
            ("-DNO_EXECUTE", "CustomExecute"),
            ("-DVERSION=2", "CustomExecuteV2"),
        ],
    )
    def test_missing_function(self, custom, option, symbol):
        """All functions of a version must be there; that of the other version does not help."""
        options = ["-Wno-unused", option]
        with pytest.raises(LoadError, match=f"^unable to find '{symbol}' entrypoint in custom library: .*{symbol}$"):
            custom("faulty.c", FAULTY, *options)

    @pytest.mark.parametrize("version", [0, 3])
    def test_wrong_version(self, custom, version):
        """There are two versions."""
        message = f"^unable to load custom library: invalid custom version {version} is provided$"
        with pytest.raises(LoadError, match=message):
            custom("faulty.c", FAULTY, f"-DVERSION={version}")

    def test_initialize_error(self, custom, capfd):
        """An instance that fails to initialize is no model; it is finalized all the same."""
        with pytest.raises(LoadError, match=rf"^initialize error for 'm': \(5\) {WORDS}$"):
            custom("faulty.c", FAULTY, "-DINITIALIZE_ERROR=5")
        assert capfd.readouterr().out == "finalized by its thread\n"

    def test_initialize_error_without_words(self, custom):
        """An error may have no words."""
        with pytest.raises(LoadError, match=r"^initialize error for 'm': \(2\) <no error string>$"):
            custom("faulty.c", FAULTY, "-DINITIALIZE_ERROR=2")

    @pytest.mark.parametrize("error", [0, 6])
    def test_no_context(self, custom, error):
        """Without a context there is no instance, for any error code, and no library to ask for a message."""
        message = f"^initialize error for 'm': failed to create instance, error code: {error}$"
        with pytest.raises(LoadError, match=message):
            custom("faulty.c", FAULTY, "-DNO_CONTEXT", f"-DINITIALIZE_ERROR={error}")

    def test_decoupled(self, custom):
        """A custom library has no way to answer twice."""
        with pytest.raises(LoadError, match=r"^model 'm' is decoupled, which a custom library cannot be"):
            custom("faulty.c", FAULTY + "model_transaction_policy { decoupled: true }")

    def test_states(self, custom):
        """A custom library has no way to return a state."""
        state = 'state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 1 ] }'
        with pytest.raises(LoadError, match=r"^model 'm' has states of sequences, for which custom.h has no function$"):
            custom("faulty.c", FAULTY + f"sequence_batching {{ {state} }}")

    def test_threads(self, custom):
        """A custom library is used by one thread."""
        more = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }'
        with pytest.raises(LoadError, match=r"^model 'm' has instances in threads"):
            custom("faulty.c", FAULTY + more)


class TestExecuting:
    @pytest.fixture
    def faulty(self, custom):
        return custom("faulty.c", FAULTY)

    @pytest.mark.parametrize(("fault", "words"), [(PAYLOAD_ERROR, WORDS), (PAYLOAD_WORDLESS, "<no error string>")])
    def test_payload_error(self, faulty, fault, words):
        """A payload that fails is a request that fails, and the others are answered."""
        good, bad = faulty.execute([do(NOTHING_WRONG), do(fault)])
        assert good["OUT"].tolist() == [[NOTHING_WRONG]]
        assert repr(bad.error) == repr(InferenceError(f"payload error for 'm_0_cpu': ({fault}) {words}"))

    def test_execute_error(self, faulty):
        """A call that fails fails all its requests."""
        results = faulty.execute([do(NOTHING_WRONG), do(EXECUTE_ERROR)])
        message = f"execute error for 'm_0_cpu': ({EXECUTE_ERROR}) {WORDS}"
        assert [result.error.message for result in results] == [message, message]

    def test_no_output(self, faulty):
        """A payload that succeeds without an output is answered, with none."""
        assert faulty.infer(do(NO_OUTPUT)).outputs == {}

    def test_unknown_output(self, faulty):
        """An output that the model does not have is treated as one that was not requested."""
        assert faulty.infer(do(UNKNOWN_OUTPUT))["OUT"].tolist() == [[UNKNOWN_OUTPUT]]

    @pytest.mark.parametrize("fault", [UNKNOWN_INPUT, NO_CONTEXT, HUGE_OUTPUT])
    def test_callbacks_that_cannot(self, faulty, fault):
        """A callback that fails returns false, and the library may fail with it."""
        with pytest.raises(InferenceError, match=rf"^payload error for 'm_0_cpu': \({PAYLOAD_ERROR}\) {WORDS}$"):
            faulty.infer(do(fault))
        assert faulty.infer(do(NOTHING_WRONG))["OUT"].tolist() == [[NOTHING_WRONG]]

    @pytest.mark.parametrize(("fault", "size", "shape"), [(WRONG_SIZE, 3, "[1, 1]"), (NEGATIVE_SHAPE, 4, "[1, -1]")])
    def test_wrong_size(self, faulty, fault, size, shape):
        """An output whose size is not that of its shape fails its request, though the library goes on."""
        with pytest.raises(InferenceError) as caught:
            faulty.infer(do(fault))
        assert caught.value.message == f"output 'OUT' has {size} bytes, which are no INT32 of the shape {shape}"

    def test_output_written_twice(self, faulty):
        """The last buffer that was requested for an output counts."""
        assert faulty.infer(do(TWICE))["OUT"].tolist() == [[2]]

    def test_what_is_no_text(self, custom):
        """An output that is not valid BYTES fails its request."""
        model = custom("faulty.c", FAULTY.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING'))
        with pytest.raises(InferenceError, match=r"^output 'OUT' is no BYTES of the shape \[1, 1\]$"):
            model.infer(do(CUT))

    def test_thread(self, faulty, capfd):
        """One thread initializes, executes and finalizes."""
        assert faulty.infer(do(OTHER_THREAD))["OUT"].tolist() == [[1]]
        faulty.close()
        assert capfd.readouterr().out == "finalized by its thread\n"

    def test_thread_of_the_librarys_own(self, faulty):
        """A thread of the library's own may call back."""
        assert faulty.infer(do(OTHER_THREADS_CALL))["OUT"].tolist() == [[3]]

    def test_too_many_rows(self, custom):
        """More rows than the model may get are refused before the library sees them."""
        model = custom("add_sub.c", ADD_SUB)
        requests = [{"INPUT0": [[1], [2]], "INPUT1": [[1], [2]]}] * 2
        model.instance._max_batch_size = 3  # the server never gives it more than it may get
        messages = [result.error.message for result in model.execute(requests)]
        assert messages == ["dynamic batch size 4 for 'm_0_cpu', max allowed is 3"] * 2

    def test_finalize_error(self, custom):
        """An instance that cannot be finalized is over all the same."""
        custom("faulty.c", FAULTY, "-DFINALIZE_ERROR=9").close()
