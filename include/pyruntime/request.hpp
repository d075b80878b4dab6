// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// One request, and its response.

#pragma once

#include <triton/core/tritonbackend.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "error.hpp"
#include "model.hpp"
#include "response.hpp"
#include "tensor.hpp"

namespace pyruntime {

// The value of a parameter of a request.
using ParameterValue = std::variant<bool, int64_t, double, std::string>;

// A request to be answered: with Output, which makes the one response, or by a sender. It is there until Execute
// returns, and so are the views of its inputs. A request that is neither answered nor failed gets an empty response.
class Request {
 public:
  Request(TRITONBACKEND_Request* native, const Model& model, TRITONBACKEND_ModelInstance* instance)
      : native_(native), wanted_(ReadWanted(native, model)) {
    answer_ = std::make_shared<detail::Answer>(native, wanted_, model.decoupled(), instance);
    rows_ = model.max_batch_size() > 0 ? ReadRows() : 1;
  }
  Request(Request&&) = default;

  TRITONBACKEND_Request* native() const noexcept { return native_; }

  std::string id() const {
    const char* id = nullptr;
    Check(TRITONBACKEND_RequestId(native_, &id));
    return id;
  }

  // The correlation ID, in decimal where the client gave a number; "0" or "" if it gave none.
  std::string correlation_id() const {
    uint64_t number = 0;
    const detail::ErrorHandle is_text(TRITONBACKEND_RequestCorrelationId(native_, &number));
    if (is_text == nullptr) {
      return std::to_string(number);
    }
    const char* text = nullptr;
    Check(TRITONBACKEND_RequestCorrelationIdString(native_, &text));
    return text;
  }

  bool sequence_start() const { return (flags() & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0; }
  bool sequence_end() const { return (flags() & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) != 0; }

  // A parameter of the request; nothing if it has none of that name.
  std::optional<ParameterValue> Parameter(const std::string& name) const;

  // How many rows of a batch it brings: 1 for models whose max_batch_size is 0.
  int64_t rows() const noexcept { return rows_; }

  // Whether it has an input, which may be missing if it is optional.
  bool Has(const std::string& input) const {
    TRITONBACKEND_Input* found = nullptr;
    const detail::ErrorHandle missing(TRITONBACKEND_RequestInput(native_, input.c_str(), &found));
    return missing == nullptr;
  }

  // Whether the client wants an output. It need not be asked: writing what nobody wants only wastes time.
  bool Wants(const std::string& output) const {
    return std::find(wanted_->begin(), wanted_->end(), output) != wanted_->end();
  }

  // The elements of an input; std::string_view for BYTES. They are those that the client sent, without a copy, where
  // these lie in one piece. Throws Error if there is no such input, or one of another datatype.
  template <typename T>
  TensorView<const T> Input(const std::string& name) {
    const Buffer buffer = Read(name, Datatype<T>(), std::is_same_v<T, std::string_view> ? 1 : alignof(T));
    if constexpr (std::is_same_v<T, std::string_view>) {
      const auto& strings = strings_.emplace_back(Split(name, buffer));
      return TensorView<const T>(strings.data(), buffer.shape);
    } else {
      if (buffer.byte_size != ElementCount(buffer.shape) * sizeof(T)) {
        throw WrongSize(name, buffer);
      }
      if constexpr (std::is_same_v<T, bool>) {
        return TensorView<const bool>(Normalize(buffer), buffer.shape);
      } else {
        return TensorView<const T>(reinterpret_cast<const T*>(buffer.data), buffer.shape);
      }
    }
  }

  // An output of the one response, for the model to write to until Execute returns. Throws Error.
  template <typename T>
  TensorView<T> Output(const std::string& name, const Shape& shape) {
    return response().Output<T>(name, shape);
  }
  // An output of strings, see Response. Throws Error.
  template <typename Range>
  void OutputStrings(const std::string& name, const Shape& shape, const Range& strings) {
    response().OutputStrings(name, shape, strings);
  }
  // A parameter of the one response, see Response. Throws Error.
  template <typename T>
  void SetParameter(const std::string& name, const T& value) {
    response().SetParameter(name, value);
  }

  // Answers with an error, in place of whatever else has been prepared.
  void Fail(const Error& error) noexcept {
    response_.reset();
    failed_ = true;
    answer_->Fail(error);
  }
  bool failed() const noexcept { return failed_; }

  // Leaves the answer to a sender, which may take as long as it likes, on whatever thread.
  ResponseSender Sender() {
    response_.reset();
    answer_->Defer();
    return ResponseSender(answer_);
  }

  // Whether the client has given the request up. Throws Error.
  bool IsCancelled() const { return answer_->IsCancelled(); }

  // Sends what has been prepared. For the batch, at its end.
  void Complete() noexcept {
    if (failed_ || answer_->deferred()) {
      return;
    }
    try {
      if (response_.has_value()) {
        answer_->Send(std::move(*response_), true);
      } else {
        answer_->End();
      }
    } catch (...) {
      Fail(detail::CurrentError());
    }
  }

 private:
  struct Buffer {
    const std::byte* data;
    size_t byte_size;
    Shape shape;
  };

  static std::shared_ptr<const detail::Names> ReadWanted(TRITONBACKEND_Request* native, const Model& model);
  int64_t ReadRows() const;

  uint32_t flags() const {
    uint32_t flags = 0;
    Check(TRITONBACKEND_RequestFlags(native_, &flags));
    return flags;
  }

  Response& response() {
    if (answer_->deferred() || failed_) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "the request is answered by a sender, or with an error");
    }
    if (!response_.has_value()) {
      response_.emplace(answer_->NewResponse());
    }
    return *response_;
  }

  Buffer Read(const std::string& name, TRITONSERVER_DataType datatype, size_t alignment);
  static const std::byte* ReadPiece(TRITONBACKEND_Input* input, const std::string& name, uint32_t index, size_t* size);
  const std::byte* Join(TRITONBACKEND_Input* input, const std::string& name, uint32_t count, size_t byte_size);
  static std::vector<std::string_view> Split(const std::string& name, const Buffer& buffer);

  // Clients may send any byte for a boolean, and C++ knows two.
  const bool* Normalize(const Buffer& buffer) {
    auto& copy = owned_.emplace_back(std::make_unique<std::byte[]>(buffer.byte_size));
    auto* values = reinterpret_cast<bool*>(copy.get());
    std::transform(buffer.data, buffer.data + buffer.byte_size, values,
                   [](std::byte each) { return each != std::byte{}; });
    return values;
  }

  static Error WrongSize(const std::string& name, const Buffer& buffer) {
    return InvalidArgument("input '" + name + "' of shape " + ToString(buffer.shape) + " cannot have " +
                           std::to_string(buffer.byte_size) + " bytes");
  }

  TRITONBACKEND_Request* native_;
  std::shared_ptr<const detail::Names> wanted_;
  std::shared_ptr<detail::Answer> answer_;
  std::optional<Response> response_;
  int64_t rows_ = 1;
  bool failed_ = false;
  // What views point to besides the server's own memory.
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::deque<std::vector<std::string_view>> strings_;
};

inline std::optional<ParameterValue> Request::Parameter(const std::string& name) const {
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestParameterCount(native_, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    Check(TRITONBACKEND_RequestParameter(native_, i, &key, &type, &value));
    if (name != key) {
      continue;
    }
    switch (type) {
      case TRITONSERVER_PARAMETER_BOOL:
        return *static_cast<const bool*>(value);
      case TRITONSERVER_PARAMETER_INT:
        return *static_cast<const int64_t*>(value);
      case TRITONSERVER_PARAMETER_DOUBLE:
        return *static_cast<const double*>(value);
      case TRITONSERVER_PARAMETER_STRING:
        return std::string(static_cast<const char*>(value));
      default:
        throw InvalidArgument("parameter '" + name + "' of the request is of an unknown type");
    }
  }
  return std::nullopt;
}

inline std::shared_ptr<const detail::Names> Request::ReadWanted(TRITONBACKEND_Request* native, const Model& model) {
  auto names = std::make_shared<detail::Names>();
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestOutputCount(native, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    Check(TRITONBACKEND_RequestOutputName(native, i, &name));
    names->push_back(name);
  }
  const Json* outputs = names->empty() ? model.config().Find("output") : nullptr;
  for (size_t i = 0; outputs != nullptr && i < outputs->size(); ++i) {
    names->push_back((*outputs)[i]["name"].String());
  }
  return names;
}

// The server has checked that all inputs of a request bring as many rows.
inline int64_t Request::ReadRows() const {
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestInputCount(native_, &count));
  if (count == 0) {
    return 1;
  }
  TRITONBACKEND_Input* input = nullptr;
  Check(TRITONBACKEND_RequestInputByIndex(native_, 0, &input));
  const int64_t* shape = nullptr;
  uint32_t dimensions = 0;
  Check(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &dimensions, nullptr, nullptr));
  return dimensions > 0 ? shape[0] : 1;
}

inline Request::Buffer Request::Read(const std::string& name, TRITONSERVER_DataType datatype, size_t alignment) {
  TRITONBACKEND_Input* input = nullptr;
  Check(TRITONBACKEND_RequestInput(native_, name.c_str(), &input));
  TRITONSERVER_DataType found = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t dimensions = 0;
  uint64_t byte_size = 0;
  uint32_t count = 0;
  Check(TRITONBACKEND_InputProperties(input, nullptr, &found, &shape, &dimensions, &byte_size, &count));
  if (found != datatype) {
    throw InvalidArgument("input '" + name + "' is of " + TRITONSERVER_DataTypeString(found) +
                          ", the backend wants it to be of " + TRITONSERVER_DataTypeString(datatype));
  }
  Buffer buffer{nullptr, static_cast<size_t>(byte_size), Shape(shape, shape + dimensions)};
  if (count == 1) {
    size_t size = 0;
    buffer.data = ReadPiece(input, name, 0, &size);
  }
  if (count > 1 || reinterpret_cast<uintptr_t>(buffer.data) % alignment != 0) {
    buffer.data = Join(input, name, count, buffer.byte_size);
  }
  return buffer;
}

inline const std::byte* Request::ReadPiece(TRITONBACKEND_Input* input, const std::string& name, uint32_t index,
                                           size_t* size) {
  const void* data = nullptr;
  uint64_t byte_size = 0;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  Check(TRITONBACKEND_InputBuffer(input, index, &data, &byte_size, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU) {
    throw Error(TRITONSERVER_ERROR_UNSUPPORTED, "input '" + name + "' is in memory of a GPU");
  }
  *size = static_cast<size_t>(byte_size);
  return static_cast<const std::byte*>(data);
}

// The pieces of an input one after the other, in memory that is fit for elements of any type.
inline const std::byte* Request::Join(TRITONBACKEND_Input* input, const std::string& name, uint32_t count,
                                      size_t byte_size) {
  auto& joined = owned_.emplace_back(std::make_unique<std::byte[]>(byte_size));
  size_t filled = 0;
  for (uint32_t i = 0; i < count; ++i) {
    size_t size = 0;
    const std::byte* piece = ReadPiece(input, name, i, &size);
    if (size > byte_size - filled) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "input '" + name + "' has more bytes than it says");
    }
    if (size > 0) {
      std::memcpy(joined.get() + filled, piece, size);
    }
    filled += size;
  }
  if (filled != byte_size) {
    throw Error(TRITONSERVER_ERROR_INTERNAL, "input '" + name + "' has fewer bytes than it says");
  }
  return joined.get();
}

// Each string has its length in front, in four bytes.
inline std::vector<std::string_view> Request::Split(const std::string& name, const Buffer& buffer) {
  std::vector<std::string_view> strings;
  strings.reserve(std::min(ElementCount(buffer.shape), buffer.byte_size / sizeof(uint32_t)));
  for (size_t at = 0; at < buffer.byte_size;) {
    uint32_t length = 0;
    if (buffer.byte_size - at < sizeof length) {
      throw WrongSize(name, buffer);
    }
    std::memcpy(&length, buffer.data + at, sizeof length);
    at += sizeof length;
    if (buffer.byte_size - at < length) {
      throw WrongSize(name, buffer);
    }
    strings.emplace_back(reinterpret_cast<const char*>(buffer.data + at), length);
    at += length;
  }
  if (strings.size() != ElementCount(buffer.shape)) {
    throw WrongSize(name, buffer);
  }
  return strings;
}

}  // namespace pyruntime
