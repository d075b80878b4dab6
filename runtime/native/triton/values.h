// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Plain values of the C interface: messages, parameters, buffer attributes.

#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "triton/core/tritonserver.h"

// A JSON document.
struct TRITONSERVER_Message {
  std::string json;
};

// A parameter of a request or a response. `value` holds bytes as a string of their own kind.
struct TRITONSERVER_Parameter {
  struct Bytes {
    std::string data;
  };
  using Value = std::variant<std::string, int64_t, bool, double, Bytes>;

  std::string name;
  Value value;

  TRITONSERVER_ParameterType type() const;
  // The pointer to the value for TRITONBACKEND_RequestParameter: for a string, to its first character.
  const void* pointer() const;
};

struct TRITONSERVER_BufferAttributes {
  size_t byte_size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  void* cuda_ipc_handle = nullptr;
};

namespace pyruntime {

using Shape = std::vector<int64_t>;

// The datatype with this name, BYTES and BOOL included; TRITONSERVER_TYPE_INVALID if there is none.
TRITONSERVER_DataType DatatypeOf(const std::string& name);

// The name of a datatype, a static string.
const char* NameOf(TRITONSERVER_DataType datatype);

// Whether the number is a datatype: backends written in C may pass any number.
inline bool IsDatatype(TRITONSERVER_DataType datatype) {
  return datatype > TRITONSERVER_TYPE_INVALID && datatype <= TRITONSERVER_TYPE_BF16;
}

}  // namespace pyruntime
