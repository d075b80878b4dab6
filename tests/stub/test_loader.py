# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The folders and names for the modules of models, and descriptions of their errors."""

import logging
import os
import re
import sys

import msgpack
import pytest

from pyruntime.stub.loader import FRAMES_MAX, describe, load_class, log_failure, trace
from pyruntime.stub.logs import LOGGER
from pyruntime.utils import channel
from pyruntime.utils.errors import LoadError

MODEL = "class TritonPythonModel:\n    name = __name__\n    def execute(self, requests):\n        return []\n"


@pytest.fixture(autouse=True)
def _interpreter():
    """Leave sys.path and sys.modules as they were found."""
    path, modules, finders = list(sys.path), dict(sys.modules), list(sys.meta_path)
    yield
    sys.path[:] = path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)


@pytest.fixture
def make(tmp_path):
    """Writes files of a model; returns its location."""

    def write(source=MODEL, file="model.py", version="1", backend=False, **others):
        folder = tmp_path / ("backend" if backend else f"m/{version}")
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m").mkdir(exist_ok=True)
        if source is not None:
            (folder / file).write_text(source)
        for name, text in others.items():
            other = tmp_path / name.replace("__", "/")
            other.parent.mkdir(parents=True, exist_ok=True)
            other.with_suffix(".py").write_text(text)
        location = {"model_dir": str(tmp_path / "m"), "version": version, "file": str(folder / file)}
        if backend:
            location["backend_dir"] = str(folder)
        return location

    return write


def raised(call, *args):
    """The exception that a call raises, with its traceback."""
    try:
        call(*args)
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


USES_MSGPACK = """
import msgpack

class TritonPythonModel:
    file = msgpack.__file__

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize("beside", ["m__1__msgpack", "m__msgpack"])
def test_a_module_of_the_model_comes_before_one_that_is_there_for_the_server(make, tmp_path, beside):
    """The server's own copy, which this process has loaded, stays that of our code."""
    location = make(USES_MSGPACK, **{beside: "mine = True"})
    before = channel.msgpack
    assert load_class(location).file.startswith(str(tmp_path))
    assert channel.msgpack is before
    assert channel.msgpack.packb([1]) == b"\x91\x01"


def test_what_the_model_does_not_have_is_the_servers(make):
    assert load_class(make(USES_MSGPACK)).file == msgpack.__file__


def test_a_folder_of_data_is_no_module_of_the_model(make):
    assert load_class(make(USES_MSGPACK, m__1__msgpack__data="")).file == msgpack.__file__


def test_changed_within_a_second(make, monkeypatch):
    """Byte code of a file of the same size and time does not count."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for answer in (1, 2):
        location = make(MODEL.replace("[]", f"[{answer}]"))
        os.utime(location["file"], (1_000_000_000, 1_000_000_000))
        model_class = load_class(location)
        assert model_class().execute([]) == [answer]
        assert sys.modules["1"].model is sys.modules["1.model"]
        assert not os.path.exists(os.path.join(os.path.dirname(location["file"]), "__pycache__"))
        del sys.modules["1.model"]


class TestPathsAndNames:
    def test_of_a_model(self, make, tmp_path):
        """A model's folders go to the end of sys.path, the version's first, and its module is named by both."""
        before = list(sys.path)
        model_class = load_class(make())
        assert sys.path == [*before, str(tmp_path / "m/1"), str(tmp_path / "m")]
        assert model_class.__module__ == model_class.name == "1.model"
        assert sys.modules["1.model"].TritonPythonModel is model_class

    def test_of_another_file(self, make):
        """`default_model_filename` names the module."""
        assert load_class(make(file="other.py", version="12")).name == "12.other"

    def test_of_a_backend(self, make, tmp_path):
        """A backend's folder goes to the end of sys.path, and its module is called by its file alone."""
        before = list(sys.path)
        model_class = load_class(make(backend=True))
        assert sys.path == [*before, str(tmp_path / "backend")]
        assert model_class.name == "model"

    def test_of_a_backend_that_asks_for_its_location(self, make):
        """The class of a backend that declares `location` has that of the model; other classes do not have it."""
        declares = MODEL + "\n    location: dict"
        location = make(declares, backend=True)
        assert load_class(location).location is location
        assert not hasattr(load_class(make(declares)), "location")

    def test_of_a_backend_that_does_not_ask(self, make):
        """The class of a backend that declares nothing stays as it is."""
        assert not hasattr(load_class(make(backend=True)), "location")

    @pytest.mark.parametrize("statement", ["from . import helper_a", "import helper_a", "from .helper_a import x"])
    def test_modules_beside_it(self, make, statement):
        """A model imports what lies beside it, relatively or not."""
        load_class(make(f"{statement}\n{MODEL}", m__1__helper_a="x = 1"))

    def test_modules_of_the_model(self, make):
        """Modules that all versions share lie in the model's folder."""
        load_class(make(f"import helper_b\n{MODEL}", m__helper_b="x = 1"))

    def test_version_before_model(self, make):
        """A version's module hides the model's of the same name."""
        load_class(
            make(f"import helper_c\nassert helper_c.x == 1\n{MODEL}", m__1__helper_c="x = 1", m__helper_c="x = 2")
        )

    def test_installed_before_the_model(self, make):
        """An installed package takes precedence over a file of the model with the same name."""
        load_class(make(f"import json\nassert json.dumps([]) == '[]'\n{MODEL}", m__1__json="raise SystemError"))


class TestErrors:
    def test_no_file(self, make):
        """A missing file is named."""
        location = make(source=None)
        with pytest.raises(LoadError, match=f"^Python model file not found in '{re.escape(location['file'])}'$"):
            load_class(location)

    def test_folder_in_its_place(self, make, tmp_path):
        """A folder is no file."""
        location = make(source=None)
        (tmp_path / "m/1/model.py").mkdir()
        with pytest.raises(LoadError, match="Python model file not found"):
            load_class(location)

    def test_no_class(self, make):
        """A model without the class says so."""
        location = make("x = 1")
        with pytest.raises(
            LoadError, match=re.escape(location["file"]) + " does not define a class TritonPythonModel$"
        ):
            load_class(location)

    @pytest.mark.parametrize("body", ["pass", "execute = None"])
    def test_no_execute(self, make, body):
        """Triton's words for a model that cannot execute."""
        location = make(f"class TritonPythonModel:\n    {body}")
        message = f"Python model {location['file']} does not implement `execute` method."
        with pytest.raises(LoadError, match=f"^{re.escape(message)}$"):
            load_class(location)

    @pytest.mark.parametrize("source", ["raise ValueError('no')", "import no_such_module_x", "1 +", "raise SystemExit"])
    def test_import_fails(self, make, source):
        """An exception in the import propagates."""
        with pytest.raises((ValueError, ImportError, SyntaxError, SystemExit)):
            load_class(make(source))


def traced(location):
    """The traceback for the log of a load that fails, without the frame of this test."""
    exc = raised(load_class, location)
    return trace(exc.with_traceback(exc.__traceback__.tb_next))


class TestDescribe:
    def test_import(self, make, tmp_path):
        """The error, and where in the model's folder."""
        exc = raised(load_class, make("\ndef f():\n    raise ValueError('no')\nf()"))
        assert describe(exc, str(tmp_path / "m")).startswith(
            "ValueError: no\n\nAt:\n  1/model.py(3): f\n  1/model.py(4): <module>\n"
        )

    def test_nothing_of_the_disk(self, make, tmp_path):
        """A description has no absolute path, neither of the model nor of a library."""
        exc = raised(load_class, make("import json\njson.loads('{')"))
        text = describe(exc, str(tmp_path / "m"))
        assert text.startswith("JSONDecodeError: ")
        assert "  1/model.py(2): <module>\n" in text
        assert "  decoder.py(" in text
        assert "/" not in text.replace("1/model.py", "")

    def test_none_of_ours(self, make, tmp_path):
        """Frames of the stub and of the import system explain nothing to a client."""
        exc = raised(load_class, make("raise ValueError('no')"))
        text = describe(exc, str(tmp_path / "m"))
        assert "  loader.py(" not in text
        assert "import_module" not in text
        assert "<frozen" not in text

    def test_innermost_first_and_not_too_many(self, make, tmp_path):
        """The description of a deep recursion has the innermost frames only."""
        exc = raised(load_class, make("def f(n):\n    if not n: raise ValueError\n    f(n - 1)\nf(100)"))
        lines = describe(exc, str(tmp_path / "m")).splitlines()
        assert lines[:4] == ["ValueError: ", "", "At:", "  1/model.py(2): f"]
        assert lines[4:] == ["  1/model.py(3): f"] * (FRAMES_MAX - 1)

    def test_without_a_traceback(self):
        """An error that was never raised is its type and message."""
        assert describe(ValueError("no"), "/models/m") == "ValueError: no"

    def test_root_with_a_slash_at_its_end(self, make, tmp_path):
        """How the model's folder is written makes no difference."""
        exc = raised(load_class, make("raise ValueError('no')"))
        assert "  1/model.py(1): <module>\n" in describe(exc, str(tmp_path / "m") + "/")

    def test_sibling_folder_is_outside(self, make, tmp_path):
        """A folder whose name only begins like the model's is not the model's."""
        exc = raised(load_class, make(f"import far\n{MODEL}", m__far="raise ValueError('no')"))
        assert "  far.py(1): <module>\n" in describe(exc, str(tmp_path / "m"))
        assert "  far.py(1): <module>\n" in describe(exc, str(tmp_path / "m/1"))
        assert "/" not in describe(exc, str(tmp_path)[:-1])

    def test_whose_text_fails(self):
        """An exception whose __str__ fails is described by its type."""

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("and this")

        assert describe(Odd(), "/models/m").startswith("Odd: ")

    def test_syntax_error(self, make, tmp_path):
        """A syntax error tells the line, and no absolute path."""
        exc = raised(load_class, make("x = 1\n1 +"))
        text = describe(exc, str(tmp_path / "m"))
        assert text.startswith("SyntaxError: invalid syntax (model.py, line 2)")
        assert str(tmp_path) not in text


class TestTrace:
    def test_none_of_ours(self, make, tmp_path):
        """The traceback of a failed import has the frames of the model and of libraries, and no others."""
        text = traced(make("import json\ndef f():\n    json.loads('{')\nf()"))
        files = re.findall(r'File "(.*?)"', text)
        model = str(tmp_path / "m/1/model.py")
        assert files[:2] == [model, model]
        assert [os.path.basename(file) for file in files[2:]] == ["__init__.py", "decoder.py", "decoder.py"]
        assert text.startswith("Traceback (most recent call last):\n")
        assert "JSONDecodeError: " in text.splitlines()[-1]

    def test_of_chained_exceptions(self, make, tmp_path):
        """Nor do those that led to it have any."""
        source = """
def f():
    import nothing_of_this_name
try:
    f()
except ImportError as exc:
    raise ValueError from exc
"""
        text = traced(make(source))
        assert set(re.findall(r'File "(.*?)"', text)) == {str(tmp_path / "m/1/model.py")}
        assert "The above exception was the direct cause" in text

    def test_syntax_error(self, make, tmp_path):
        """The line that cannot be compiled is shown, and no frame."""
        text = traced(make("x = 1\n1 +"))
        assert re.findall(r'File "(.*?)", line (\d+)', text) == [(str(tmp_path / "m/1/model.py"), "2")]

    def test_paths_of_the_author(self, make, tmp_path):
        """Links to folders are followed: they may lie in a temporary folder, where nobody looks for a file."""
        location = make("def f():\n    raise ValueError\nf()")
        (tmp_path / "m").rename(tmp_path / "real")
        (tmp_path / "m").symlink_to(tmp_path / "real")
        assert set(re.findall(r'File "(.*?)"', traced(location))) == {str(tmp_path.resolve() / "real/1/model.py")}

    def test_with_frames_of_ours_alone(self, make, tmp_path):
        """A fault of pyruntime is shown as it is."""
        text = traced({"file": str(tmp_path / "nothing.py")})
        assert "in load_class" in text


class TestLogFailure:
    @pytest.fixture
    def records(self):
        kept = []
        handler = logging.Handler()
        handler.emit = kept.append
        LOGGER.addHandler(handler)
        yield kept
        LOGGER.removeHandler(handler)

    @pytest.mark.parametrize(
        "source", ["def f():\n    raise ValueError\nf()", "import json\njson.loads('{')", "x = 1\n1 +"]
    )
    def test_place(self, make, tmp_path, records, source):
        """A failure is logged as a record of the model's own line that led to it."""
        log_failure("loading failed", raised(load_class, make(source)), str(tmp_path / "m"))
        (record,) = records
        assert record.levelno == logging.ERROR
        assert record.getMessage().startswith("loading failed\nTraceback (most recent call last):\n")
        assert (record.pathname, record.lineno) == (str(tmp_path / "m/1/model.py"), 2)

    def test_without_a_place(self, records):
        """An exception that was never raised has none."""
        log_failure("failed", ValueError("no"), "/models/m")
        assert records[0].getMessage().endswith("ValueError: no\n")
