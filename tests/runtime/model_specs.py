# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The specification of a model, made of its configuration as a load makes it."""

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config


def spec_from(text, name="m", files=("model.py",), gpus=()):
    """The specification that a config.pbtxt gives."""
    config = parse_model_config(text, "config.pbtxt")
    return model_spec(normalize(config, directory_name=name, files=files, gpus=gpus))
