# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "tensorflow": SavedModels by the Python package tensorflow, and their custom operations."""

import importlib.util
import subprocess
import sys
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferInput

from .harness.operations import CustomOperations, libraries
from .harness.server import READY_LIMIT_S

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="tensorflow is not installed (pip install tensorflow-cpu)",
    ),
]
BACKEND = 'backend: "tensorflow" instance_group { kind: KIND_CPU count: 1 }\n'
# Writes the models into the folder that is its argument. It is a program, since TensorFlow is never unloaded.
MODELS = """
import sys
import tensorflow as tf

folder = sys.argv[1]
floats = tf.TensorSpec([None, 3], tf.float32)


class Model(tf.Module):
    @tf.function(input_signature=[floats, floats, tf.TensorSpec([None, 3], tf.string)])
    def serve(self, A, B, S):
        return {"SUM": A + B, "DIFFERENCE": A - B, "R": tf.strings.upper(S)}

    @tf.function(input_signature=[tf.TensorSpec([2], tf.bfloat16)])
    def double(self, X):
        return {"Y": X * 2, "Z": tf.reduce_sum(X)}


model = Model()
tf.saved_model.save(model, f"{folder}/several", signatures={"serving_default": model.serve, "double": model.double})
operations = tf.load_op_library(sys.argv[2])


class Scaling(tf.Module):
    @tf.function(input_signature=[floats])
    def scale(self, IN):
        return {"OUT": operations.test_scale(IN)}


scaling = Scaling()
tf.saved_model.save(scaling, f"{folder}/scaling", signatures={"serving_default": scaling.scale})
"""


def installed_version():
    """The version of TensorFlow, which is not imported here; the package may have the name of a variant."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def tensorflow_folder():
    """The folder of the package, which is not imported here."""
    return Path(importlib.util.find_spec("tensorflow").origin).parent


@pytest.fixture(scope="module")
def compile_op(compile_library):
    """See CustomOperations."""
    folder = tensorflow_folder()
    options = ["-isystem", folder / "include", f"-L{folder}", "-Wl,--no-as-needed", "-l:libtensorflow_framework.so.2"]
    options += ["-DEIGEN_MAX_ALIGN_BYTES=64"]
    return lambda factor: compile_library("tensorflow_custom_op.cc", f"-DFACTOR={factor}", *options)


@pytest.fixture(scope="module")
def saved_models(tmp_path_factory, compile_op):
    """The folder of all SavedModels."""
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", MODELS, folder, compile_op(2)], check=True, capture_output=True)
    return folder


@pytest.fixture
def saved(model, saved_models):
    """`saved(name, which, config=None)`: the folder of a model with one of the SavedModels."""

    def write(name, which, config=None):
        folder = model(name, None, config)
        (folder / "1" / "model.savedmodel").symlink_to(saved_models / which)
        return folder

    return write


def parameters(**values):
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(*item) for item in values.items())


def test_signatures(serve, saved):
    """The signature completes the configuration, and tensors pass as they are."""
    more = parameters(TF_SIGNATURE_DEF="double", TF_NUM_INTRA_THREADS="1", TF_USE_PER_SESSION_THREADS="true")
    saved("bare", "several")
    saved("double", "several", BACKEND + more)
    server = serve()
    with closing(server.client(READY_LIMIT_S)) as client:
        config = client.get_model_config("bare")
        given = InferInput("X", [2], "BF16").set_data_from_numpy(np.array([1.5, -2], ml_dtypes.bfloat16))
        answer = client.infer("double", [given])
    assert [answer.as_numpy(name).astype(np.float32).tolist() for name in ("Y", "Z")] == [[3, -4], [-0.5]]
    assert (config["backend"], config["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (4, 2)
    described = [(each["name"], each["dims"]) for each in (*config["input"], *config["output"])]
    assert described == [(name, [3]) for name in ("A", "B", "S", "DIFFERENCE", "R", "SUM")]
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
    texts = np.array([[b"a", b"\xff", b""], [b"b\0", b"c", b"d"]], object)
    answer = server.infer("bare", {"A": first, "B": second, "S": texts})
    assert answer.as_numpy("SUM").tolist() == (first + second).tolist()
    assert answer.as_numpy("DIFFERENCE").tolist() == (first - second).tolist()
    assert answer.as_numpy("R").tolist() == [[b"A", b"\xff", b""], [b"B\0", b"C", b"D"]]


class TestCustomOperations(CustomOperations):
    FRAMEWORK = f"tensorflow {installed_version()}"

    @pytest.fixture
    def scaling(self, saved):
        """See CustomOperations."""
        return lambda name, *paths: saved(name, "scaling", BACKEND + libraries(*paths))
