# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a file or a folder is by its looks, before a backend reads it: what is certain without its framework.

Frameworks explain files of another kind, and files that were cut off, by places in their own source, if at all.
"""

from __future__ import annotations

import json
import mmap
import zipfile
from pathlib import Path

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
_PICKLES = (".pkl", ".joblib")
_ARCHIVES = (".pt", ".pt2", ".skops")
_ARCHIVE = b"PK\x03\x04"
_POINTER = b"version https://git-lfs"
# Enough for all beginnings.
_HEAD_BYTES = 64
_PYTHON_MODEL = b"class TritonPythonModel"
# How whole files of a suffix begin and end.
_ENDS = {".json": (b"{", b"}"), ".ubj": (b"{", b"}"), ".xml": (b"<", b">")}
# Models of LightGBM have text of any kind after it.
_LIGHTGBM_HEADS, _LIGHTGBM_END = (b"tree\nversion=v3", b"tree\nversion=v4"), b"end of trees"
_CUT_OFF = "is cut off: it was not written or copied to its end"


def fault_of(path: Path, backend: str) -> str:
    """What is wrong with a model for a backend, as a sentence; "" if nothing is, as far as its looks tell.

    Raises OSError.
    """
    if path.is_dir():
        return _fault_of_folder(path, backend)
    if backend in MEMBERS:
        return f"'{path}' is a file, and the backend '{backend}' reads a folder that has {MEMBERS[backend]}"
    fault = _fault_of_bytes(path)
    if not fault and backend == "pytorch":
        fault = _fault_for_torch(path)
    if not fault and backend == "sklearn" and path.suffix == ".json" and not _has(path, b'"learner"'):
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
    return _fault_of_bytes(path / member)


def _fault_of_bytes(path: Path) -> str:
    """What is wrong with a file whatever its backend."""
    if not path.stat().st_size:
        return f"'{path}' is empty"
    head = _head(path)
    if head.startswith(_POINTER):
        return f"'{path}' is a pointer of Git LFS and not the file: get it with git lfs pull"
    if path.suffix in _ARCHIVES and head.startswith(_ARCHIVE) and not zipfile.is_zipfile(path):
        return f"'{path}' {_CUT_OFF}"
    if path.suffix == ".txt" and head.startswith(_LIGHTGBM_HEADS) and not _has(path, _LIGHTGBM_END):
        return f"'{path}' {_CUT_OFF}"
    if path.suffix in _ENDS:
        begin, end = _ENDS[path.suffix]
        if head.lstrip().startswith(begin) and not _tail(path).endswith(end):
            return f"'{path}' {_CUT_OFF}"
    # Older files of torch.save are pickles in pickles, and state dicts among them are weights.
    if path.suffix not in (*_PICKLES, ".pt", ".pt2") and _is_pickle(head):
        return f"'{path}' is a pickle of Python, and no {path.suffix[1:] or 'model'}: save the model in its own format"
    if path.suffix == ".skops" and not head.startswith(_ARCHIVE):
        return f"'{path}' is no file of skops: save the model with skops.io.dump"
    return ""


def _fault_for_torch(path: Path) -> str:
    """What is wrong with code or weights for PyTorch. The backend says it of its archives."""
    if path.suffix == ".py" and _has(path, _PYTHON_MODEL):
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


def _is_pickle(head: bytes) -> bool:
    """Whether a file begins as pickles do since protocol 2."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _tail(path: Path) -> bytes:
    """The end of a file, without white space."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - mmap.PAGESIZE))
        return file.read().rstrip()


def _has(path: Path, text: bytes) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.find(text) >= 0
