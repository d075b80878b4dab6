# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Describes the signatures of a SavedModel by its file, so that neither weights nor custom operations are needed."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Tuple

from pyruntime.backends.toolkit.settings import Settings, TensorSpec
from pyruntime.utils.errors import ConfigError, LoadError

TAG = "serve"
SIGNATURE = "serving_default"
# What TensorFlow executes by itself, at loading and for training.
_INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")
# By the number of a datatype in TensorFlow's files.
DATATYPES = {
    1: "TYPE_FP32",
    2: "TYPE_FP64",
    3: "TYPE_INT32",
    4: "TYPE_UINT8",
    5: "TYPE_INT16",
    6: "TYPE_INT8",
    7: "TYPE_STRING",
    9: "TYPE_INT64",
    10: "TYPE_BOOL",
    14: "TYPE_BF16",
    17: "TYPE_UINT16",
    19: "TYPE_FP16",
    22: "TYPE_UINT32",
    23: "TYPE_UINT64",
}


def read_signatures(message_class: Any, settings: Settings, folder: str) -> Mapping[str, Any]:
    """The signatures of a SavedModel by name. `message_class` is TensorFlow's SavedModel. Raises LoadError."""
    path = os.path.join(folder, "saved_model.pb")
    message = message_class()
    try:
        with open(path, "rb") as file:
            message.ParseFromString(file.read())
    except Exception as exc:
        raise LoadError(
            f"model '{settings.name}': '{path}' cannot be read: {type(exc).__name__}: {exc}. The folder of a "
            "SavedModel is what tf.saved_model.save or model.export wrote"
        ) from exc
    tag = settings.parameters.get("TF_GRAPH_TAG", TAG)
    for graph in message.meta_graphs:
        if tag in graph.meta_info_def.tags:
            return {name: each for name, each in graph.signature_def.items() if name not in _INTERNAL}
    tags = ", ".join(sorted({each for graph in message.meta_graphs for each in graph.meta_info_def.tags}))
    raise ConfigError(f"model '{settings.name}' has no graph with the tag '{tag}' (TF_GRAPH_TAG), its tags are: {tags}")


def choose_signature(settings: Settings, names: List[str]) -> str:
    """The signature that is served: TF_SIGNATURE_DEF, else `serving_default`, else the first. Raises ConfigError."""
    wanted = settings.parameters.get("TF_SIGNATURE_DEF", "")
    if wanted and wanted not in names:
        raise ConfigError(
            f"model '{settings.name}' has no signature '{wanted}' (TF_SIGNATURE_DEF), it has: {', '.join(names)}"
        )
    if not names:
        raise ConfigError(
            f"model '{settings.name}' has no signature, so that it cannot be called: save it with signatures=..."
        )
    return wanted or (SIGNATURE if SIGNATURE in names else names[0])


def describe(settings: Settings, signature: Any) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    """The inputs and outputs of a signature, by name. Raises LoadError for a datatype that cannot be served."""
    inputs, outputs = (
        [_describe(settings.name, name, tensors[name]) for name in sorted(tensors)]
        for tensors in (signature.inputs, signature.outputs)
    )
    return inputs, outputs


def _describe(model: str, name: str, tensor: Any) -> TensorSpec:
    datatype: Optional[str] = DATATYPES.get(tensor.dtype)
    if datatype is None:
        raise LoadError(f"model '{model}' has '{name}' of TensorFlow's type {tensor.dtype}, which cannot be served")
    shape = tensor.tensor_shape
    return TensorSpec(name, datatype, None if shape.unknown_rank else tuple(size.size for size in shape.dim))
