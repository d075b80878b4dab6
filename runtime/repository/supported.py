# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What happens to a model that asks for what this server does not do: see config/unsupported.py."""

from __future__ import annotations

import logging

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.unsupported import unsupported_features
from pyruntime.utils.errors import Code, LoadError

_LOG = logging.getLogger("pyruntime.repository")


def refuse_unsupported(config: Config) -> None:
    """Raise LoadError for what a model must not be served without."""
    for feature in unsupported_features(config):
        if feature.fatal:
            raise LoadError(feature.sentence, Code.UNSUPPORTED)


def warn_unsupported(config: Config, *, is_native: bool = False) -> None:
    """Log what a model is served without; `is_native` says that its backend is a library in this process."""
    for feature in unsupported_features(config, is_native=is_native):
        _LOG.warning("%s", feature.sentence)
