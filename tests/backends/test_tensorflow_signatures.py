# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The signatures in the file of a SavedModel. No framework is needed: a message is a stand-in of TensorFlow's."""

from types import SimpleNamespace

import pytest

from pyruntime.backends.tensorflow.signatures import choose_signature, describe, read_signatures
from pyruntime.backends.toolkit.settings import TensorSpec, read_settings
from pyruntime.utils.errors import ConfigError, LoadError


def settings(**parameters):
    return read_settings(
        {"name": "m", "parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    )


def tensor(dtype, *dims, unknown_rank=False):
    sizes = [SimpleNamespace(size=size) for size in dims]
    return SimpleNamespace(dtype=dtype, tensor_shape=SimpleNamespace(unknown_rank=unknown_rank, dim=sizes))


SIGNATURE = SimpleNamespace(
    inputs={"b": tensor(1, -1, 3), "a": tensor(7)}, outputs={"c": tensor(14, unknown_rank=True)}
)


class Message:
    """A SavedModel of two graphs, whose bytes must be `valid`."""

    def __init__(self):
        self.meta_graphs = []

    def ParseFromString(self, data):
        if data != b"valid":
            raise ValueError("no message")
        for tag, names in (("serve", ["__saved_model_init_op", "other", "serving_default"]), ("train", ["fit"])):
            graph = SimpleNamespace(
                meta_info_def=SimpleNamespace(tags=[tag]), signature_def=dict.fromkeys(names, SIGNATURE)
            )
            self.meta_graphs.append(graph)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"valid")
    return tmp_path


def test_signatures_of_a_tag(folder):
    """Signatures that TensorFlow executes by itself are not served. TF_GRAPH_TAG chooses the graph."""
    assert list(read_signatures(Message, settings(), str(folder))) == ["other", "serving_default"]
    assert list(read_signatures(Message, settings(TF_GRAPH_TAG="train"), str(folder))) == ["fit"]
    with pytest.raises(ConfigError, match=r"no graph with the tag 'x' \(TF_GRAPH_TAG\), its tags are: serve, train$"):
        read_signatures(Message, settings(TF_GRAPH_TAG="x"), str(folder))


@pytest.mark.parametrize("data", [b"invalid", None])
def test_no_saved_model(folder, data):
    """The message says what the folder must be."""
    if data is None:
        (folder / "saved_model.pb").unlink()
    else:
        (folder / "saved_model.pb").write_bytes(data)
    with pytest.raises(LoadError, match=r"^model 'm': '.*/saved_model.pb' cannot be read: .*tf.saved_model.save or"):
        read_signatures(Message, settings(), str(folder))


def test_the_signature_that_is_served():
    """TF_SIGNATURE_DEF, else `serving_default`, else the first."""
    assert choose_signature(settings(TF_SIGNATURE_DEF="b"), ["a", "b", "serving_default"]) == "b"
    assert choose_signature(settings(), ["a", "serving_default"]) == "serving_default"
    assert choose_signature(settings(), ["a", "b"]) == "a"
    with pytest.raises(ConfigError, match=r"^model 'm' has no signature 'c' \(TF_SIGNATURE_DEF\), it has: a, b$"):
        choose_signature(settings(TF_SIGNATURE_DEF="c"), ["a", "b"])
    with pytest.raises(ConfigError, match=r"^model 'm' has no signature, so that it cannot be called: save it with"):
        choose_signature(settings(), [])


def test_tensors():
    """Tensors have their names in the signature; a shape may have no number of dimensions."""
    inputs, outputs = describe(settings(), SIGNATURE)
    assert inputs == [TensorSpec("a", "TYPE_STRING", ()), TensorSpec("b", "TYPE_FP32", (-1, 3))]
    assert outputs == [TensorSpec("c", "TYPE_BF16", None)]
    complex_numbers = SimpleNamespace(inputs={"a": tensor(8)}, outputs={})
    with pytest.raises(LoadError, match=r"^model 'm' has 'a' of TensorFlow's type 8, which cannot be served$"):
        describe(settings(), complex_numbers)
