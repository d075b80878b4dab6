# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/counts.py: calls for a request as the server itself counts them, and memos as the source has them."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SOURCE = """
@lru_cache(maxsize=1024)
def head(name): ...

@lru_cache(maxsize=None)
def page(): ...

@cache
def other(): ...

class Reader:
    def read(self, key):
        if len(self.kept) >= KEPT_MAX:
            self.kept.clear()
        if key and len(_routes) > ROUTES_MAX:
            _routes.clear()
        if len(self.waiting) >= WAITING_MAX:
            raise Full
        if self.closed:
            self.waiting.clear()
"""


@pytest.fixture(scope="module")
def source_counts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module("source_counts")


def test_a_memo_is_what_is_cleared_when_it_is_full(source_counts):
    """So is a cache of results with a size. Queues that are full, and what is cleared at the end, are none."""
    assert sorted(name for _, name in source_counts.memos_of(SOURCE)) == ["_routes", "head", "self.kept"]


def test_memos_have_their_places(source_counts, tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text(SOURCE)
    assert source_counts.memos(tmp_path, ["part"]) == [
        "part/a.py:3 head",
        "part/a.py:13 self.kept",
        "part/a.py:15 _routes",
    ]


@pytest.mark.processes
def test_calls_for_a_request_are_counted_in_the_server(tmp_path):
    """For real, over both protocols, with one request in flight and with many."""
    shutil.copytree(BENCHMARKS / "models" / "texts", tmp_path / "texts")
    cases = ["texts,http,vary", "texts,grpc,vary"]
    argv = [sys.executable, BENCHMARKS / "counts.py", "--functions", f"--models={tmp_path}"]
    done = subprocess.run([*argv, *(f"--case={case}" for case in cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"(?m)^(texts\S+) +(\d+) +([\d.]+) +([\d.]+)$", done.stdout)
    assert [row[:2] for row in rows] == [(case, in_flight) for case in cases for in_flight in ("1", "16")]
    assert all(float(python) > 1 and float(native) > 1 for _, _, python, native in rows)
    for protocol in ("http", "grpc"):
        assert re.search(rf"\d  runtime/frontends/{protocol}/connection\.py:\w+", done.stdout), done.stdout
