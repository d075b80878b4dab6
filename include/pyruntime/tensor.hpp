// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Datatypes as types of C++, shapes, and views of tensors in memory that belongs to somebody else.

#pragma once

#include <triton/core/tritonserver.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.hpp"

namespace pyruntime {

// Sizes, the slowest dimension first. The first is the batch's if the model's max_batch_size is above 0.
using Shape = std::vector<int64_t>;

// The 16-bit floating-point numbers, as their bits: C++17 has no types that calculate with them.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The datatype whose elements are of type T. Strings are std::string_view.
template <typename T>
constexpr TRITONSERVER_DataType Datatype() {
  if constexpr (std::is_same_v<T, bool>) {
    return TRITONSERVER_TYPE_BOOL;
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return TRITONSERVER_TYPE_BYTES;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return TRITONSERVER_TYPE_FP16;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return TRITONSERVER_TYPE_BF16;
  } else if constexpr (std::is_same_v<T, float>) {
    return TRITONSERVER_TYPE_FP32;
  } else if constexpr (std::is_same_v<T, double>) {
    return TRITONSERVER_TYPE_FP64;
  } else {
    static_assert(std::is_integral_v<T>, "no datatype of Triton has elements of this type");
    constexpr bool kSigned = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return kSigned ? TRITONSERVER_TYPE_INT8 : TRITONSERVER_TYPE_UINT8;
      case 2:
        return kSigned ? TRITONSERVER_TYPE_INT16 : TRITONSERVER_TYPE_UINT16;
      case 4:
        return kSigned ? TRITONSERVER_TYPE_INT32 : TRITONSERVER_TYPE_UINT32;
      default:
        return kSigned ? TRITONSERVER_TYPE_INT64 : TRITONSERVER_TYPE_UINT64;
    }
  }
}

inline std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? "," : "") + std::to_string(size);
  }
  return text + "]";
}

// How many elements a tensor of this shape has. Throws Error if a size is negative, or if no memory could hold them.
inline size_t ElementCount(const Shape& shape) {
  // The largest elements have eight bytes, and the bytes of a tensor must be countable.
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max() / 8;
  uint64_t count = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    const uint64_t factor = size == 0 ? 1 : static_cast<uint64_t>(size);
    if (size < 0 || count > kMax / factor) {
      throw InvalidArgument("shape " + ToString(shape) + " is no shape of a tensor");
    }
    count *= factor;
  }
  return empty ? 0 : static_cast<size_t>(count);
}

// A tensor in memory that belongs to somebody else; whoever hands a view out says for how long it is there.
template <typename T>
class TensorView {
 public:
  TensorView(T* data, Shape shape) : data_(data), size_(ElementCount(shape)), shape_(std::move(shape)) {}

  T* data() const noexcept { return data_; }
  // How many elements there are, of all dimensions together.
  size_t size() const noexcept { return size_; }
  const Shape& shape() const noexcept { return shape_; }

  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size_; }
  T& operator[](size_t index) const noexcept { return data_[index]; }

  // The size of the first dimension, 1 for a scalar.
  size_t rows() const noexcept { return shape_.empty() ? 1 : static_cast<size_t>(shape_[0]); }

  // A part of the first dimension. Throws Error if it does not have as many rows.
  TensorView Rows(size_t first, size_t count) const {
    if (shape_.empty() || first > rows() || count > rows() - first) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "a tensor of shape " + ToString(shape_) + " has no rows " +
                                                   std::to_string(first) + " to " + std::to_string(first + count));
    }
    const size_t row_size = rows() == 0 ? 0 : size_ / rows();
    Shape shape = shape_;
    shape[0] = static_cast<int64_t>(count);
    return TensorView(data_ + first * row_size, std::move(shape));
  }

  // A view through which nothing can be written.
  operator TensorView<const T>() const { return TensorView<const T>(data_, shape_); }

 private:
  T* data_;
  size_t size_;
  Shape shape_;
};

}  // namespace pyruntime
