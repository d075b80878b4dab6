# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model while its C++ backend initialises the model, and may complete it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from google.protobuf import json_format

from pyruntime.runtime.config.autocomplete import complete
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.utils.errors import Code, LoadError


class Completion:
    """See the module. `config` is normalised, and `is_set` says whether the backend has set anything.

    The extension calls this object in TRITONBACKEND_ModelSetConfig, on the thread of the backend.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.is_set = False

    @classmethod
    def of_rendered(cls, document: Mapping[str, Any]) -> Completion:
        """Of a configuration that was rendered, and so is valid."""
        return cls(json_format.ParseDict(dict(document), new_model_config()))

    def __call__(self, text: str) -> str | tuple[int, str]:
        """Merge what the backend sets, JSON. Returns the configuration that the backend then reads, also as JSON.

        If `text` is no configuration, returns an error code and a message, and keeps the configuration.
        """
        try:
            self.config = complete(self.config, self._document(text))
        except LoadError as exc:
            return int(Code.INVALID_ARG), str(exc)
        self.is_set = True
        return render(self.config).decode()

    def _document(self, text: str) -> dict[str, object]:
        try:
            document = orjson.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise LoadError(
                f"the configuration of model '{self.config.name}' that its backend has set is no JSON object"
            )
        return document
