# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finding backends: the folders, their order, and the error if none is found."""

from dataclasses import replace

import pytest

from pyruntime.runtime.repository.backends import Backend, find_backend
from pyruntime.utils.errors import LoadError

from ..model_specs import BARE_SPEC


def model(backend, runtime="", filename="model.py"):
    return replace(BARE_SPEC, backend=backend, runtime=runtime, default_model_filename=filename)


@pytest.fixture
def find(tmp_path):
    """Looks for the backend of version 3 of a model, after making the files that are named."""

    def find(spec, *files):
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
        backend = find_backend(spec, str(tmp_path / "m"), 3, [str(tmp_path / "users"), str(tmp_path / "ours")])
        relative = [str(path.removeprefix(f"{tmp_path}/")) for path in (backend.path, backend.library)]
        return Backend(backend.name, backend.kind, *relative)

    return find


class TestPython:
    @pytest.mark.parametrize("runtime", ["", "libtriton_python.so", "model.py"])
    def test_the_models_own_file(self, find, runtime):
        """The backend "python" is the model.py of the version, regardless of other files."""
        spec = model("python", runtime)
        assert find(spec, "m/3/model.py", "ours/python/model.py") == Backend("python", "python", "m/3/model.py")

    @pytest.mark.parametrize(("filename", "path"), [("other.py", "m/3/other.py"), ("", "m/3/model.py")])
    def test_another_filename(self, find, filename, path):
        """default_model_filename names another file, if it says anything."""
        assert find(model("python", filename=filename), path).path == path

    def test_no_file(self, find, tmp_path):
        """Without the file, the error names it."""
        with pytest.raises(LoadError, match=f"^Python model file not found in '{tmp_path}/m/3/model.py'$"):
            find(model("python"), "m/4/model.py")

    def test_a_filename_stays_inside(self, find):
        """The file may not lie outside its version."""
        with pytest.raises(LoadError, match=r"^default model filename '\.\./\.\./x\.py' escapes backend directory$"):
            find(model("python", filename="../../x.py"), "m/3/model.py", "x.py")


class TestPythonBased:
    def test_a_shared_model(self, find):
        """A backend that is a model.py serves models that have none."""
        assert find(model("b"), "ours/b/model.py") == Backend("b", "python_based", "ours/b/model.py")

    def test_the_users_directory_is_first(self, find):
        """Backend directories are searched in order."""
        assert find(model("b"), "ours/b/model.py", "users/b/model.py").path == "users/b/model.py"

    def test_a_models_own_file_is_no_backend(self, find):
        """A model.py in the model's folders is not what executes it."""
        files = ["m/3/model.py", "m/model.py", "ours/b/model.py"]
        assert find(model("b"), *files).path == "ours/b/model.py"

    def test_runtime_prefers_python(self, find):
        """`runtime: "model.py"` passes over libraries."""
        files = ["m/libtriton_b.so", "ours/b/libtriton_b.so", "ours/b/model.py"]
        assert find(model("b", "model.py"), *files).path == "ours/b/model.py"

    def test_a_relative_directory(self, tmp_path, monkeypatch):
        """Backend directories may be relative; the path found is absolute."""
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "model.py").touch()
        monkeypatch.chdir(tmp_path)
        assert find_backend(model("b"), "m", 1, ["."]).path == str(tmp_path / "b" / "model.py")


class TestNative:
    @pytest.mark.parametrize(
        "files",
        [
            ["m/3/libtriton_b.so", "m/libtriton_b.so", "ours/b/model.py"],
            ["m/libtriton_b.so", "users/b/libtriton_b.so"],
            ["users/b/libtriton_b.so", "users/b/model.py", "ours/b/libtriton_b.so"],
            ["ours/b/libtriton_b.so", "ours/b/model.py"],
            ["users/b/libtriton_b.so", "ours/b/model.py"],
        ],
    )
    def test_the_first_library_is_found(self, find, files):
        """Version, model, and backend directories are searched in this order."""
        assert find(model("b"), *files) == Backend("b", "native", files[0])

    def test_runtime_names_the_library(self, find):
        """`runtime` is looked for in place of libtriton_<backend>.so, and a model.py is passed over."""
        found = find(model("b", "libx.so"), "users/b/model.py", "users/b/libtriton_b.so", "ours/b/libx.so")
        assert found == Backend("b", "native", "ours/b/libx.so")

    def test_the_python_backend_may_be_another_library(self, find):
        """`runtime` counts for the backend "python" too."""
        found = find(model("python", "libx.so"), "m/libx.so", "m/3/model.py")
        assert found == Backend("python", "native", "m/libx.so")

    def test_in_a_process_of_its_own(self, find):
        """The library goes to our own backend, which loads it in a stub."""
        spec = replace(model("b"), parameters={"EXECUTION_MODE": "process"})
        found = find(spec, "ours/b/libtriton_b.so")
        assert found == Backend("b", "python_based", "ours/native/model.py", "ours/b/libtriton_b.so")

    def test_an_unknown_mode(self, find):
        """An unknown mode is refused, so that a typing error does not put a library into the server."""
        with pytest.raises(LoadError, match="has the parameter EXECUTION_MODE 'own', which must be 'in_process' or"):
            find(replace(model("b"), parameters={"EXECUTION_MODE": "own"}), "ours/b/libtriton_b.so")

    def test_the_mode_is_for_libraries(self, find):
        """Models in Python run in processes anyway."""
        spec = replace(model("b"), parameters={"EXECUTION_MODE": "process"})
        assert find(spec, "ours/b/model.py").kind == "python_based"


class TestNotFound:
    def test_without_runtime(self, find):
        """The message is Triton's."""
        with pytest.raises(LoadError) as caught:
            find(model("b"), "m/3/model.py", "ours/c/model.py")
        assert str(caught.value) == (
            "unable to find backend library for backend 'b', try specifying runtime on the model configuration."
        )

    @pytest.mark.parametrize(("name", "meant"), [("pyton", "'python'"), ("scal", "'scale'"), ("xyz", "")])
    def test_of_a_similar_name(self, find, name, meant):
        """The message asks after a backend with almost the same name."""
        question = f" Did you mean {meant}?" if meant else ""
        with pytest.raises(LoadError) as caught:
            find(model(name), "m/3/model.py", "ours/scale/model.py")
        assert str(caught.value).endswith(f"specifying runtime on the model configuration.{question}")

    def test_of_a_format(self, find):
        """A model whose file says which backend it takes: the message says what was found, and what to do."""
        spec = model("onnxruntime", filename="model.onnx")
        message = "unable to find backend library for backend 'onnxruntime', try specifying runtime on the model "
        with pytest.raises(LoadError) as caught:
            find(spec, "m/4/model.onnx")
        assert str(caught.value) == f"{message}configuration."
        with pytest.raises(LoadError) as caught:
            find(spec, "m/3/model.onnx")
        assert str(caught.value) == (
            f"{message}configuration. The model's file is '3/model.onnx', which the backend 'onnxruntime' serves: put "
            "its library, libtriton_onnxruntime.so, into the folder 'onnxruntime' of a backend directory "
            "(--backend-directory)"
        )

    @pytest.mark.parametrize("runtime", ["libx.so", "model.py"])
    def test_with_runtime(self, find, runtime):
        """The message is Triton's."""
        with pytest.raises(LoadError) as caught:
            find(model("b", runtime), "ours/b/libtriton_b.so")
        assert str(caught.value) == f"unable to find backend library '{runtime}' for model 'm'"


class TestEscapes:
    @pytest.mark.parametrize("runtime", ["../libx.so", "/libx.so", "a/../../libx.so", ".."])
    def test_of_the_runtime(self, find, runtime):
        """A runtime that leads out of the folders that are searched is refused before anything is looked for."""
        with pytest.raises(LoadError) as caught:
            find(model("b", runtime), "ours/libx.so")
        assert str(caught.value) == f"backend library name '{runtime}' escapes backend directory"

    @pytest.mark.parametrize("backend", ["../b", "/b", ".", ""])
    def test_of_the_backend(self, find, backend):
        """A backend is a folder below a backend directory."""
        with pytest.raises(LoadError) as caught:
            find(model(backend), "b/model.py", "ours/model.py")
        assert str(caught.value) == f"backend name '{backend}' escapes backend directory"
