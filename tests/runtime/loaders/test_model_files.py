# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Label files, initial states and archives of environments: files as they stand, and files that cannot be read."""

import os

import pytest

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.loaders import model_files
from pyruntime.runtime.loaders.model_files import environment_path, read_labels, with_initial_states
from pyruntime.utils.errors import Code, LoadError

from ..model_specs import spec_from


def output(name, label_filename):
    return TensorSpec(name, "FP32", (2,), (2,), label_filename=label_filename)


def test_labels(tmp_path):
    """One line each, for those outputs that have a file; nothing in a line is changed."""
    (tmp_path / "a.txt").write_bytes("zero\r\n\n zwölf :\n".encode() + b"\xff")
    found = read_labels(str(tmp_path), [output("A", "a.txt"), output("B", ""), output("C", "a.txt")])
    assert list(found) == ["A", "C"]
    assert found["A"] == ("zero\r", "", " zwölf :", b"\xff".decode(errors="surrogateescape"))


def test_no_label_file(tmp_path):
    """The model does not load without it, in Triton's own words."""
    with pytest.raises(LoadError) as caught:
        read_labels(str(tmp_path), [output("A", "none.txt")])
    assert str(caught.value) == (
        f"failed to open text file for read {tmp_path}/none.txt: No such file or directory"
    )  # fmt: skip
    with pytest.raises(LoadError, match="Is a directory"):
        read_labels(str(tmp_path), [output("A", ".")])
    with pytest.raises(LoadError, match="embedded null byte"):
        read_labels(str(tmp_path), [output("A", "a\0b")])


@pytest.mark.parametrize("filename", ["../a.txt", "/etc/hostname", "sub/../../a.txt", "..", "//etc/hostname"])
def test_labels_elsewhere(tmp_path, filename):
    """A label file lies in the model's folder: a client that brings a configuration reads no other file."""
    folder = tmp_path / "m"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("secret")
    with pytest.raises(LoadError) as caught:
        read_labels(str(folder), [output("A", filename)])
    assert str(caught.value) == f"label_filename of output 'A' is '{filename}', which is outside of {folder}"


def test_linked_labels(tmp_path):
    """Links in the model's folder may lead anywhere: the owner of the repository has made them."""
    folder = tmp_path / "m"
    folder.mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.txt").write_text("one")
    (folder / "a.txt").symlink_to(tmp_path / "store" / "a.txt")
    (folder / "data").symlink_to(tmp_path / "store")
    found = read_labels(str(folder), [output("A", "a.txt"), output("B", "data/a.txt"), output("C", "sub/../a.txt")])
    assert found == {"A": ("one",), "B": ("one",), "C": ("one",)}


def test_label_pipe(tmp_path):
    """A pipe is refused, instead of waiting for it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError) as caught:
        read_labels(str(tmp_path), [output("A", "pipe")])
    assert str(caught.value) == f"failed to open text file for read {tmp_path}/pipe: it is no file"


def test_large_label_file(tmp_path, monkeypatch):
    """The size of a label file is limited."""
    monkeypatch.setattr(model_files, "LABELS_BYTES_MAX", 10)
    (tmp_path / "a.txt").write_text("0123456789")
    assert read_labels(str(tmp_path), [output("A", "a.txt")]) == {"A": ("0123456789",)}
    (tmp_path / "a.txt").write_text("0123456789a")
    with pytest.raises(LoadError) as caught:
        read_labels(str(tmp_path), [output("A", "a.txt")])
    assert str(caught.value) == f"the labels in {tmp_path}/a.txt have more than 10 bytes"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "initial_state").mkdir()
    return tmp_path


def initial_of(folder, data_type="TYPE_INT32", data="data_file: 'f'"):
    state = f"""state {{ input_name: 'I' output_name: 'O' data_type: {data_type} dims: 2
        initial_state {{ name: 'i' data_type: {data_type} dims: 2 {data} }} }}"""
    spec = spec_from(f"name: 'm' backend: 'b' sequence_batching {{ {state} }}", files=[])
    (found,) = with_initial_states(spec, str(folder)).sequence_batching.states
    return found.initial


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_state_file(folder, extra):
    """The state is the beginning of the file; further bytes are ignored."""
    (folder / "initial_state" / "f").write_bytes(b"abcdefgh" + extra)
    assert initial_of(folder) == b"abcdefgh"


@pytest.mark.parametrize("strings", [b"\x03\0\0\0abc\0\0\0\0", b"\x03\0\0\0abc\0\0\0\0more", b"\x03\0\0\0a", b""])
def test_strings(folder, strings):
    """Of strings the backend gets the whole file, as in Triton, whatever is in it."""
    (folder / "initial_state" / "f").write_bytes(strings)
    assert initial_of(folder, "TYPE_STRING") == strings


def test_too_many_strings(folder, monkeypatch):
    """The size of the file is limited."""
    monkeypatch.setattr(model_files, "STATE_BYTES_MAX", 10)
    (folder / "initial_state" / "f").write_bytes(bytes(11))
    with pytest.raises(LoadError) as caught:
        initial_of(folder, "TYPE_STRING")
    assert str(caught.value) == f"the initial state in {folder}/initial_state/f has more than 10 bytes"


def test_zeros(folder):
    """Zeros need no file."""
    assert initial_of(folder, data="zero_data: true") == bytes(8)


def test_no_states(folder):
    """Most models have none."""
    spec = spec_from("name: 'm' backend: 'b'", files=[])
    assert with_initial_states(spec, str(folder)) is spec


def test_too_short(folder):
    """A file has at least as much as a state of numbers."""
    (folder / "initial_state" / "f").write_bytes(b"abcd")
    with pytest.raises(LoadError) as caught:
        initial_of(folder)
    reason = "initial_state setting expects 8 bytes, but the data provided from fonly has 4 bytes."
    assert (str(caught.value), caught.value.code) == (reason, Code.INVALID_ARG)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("data_file: 'none'", "failed to open text file for read .*none: No such file or directory"),
        ("data_file: 'sub'", "sub: "),
        ("data_file: 'pipe'", "pipe: it is no file"),
        ("data_file: 'a\\000b'", "failed to open text file for read"),
        ("data_file: '../config.pbtxt'", "outside of"),
        ("data_file: '/etc/hostname'", "outside of"),
    ],
)
def test_no_state_file(folder, data, reason):
    """A file that cannot be read, or is outside of the model's folder, fails the load."""
    (folder / "config.pbtxt").write_bytes(bytes(8))
    (folder / "initial_state" / "sub").mkdir()
    os.mkfifo(folder / "initial_state" / "pipe")
    with pytest.raises(LoadError, match=reason):
        initial_of(folder, data=data)


def test_environment_path(tmp_path):
    """A Python-based backend may bring an environment for all of its models that name none themselves."""
    assert environment_path("", "") == ""
    assert environment_path("env", "") == "env"
    assert environment_path("", str(tmp_path)) == ""
    archive = tmp_path / "pb_exec_env_model.py.tar.gz"
    archive.touch()
    assert environment_path("", str(tmp_path)) == str(archive)
    assert environment_path("env", str(tmp_path)) == "env"
