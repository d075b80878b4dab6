# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the features in a configuration that this server does not support. (pure)

This is not part of `validate`, because the configuration is valid. The loading of a model refuses it if responses would
be wrong without the feature, and logs a warning if only their timing would differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyruntime.runtime.config.metrics import ignored_metrics
from pyruntime.runtime.config.schema import Config
from pyruntime.utils.errors import Code, LoadError

# The parameter that names the library of a custom batching strategy.
BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """A feature that a model asks for: a sentence for the log, and whether the model must not be served without it."""

    sentence: str
    fatal: bool


def refuse_unsupported(config: Config) -> None:
    """Raise LoadError if `config` asks for a feature without which its model must not be served."""
    for feature in unsupported_features(config):
        if feature.fatal:
            raise LoadError(feature.sentence, Code.UNSUPPORTED)


def unsupported_features(config: Config, *, is_native: bool = False) -> list[UnsupportedFeature]:
    """The unsupported features that `config`, normalised and valid, asks for; the fatal ones come first.

    `is_native` says that the backend is a library in the host process.
    """
    name = config.name
    asked = (
        (
            (config.backend == "python" or config.runtime == "model.py") and bool(config.sequence_batching.state),
            True,
            f"model '{name}' asks for states in sequence_batching, which a Python model has no way to update: "
            "it keeps what it needs by correlation id",
        ),
        (
            any(group.HasField("rate_limiter") for group in config.instance_group),
            False,
            f"model '{name}' asks for rate limiting, which is not supported yet: its instances run whenever they can",
        ),
        (
            any(group.host_policy for group in config.instance_group),
            False,
            f"model '{name}' asks for a host policy, which is not supported: its instances run where the system likes",
        ),
        (
            BATCH_STRATEGY in config.parameters and not is_native,
            False,
            f"model '{name}' asks for a custom batching strategy, which only native models in the server's process "
            "have: it gets the usual one",
        ),
        *((True, False, f"model '{name}' asks for {what}") for what in ignored_metrics(config)),
    )
    return [UnsupportedFeature(sentence, fatal) for is_asked, fatal, sentence in asked if is_asked]
