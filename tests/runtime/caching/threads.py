# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The threads of a cache, in turns that the test chooses."""

import asyncio


class Threads:
    """A cache whose threads run a step when the test says so."""

    def __init__(self):
        self.steps = []

    def post(self, step, call_back, size):
        self.steps.append((step, call_back))

    def go(self):
        """Perform the step that was posted first."""
        step, call_back = self.steps.pop(0)
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(step())
        except Exception as exc:
            done.set_exception(exc)
        call_back(done)
