# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Label files: lines as they stand, and files that cannot be read."""

import os

import pytest

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.repository import labels
from pyruntime.runtime.repository.labels import read_labels
from pyruntime.utils.errors import LoadError


def output(name, label_filename):
    return TensorSpec(name, "FP32", (2,), (2,), label_filename=label_filename)


def test_labels(tmp_path):
    """One line each, for those outputs that have a file; nothing in a line is changed."""
    (tmp_path / "a.txt").write_bytes("zero\r\n\n zwölf :\n".encode() + b"\xff")
    found = read_labels(str(tmp_path), [output("A", "a.txt"), output("B", ""), output("C", "a.txt")])
    assert list(found) == ["A", "C"]
    assert found["A"] == ("zero\r", "", " zwölf :", b"\xff".decode(errors="surrogateescape"))


def test_no_file(tmp_path):
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


@pytest.mark.timeout(60)
def test_pipe(tmp_path):
    """What is no file is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError) as caught:
        read_labels(str(tmp_path), [output("A", "pipe")])
    assert str(caught.value) == f"failed to open text file for read {tmp_path}/pipe: it is no file"


def test_large_file(tmp_path, monkeypatch):
    """There is a limit to what is read."""
    monkeypatch.setattr(labels, "LABELS_BYTES_MAX", 10)
    (tmp_path / "a.txt").write_text("0123456789")
    assert read_labels(str(tmp_path), [output("A", "a.txt")]) == {"A": ("0123456789",)}
    (tmp_path / "a.txt").write_text("0123456789a")
    with pytest.raises(LoadError) as caught:
        read_labels(str(tmp_path), [output("A", "a.txt")])
    assert str(caught.value) == f"the labels in {tmp_path}/a.txt have more than 10 bytes"
