# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A decoupled model: sends each element of IN after its DELAY, as OUT and IDX."""

    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        out_config = pb_utils.get_output_config_by_name(model_config, "OUT")
        self.out_dtype = pb_utils.triton_string_to_numpy(out_config["data_type"])
        idx_config = pb_utils.get_output_config_by_name(model_config, "IDX")
        self.idx_dtype = pb_utils.triton_string_to_numpy(idx_config["data_type"])

    def execute(self, requests):
        if len(requests) != 1:
            raise pb_utils.TritonModelException("unsupported batch size " + str(len(requests)))
        in_input = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
        delay_input = pb_utils.get_input_tensor_by_name(requests[0], "DELAY").as_numpy()
        if in_input.shape != delay_input.shape:
            raise pb_utils.TritonModelException(
                f"expected IN and DELAY shape to match, got {list(in_input.shape)} and {list(delay_input.shape)}."
            )
        thread = threading.Thread(
            target=self.response_thread, args=(requests[0].get_response_sender(), in_input, delay_input)
        )
        thread.daemon = True
        thread.start()
        wait_input = pb_utils.get_input_tensor_by_name(requests[0], "WAIT").as_numpy()
        time.sleep(wait_input[0] / 1000)
        return None

    def response_thread(self, response_sender, in_input, delay_input):
        for idx in range(in_input.size):
            time.sleep(delay_input[idx] / 1000)
            idx_output = pb_utils.Tensor(np.str_("IDX"), np.array([idx], self.idx_dtype))
            out_output = pb_utils.Tensor(np.str_("OUT"), np.array([in_input[idx]], self.out_dtype))
            response_sender.send(
                pb_utils.InferenceResponse(output_tensors=[idx_output, out_output]), flags=np.uint32(0)
            )
        response_sender.send(flags=np.uint32(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL))
