# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import resource
import threading
from contextlib import contextmanager

import pytest

from pyruntime.runtime.tracing.buckets import Write
from pyruntime.runtime.tracing.trace_file import TraceFile


@pytest.fixture
def write(traces, tmp_path):
    """`write((ids, apart), ...)` to the file "t" of the test's folder."""
    file = TraceFile(str(tmp_path / "t"))

    def write(*writes):
        made = [Write([traces.trace(id=id) for id in ids], apart) for ids, apart in writes]
        assert file.size(made[0]) == len(writes[0][0])
        file.write(made, threading.Event())

    return write


@pytest.fixture
def files(tmp_path):
    """The ids in each of the files."""
    return lambda: {
        path.name: [record["id"] for record in json.loads(path.read_bytes())] for path in sorted(tmp_path.iterdir())
    }


@contextmanager
def files_of_at_most(size):
    """Writing to a file beyond its first `size` bytes fails meanwhile, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_one_file(write, files):
    """It can be read after every write."""
    write(([1], False))
    assert files() == {"t": [1]}
    write(([2, 3], False), ([4], False))
    assert files() == {"t": [1, 2, 3, 4]}


def test_files_of_their_own(write, files):
    """They are numbered from 0 on, and the one file has what belongs to none of them."""
    write(([1, 2], True), ([3], False), ([4], True))
    write(([5], True))
    assert files() == {"t": [3], "t.0": [1, 2], "t.1": [4], "t.2": [5]}


def test_older_files(write, files, tmp_path):
    """Files of an earlier server are replaced."""
    (tmp_path / "t").write_text('[{"id": 9}]')
    (tmp_path / "t.0").write_text('[{"id": 9}]')
    write(([1], False), ([2], True))
    assert files() == {"t": [1], "t.0": [2]}


def test_no_such_folder(traces, tmp_path, caplog):
    """Traces that cannot be written are lost, which is logged once until a write succeeds."""
    folder = tmp_path / "folder"
    file = TraceFile(str(folder / "t"))
    write = [Write([traces.trace()], apart=True)]
    for _ in range(2):
        file.write(write, threading.Event())
    folder.mkdir()
    file.write(write, threading.Event())
    assert [path.name for path in folder.iterdir()] == ["t.2"]
    assert [record.getMessage() for record in caplog.records] == [
        f"traces are lost, because '{folder}/t' cannot be written: No such file or directory"
    ]


def test_no_room(write, files, tmp_path, caplog):
    """The file stays valid, and is continued as soon as there is room."""
    write(([1], False))
    with files_of_at_most((tmp_path / "t").stat().st_size + 10):
        write(([2], False))
        assert files() == {"t": [1]}
    write(([3], False))
    assert files() == {"t": [1, 3]}
    assert ["cannot be written: File too large" in record.getMessage() for record in caplog.records] == [True]


def test_no_room_at_first(write, files, tmp_path):
    """A write that there is no room for leaves nothing in the file."""
    with files_of_at_most(10):
        write(([1], False))
        write(([2], True))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("t", b"")]
    write(([3], False), ([4], True))
    assert files() == {"t": [3], "t.1": [4]}


@pytest.mark.parametrize("take", ["unlink", "truncate"])
def test_taken_away(write, files, tmp_path, take):
    """A file that is removed or emptied while the server runs is begun anew."""
    write(([1], False))
    if take == "unlink":
        (tmp_path / "t").unlink()
    else:
        (tmp_path / "t").write_bytes(b"")
    write(([2], False))
    write(([3], False))
    assert files() == {"t": [2, 3]}
