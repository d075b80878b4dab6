# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Another process with the same GPU: calls methods of `Gpu` that it reads from its input.

request  := (method, arguments)       pickled
response := the result, or (name of the error's class, reason)
"""

import pickle
import sys

from pyruntime.utils.gpu.driver import GpuError
from pyruntime.utils.gpu.inventory import open_gpu


def main():
    gpu = open_gpu(int(sys.argv[1]))
    while True:
        try:
            method, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if method == "read":
                result = bytearray(arguments[1])
                gpu.read(arguments[0], result)
            else:
                result = getattr(gpu, method)(*arguments)
            answer = (True, result)
        except GpuError as exc:
            answer = (False, (type(exc).__name__, exc.reason))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
