// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <string>

#include "arguments.h"
#include "error.h"
#include "values.h"

TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(
    TRITONSERVER_Message** message, const char* base, size_t byte_size) {
  PYRUNTIME_REQUIRE(message);
  if (byte_size != 0) PYRUNTIME_REQUIRE(base);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<TRITONSERVER_Message>();
    // As in Triton, the text is not checked here; its reader reports invalid JSON.
    if (byte_size != 0) made->json.assign(base, byte_size);
    *message = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  std::unique_ptr<TRITONSERVER_Message>{message};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message* message, const char** base, size_t* byte_size) {
  PYRUNTIME_REQUIRE(message);
  PYRUNTIME_REQUIRE(base);
  PYRUNTIME_REQUIRE(byte_size);
  *base = message->json.c_str();
  *byte_size = message->json.size();
  return nullptr;
}
