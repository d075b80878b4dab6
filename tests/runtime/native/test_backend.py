# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Backends and models of libraries: their beginning, their end, and the information that they get."""

import pytest

from pyruntime.runtime.native import _triton
from pyruntime.utils.errors import Code

INTERNAL, NOT_FOUND, UNAVAILABLE = int(Code.INTERNAL), int(Code.NOT_FOUND), int(Code.UNAVAILABLE)


class TestOpening:
    """The library."""

    def test_names_what_the_loader_says(self, lifecycle, tmp_path):
        """Of a library that is not there."""
        lifecycle.path = tmp_path / "libtriton_x.so"
        with pytest.raises(_triton.NativeError) as caught:
            lifecycle.backend()
        code, message = caught.value.args
        assert code == NOT_FOUND
        assert message.startswith(f"unable to load shared library: {lifecycle.path}: cannot open")

    def test_wants_a_backend(self, lifecycle, compile_library):
        """A library without Execute is not a backend."""
        lifecycle.path = compile_library("no_backend.c")
        with pytest.raises(_triton.NativeError) as caught:
            lifecycle.backend()
        code, message = caught.value.args
        assert code == NOT_FOUND
        assert message.startswith(
            "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library: "
        )

    def test_finds_paths_that_are_no_text(self, lifecycle, tmp_path):
        """Names of files are bytes."""
        path = tmp_path / "lib\udcff.so"
        path.symlink_to(lifecycle.path)
        lifecycle.path = str(path)
        lifecycle.backend()

    def test_is_enough_with_one_function(self, native, request_of, compile_library):
        """All functions but one are optional; and a backend may be written in C."""
        (job,) = native("minimal.c").run(request_of("1"))
        assert job.responses == [(True, None, [], None)]
        assert native("minimal.c").instance.is_ready() is None


class TestBackend:
    """The life of a backend."""

    def test_is_told_what_it_is(self, lifecycle):
        """By everything it can ask."""
        backend = lifecycle.backend()
        backend.initialize()
        told, steps = lifecycle.learned()
        assert steps == ["Initialize backend", "GetBackendAttribute backend"]
        assert told["Backend config"] == '{"cmdline":{}}'
        assert told["Backend artifacts"] == "0 /artifacts"
        assert told["Backend state"] == "none"
        assert told["Backend policy"] == "0"
        backend.finalize()
        assert lifecycle.learned()[1] == ["Finalize backend"]

    def test_says_what_it_wants(self, lifecycle):
        """Attributes that a backend sets; before it is initialised there are none."""
        backend = lifecycle.backend("shares threads")
        assert (backend.policy, backend.preferred_groups, backend.parallel_loading) == (0, [], False)
        backend.initialize()
        assert (backend.policy, backend.parallel_loading) == (1, True)
        assert backend.preferred_groups == [(2, 0, [1, 2]), (1, 3, [])]
        backend.finalize()

    @pytest.mark.parametrize("function", ["Initialize", "GetBackendAttribute"])
    def test_that_fails_is_finalised(self, lifecycle, function):
        """The error is the backend's, which can free its state then; it is not finalised again."""
        backend = lifecycle.backend(f"fails in {function}")
        with pytest.raises(_triton.NativeError) as caught:
            backend.initialize()
        assert caught.value.args == (UNAVAILABLE, f"no {function}")
        assert lifecycle.learned()[1][-1] == f"Finalize fails in {function}"
        backend.finalize()
        assert lifecycle.learned()[1] == []

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("throws in Initialize", "TRITONBACKEND_Initialize threw an exception: nothing there"),
            ("breaks in Initialize", "TRITONBACKEND_Initialize threw something that is no exception"),
            ("throws in GetBackendAttribute", "TRITONBACKEND_GetBackendAttribute threw an exception: nothing there"),
        ],
    )
    def test_that_throws_has_failed(self, lifecycle, name, message):
        """An exception that a backend throws is an error, and the process continues."""
        with pytest.raises(_triton.NativeError) as caught:
            lifecycle.backend(name).initialize()
        assert caught.value.args == (INTERNAL, message)

    def test_says_how_its_end_failed(self, lifecycle):
        """A failed Finalize is an error, and the backend has ended all the same."""
        backend = lifecycle.backend("fails in Finalize")
        backend.initialize()
        with pytest.raises(_triton.NativeError, match="no Finalize"):
            backend.finalize()
        backend.finalize()

    def test_that_never_began_has_no_end(self, lifecycle):
        """A backend that was not initialised is not finalised."""
        lifecycle.backend().finalize()
        assert lifecycle.learned()[1] == []


class TestModel:
    """The life of a model."""

    @pytest.fixture
    def backend(self, lifecycle):
        """An initialised backend."""
        backend = lifecycle.backend()
        backend.initialize()
        lifecycle.learned()
        yield backend
        backend.finalize()

    def test_is_told_what_it_is(self, lifecycle, backend):
        """By everything it can ask."""
        model = lifecycle.model(backend)
        model.initialize()
        told, steps = lifecycle.learned()
        assert steps == ["ModelInitialize model"]
        assert told["Model version"] == "3"
        assert told["Model repository"] == "0 /models/model"
        assert told["Model completes"] == "no"
        assert told["Model server"] == "some"
        assert told["Model backend"] == "backend"
        assert told["Model state of its backend"] == "kept"
        assert told["Model state"] == "none"
        assert told["Model config"] == '{"name":"model"}'
        assert told["Model config 2"] == (
            "Invalid argument: model configuration version 2 not supported, supported versions are: 1"
        )
        model.finalize()
        told, steps = lifecycle.learned()
        assert steps == ["ModelFinalize model"]
        assert told["Model state at the end"] == "some"

    def test_completes_its_configuration(self, lifecycle, backend):
        """The backend reads at once what was made of the configuration that it has set, in a supported version."""
        model, given = lifecycle.model(backend, auto_complete=True), []
        model.initialize(lambda config: given.append(config) or '{"max_batch_size":8,"input":[]}')
        told, _ = lifecycle.learned()
        assert told["Model completes"] == "yes"
        assert told["Model completion 2"].endswith("supported versions are: 1")
        assert given == ['{"max_batch_size":8}']
        assert told["Model completed"] == '{"max_batch_size":8,"input":[]}'
        model.finalize()

    @pytest.mark.parametrize(
        ("complete", "error"),
        [
            (lambda config: (int(Code.INVALID_ARG), f"not {config}"), 'Invalid argument: not {"max_batch_size":8}'),
            (lambda config: 1 / 0, "Internal: the configuration cannot be completed: see the server's log"),
            (lambda config: 7, "Internal: the configuration cannot be completed: see the server's log"),
            (lambda config: ("no", "code"), "Internal: the configuration cannot be completed: see the server's log"),
            (None, "Unsupported: the configuration of model 'model' can be set by TRITONBACKEND_ModelInitialize only"),
        ],
    )
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_completes_in_vain(self, lifecycle, backend, complete, error):
        """A refused configuration is an error of the function, and the backend reads the one that it had."""
        model = lifecycle.model(backend, auto_complete=True)
        model.initialize(complete)
        told, _ = lifecycle.learned()
        assert told["Model completion"] == error
        assert told["Model completed"] == '{"name":"model"}'
        model.finalize()

    def test_has_its_final_configuration(self, lifecycle, backend):
        """Its instances see this configuration, and cannot set another one."""
        model = lifecycle.model(backend)
        model.initialize()
        model.configure('{"name":"final"}', True, ["OUT", "MORE"])
        instance = lifecycle.instance(model)
        instance.initialize()
        told, _ = lifecycle.learned()
        assert told["Instance config"] == '{"name":"final"}'
        assert told["Instance completion"] == (
            "Unsupported: the configuration of model 'model' can be set by TRITONBACKEND_ModelInitialize only"
        )
        instance.finalize()
        model.finalize()

    def test_has_another_configuration_meanwhile(self, lifecycle, backend):
        """The text may be replaced while there are instances: later ones see the new one."""
        model = lifecycle.model(backend)
        model.initialize()
        model.configure('{"name":"final"}', True, ["OUT", "MORE"])
        first, second = lifecycle.instance(model), lifecycle.instance(model)
        first.initialize()
        model.set_config('{"name":"later"}')
        with pytest.raises(TypeError):
            model.set_config(b"bytes")
        lifecycle.learned()
        second.initialize()
        told, _ = lifecycle.learned()
        assert told["Instance config"] == '{"name":"later"}'
        for each in (first, second, model):
            each.finalize()

    def test_says_what_memory_it_takes(self, lifecycle, backend):
        """The memory usage is the one that the backend reported last."""
        model = lifecycle.model(backend)
        assert model.memory_usage == []
        model.initialize()
        assert model.memory_usage == [(2, 3, 4096), (1, 0, 1 << 40)]
        model.finalize()

    def test_that_fails_is_finalised(self, lifecycle, backend):
        """As a backend."""
        model = lifecycle.model(backend, "fails in ModelInitialize")
        with pytest.raises(_triton.NativeError) as caught:
            model.initialize()
        assert caught.value.args == (UNAVAILABLE, "no ModelInitialize")
        assert lifecycle.learned()[1] == [
            "ModelInitialize fails in ModelInitialize",
            "ModelFinalize fails in ModelInitialize",
        ]
        model.finalize()
        assert lifecycle.learned()[1] == []

    @pytest.mark.parametrize("function", ["ModelInitialize", "ModelFinalize"])
    def test_that_throws_has_failed(self, lifecycle, backend, function):
        """An exception that a backend throws is an error, and the process continues."""
        model = lifecycle.model(backend, f"throws in {function}")
        if function == "ModelFinalize":
            model.initialize()
        with pytest.raises(_triton.NativeError) as caught:
            (model.initialize if function == "ModelInitialize" else model.finalize)()
        assert caught.value.args == (INTERNAL, f"TRITONBACKEND_{function} threw an exception: nothing there")

    def test_ends_after_its_instances(self, lifecycle, backend):
        """They use it."""
        model = lifecycle.model(backend)
        model.initialize()
        instance = lifecycle.instance(model)
        instance.initialize()
        with pytest.raises(_triton.NativeError, match="model 'model' is not finalized: instances of it still run"):
            model.finalize()
        instance.finalize()
        lifecycle.learned()
        model.finalize()
        assert lifecycle.learned()[1] == ["ModelFinalize model"]

    def test_ends_before_its_backend(self, lifecycle):
        """It uses it: one whose instances never end, too."""
        backend = lifecycle.backend()
        backend.initialize()
        model = lifecycle.model(backend)
        model.initialize()
        with pytest.raises(_triton.NativeError, match="'backend' is not finalized: models of it are still loaded"):
            backend.finalize()
        model.finalize()
        lifecycle.learned()
        backend.finalize()
        assert lifecycle.learned()[1] == ["Finalize backend"]

    def test_keeps_its_backend(self, lifecycle):
        """A model keeps its backend alive, even if Python has dropped it."""
        backend = lifecycle.backend()
        backend.initialize()
        model = lifecycle.model(backend)
        del backend
        model.initialize()
        assert lifecycle.learned()[0]["Model backend"] == "backend"
        model.finalize()

    def test_stays_if_it_was_not_finalised(self, lifecycle):
        """A model that was not finalised stays after Python has dropped it: its backend may use it for ever."""
        backend = lifecycle.backend()
        backend.initialize()
        lifecycle.model(backend, "one that never ends").initialize()
        model = lifecycle.model(backend)
        model.initialize()
        assert lifecycle.learned()[0]["Model before it"] == "one that never ends"
        model.finalize()

    def test_needs_a_backend(self):
        """Of its own kind."""
        with pytest.raises(TypeError):
            _triton.Model("backend", "model", 1, "/", "{}", False, False, [])
