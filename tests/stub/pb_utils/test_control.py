# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model control from within a model, against a host that notes what it is asked."""

import pytest

from pyruntime.stub.host import Host, set_host
from pyruntime.stub.pb_utils import TritonModelException, get_model_dir, is_model_ready, load_model, unload_model

BAD_FILES = "failed to load model 'm', files should be a dictionary of file paths and file contents"


class Notes(Host):
    """Notes questions, and answers them as it is told."""

    model_dir = "/models/m/1"

    def __init__(self):
        self.asked = []
        self.answer = None
        self.refusal = None

    def ask(self, method, arguments):
        self.asked.append((method, *arguments))
        if self.refusal:
            raise TritonModelException(self.refusal)
        return self.answer


@pytest.fixture
def host():
    notes = Notes()
    before = set_host(notes)
    yield notes
    set_host(before)


def refusal_of(function, *arguments):
    """The message of the error that a call must end with."""
    with pytest.raises(TritonModelException) as caught:
        function(*arguments)
    return str(caught.value)


def test_load(host):
    """Without anything, from the repository; else by a configuration, and by files."""
    load_model("m")
    load_model(model_name="m", config="{}", files={"file:1/model.py": b"\x00", "file:1/notes.txt": "ä"})
    load_model("m", files={})
    assert host.asked == [
        ("load_model", "m", "", {}),
        ("load_model", "m", "{}", {"file:1/model.py": b"\x00", "file:1/notes.txt": "ä".encode()}),
        ("load_model", "m", "", {}),
    ]


@pytest.mark.parametrize("files", [[], "file:a", b"", 3, {1: b""}, {"file:a": None}, {"file:a": ["b"]}])
def test_load_with_what_is_no_files(host, files):
    """In Triton's words; the host hears nothing of it."""
    assert refusal_of(load_model, "m", "", files) == BAD_FILES
    assert host.asked == []


def test_unload(host):
    """With what depends on it, or alone."""
    unload_model("m")
    unload_model(model_name="m", unload_dependents=True)
    assert host.asked == [("unload_model", "m", False), ("unload_model", "m", True)]


@pytest.mark.parametrize("answer", [True, False])
def test_ready(host, answer):
    """Any version, or one."""
    host.answer = answer
    assert is_model_ready("m") is answer
    assert is_model_ready(model_name="m", model_version="3") is answer
    assert is_model_ready("m", str(2**63 - 1)) is answer
    assert host.asked == [
        ("is_model_ready", "m", ""),
        ("is_model_ready", "m", "3"),
        ("is_model_ready", "m", "9223372036854775807"),
    ]


@pytest.mark.parametrize("version", ["0", "-1", "x", "1.0", " 1", "1 ", "²", "\u0661", str(2**63), "9" * 40])
def test_ready_of_no_version(host, version):
    """In Triton's words; the host hears nothing of it."""
    assert refusal_of(is_model_ready, "m", version) == (
        f"Failed to check model readiness: failed to get model version from specified version string '{version}', "
        "version should be an integral value > 0"
    )
    assert host.asked == []


@pytest.mark.parametrize(
    ("function", "prefix"),
    [
        (load_model, "Failed to load model: "),
        (unload_model, "Failed to unload model: "),
        (is_model_ready, "Failed to check model readiness: "),
    ],
)
def test_what_the_host_refuses(host, function, prefix):
    """Its reason is told, behind what was tried."""
    host.refusal = "explicit model load / unload is not allowed if polling is enabled"
    assert refusal_of(function, "m") == prefix + host.refusal


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (load_model, (None,), "model_name"),
        (load_model, ("m", {}), "config"),
        (unload_model, (3,), "model_name"),
        (is_model_ready, (["m"],), "model_name"),
        (is_model_ready, ("m", 1), "model_version"),
    ],
)
def test_wrong_types(host, function, arguments, name):
    """They are a mistake in the code, and the host hears nothing of it."""
    with pytest.raises(TypeError, match=f"{name} must be a str, found"):
        function(*arguments)
    assert host.asked == []


def test_model_dir(host):
    """The folder that the host says."""
    assert get_model_dir() == "/models/m/1"


def test_outside_a_model():
    """Where there is no server there is nothing to control."""
    before = set_host(None)
    try:
        for function, prefix in ((load_model, "Failed to load model: "), (unload_model, "Failed to unload model: ")):
            assert refusal_of(function, "m").startswith(f"{prefix}this is not possible outside a model")
        assert "outside a model" in refusal_of(get_model_dir)
    finally:
        set_host(before)
