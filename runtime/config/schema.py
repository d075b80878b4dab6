# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The protobuf message class of a model configuration, from model_config.binpb.

The descriptors are in a pool of their own, because tritonclient registers the same names, `inference.*`, in protobuf's
default pool, and one process may import both. In return, messages of the two pools never mix; they exchange bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# The message `inference.ModelConfig`, or a message or value in it. protobuf creates the attributes at run time, so a
# type checker cannot know them.
Config = Any


def _load_pool() -> DescriptorPool:
    pool = DescriptorPool()
    serialized = Path(__file__).with_name("model_config.binpb").read_bytes()
    for file in FileDescriptorSet.FromString(serialized).file:
        pool.Add(file)
    return pool


POOL = _load_pool()
CONFIG_DESCRIPTOR: Descriptor = POOL.FindMessageTypeByName("inference.ModelConfig")
_ConfigMessage = GetMessageClass(CONFIG_DESCRIPTOR)


def new_model_config() -> Config:
    """An empty `inference.ModelConfig`."""
    return _ConfigMessage()
