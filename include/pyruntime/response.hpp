// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Responses, and who sends them.

#pragma once

#include <triton/core/tritonbackend.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.hpp"
#include "log.hpp"
#include "model.hpp"
#include "tensor.hpp"

namespace pyruntime {

namespace detail {

// The time that the server's statistics count in, in nanoseconds.
inline uint64_t NowNs() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

struct ResponseDeleter {
  void operator()(TRITONBACKEND_Response* response) const noexcept {
    LogIfError(TRITONBACKEND_ResponseDelete(response));
  }
};
using ResponseHandle = std::unique_ptr<TRITONBACKEND_Response, ResponseDeleter>;

// The outputs that a client wants.
using Names = std::vector<std::string>;

class Answer;

}  // namespace detail

// A response that has not been sent. One that is dropped is not sent at all.
class Response {
 public:
  // An output for the model to write to, until the response is sent. One that the client does not want may be written
  // like any other, and is thrown away. Throws Error.
  template <typename T>
  TensorView<T> Output(const std::string& name, const Shape& shape) {
    static_assert(!std::is_same_v<T, std::string_view>, "OutputStrings is for outputs of strings");
    void* data = Reserve(name, Datatype<T>(), shape, ElementCount(shape) * sizeof(T), alignof(T));
    return TensorView<T>(static_cast<T*>(data), shape);
  }

  // An output of strings: a range of anything that is a std::string_view, of as many as the shape says. Throws Error.
  template <typename Range>
  void OutputStrings(const std::string& name, const Shape& shape, const Range& strings) {
    size_t byte_size = 0;
    size_t count = 0;
    for (const std::string_view each : strings) {
      byte_size += sizeof(uint32_t) + each.size();
      ++count;
    }
    if (count != ElementCount(shape)) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "output '" + name + "' has " + std::to_string(count) +
                                                   " strings, which is not shape " + ToString(shape));
    }
    auto* at = static_cast<std::byte*>(Reserve(name, TRITONSERVER_TYPE_BYTES, shape, byte_size, 1));
    for (const std::string_view each : strings) {
      const auto length = static_cast<uint32_t>(each.size());
      std::memcpy(at, &length, sizeof length);
      at += sizeof length;
      at = std::copy_n(reinterpret_cast<const std::byte*>(each.data()), each.size(), at);
    }
  }

  // A parameter of the response: a boolean, an integer, a floating-point number or a string. Throws Error.
  template <typename T>
  void SetParameter(const std::string& name, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      Check(TRITONBACKEND_ResponseSetBoolParameter(native(), name.c_str(), value));
    } else if constexpr (std::is_integral_v<T>) {
      Check(TRITONBACKEND_ResponseSetIntParameter(native(), name.c_str(), static_cast<int64_t>(value)));
    } else if constexpr (std::is_floating_point_v<T>) {
      Check(TRITONBACKEND_ResponseSetDoubleParameter(native(), name.c_str(), static_cast<double>(value)));
    } else {
      Check(TRITONBACKEND_ResponseSetStringParameter(native(), name.c_str(), std::string(value).c_str()));
    }
  }

  TRITONBACKEND_Response* native() const noexcept { return handle_.get(); }

 private:
  friend class detail::Answer;

  // What is written elsewhere at first: its place is not fit for elements of the type, or nullptr if nobody wants it.
  struct Staged {
    std::unique_ptr<std::byte[]> written;
    void* place;
    size_t byte_size;
  };

  Response(detail::ResponseHandle handle, std::shared_ptr<const detail::Names> wanted)
      : handle_(std::move(handle)), wanted_(std::move(wanted)), begun_ns_(detail::NowNs()) {}

  void* Reserve(const std::string& name, TRITONSERVER_DataType datatype, const Shape& shape, size_t byte_size,
                size_t alignment) {
    if (std::find(wanted_->begin(), wanted_->end(), name) == wanted_->end()) {
      return Stage(nullptr, byte_size);
    }
    TRITONBACKEND_Output* output = nullptr;
    Check(TRITONBACKEND_ResponseOutput(handle_.get(), &output, name.c_str(), datatype, shape.data(),
                                       static_cast<uint32_t>(shape.size())));
    void* place = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    Check(TRITONBACKEND_OutputBuffer(output, &place, byte_size, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU) {
      throw Error(TRITONSERVER_ERROR_UNSUPPORTED, "output '" + name + "' is wanted in memory of a GPU");
    }
    return reinterpret_cast<uintptr_t>(place) % alignment == 0 ? place : Stage(place, byte_size);
  }

  void* Stage(void* place, size_t byte_size) {
    staged_.push_back({std::make_unique<std::byte[]>(byte_size), place, byte_size});
    return staged_.back().written.get();
  }

  void PutInPlace() noexcept {
    for (const Staged& each : staged_) {
      if (each.place != nullptr && each.byte_size > 0) {
        std::memcpy(each.place, each.written.get(), each.byte_size);
      }
    }
  }

  detail::ResponseHandle handle_;
  std::shared_ptr<const detail::Names> wanted_;
  std::vector<Staged> staged_;
  uint64_t begun_ns_;
};

namespace detail {

struct ResponseFactoryDeleter {
  void operator()(TRITONBACKEND_ResponseFactory* factory) const noexcept {
    LogIfError(TRITONBACKEND_ResponseFactoryDelete(factory));
  }
};

struct ResponseStatisticsDeleter {
  void operator()(TRITONBACKEND_ModelInstanceResponseStatistics* statistics) const noexcept {
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
  }
};

// All responses to one request: sees to it that there is a last one, and only one. It may outlive the request, and be
// used from any thread.
class Answer {
 public:
  Answer(TRITONBACKEND_Request* request, std::shared_ptr<const Names> wanted, bool decoupled,
         TRITONBACKEND_ModelInstance* instance)
      : instance_(instance), wanted_(std::move(wanted)), decoupled_(decoupled), begun_ns_(NowNs()) {
    TRITONBACKEND_ResponseFactory* factory = nullptr;
    Check(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    factory_.reset(factory);
  }

  // Nobody can answer any more: what has no end gets one.
  ~Answer() {
    if (deferred_ && !ended_) {
      if (decoupled_) {
        End();
      } else {
        Fail({TRITONSERVER_ERROR_INTERNAL, "the model has dropped the request without a response"});
      }
    }
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Says that somebody else than the batch answers.
  void Defer() noexcept { deferred_ = true; }
  bool deferred() const noexcept { return deferred_; }

  Response NewResponse() const {
    TRITONBACKEND_Response* response = nullptr;
    Check(TRITONBACKEND_ResponseNewFromFactory(&response, factory_.get()));
    return Response(ResponseHandle(response), wanted_);
  }

  void Send(Response response, bool last) {
    last = last || !decoupled_;
    if (last ? ended_.exchange(true) : ended_.load()) {
      throw Error(TRITONSERVER_ERROR_INTERNAL, "the last response to the request has been sent before");
    }
    response.PutInPlace();
    Dispatch(std::move(response.handle_), last, response.begun_ns_, nullptr);
  }

  // Ends without a further response; one that is not decoupled gets an empty one. Does nothing if the last was sent.
  void End() noexcept {
    if (ended_.exchange(true)) {
      return;
    }
    if (decoupled_) {
      LogIfError(TRITONBACKEND_ResponseFactorySendFlags(factory_.get(), TRITONSERVER_RESPONSE_COMPLETE_FINAL));
      Report(0, nullptr);
    } else {
      DispatchNew(nullptr);
    }
  }

  // Ends with an error. Does nothing if the last response was sent.
  void Fail(const Error& error) noexcept {
    if (!ended_.exchange(true)) {
      DispatchNew(MakeHandle(error).get());
    }
  }

  bool IsCancelled() const {
    bool cancelled = false;
    Check(TRITONBACKEND_ResponseFactoryIsCancelled(factory_.get(), &cancelled));
    return cancelled;
  }

 private:
  void DispatchNew(TRITONSERVER_Error* error) noexcept {
    TRITONBACKEND_Response* response = nullptr;
    LogIfError(TRITONBACKEND_ResponseNewFromFactory(&response, factory_.get()));
    if (response != nullptr) {
      Dispatch(ResponseHandle(response), true, NowNs(), error);
    }
  }

  void Dispatch(ResponseHandle response, bool last, uint64_t output_ns, TRITONSERVER_Error* error) noexcept {
    const uint32_t flags = last ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0;
    LogIfError(TRITONBACKEND_ResponseSend(response.release(), flags, error));
    Report(output_ns, error);
  }

  // Statistics of a response, which models have that may give several; 0 for one that has no outputs.
  void Report(uint64_t output_ns, TRITONSERVER_Error* error) noexcept {
    if (!decoupled_) {
      return;
    }
    TRITONBACKEND_ModelInstanceResponseStatistics* made = nullptr;
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&made));
    if (made == nullptr) {
      return;
    }
    const std::unique_ptr<TRITONBACKEND_ModelInstanceResponseStatistics, ResponseStatisticsDeleter> statistics(made);
    const uint64_t now_ns = NowNs();
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(made, instance_));
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(made, factory_.get()));
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(made, begun_ns_.exchange(now_ns)));
    if (output_ns != 0) {
      LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(made, output_ns));
    }
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(made, now_ns));
    LogIfError(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(made, error));
    LogIfError(TRITONBACKEND_ModelInstanceReportResponseStatistics(made));
  }

  TRITONBACKEND_ModelInstance* instance_;
  std::unique_ptr<TRITONBACKEND_ResponseFactory, ResponseFactoryDeleter> factory_;
  std::shared_ptr<const Names> wanted_;
  const bool decoupled_;
  bool deferred_ = false;
  std::atomic<bool> ended_{false};
  // When the next response was begun: with the request, or when the last one had been sent.
  std::atomic<uint64_t> begun_ns_;
};

}  // namespace detail

// Sends the responses to one request, also from other threads and after Execute has returned, but not after the model
// is gone. Copies answer the same request. When all of them are gone and there was no last response, the request ends
// by itself: with nothing more for a decoupled model, else with an error.
class ResponseSender {
 public:
  // A response to be filled and sent. Throws Error.
  Response NewResponse() const { return answer_->NewResponse(); }

  // Sends a response that others may follow; to a model that is not decoupled it is the last one. Throws Error if the
  // last one has been sent before.
  void Send(Response response) const { answer_->Send(std::move(response), false); }

  // Sends the last response. Throws Error as Send does.
  void SendLast(Response response) const { answer_->Send(std::move(response), true); }

  // Ends the responses, with none more or with an error. No effect if the last one has been sent.
  void End() const noexcept { answer_->End(); }
  void Fail(const Error& error) const noexcept { answer_->Fail(error); }

  // Whether the client has given the request up. Throws Error.
  bool IsCancelled() const { return answer_->IsCancelled(); }

 private:
  friend class Request;
  explicit ResponseSender(std::shared_ptr<detail::Answer> answer) : answer_(std::move(answer)) {}

  std::shared_ptr<detail::Answer> answer_;
};

}  // namespace pyruntime
