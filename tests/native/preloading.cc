// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Answers each request with OUT (INT64 [1]), a number from a library that must be loaded before this one.
#include "report.h"

extern "C" {

int number_of_preload(void);

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  testing::ExecuteEach(instance, requests, count, false, [](TRITONBACKEND_Request*, TRITONBACKEND_Response* response) {
    const int64_t number = number_of_preload();
    return testing::WriteOutput(response, "OUT", TRITONSERVER_TYPE_INT64, {1}, &number, sizeof number);
  });
  return nullptr;
}

}  // extern "C"
