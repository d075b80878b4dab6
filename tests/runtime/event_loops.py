# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Event loops for tests of shells that need a running one."""

import asyncio
import functools

from tests.patience import PATIENCE_S

# More than anything takes that is tested here.
TURNS = 20


def in_a_loop(test):
    """Run the coroutine that a test is."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def patient():
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(patient())

    return run


async def settle():
    """Let everything happen that can happen now."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
