# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The specification of a model, made of its configuration as a load makes it, or of parts that a test chooses."""

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.spec import ModelSpec

# A model that takes and gives nothing. A test replaces the parts that matter there.
BARE_SPEC = ModelSpec(
    name="m",
    backend="python",
    runtime="",
    platform="",
    max_batch_size=0,
    inputs={},
    outputs={},
    required_inputs=frozenset(),
    instances=(),
    decoupled=False,
    default_model_filename="model.py",
    parameters={},
    dynamic_batching=None,
    json=b"{}",
)


def spec_from(text, name="m", files=("model.py",), gpus=()):
    """The specification that a config.pbtxt gives."""
    return model_spec(config_from(text, name, files, gpus))


def config_from(text, name="m", files=("model.py",), gpus=()):
    """The configuration that a config.pbtxt gives, completed without the model."""
    return normalize(parse_model_config(text, "config.pbtxt"), directory_name=name, files=files, gpus=gpus)
