# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The folder that the instances of an ONNX model share: who writes it, and who removes it."""

import os
import shutil
import tempfile
from collections import namedtuple

import pytest

from pyruntime.backends.onnxruntime import sharing
from pyruntime.backends.onnxruntime.sharing import share, weight_bytes


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def model(tmp_path):
    """The path of a model of 2 bytes, whose graph is empty."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08")  # ir_version: 8
    return str(path)


class Writer:
    """Writes a model, and counts."""

    def __init__(self):
        self.count = 0

    def __call__(self, path):
        self.count += 1
        with open(path, "w") as file:
            file.write("rearranged")


@pytest.fixture
def write():
    return Writer()


def test_first_and_last(temporary, model, write):
    """The first one writes the model, the others use it, and the last one removes it."""
    shared = [share(model, [], "", write) for _ in range(3)]
    assert write.count == 1
    assert {each.path for each in shared} == {shared[0].path}
    for each in shared:
        with open(each.path) as file:
            assert file.read() == "rearranged"
        each.close()
    assert os.listdir(temporary) == []


def test_what_it_depends_on(temporary, model, write, tmp_path):
    """Another model, another version of the same, other settings, and another build of a library are other folders."""
    library = tmp_path / "ops.so"
    library.write_bytes(b"1")
    shared = [share(model, [], "", write), share(model, [], "other", write), share(model, [str(library)], "", write)]
    library.write_bytes(b"22")
    shared.append(share(model, [str(library)], "", write))
    with open(model, "ab") as file:
        file.write(b"\x10\x00")
    shared.append(share(model, [], "", write))
    assert write.count == len(os.listdir(temporary)) == 5
    for each in shared:
        each.close()


def test_another_processor(temporary, model, write, tmp_path, monkeypatch):
    """Machines that share a temporary folder share a model if their processors are alike."""
    processor = tmp_path / "cpuinfo"
    monkeypatch.setattr(sharing, "_PROCESSOR", str(processor))

    def on(clock, flags):
        cores = [
            f"processor\t: {core}\nmodel name\t: Some\ncpu MHz\t\t: {clock}\nflags\t\t: {flags}\n" for core in (0, 1)
        ]
        processor.write_text("\n".join(cores))
        return share(model, [], "", write)

    shared = [on(2000, "fpu avx2"), on(3000, "fpu avx2"), on(2000, "fpu avx2 avx512f")]
    assert write.count == len({each.path for each in shared}) == 2
    assert shared[0].path == shared[1].path
    for each in shared:
        each.close()


def test_a_failure(temporary, model, write):
    """What a failed write leaves is removed, and the next instance writes anew."""

    def fail(path):
        write(path)
        raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        share(model, [], "", fail)
    assert os.listdir(temporary) == []
    share(model, [], "", write).close()


def test_a_killed_process(temporary, model, write):
    """A folder without locks is removed when another is made, and used again, if it is complete, for its model."""
    left = share(model, [], "", write)
    os.close(left._descriptor)  # as the kernel does
    again = share(model, [], "", write)
    assert write.count == 1
    os.close(again._descriptor)
    other = share(model, [], "other", write)
    assert os.listdir(temporary) == [os.path.basename(os.path.dirname(other.path))]
    other.close()


def test_a_folder_that_is_removed_in_part(temporary, model, write, monkeypatch):
    """A process that is killed while it removes the folder leaves nothing that counts as a model."""
    shared = share(model, [], "", write)

    def fail(folder):
        raise OSError(5, "as if it was killed")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        shared.close()
    assert not os.path.exists(shared.path)
    share(model, [], "", write).close()
    assert (write.count, os.listdir(temporary)) == (2, [])


def test_an_unfinished_file(temporary, model, write):
    """What a process left that was killed while it wrote is not used."""
    left = share(model, [], "", write)
    os.rename(left.path, left.path + ".unfinished")
    os.close(left._descriptor)
    shared = share(model, [], "", write)
    assert write.count == 2
    assert sorted(os.listdir(os.path.dirname(shared.path))) == ["lock", "model.onnx"]
    shared.close()


def test_a_folder_of_others(temporary, model, write):
    """A folder that others may write to is not used."""
    shared = share(model, [], "", write)
    os.chmod(os.path.dirname(shared.path), 0o777)
    with pytest.raises(PermissionError):
        share(model, [], "", write)
    shared.close()


def test_space(temporary, model, write, monkeypatch):
    """The error says how much space is needed."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(5))
    with pytest.raises(OSError, match=r"6 bytes are needed and 5 are free below .*temporary"):
        share(model, [], "", write)
    assert os.listdir(temporary) == []


def test_size(model):
    """The size of a model has that of its external data."""
    assert weight_bytes(model) == 2
