/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */

/* The least that is a backend, in C: it answers every request with nothing. */
#include "triton/core/tritonbackend.h"

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  (void)instance;
  for (uint32_t index = 0; index < request_count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, requests[index]);
    if (error == NULL) error = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
    if (error == NULL) error = TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL);
    if (error != NULL) return error;
  }
  return NULL;
}
