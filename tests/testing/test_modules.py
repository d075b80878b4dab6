# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models do not see the modules that other models import, and closed models leave no modules in the interpreter."""

import gc
import itertools
import sys
import types

import pytest

from pyruntime.stub import host
from pyruntime.stub.logs import LOGGER
from pyruntime.testing import LoadError, load_model

from .conftest import DECOUPLED

# Gives back what its own `helper`, and a file beside it, say.
USES_HELPER = """
import helper
from .near import NEAR

class TritonPythonModel:
    def execute(self, requests):
        return [answer([helper.VALUE, NEAR]) for _ in requests]
"""
LAZY = """
class TritonPythonModel:
    def execute(self, requests):
        import helper
        from .near import NEAR
        return [answer([helper.VALUE, NEAR]) for _ in requests]
"""


def files(value):
    return {"helper": f"VALUE = {value}", "1__near": f"NEAR = {value + 1}"}


@pytest.fixture
def interpreter():
    """A function for the state (sys.path, modules, server, logger), which must not be changed by closed models."""

    def state():
        mine = {name for name in sys.modules if name.partition(".")[0] in ("1", "2", "model", "helper", "lib")}
        return list(sys.path), mine, host._find(), LOGGER.parent

    before = state()
    yield state
    assert state() == before


@pytest.mark.parametrize("source", [USES_HELPER, LAZY])
def test_two_models_with_files_of_the_same_names(interpreter, write_model, source):
    """Both are a `1.model` with a `helper`, and each has its own: imported at first or only when it is asked."""
    before = interpreter()
    first, second = (write_model(source, name=f"m{n}", **files(n)) for n in (10, 20))
    with load_model(first) as one, load_model(second) as two:
        for _ in range(2):
            assert one.infer({"IN": [1]})["OUT"].tolist() == [10, 11]
            assert two.infer({"IN": [1]})["OUT"].tolist() == [20, 21]
    assert interpreter() == before


def test_one_model_twice(interpreter, write_model):
    """Two that are loaded from one folder share nothing."""
    folder = write_model(
        """
        seen = []
        class TritonPythonModel:
            def execute(self, requests):
                seen.append(1)
                return [answer(len(seen)) for _ in requests]
        """
    )
    with load_model(folder) as one, load_model(folder) as two:
        assert [model.infer({"IN": [1]})["OUT"].item() for model in (one, two, one)] == [1, 1, 2]
    with load_model(folder) as again:
        assert again.infer({"IN": [1]})["OUT"].item() == 1


def test_one_calls_the_other(interpreter, write_model):
    """A model that waits for another one still finds its own modules when that has answered."""
    caller = write_model(
        """
        class TritonPythonModel:
            def execute(self, requests):
                response = pb_utils.InferenceRequest(model_name="other", inputs=requests[0].inputs()).exec()
                import helper
                return [answer([helper.VALUE, *response.output_tensors()[0].as_numpy()])]
        """,
        name="caller",
        **files(10),
    )
    other = write_model(LAZY, name="other", **files(20))
    with load_model(caller, callees={"other": other}) as model:
        assert model.infer({"IN": [1]})["OUT"].tolist() == [10, 20, 21]


def test_options_of_the_tests(interpreter, write_model):
    """A model that reads options finds none, as in a stub; a test still has its own."""
    before = list(sys.argv)
    source = """
import argparse

options = argparse.ArgumentParser()
options.add_argument("--size", type=int, default=3)

class TritonPythonModel:
    def initialize(self, args):
        self.size = options.parse_args().size
    def execute(self, requests):
        return [answer([self.size, len(sys.argv), len(sys.argv[0])]) for _ in requests]
"""
    with load_model(write_model(source)) as model:
        assert sys.argv == before
        assert model.infer({"IN": [1]})["OUT"].tolist() == [3, 1, 0]
    assert sys.argv == before


def test_modules_of_the_tests(interpreter, write_model, monkeypatch, tmp_path):
    """A module of the tests is not taken for a model's that has the same name, and is there again afterwards."""
    theirs = types.ModuleType("helper")
    theirs.__file__ = str(tmp_path / "tests/helper.py")
    monkeypatch.setitem(sys.modules, "helper", theirs)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/near.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path / "tests"))
    with load_model(write_model(USES_HELPER, **files(10))) as model:
        assert model.infer({"IN": [1]})["OUT"].tolist() == [10, 11]
    assert sys.modules["helper"] is theirs


def test_modules_that_others_import_meanwhile(interpreter, write_model, monkeypatch):
    """Another thread may import whenever the garbage collector runs."""
    folder = write_model(USES_HELPER, **files(10))
    numbers = itertools.count()

    def import_another(phase, _):
        name = f"another_{next(numbers)}"
        if phase == "start":
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    thresholds = gc.get_threshold()
    gc.callbacks.append(import_another)
    gc.set_threshold(20)
    try:
        with load_model(folder) as model:
            assert model.infer({"IN": [1]})["OUT"].tolist() == [10, 11]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_another)
    assert next(numbers) > 10


def test_paths_that_a_model_adds(interpreter, write_model, tmp_path):
    """Only the model that adds a path to sys.path sees it, and the modules that it imports from there."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/lib.py").write_text("VALUE = 5")
    folder = write_model(
        """
        sys.path.append(str(pathlib.Path(__file__).parents[2] / "shared"))
        class TritonPythonModel:
            def execute(self, requests):
                import lib
                return [answer(lib.VALUE) for _ in requests]
        """
    )
    with load_model(folder) as model:
        assert model.infer({"IN": [1]})["OUT"].item() == 5
    assert "lib" not in sys.modules


def test_what_is_installed_is_everybodys(interpreter, write_model):
    """An installed package is imported once and shared by the test and all models."""
    folder = write_model(
        """
        import json.tool
        class TritonPythonModel:
            module = json.tool
            def execute(self, requests): pass
        """
    )
    with load_model(folder) as model:
        assert model.instance.module is sys.modules["json.tool"]


def test_a_file_named_as_one_of_the_library(interpreter, write_model):
    """As in a stub the standard library wins."""
    folder = write_model(
        "import fractions\nclass TritonPythonModel:\n    file = fractions.__file__\n    def execute(self): pass",
        **{"1__fractions": "1 / 0"},
    )
    with load_model(folder) as model:
        assert not model.instance.file.startswith(str(folder))


def test_a_failed_load(interpreter, write_model):
    """It leaves nothing either."""
    with pytest.raises(LoadError):
        load_model(write_model("import helper\n1 / 0", **files(1)))


def test_a_model_that_hangs(interpreter, write_model):
    """The modules that a hanging model has left behind do not affect later models."""
    hangs = """
    class TritonPythonModel:
        gate = threading.Event()
        def execute(self, requests):
            self.gate.wait()
            return [answer(0)]
    """
    model = load_model(write_model(hangs, name="hangs", **files(1)))
    model.timeout_s = 0.05
    with pytest.raises(TimeoutError), model:
        model.infer({"IN": [1]})
    with load_model(write_model(LAZY, **files(10))) as other:
        model.instance.gate.set()
        assert other.infer({"IN": [1]})["OUT"].tolist() == [10, 11]


def test_while_another_one_ends(interpreter, write_model):
    """A model that has its answer imports its own, however long the other one takes to be done with it."""
    caller = """
    class TritonPythonModel:
        def execute(self, requests):
            request = pb_utils.InferenceRequest(model_name="other", inputs=requests[0].inputs())
            first = next(request.exec(decoupled=True)).output_tensors()[0].as_numpy()
            import helper
            return [answer([helper.VALUE, *first])]
    """
    other = """
    class TritonPythonModel:
        gate = threading.Event()
        def execute(self, requests):
            import helper
            requests[0].get_response_sender().send(answer(helper.VALUE), FINAL)
            self.gate.wait()
    """
    with (
        load_model(write_model(other, DECOUPLED, name="other", **files(20))) as called,
        load_model(write_model(caller, name="caller", **files(10)), callees={"other": called}) as model,
    ):
        result = model.infer({"IN": [1]})
        called.instance.gate.set()
        assert result["OUT"].tolist() == [10, 20]


def test_a_module_with_attributes_of_any_name(interpreter, write_model):
    """A package may put modules into sys.modules that make up attributes, as torch.classes does."""
    source = """
        import sys
        from types import ModuleType

        class Namespace(ModuleType):
            def __getattr__(self, name):
                return 7

        sys.modules["namespace.made"] = Namespace("namespace.made")

        class TritonPythonModel:
            def execute(self, requests):
                return [None for _ in requests]
        """
    try:
        with load_model(write_model(source)) as model:
            assert model.name
    finally:
        # Others that look at all modules do not expect such a one.
        sys.modules.pop("namespace.made", None)
