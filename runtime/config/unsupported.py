# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the features in a configuration that this server does not support. (pure)

This is not part of `validate`, because the configuration is valid. The loading of a model logs a warning for each of
them: responses are right without it, only their timing or their metrics differ.
"""

from __future__ import annotations

from collections import Counter

from pyruntime.runtime.config.metrics import ignored_metrics
from pyruntime.runtime.config.schema import Config

# The parameter that names the library of a custom batching strategy.
BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"


def unsupported_features(config: Config, *, is_native: bool = False) -> list[str]:
    """A sentence for the log for each unsupported feature that `config`, normalised and valid, asks for.

    `is_native` says that the backend is a library in the host process.
    """
    name = config.name
    asked = (
        (
            any(group.host_policy for group in config.instance_group),
            f"model '{name}' asks for a host policy, which is not supported: its instances run where the system likes",
        ),
        (
            BATCH_STRATEGY in config.parameters and not is_native,
            f"model '{name}' asks for a custom batching strategy, which only native models in the server's process "
            "have: it gets the usual one",
        ),
        *((True, f"model '{name}' asks for {what}") for what in ignored_metrics(config)),
        *(
            (count > 1, f"model '{name}' lists the output '{output}' {count} times, of which the first counts")
            for output, count in Counter(output.name for output in config.output).items()
        ),
    )
    return [sentence for is_asked, sentence in asked if is_asked]
