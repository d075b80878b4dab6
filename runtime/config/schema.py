# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The message class of a model configuration, from model_config.binpb.

The descriptors live in a pool of our own. tritonclient registers the same names, `inference.*`, in protobuf's default
pool, and one process may well hold both. The price is that messages of the two never mix; bytes pass between them.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# A message `inference.ModelConfig`. Its attributes are made at run time, so a type checker cannot know them.
Config = Any


def _load_pool() -> DescriptorPool:
    pool = DescriptorPool()
    serialized = files("pyruntime.runtime.config").joinpath("model_config.binpb").read_bytes()
    for file in FileDescriptorSet.FromString(serialized).file:
        pool.Add(file)
    return pool


POOL = _load_pool()
CONFIG_DESCRIPTOR: Descriptor = POOL.FindMessageTypeByName("inference.ModelConfig")
_ConfigMessage = GetMessageClass(CONFIG_DESCRIPTOR)


def new_model_config() -> Config:
    """An empty `inference.ModelConfig`."""
    return _ConfigMessage()
