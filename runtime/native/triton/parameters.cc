// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <exception>
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

// There is no error to return where there is no memory for it: null, as for a type that there is not.
template <typename Make>
Parameter* NewParameter(const char* name, Make&& make) noexcept {
  try {
    return std::make_unique<Parameter>(Parameter{name, make()}).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

Parameter::Value ReadBytes(const void* data, uint64_t size) {
  Parameter::Bytes bytes;
  if (size != 0) bytes.data.assign(static_cast<const char*>(data), size);
  return bytes;
}

// `type` is one that there is, but not bytes, of which it does not say how many.
Parameter::Value ReadValue(TRITONSERVER_ParameterType type, const void* value) {
  switch (type) {
    case TRITONSERVER_PARAMETER_INT: return Read<int64_t>(value);
    case TRITONSERVER_PARAMETER_BOOL: return Read<bool>(value);
    case TRITONSERVER_PARAMETER_DOUBLE: return Read<double>(value);
    default: return std::string(static_cast<const char*>(value));
  }
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
  if (type < TRITONSERVER_PARAMETER_STRING || type > TRITONSERVER_PARAMETER_DOUBLE) return nullptr;
  return NewParameter(name, [=] { return ReadValue(type, value); });
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* byte_ptr, const uint64_t size) {
  if (name == nullptr || (byte_ptr == nullptr && size != 0)) return nullptr;
  return NewParameter(name, [=] { return ReadBytes(byte_ptr, size); });
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { std::unique_ptr<Parameter>{parameter}; }
