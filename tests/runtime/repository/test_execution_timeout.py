# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which models may have a limit for the time of their executions."""

import pytest

from pyruntime.runtime.repository.execution_timeout import EXECUTION_TIMEOUT_DIGITS_MAX, execution_timeout_ms
from pyruntime.utils.errors import ConfigError

from ..model_specs import spec_from

THREADS = "parameters { key: 'INSTANCE_MODE' value: { string_value: 'thread' } }"


def limit(text, more=""):
    return execution_timeout_ms(
        spec_from(f"parameters {{ key: 'EXECUTION_TIMEOUT_MS' value: {{ string_value: '{text}' }} }} {more}")
    )


def test_a_model_without_the_parameter_has_no_limit():
    assert execution_timeout_ms(spec_from("")) == 0


@pytest.mark.parametrize("text", ["1", "250", "9" * EXECUTION_TIMEOUT_DIGITS_MAX])
def test_the_limit_is_a_number_of_milliseconds(text):
    assert limit(text) == int(text)


@pytest.mark.parametrize("text", ["", "0", "00", "-5", "1.5", "10 s", "²", "9" * (EXECUTION_TIMEOUT_DIGITS_MAX + 1)])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=rf"EXECUTION_TIMEOUT_MS of model 'm' must be a number .* and is '{text}'$"):
        limit(text)


def test_a_model_in_threads_is_refused():
    with pytest.raises(ConfigError, match=r"give it the parameter INSTANCE_MODE 'process', or no limit$"):
        limit("100", THREADS)
