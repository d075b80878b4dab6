# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads models and tokenizers of transformers. Runs no code of a model's author unless the configuration says so."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from typing import Any

from pyruntime.backends.toolkit.files import unloadable
from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.backends.toolkit.settings import Settings
from pyruntime.backends.transformers.options import FILENAME, Options
from pyruntime.utils.errors import LoadError

ALLOW_PICKLE = "ALLOW_PICKLE"
# Every tokenizer may be in this file, besides those of its class.
_TOKENIZER = "tokenizer.json"


class Loader:
    """Loads what one model consists of. All methods raise LoadError."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings = settings
        self._options = options
        name = settings.name
        self.torch = import_framework("torch", "torch", "transformers", name)
        self.transformers = import_framework("transformers", "transformers", "transformers", name)
        # The log has no place for bars.
        self.transformers.utils.logging.disable_progress_bar()
        if options.is_local:
            _check_files(settings, options.model)

    def config(self) -> Any:
        """The model's configuration."""
        with self._explained("configuration"):
            return self.transformers.AutoConfig.from_pretrained(self._options.model, **self._source())

    def tokenizer(self) -> Any:
        """The tokenizer, which must have files, if its class has any."""
        with self._explained("tokenizer"):
            tokenizer = self.transformers.AutoTokenizer.from_pretrained(self._options.model, **self._source())
        if self._options.is_local:
            _check_tokenizer(self._settings, self._options.model, tokenizer)
        return tokenizer

    def model(self, auto_class: str, device: Any) -> Any:
        """A model of an automatic class (`AutoModelForCausalLM`), on a device; None leaves it where it is loaded."""
        allows_pickle = self._settings.boolean(ALLOW_PICKLE)
        with self._explained("model"):
            model = getattr(self.transformers, auto_class).from_pretrained(
                self._options.model,
                dtype=self._options.dtype,
                use_safetensors=None if allows_pickle else True,
                **self._source(),
            )
            return (model if device is None else model.to(device)).eval()

    def _source(self) -> dict[str, Any]:
        source = {"trust_remote_code": self._options.trust_remote_code, "local_files_only": self._options.is_local}
        return source if self._options.revision is None else {**source, "revision": self._options.revision}

    @contextlib.contextmanager
    def _explained(self, noun: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            reason = f"the {noun}, by transformers {self.transformers.__version__}: {type(exc).__name__}: {exc}"
            raise unloadable(self._settings.name, self._options.model, reason) from exc


def _check_files(settings: Settings, folder: str) -> None:
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise LoadError(
            f"model '{settings.name}' has no config.json in '{folder}': put the files of save_pretrained there, or "
            f"name their folder, or an id of a hub, as model in {FILENAME}"
        )
    has_pickles = glob.glob(f"{glob.escape(folder)}/pytorch_model*.bin")
    has_safe_files = glob.glob(f"{glob.escape(folder)}/*.safetensors")
    if has_pickles and not has_safe_files and not settings.boolean(ALLOW_PICKLE):
        raise LoadError(
            f"model '{settings.name}': '{has_pickles[0]}' is a pickle, which may run code of its author when it is "
            "loaded. Save the model by save_pretrained, which writes safetensors, or set the parameter "
            f"{ALLOW_PICKLE} to true if you trust the file"
        )


def _check_tokenizer(settings: Settings, folder: str, tokenizer: Any) -> None:
    """Raise LoadError for one that transformers has made without its files: all texts are the same to it."""
    names = set(tokenizer.vocab_files_names.values())
    has_files = not names or any(os.path.isfile(os.path.join(folder, name)) for name in (_TOKENIZER, *names))
    # It may have files with names that its class does not tell.
    if not has_files and tokenizer("a").input_ids == tokenizer("b").input_ids:
        raise LoadError(
            f"model '{settings.name}' has no tokenizer in '{folder}': put its files of save_pretrained there, such as "
            f"{_TOKENIZER}"
        )
