# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Installations on machines that lack something: a library at run time, or a compiler when pyruntime is built."""

import base64
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from .harness.models import write_model

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
# Runs a command of Python with another file as an extension.
WITH_EXTENSION = """
import importlib.util, runpy, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, extension) if name == replaced else None

replaced, extension = sys.argv[1:3]
sys.meta_path.insert(0, Finder)
sys.argv = sys.argv[5:]
runpy.run_module("pyruntime", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def without_library(tmp_path):
    """`serve(wrapper=without_library)`: a server whose extension for HTTP/2 needs a library that is not there."""
    folder = tmp_path / ".build"
    folder.mkdir()
    for name, options in (("libmissing.so", []), ("_http2.abi3.so", ["-Wl,--no-as-needed", "-L.", "-lmissing"])):
        command = ["gcc", "-shared", "-o", name, "-x", "c", "/dev/null", *options]
        subprocess.run(command, cwd=folder, check=True)
    (folder / "libmissing.so").unlink()
    extension = str(folder / "_http2.abi3.so")
    return (sys.executable, "-c", WITH_EXTENSION, "pyruntime.runtime.native._http2", extension)


def test_missing_library(serve, tmp_path, without_library):
    """A server without the library for gRPC says so in one line, and serves HTTP."""
    write_model(tmp_path, "m", MODEL)
    server = serve(wrapper=without_library)
    assert server.is_ready()
    (line,) = [line for line in server.log.splitlines() if "gRPC is not served" in line]
    assert "libmissing.so: cannot open shared object file" in line
    assert "Traceback" not in server.log


# Runs a command with a root that cannot be written to.
READ_ONLY = """
mount --make-rprivate / || exit
for point in $(awk '{print $2}' /proc/mounts); do
  case $point in
    /proc*|/dev*|/sys*) ;;
    *) mount -o remount,ro,bind "$point" ;;
  esac
done
! touch "$TMPDIR/a" /tmp/a 2>/dev/null || { echo "the root is not read-only"; exit 1; }
exec "$@"
"""


@pytest.fixture
def read_only():
    """`serve(wrapper=read_only)`: a server that can write to no folder."""
    wrapper = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh")
    done = subprocess.run([*wrapper, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the root cannot be made read-only here: {done.stdout}{done.stderr}")
    return wrapper


def test_read_only_root(serve, tmp_path, read_only, monkeypatch):
    """A server that can write to no folder says so in one line, and serves; a load with files is refused."""
    monkeypatch.setenv("TMPDIR", "/tmp")
    write_model(tmp_path, "m", MODEL)
    server = serve("--model-control-mode=explicit", "--load-model=m", wrapper=read_only)
    assert server.infer("m", {"IN": np.array([1])}).get_response()["outputs"] == []
    assert server.log.count("no folder for temporary files can be written to") == 1
    parameters = {"config": '{"backend": "python"}', "file:1/model.py": base64.b64encode(MODEL.encode()).decode()}
    refused = server.request("POST", "/v2/repository/models/m/load", json.dumps({"parameters": parameters}).encode())
    assert json.loads(refused.body)["error"] == (
        "failed to load 'm', failed to poll from model repository: the override files of model 'm' cannot be written: "
        "Read-only file system"
    )
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [("gcc", "apt-get install gcc python3-dev libnghttp2-dev"), ("g++", "apt-get install g++ python3-dev")],
)
def test_build_without_compiler(tmp_path, hidden, expected):
    """A build from source that lacks a compiler fails, and its last line says what to install."""
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("pyruntime", "runtime", "stub", "utils", "backends", "testing", "include"):
        (tmp_path / name).symlink_to(ROOT / name)
    missing = str(tmp_path / "missing")
    compilers = {"gcc": {"CC": missing}, "g++": {"CC": "true", "CXX": missing}}[hidden]
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib=lib", "--build-temp=objects"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **compilers}, capture_output=True, text=True)
    assert done.returncode == 1
    assert expected in done.stderr.splitlines()[-1]


def test_second_installation_compiles_nothing(tmp_path):
    """An editable installation takes the extensions that were built in that folder before, as `scripts/test` does."""
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path)
    for name in ("pyruntime", "runtime", "stub", "utils", "backends", "testing", "include"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    built = tmp_path / f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/pyruntime"
    extensions = [path.relative_to(tmp_path) for path in tmp_path.glob("*/**/*.abi3.so")]
    for extension in extensions:
        (built / extension).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / extension).rename(built / extension)
        (built / extension).touch()
    build = "import setuptools.build_meta, sys; setuptools.build_meta.build_editable(sys.argv[1])"
    no_compilers = {"CC": "missing", "CXX": "missing"}
    command = [sys.executable, "-c", build, str(tmp_path / "wheels")]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **no_compilers}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(extensions) == (ROOT / "setup.py").read_text().count(" = Extension(")
    assert all((tmp_path / extension).exists() for extension in extensions)
