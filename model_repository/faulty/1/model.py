# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fails on purpose, in the way that the request asks for; shows what a client sees then, and that the server lives."""

import logging
import os
import signal
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


def answer(text, name="OUTPUT"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))])


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy()[0].decode()
            if command == "wrong_count":
                return []
            responses.append(getattr(self, f"do_{command}")())
        return responses

    def do_ok(self):
        return answer("ok")

    def do_raise(self):
        raise ValueError("raised on purpose")

    def do_error(self):
        """Only this request fails, with a code of the model's choice."""
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError("refused on purpose", pb_utils.TritonError.INVALID_ARG)
        )

    def do_exit(self):
        os._exit(3)

    def do_segfault(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_wrong_type(self):
        return "not a response"

    def do_unknown_output(self):
        return answer("ok", name="NOT_IN_CONFIG")

    def do_print(self):
        print("printed on purpose")
        print("printed on purpose, to stderr", file=sys.stderr)
        logging.getLogger(__name__).warning("logged on purpose")
        pb_utils.Logger.log_info("logged on purpose, to the server's log")
        return answer("printed")
