# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server in a process that counts its calls of functions: `counted_server.py serve OPTION...`, for counts.py.

For each line on standard input it prints one with what it has counted so far, as JSON: the calls of functions in Python
by the functions' names, and the number of those in C. All threads of the server count; its stubs do
not, which are processes of their own.
"""

import json
import os
import sys
import threading
from collections import Counter

from pyruntime.runtime.cli import main

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class CallCounter:
    """A profile function. One of C would be faster, but nothing here is timed."""

    def __init__(self):
        self._codes = Counter()
        self._native = 0

    def __call__(self, frame, event, argument):
        if event == "call":
            self._codes[frame.f_code] += 1
        elif event == "c_call":
            self._native += 1

    def counted(self):
        names = Counter()
        for code, count in self._codes.copy().items():
            names[f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_qualname}"] += count
        return {"python": names, "native": self._native}


def answer(counter):
    for _ in sys.stdin:
        print(json.dumps(counter.counted()), flush=True)


if __name__ == "__main__":
    counter = CallCounter()
    # The thread that answers is started first, and does not count itself.
    threading.Thread(target=answer, args=(counter,), daemon=True).start()
    threading.setprofile(counter)
    sys.setprofile(counter)
    sys.exit(main())
