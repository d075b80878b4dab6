# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams what the streamer streams, one response after the other, until its own client hangs up."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            call = pb_utils.InferenceRequest(
                request_id=request.request_id(),
                model_name="streamer",
                requested_output_names=["ID", "NUMBER", "INDEX", "TOKEN"],
                inputs=request.inputs(),
            )
            responses = call.exec(decoupled=True)
            for response in responses:
                if sender.is_cancelled():
                    responses.cancel()
                    break
                if response.has_error():
                    sender.send(pb_utils.InferenceResponse(error=response.error()))
                elif response.output_tensors():  # the last one, which says that there is no other, has none
                    sender.send(pb_utils.InferenceResponse(response.output_tensors()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
