# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a file or a folder is by its looks, before a backend reads it: what is certain without its framework.

Frameworks explain files of another kind, and files that were cut off, by places in their own source, if at all.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyruntime.backends.toolkit.looks import fault_of_file, has_text

# The code of a module, which the weights beside it belong to.
SOURCE = "model.py"
# The file by which a folder is known to be a model, for backends that read folders of any name.
MEMBERS = {"tensorflow": "saved_model.pb", "transformers": "config.json"}
# Backends whose model is the folder of a version, and not a folder in it.
WHOLE_VERSIONS = frozenset({"transformers"})
# Backends for which a folder has a file of its own name.
_NAMESAKES = frozenset({"onnxruntime", "openvino"})
# The tasks of pipelines of transformers by the ends of the names of architectures, the first that fits; others, and
# those with "", generate text.
_TASKS = {
    "LMHeadModel": "",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "Model": "feature-extraction",
}
_PYTHON_MODEL = b"class TritonPythonModel"


def fault_of(path: Path, backend: str) -> str:
    """What is wrong with a model for a backend, as a sentence; "" if nothing is, as far as its looks tell.

    Raises OSError.
    """
    if path.is_dir():
        return _fault_of_folder(path, backend)
    if backend in MEMBERS:
        return f"'{path}' is a file, and the backend '{backend}' reads a folder that has {MEMBERS[backend]}"
    fault = fault_of_file(path)
    if not fault and backend == "pytorch":
        fault = _fault_for_torch(path)
    if not fault and backend == "sklearn" and path.suffix == ".json" and not has_text(path, b'"learner"'):
        fault = f"'{path}' is no model of XGBoost: it has no \"learner\""
    return fault


def pipeline_of(folder: Path) -> str:
    """The pipeline for a folder of save_pretrained, by its architecture; "" for one that generates text, or unknown."""
    try:
        config = json.loads((folder / MEMBERS["transformers"]).read_bytes())
        (architecture,) = config["architectures"]
        return next((task for end, task in _TASKS.items() if architecture.endswith(end)), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the backend says what is wrong
        return ""


def _fault_of_folder(path: Path, backend: str) -> str:
    member = path.name if backend in _NAMESAKES else MEMBERS.get(backend, "")
    if not member:
        return f"'{path}' is a folder, and the backend '{backend}' reads a file: name the file"
    if not (path / member).is_file():
        return f"the folder '{path}' has no file {member}, by which the backend '{backend}' finds a model in it"
    return fault_of_file(path / member)


def _fault_for_torch(path: Path) -> str:
    """What is wrong with code or weights for PyTorch. The backend says it of its archives."""
    if path.suffix == ".py" and has_text(path, _PYTHON_MODEL):
        return (
            f"'{path}' is a model in Python, which needs no backend: its folder is written by pyruntime new model "
            "without --from"
        )
    if path.suffix != ".safetensors" or (path.parent / SOURCE).is_file():
        return ""
    if (path.parent / MEMBERS["transformers"]).is_file():
        return f"'{path}' has weights and no program: name its folder, which is one of save_pretrained"
    return (
        f"'{path}' has weights and no program: put {SOURCE} with the torch.nn.Module next to it, or save the model "
        "with torch.export.save or torch.jit.save"
    )
