# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which examples hypothesis tries: the same ones in every run, so that a change is not refused for an older error.

scripts/properties looks for others: its profile is `search`. Examples that fail there stay in .hypothesis, and are the
first ones of its next search.
"""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

SEARCHED = 5000


def load():
    """Register the profiles, and load the one of all tests. An option of hypothesis loads another one later."""
    # Examples are no measure of time: on a busy machine any of them may stand still for seconds.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("tests", patient, derandomize=True, database=None)
    settings.register_profile("fast", settings.get_profile("tests"), max_examples=10)
    settings.register_profile("search", patient, max_examples=SEARCHED)
    settings.load_profile("tests")
    # hypothesis also draws numbers and texts that it reads in the modules imported so far: with them the examples
    # would be others after any change, and with any other order of tests.
    read, none = providers._get_local_constants, providers.Constants()
    providers._get_local_constants = lambda: none if settings.default.derandomize else read()
