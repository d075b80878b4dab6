// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Does not return from the function after which its model is named.
#include <unistd.h>

#include <cstring>

#include "common.h"

namespace {

TRITONSERVER_Error* HangIf(TRITONBACKEND_Model* model, const char* function) {
  const char* name = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ModelName(model, &name));
  if (std::strcmp(name, function) == 0) {
    if (TRITONSERVER_Error* error =
            TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "hangs from here on")) {
      return error;
    }
    for (;;) pause();
  }
  return nullptr;
}

TRITONSERVER_Error* HangIf(TRITONBACKEND_ModelInstance* instance, const char* function) {
  TRITONBACKEND_Model* model = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  return HangIf(model, function);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) { return HangIf(model, "initialize"); }

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) { return HangIf(model, "finalize"); }

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return HangIf(instance, "instance_initialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return HangIf(instance, "instance_finalize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return HangIf(instance, "ready");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** /*requests*/, const uint32_t /*request_count*/) {
  RETURN_IF_ERROR(HangIf(instance, "execute"));
  return testing::Fail("there is nothing to execute");
}

}  // extern "C"
