# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long an execution of a model may take, by its parameter EXECUTION_TIMEOUT_MS. (pure)

Only a process can be ended in the middle of an execution, so a model has a limit only if each of its instances is a
process of its own. runtime/instances/stub/execution_timer.py enforces it.
"""

from __future__ import annotations

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.instances.stub.execution_timer import PARAMETER
from pyruntime.runtime.repository.instance_mode import PARAMETER as INSTANCE_MODE
from pyruntime.runtime.repository.instance_mode import PROCESS, THREAD
from pyruntime.utils.errors import ConfigError

# The digits of a limit: 31 years are more than any server runs, and the number fits any clock.
EXECUTION_TIMEOUT_DIGITS_MAX = 12


def execution_timeout_ms(spec: ModelSpec) -> int:
    """The limit of a model in milliseconds, 0 for none. Raises ConfigError if it cannot have one, or not this one."""
    text = spec.parameters.get(PARAMETER)
    if text is None:
        return 0
    is_number = text.isascii() and text.isdigit() and len(text) <= EXECUTION_TIMEOUT_DIGITS_MAX
    if not is_number or not int(text):
        raise ConfigError(
            f"the parameter {PARAMETER} of model '{spec.name}' must be a number of milliseconds from 1 on, in at most "
            f"{EXECUTION_TIMEOUT_DIGITS_MAX} digits, and is '{text}'"
        )
    if spec.ensemble is not None:
        raise ConfigError(
            f"the ensemble '{spec.name}' has the parameter {PARAMETER}, but executes nothing itself: give it to the "
            "models of its steps"
        )
    if spec.parameters.get(INSTANCE_MODE) == THREAD:
        raise ConfigError(
            f"model '{spec.name}' has the parameter {PARAMETER}, and its instances are threads of one process, which "
            f"cannot be ended one by one: give it the parameter {INSTANCE_MODE} '{PROCESS}', or no limit"
        )
    return int(text)
