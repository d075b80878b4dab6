# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The libraries that a backend needs are loaded with it, and an unusable library is refused with the reason.

Each library is loaded in a process of its own: none is ever unloaded. The host is a library of the host's name.
"""

import ctypes
import json
import platform
import struct
import subprocess
import sys

import pytest

from pyruntime.runtime.native.libraries import explain
from pyruntime.runtime.native.shim import make_shim

pytestmark = pytest.mark.processes

HOST = """
int TRITONBACKEND_RequestId(void) { return 7; }
int TRITONSERVER_ErrorNew(void) { return 7; }
"""
BACKEND = "int TRITONBACKEND_RequestId(void); int TRITONBACKEND_ModelInstanceExecute(void) { return %s; }"
# Loads the host, prepares the backend, loads it, executes it; prints the result.
PROGRAM = """
import ctypes, json, os, sys
from pyruntime.runtime.native.libraries import explain, prepare
from pyruntime.utils.errors import LoadError

host, path, preload, options, packages, missing = json.loads(sys.argv[1])
sys.path[:0] = packages  # before installed ones
sys.modules.update(dict.fromkeys(missing))  # as if they were not installed
for library in host:
    ctypes.CDLL(library, mode=os.RTLD_GLOBAL)
try:
    prepare(path, model="m", preload=preload, **options)
    print(ctypes.CDLL(path)[options.get("entry_point", "TRITONBACKEND_ModelInstanceExecute")]())
except LoadError as error:
    print(error)
except OSError as error:
    print(explain(str(error), path, "m"))
print([name for name in os.listdir(os.environ["TMPDIR"])])
"""


def compile_library(folder, name, source, *options, soname=None):
    """Compile C into a shared library in a folder, which is made if need be; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    options = ["-o", path, "-x", "c", "-", "-x", "none", *options, f"-Wl,-soname,{soname or name}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *map(str, options)], input=source, text=True, check=True)
    return path


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The library that is the server, under the file name of an extension."""
    return compile_library(tmp_path_factory.mktemp("host"), "_host.so", HOST, soname="libtritonserver.so")


@pytest.fixture
def load(tmp_path, host):
    """Load a backend in a process of its own: what its Execute returns, or why it cannot be loaded, as text."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def load(path, *preload, hosts=(host,), packages=(), missing=(), environment=None, **options):
        arguments = [hosts, path, preload, options, packages, missing]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(arguments, default=str)],
            env={"PATH": "", "TMPDIR": str(temporary), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        outcome, left_over = done.stdout.splitlines()
        assert left_over == "[]"
        return outcome

    return load


@pytest.fixture
def backend(tmp_path, host):
    """Compile a backend that returns the value of an expression; its path."""

    def compile_backend(value="TRITONBACKEND_RequestId()", *options, declarations="", name="libtriton_b.so", **more):
        source = f"{declarations}\n{BACKEND % value}"
        return compile_library(tmp_path / "backend", name, source, *options, **more)

    return compile_backend


def test_a_usual_backend(load, backend, host):
    """A backend that needs the server by its name, or only its symbols, needs nothing of us."""
    assert load(backend("TRITONBACKEND_RequestId()", host)) == "7"
    assert load(backend()) == "7"


def test_a_server_of_another_name(load, backend, tmp_path):
    """A backend from a repaired wheel gets us under its server's name, and its server is not even opened."""
    name = "libtritonserver-717102f0.so"
    fatal = "__attribute__((constructor)) static void start(void) { __builtin_trap(); }"
    other = compile_library(tmp_path / "wheel", name, HOST + fatal)
    path = backend("TRITONBACKEND_RequestId()", other, f"-Wl,-rpath,{other.parent}")
    assert load(path) == "7"
    second = backend("TRITONBACKEND_RequestId()", other, name="libtriton_c.so")
    assert load(second) == "7"
    # The libraries that the first backend has loaded serve the second.
    assert load(second, path) == "7"


@pytest.mark.parametrize("machine", [("x86_64", 62), ("aarch64", 183)])
def test_shims_of_both_machines(machine):
    """A shim is for the machine of the backend, and says nothing but its two names."""
    shim = make_shim("libtritonserver-717102f0.so", "libtritonserver.so", machine[0])
    assert struct.unpack_from("<H", shim, 18) == (machine[1],)
    assert len(shim) < 512


def test_another_server_is_there_already(load, backend, host, tmp_path):
    """Calls of backends would go to the server that was loaded first: nothing works then, so nothing is loaded."""
    other = compile_library(tmp_path / "wheel", "libtritonserver-0a1b.so.2", "")
    outcome = load(backend(), hosts=(host, other))
    assert f"would call {other}, which is in this process already, instead of pyruntime" in outcome


def test_without_a_server(load, backend):
    """Where our own extension is not loaded, the loader is not left to find any other."""
    assert "needs pyruntime's own libtritonserver.so, which is not loaded" in load(backend(), hosts=())


def package(folder, framework, library, value, soname=None, *options):
    """A Python package with a library in it; the folder for sys.path."""
    path = folder / "packages" / framework
    source = f"int inner(void); int OrtAnswer(void) {{ return {value}; }}"
    compile_library(path, library, source, *options, soname=soname)
    top = folder / "packages" / framework.split("/")[0]
    # Importing it would be an error.
    (top / "__init__.py").write_text("1 / 0")
    return folder / "packages"


@pytest.fixture
def framework_backend(backend, tmp_path):
    """A backend that needs a library of a framework, and has no idea where it is."""

    def compile_backend(soname="libonnxruntime.so.1", *options):
        needed = compile_library(
            tmp_path / "needed", "libneeded.so", "int OrtAnswer(void) { return 1; }", soname=soname
        )
        return backend("OrtAnswer()", needed, *options, declarations="int OrtAnswer(void);")

    return compile_backend


@pytest.mark.parametrize(
    ("framework", "file", "soname"),
    [
        ("onnxruntime/capi", "libonnxruntime.so.1.31.1", "libonnxruntime.so.1"),
        ("openvino/libs", "libopenvino.so.2641", "libopenvino.so.2641"),
        ("torch/lib", "libc10.so", "libc10.so"),
        ("torch/lib", "libtorch_cpu.so", "libtorch_cpu.so"),
        ("tensorflow", "libtensorflow_cc.so.2", "libtensorflow_cc.so.2"),
        ("nvidia/cuda_runtime/lib", "libcudart.so.12", "libcudart.so.12"),
    ],
)
def test_frameworks_are_in_packages(load, framework_backend, tmp_path, framework, file, soname):
    """The library of a framework is that of its Python package, which is not imported for it."""
    packages = package(tmp_path, framework, file, 31, soname)
    assert load(framework_backend(soname), packages=[packages]) == "31"


def test_frameworks_bring_what_they_need(load, framework_backend, tmp_path):
    """A library of a package finds the libraries that it needs beside itself."""
    inner = compile_library(tmp_path / "packages/onnxruntime/capi", "libinner.so", "int inner(void) { return 32; }")
    options = (inner, "-Wl,-rpath,$ORIGIN")
    packages = package(tmp_path, "onnxruntime/capi", "libonnxruntime.so.1", "inner()", None, *options)
    assert load(framework_backend(), packages=[packages]) == "32"


def test_a_library_beside_the_backend_comes_first(load, framework_backend, tmp_path):
    """A backend that brings its framework along gets that one, as it would from Triton."""
    packages = package(tmp_path, "onnxruntime/capi", "libonnxruntime.so.1", 31)
    path = framework_backend("libonnxruntime.so.1", "-Wl,-rpath,${ORIGIN}/own")
    compile_library(path.parent / "own", "libonnxruntime.so.1", "int OrtAnswer(void) { return 33; }")
    assert load(path, packages=[packages]) == "33"


def test_a_library_that_the_user_named_comes_first(load, framework_backend, tmp_path):
    """A library that the loader finds by itself comes first."""
    packages = package(tmp_path, "onnxruntime/capi", "libonnxruntime.so.1", 31)
    own = compile_library(tmp_path / "own", "libonnxruntime.so.1", "int OrtAnswer(void) { return 34; }")
    environment = {"LD_LIBRARY_PATH": str(own.parent)}
    assert load(framework_backend(), packages=[packages], environment=environment) == "34"


def test_a_framework_that_is_not_there(load, framework_backend):
    """The sentence names the library, the model and what pip would have to install."""
    assert load(framework_backend("libopenvino.so.77"), missing=["openvino"]) == (
        "unable to load shared library: libopenvino.so.77: cannot open shared object file: No such file or directory"
        "; model 'm' needs it: pip install openvino brings it, in the version that has libopenvino.so.77"
    )


def test_a_framework_of_another_version(load, framework_backend, tmp_path):
    """The installed library is named, so that the user sees which version is needed instead."""
    packages = package(tmp_path, "openvino/libs", "libopenvino.so.2641", 1)
    outcome = load(framework_backend("libopenvino.so.2500"), packages=[packages])
    assert (
        "openvino is installed, but has libopenvino.so.2641: install the version that has libopenvino.so.2500"
        in outcome
    )


def test_a_framework_that_cannot_be_loaded(load, framework_backend, tmp_path):
    """A package that is broken is the reason, not the backend."""
    inner = compile_library(tmp_path / "gone", "libgone.so", "int inner(void) { return 32; }")
    packages = package(tmp_path, "onnxruntime/capi", "libonnxruntime.so.1", "inner()", None, inner)
    inner.unlink()
    outcome = load(framework_backend(), packages=[packages])
    assert outcome.startswith("unable to load shared library: libgone.so: cannot open shared object file")
    assert "model 'm' needs it: install the package of the system that has libgone.so" in outcome


def test_a_library_that_nobody_knows(load, backend, tmp_path):
    """Of other libraries the name is all that can be said."""
    needed = compile_library(tmp_path / "needed", "libgone.so.3", "int gone(void) { return 1; }")
    path = backend("gone()", needed, declarations="int gone(void);")
    needed.unlink()
    outcome = load(path)
    assert outcome.startswith("unable to load shared library: libgone.so.3: cannot open shared object file")
    assert "put it into a folder of LD_LIBRARY_PATH" in outcome


def test_libcrypto_goes_without_saying(load, backend):
    """Libraries built for Triton use OpenSSL and do not say that they need it."""
    try:
        ctypes.CDLL("libcrypto.so.3")
    except OSError as error:
        pytest.skip(f"there is no OpenSSL 3 here: {error}")
    path = backend("EVP_MD_size(EVP_sha256())", declarations="void *EVP_sha256(void); int EVP_MD_size(void *);")
    outcome = load(path)
    # OpenSSL 3 calls it EVP_MD_get_size and keeps the old name as a macro.
    assert "EVP_MD_size is one of OpenSSL's" in outcome
    path = backend("EVP_MD_get_size(EVP_sha256())", declarations="void *EVP_sha256(void); int EVP_MD_get_size(void *);")
    assert load(path) == "32"


def test_preloaded_libraries(load, backend, tmp_path):
    """Libraries in the configuration are loaded in its order, and later libraries can use their symbols."""
    first = compile_library(tmp_path / "own", "first.so", "int first(void) { return 4; }")
    second = compile_library(tmp_path / "own", "second.so", "int first(void); int second(void) { return first() + 1; }")
    path = backend("second()", declarations="int second(void);")
    assert load(path, first, second) == "5"
    outcome = load(path, second, first)
    assert outcome.startswith(f"unable to preload library '{second}' for model 'm': {second}: undefined symbol: first")
    assert "no library that it needs has second: name one that has it in the parameter PRELOAD_LIBRARIES" in load(path)


def test_preloaded_libraries_need_frameworks(load, backend, tmp_path):
    """Operations of one's own are built against a framework, which is found for them as it is for backends."""
    needed = compile_library(
        tmp_path / "needed", "libneeded.so", "int OrtAnswer(void) { return 1; }", soname="libc10.so"
    )
    packages = package(tmp_path, "torch/lib", "libc10.so", 36)
    own = compile_library(tmp_path, "own.so", "int OrtAnswer(void); int own(void) { return OrtAnswer(); }", needed)
    assert load(backend("own()", declarations="int own(void);"), own, packages=[packages]) == "36"


@pytest.mark.parametrize("content", [None, b"", b"nonsense" * 100])
def test_preloaded_libraries_that_are_none(load, backend, tmp_path, content):
    """The sentence names library and model."""
    path = tmp_path / "own.so"
    if content is not None:
        path.write_bytes(content)
    assert load(backend(), path).startswith(f"unable to preload library '{path}' for model 'm': {path}")


@pytest.mark.parametrize("name", ["libtriton_python.so", "libtriton_other.so"])
def test_the_python_backend(load, backend, name):
    """Triton's own Python backend is refused under any name."""
    outcome = load(backend(name=name, soname="libtriton_python.so"))
    assert (
        "is Triton's own Python backend. Models in Python are run by pyruntime itself: set 'backend: \"python\"'"
        in (outcome)
    )


def test_no_backend(load, tmp_path):
    """A library without the entry point that makes it a backend is refused in Triton's words."""
    path = compile_library(tmp_path, "libtriton_b.so", "int TRITONREPOAGENT_ModelAction(void) { return 1; }")
    assert load(path) == (
        "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library:"
        f" {path}: undefined symbol: TRITONBACKEND_ModelInstanceExecute"
    )
    assert load(path, entry_point="TRITONREPOAGENT_ModelAction") == "1"


def test_a_newer_triton(load, backend):
    """A backend that needs more of the server than we have says so before any of it runs."""
    needed = [f"TRITONSERVER_New{letter}" for letter in "ABCD"]
    path = backend(
        " + ".join(f"{name}()" for name in needed), declarations="".join(f"int {name}();" for name in needed)
    )
    assert "it needs TRITONSERVER_NewA, TRITONSERVER_NewB, TRITONSERVER_NewC, ..., which pyruntime has not" in load(
        path
    )


def test_a_file_that_is_no_library(load, backend, tmp_path):
    """A library for another machine, a file of another kind and a missing file each have their own message."""
    image = bytearray(backend().read_bytes())
    other = {"x86_64": (183, "aarch64"), "aarch64": (62, "x86_64")}[platform.machine()]
    image[18:20] = struct.pack("<H", other[0])
    path = tmp_path / "libtriton_x.so"
    assert load(path) == f"unable to load shared library of model 'm': {path}: No such file or directory"
    path.write_bytes(image)
    assert load(path).endswith(f"{path} is built for {other[1]}, and this machine is {platform.machine()}")
    path.write_bytes(b"PK")
    assert load(path) == f"unable to load shared library of model 'm': {path} is no ELF file"
    path.write_bytes(b"")
    assert load(path) == f"unable to load shared library of model 'm': {path} is empty"


@pytest.mark.parametrize(
    ("dlerror", "advice"),
    [
        ("/x/b.so: undefined symbol: TRITONSERVER_New", "another version of Triton, that has TRITONSERVER_New"),
        ("/x/b.so: undefined symbol: _ZNK3c1010TensorImpl4sizeEv", "is one of torch's"),
        ("/x/b.so: undefined symbol: _ZN2ov4CoreC1Ev, version V", "_ZN2ov4CoreC1Ev is one of openvino's"),
        ("/lib/libc.so.6: version `GLIBC_2.99' not found (required by /x/b.so)", "newer system, that has GLIBC_2.99"),
        ("/x/b.so: cannot allocate memory in static TLS block", "LD_PRELOAD"),
    ],
)
def test_the_words_of_the_loader(dlerror, advice):
    """The loader's message comes first, because people search for it; its meaning follows."""
    sentence = explain(dlerror, "/x/b.so", "m")
    assert sentence.startswith(f"unable to load shared library: {dlerror}; model 'm' needs it: ")
    assert advice in sentence


@pytest.mark.parametrize(
    "dlerror", ["/x/b.so: file too short", "/x/b.so: cannot open shared object file: No such file"]
)
def test_other_words_of_the_loader(dlerror):
    """Where we know no more than the loader, we add nothing but the model."""
    assert explain(dlerror, "/x/b.so", "m") == f"unable to load shared library: {dlerror}; model 'm' needs it"
