// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The requests of one call of Execute.

#pragma once

#include <triton/core/tritonbackend.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.hpp"
#include "log.hpp"
#include "model.hpp"
#include "request.hpp"
#include "tensor.hpp"

namespace pyruntime {

// The requests that are executed together. Either one after the other, by ForEach, or all at once: Gather puts an input
// of all of them into one tensor, Scatter gives each its rows of an output. Requests that have failed before the first
// Gather, in ForEach for instance, are left out of it.
class Batch {
 public:
  // Throws Error, after which all requests still belong to the caller.
  Batch(const Model& model, const Instance& instance, TRITONBACKEND_Request** requests, uint32_t count)
      : instance_(instance), batched_(model.max_batch_size() > 0), started_ns_(detail::NowNs()) {
    requests_.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      requests_.emplace_back(requests[i], model, instance.native());
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // All requests.
  size_t size() const noexcept { return requests_.size(); }
  std::vector<Request>::iterator begin() noexcept { return requests_.begin(); }
  std::vector<Request>::iterator end() noexcept { return requests_.end(); }
  Request& operator[](size_t index) noexcept { return requests_[index]; }

  // Calls a function with each request that has not failed. An exception of it fails that request, and no other.
  template <typename Function>
  void ForEach(Function&& function) {
    for (Request& request : requests_) {
      if (request.failed()) {
        continue;
      }
      try {
        function(request);
      } catch (...) {
        request.Fail(detail::CurrentError());
      }
    }
  }

  // An input of all requests, one after the other along the first dimension; there until Execute returns. Throws Error
  // if they do not agree in the other dimensions.
  template <typename T>
  TensorView<const T> Gather(const std::string& name) {
    std::vector<TensorView<const T>> inputs;
    for (Request* request : Gathered()) {
      inputs.push_back(request->template Input<T>(name));
    }
    if (inputs.size() == 1) {
      computing_ns_ = detail::NowNs();
      return inputs[0];
    }
    const Shape shape = Together(name, inputs);
    auto gathered = std::make_shared<std::unique_ptr<T[]>>(std::make_unique<T[]>(ElementCount(shape)));
    T* at = gathered->get();
    for (const TensorView<const T>& input : inputs) {
      at = std::copy(input.begin(), input.end(), at);
    }
    owned_.push_back(gathered);
    computing_ns_ = detail::NowNs();
    return TensorView<const T>(gathered->get(), shape);
  }

  // How many rows the requests bring that are gathered.
  int64_t rows() {
    int64_t rows = 0;
    for (const Request* request : Gathered()) {
      rows += request->rows();
    }
    return rows;
  }

  // Gives each request its rows of an output, whose first dimension is that of what was gathered. Throws Error if it is
  // another.
  template <typename T>
  void Scatter(const std::string& name, const TensorView<T>& all) {
    using Element = std::remove_const_t<T>;
    EndComputing(name, all.shape());
    size_t first = 0;
    for (Request* request : Gathered()) {
      const TensorView<T> part = batched_ ? all.Rows(first, static_cast<size_t>(request->rows())) : all;
      first += static_cast<size_t>(request->rows());
      if (request->failed()) {
        continue;
      }
      if constexpr (std::is_same_v<Element, std::string_view> || std::is_same_v<Element, std::string>) {
        request->OutputStrings(name, part.shape(), part);
      } else {
        std::copy(part.begin(), part.end(), request->template Output<Element>(name, part.shape()).begin());
      }
    }
  }

  // Fails all requests that have not been answered.
  void Fail(const Error& error) noexcept {
    for (Request& request : requests_) {
      request.Fail(error);
    }
  }

  // Sends what has been prepared, reports statistics and gives the requests back. For the entry point, once.
  void Complete() noexcept {
    if (computed_ns_ == 0) {
      computed_ns_ = detail::NowNs();
    }
    computing_ns_ = std::clamp(computing_ns_, started_ns_, computed_ns_);
    for (Request& request : requests_) {
      request.Complete();
    }
    const uint64_t ended_ns = detail::NowNs();
    int64_t rows = 0;
    for (Request& request : requests_) {
      rows += request.rows();
      detail::LogIfError(TRITONBACKEND_ModelInstanceReportStatistics(instance_.native(), request.native(),
                                                                     !request.failed(), started_ns_, computing_ns_,
                                                                     computed_ns_, ended_ns));
      detail::LogIfError(TRITONBACKEND_RequestRelease(request.native(), TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    detail::LogIfError(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance_.native(), static_cast<uint64_t>(rows), started_ns_, computing_ns_, computed_ns_, ended_ns));
  }

 private:
  // The requests that are executed at once: chosen once, so that rows of outputs belong to rows of inputs.
  const std::vector<Request*>& Gathered() {
    if (gathered_.empty()) {
      for (Request& request : requests_) {
        if (!request.failed()) {
          gathered_.push_back(&request);
        }
      }
    }
    if (gathered_.empty()) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "all requests of the batch have failed");
    }
    return gathered_;
  }

  // The shape of tensors that are put together along the first dimension.
  template <typename T>
  Shape Together(const std::string& name, const std::vector<TensorView<const T>>& inputs) const {
    if (!batched_) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "several requests cannot be gathered: max_batch_size is 0");
    }
    Shape shape = inputs[0].shape();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Shape& each = inputs[i].shape();
      if (each.size() != shape.size() || !std::equal(each.begin() + 1, each.end(), shape.begin() + 1)) {
        throw InvalidArgument("input '" + name + "' has shapes in one batch that do not fit together: " +
                              ToString(inputs[0].shape()) + " and " + ToString(each));
      }
      shape[0] += i > 0 ? each[0] : 0;
    }
    return shape;
  }

  void EndComputing(const std::string& name, const Shape& shape) {
    if (batched_ && (shape.empty() || shape[0] != rows())) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "output '" + name + "' of shape " + ToString(shape) +
                                                   " is not for the " + std::to_string(rows()) + " rows of the batch");
    }
    if (computed_ns_ == 0) {
      computed_ns_ = detail::NowNs();
    }
  }

  const Instance& instance_;
  const bool batched_;
  std::vector<Request> requests_;
  std::vector<Request*> gathered_;
  // What gathered tensors point to.
  std::vector<std::shared_ptr<void>> owned_;
  // Computing begins when the last input has been gathered and ends when the first output is scattered; it is all of
  // the time where neither happens.
  const uint64_t started_ns_;
  uint64_t computing_ns_ = 0;
  uint64_t computed_ns_ = 0;
};

}  // namespace pyruntime
