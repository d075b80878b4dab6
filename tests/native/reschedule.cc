// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Has every request that starts a sequence executed again; then answers it with OUT (INT64 [1]), the number of its
// executions.
#include <atomic>

#include "report.h"

namespace {

std::atomic<int64_t> executed{0};

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* /*instance*/,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  ++executed;
  for (uint32_t index = 0; index < count; ++index) {
    uint32_t flags = 0;
    testing::Must(TRITONBACKEND_RequestFlags(requests[index], &flags));
    if ((flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0) {
      testing::Must(TRITONBACKEND_RequestRelease(requests[index], testing::kReschedule));
      continue;
    }
    TRITONBACKEND_Response* response = testing::ResponseOf(requests[index]);
    testing::WriteNumber(response, executed);
    testing::Must(TRITONBACKEND_ResponseSend(response, testing::kFinal, nullptr));
    testing::Release(requests[index]);
  }
  return nullptr;
}

}  // extern "C"
