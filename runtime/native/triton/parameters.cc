// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <string>
#include <type_traits>

#include "values.h"

namespace {

using Parameter = TRITONSERVER_Parameter;

template <typename T>
Parameter::Value Read(const void* value) {
  return *static_cast<const T*>(value);
}

// There is no error to return: null, as for a type that there is not.
Parameter* NewParameter(const char* name, Parameter::Value value) noexcept {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->value = std::move(value);
  return parameter.release();
}

}  // namespace

TRITONSERVER_ParameterType TRITONSERVER_Parameter::type() const {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) return TRITONSERVER_PARAMETER_STRING;
        if constexpr (std::is_same_v<Held, int64_t>) return TRITONSERVER_PARAMETER_INT;
        if constexpr (std::is_same_v<Held, bool>) return TRITONSERVER_PARAMETER_BOOL;
        if constexpr (std::is_same_v<Held, double>) return TRITONSERVER_PARAMETER_DOUBLE;
        return TRITONSERVER_PARAMETER_BYTES;
      },
      value);
}

const void* TRITONSERVER_Parameter::pointer() const {
  return std::visit(
      [](const auto& held) -> const void* {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return held.c_str();
        } else if constexpr (std::is_same_v<Held, Bytes>) {
          return held.data.data();
        } else {
          return &held;
        }
      },
      value);
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(
    const char* name, const TRITONSERVER_ParameterType type, const void* value) {
  if (name == nullptr || value == nullptr) return nullptr;
  switch (type) {
    case TRITONSERVER_PARAMETER_STRING: return NewParameter(name, std::string(static_cast<const char*>(value)));
    case TRITONSERVER_PARAMETER_INT: return NewParameter(name, Read<int64_t>(value));
    case TRITONSERVER_PARAMETER_BOOL: return NewParameter(name, Read<bool>(value));
    case TRITONSERVER_PARAMETER_DOUBLE: return NewParameter(name, Read<double>(value));
    case TRITONSERVER_PARAMETER_BYTES: break;
  }
  return nullptr;
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* byte_ptr, const uint64_t size) {
  if (name == nullptr || (byte_ptr == nullptr && size != 0)) return nullptr;
  Parameter::Bytes bytes;
  if (size != 0) bytes.data.assign(static_cast<const char*>(byte_ptr), size);
  return NewParameter(name, std::move(bytes));
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { std::unique_ptr<Parameter>{parameter}; }
