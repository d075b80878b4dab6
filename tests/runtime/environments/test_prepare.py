# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""EXECUTION_ENV_PATH is turned into an interpreter to start with, or into an error that says what is wrong with it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from pyruntime.runtime.environments.prepare import prepare
from pyruntime.utils.errors import LoadError

pytestmark = pytest.mark.processes

OURS = "Python {}.{}.{} with numpy {}".format(*sys.version_info[:3], np.__version__)
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'


@pytest.fixture
def model_dir(tmp_path):
    """A model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def ready(path, model_dir):
    return asyncio.run(prepare(str(path), str(model_dir)))


def test_interpreter(model_dir):
    """An interpreter is taken as it is."""
    environment = ready(sys.executable, model_dir)
    assert environment.interpreter == sys.executable
    assert environment.description == f"{OURS}, {sys.executable}"


@pytest.mark.parametrize("other_environment", [8], indirect=True, ids=["python3.8"])
def test_virtual_environment(model_dir, other_environment, monkeypatch):
    """Its folder means the same as its interpreter: the environment is activated."""
    monkeypatch.setenv("PYTHONPATH", "/host")
    folder = ready(other_environment, model_dir)
    interpreter = ready(other_environment / "bin" / "python", model_dir)
    assert folder == interpreter
    assert folder.interpreter == f"{other_environment}/bin/python"
    assert folder.variables["VIRTUAL_ENV"] == str(other_environment)
    assert "PYTHONPATH" not in folder.variables
    found = subprocess.run(
        ["sh", "-c", "python -c 'import sys, numpy; print(sys.prefix)'"],
        env=folder.variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{other_environment}\n"


def test_conda_environment(model_dir, program):
    """A conda environment is known by what conda leaves in it; the scripts of its packages have run."""
    program(model_dir / "env" / "bin" / "python", *PYTHON.splitlines()[1:])
    program(model_dir / "env" / "etc" / "conda" / "activate.d" / "proj.sh", "export PROJ_LIB=$CONDA_PREFIX/share")
    (model_dir / "env" / "conda-meta").mkdir()
    folder = ready("$$TRITON_MODEL_DIRECTORY/env", model_dir)
    assert folder == ready("env/bin/python", model_dir)
    root = f"{model_dir}/env"
    assert folder.description == f"{OURS}, {root}/bin/python"
    assert folder.variables["CONDA_PREFIX"] == root
    assert folder.variables["PROJ_LIB"] == f"{root}/share"
    assert folder.variables["PATH"].startswith(f"{root}/bin:")
    assert folder.variables["LD_LIBRARY_PATH"].split(":")[0] == f"{root}/lib"


def test_archive(root, model_dir, pack):
    """An archive of a folder, or of its contents, becomes a folder in the cache."""
    pack(model_dir / "env.tar.gz", {"bin/python": PYTHON, "lib/x": ""})
    pack(model_dir / "folder.tar.gz", {"env/bin/python": PYTHON, "env/lib/x": ""})
    (inside,) = {ready("env.tar.gz", model_dir).interpreter for _ in range(2)}
    assert inside.startswith(f"{root}/archive-")
    assert inside.count("/") == str(root).count("/") + 3
    assert ready("$$TRITON_MODEL_DIRECTORY/folder.tar.gz", model_dir).interpreter.endswith("/env/bin/python")


def test_archive_of_a_virtual_environment(root, model_dir, wheels):
    """A real Python that was packed runs where it was unpacked."""
    made = model_dir / "made"
    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", made], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheels / "numpy-99.0-py3-none-any.whl", packages, "zip")
    with tarfile.open(model_dir / "env.tgz", "w:gz", compresslevel=1) as tar:
        tar.add(made, ".")
    shutil.rmtree(made)
    environment = ready("env.tgz", model_dir)
    assert "with numpy 99.0, " in environment.description
    assert environment.variables["VIRTUAL_ENV"].startswith(f"{root}/archive-")


def test_requirements_and_script(root, model_dir, no_index):
    """Both are built, here of the same packages, so that it is one environment."""
    (model_dir / "requirements.txt").write_text("tiny\n")
    (model_dir / "1").mkdir()
    (model_dir / "1" / "model.py").write_text('# /// script\n# dependencies = ["tiny"]\n# ///\n')
    environment = ready("requirements.txt", model_dir)
    assert "with numpy 99.0, " in environment.description
    assert environment.interpreter.startswith(f"{root}/built-")
    assert ready("$$TRITON_MODEL_DIRECTORY/1/model.py", model_dir) == environment


def test_real_index(root, model_dir):
    """A real numpy, from the package index of this machine."""
    (model_dir / "requirements.txt").write_text("numpy<3\n")
    try:
        environment = ready("requirements.txt", model_dir)
    except LoadError as exc:
        pytest.skip(f"there is no package index here: {exc}")
    assert environment.description.startswith("Python {}.{}.{} with numpy ".format(*sys.version_info[:3]))


def test_a_relative_path_is_looked_for_in_the_working_directory_after_the_models_folder(
    model_dir, tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "pyruntime.environments")
    for folder in (tmp_path / "env", model_dir / "env"):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").write_text(PYTHON)
        (folder / "bin" / "python").chmod(0o755)
    assert ready("env/bin/python", model_dir).interpreter == f"{model_dir}/env/bin/python"
    assert not caplog.records
    shutil.rmtree(model_dir / "env")
    assert ready("env/bin/python", model_dir).interpreter == f"{tmp_path}/env/bin/python"
    assert caplog.records[0].getMessage() == (
        "EXECUTION_ENV_PATH 'env/bin/python' is not in the model's folder: "
        f"'{tmp_path}/env/bin/python' of the working directory is used"
    )
    shutil.rmtree(tmp_path / "env")
    assert (
        f"there is nothing at '{model_dir}/env/bin/python', nor in the server's working directory, at "
        f"'{tmp_path}/env/bin/python'; it should be an archive made by conda-pack"
    ) in refused("env/bin/python", model_dir)


def refused(path, model_dir):
    with pytest.raises(LoadError) as caught:
        ready(path, model_dir)
    return str(caught.value)


def test_nothing_there(model_dir):
    """The message has the value, its meaning, and the allowed values."""
    message = refused("$$TRITON_MODEL_DIRECTORY/env.tar.gz", model_dir)
    assert message.startswith(
        "EXECUTION_ENV_PATH is '$$TRITON_MODEL_DIRECTORY/env.tar.gz': there is nothing at"
        f" '{model_dir}/env.tar.gz'; it should be an archive made by conda-pack"
    )


def test_what_is_no_environment(model_dir, pack, root):
    """Links to nothing, pipes, folders and archives without a Python, files that are no programs."""
    (model_dir / "link").symlink_to("gone")
    assert f"there is a link to nothing at '{model_dir}/link'" in refused("link", model_dir)
    os.mkfifo(model_dir / "pipe")
    assert f"there is no file at '{model_dir}/pipe'" in refused("pipe", model_dir)
    assert f"there is no bin/python in '{model_dir}/'" in refused("", model_dir)
    pack(model_dir / "env.tar.gz", {"bin/ruby": "", "lib/x": ""})
    assert f"there is no bin/python in '{model_dir}/env.tar.gz'" in refused("env.tar.gz", model_dir)
    (model_dir / "python").write_text("")
    assert f"'{model_dir}/python' cannot be executed" in refused("python", model_dir)


def test_environment_that_lost_its_python(model_dir):
    """A virtual environment is little more than a link to the Python that it was made with."""
    (model_dir / "env" / "bin").mkdir(parents=True)
    (model_dir / "env" / "bin" / "python").symlink_to("/gone/python3.4")
    message = refused("env", model_dir)
    assert f"'{model_dir}/env/bin/python' is a link to '/gone/python3.4', which is not there: install" in message


def test_no_numpy(model_dir, root, pack):
    """How numpy gets into an environment depends on what kind it is of."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", model_dir / "env"], check=True)
    python = f"{model_dir}/env/bin/python"
    has_none = f"'{python}' has no numpy, without which no model can run: "
    assert refused("env", model_dir).endswith(f"{has_none}run `{python} -m pip install numpy`")
    pack(model_dir / "env.tar.gz", {"bin/python": f'#!/bin/sh\nexec "{python}" "$@"\n', "lib/x": ""})
    assert refused("env.tar.gz", model_dir).endswith("install it into the environment before packing it")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_old_python(model_dir, version):
    """A Python that is too old says so itself, however old it is."""
    installed = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    names = os.listdir(f"{installed}/versions") if os.path.isdir(f"{installed}/versions") else []
    found = [f"{installed}/versions/{name}/bin/python" for name in names if name.startswith(f"{version}.")]
    if not found:
        pytest.skip(f"there is no Python {version} here")
    assert f"is Python {version}." in refused(found[0], model_dir)
