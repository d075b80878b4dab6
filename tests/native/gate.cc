// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Returns INPUT0 as OUTPUT0, of any type and shape, but not while there is a file `hold` in the model's folder.
//
// Each batch is logged as `gate: <n> requests`. It ends early, which is logged as `gate: cancelled`, if all of its
// requests are cancelled. Each response has a parameter "together": the number of requests in its batch.
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <thread>

#include "common.h"

namespace {

using testing::Must;

bool IsHeld(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  Must(TRITONBACKEND_ModelRepository(model, &type, &location));
  struct stat found = {};
  return stat((std::string(location) + "/hold").c_str(), &found) == 0;
}

bool AreCancelled(TRITONBACKEND_Request** requests, uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    bool is_cancelled = false;
    Must(TRITONBACKEND_RequestIsCancelled(requests[index], &is_cancelled));
    if (!is_cancelled) return false;
  }
  return true;
}

// Waits while the file exists. Whether the batch must still be answered.
bool Wait(TRITONBACKEND_Model* model, TRITONBACKEND_Request** requests, uint32_t count) {
  while (IsHeld(model)) {
    if (AreCancelled(requests, count)) {
      testing::Log(TRITONSERVER_LOG_INFO, "gate: cancelled");
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, uint32_t together) {
  testing::Tensor tensor;
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT0", &tensor));
  RETURN_IF_ERROR(testing::WriteOutput(response, "OUTPUT0", tensor));
  return TRITONBACKEND_ResponseSetIntParameter(response, "together", together);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  testing::Log(TRITONSERVER_LOG_INFO, "gate: " + std::to_string(count) + " requests");
  const bool is_wanted = Wait(testing::ModelOf(instance), requests, count);
  testing::ExecuteEach(instance, requests, count, false,
                       [=](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
                         return is_wanted ? Answer(request, response, count)
                                          : testing::Fail("cancelled", TRITONSERVER_ERROR_CANCELLED);
                       });
  return nullptr;
}

}  // extern "C"
