// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests that native code makes to models of the server, and their responses.
//
// A request belongs to its maker until ServerInferAsync takes it, and again after its release callback. Python checks
// it, copies its inputs to the called model, and passes each response back. Responses become objects of the C interface
// on a thread of the callback pool, one at a time: the maker's allocator places the outputs.

#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "queue.h"
#include "server.h"
#include "triton/core/tritonserver.h"
#include "values.h"

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
  TRITONSERVER_ResponseAllocatorStartFn_t start;
  TRITONSERVER_ResponseAllocatorBufferAttributesFn_t buffer_attributes = nullptr;
  TRITONSERVER_ResponseAllocatorQueryFn_t query = nullptr;
};

namespace pyruntime {

// The callbacks by which a request's maker gets its responses.
struct ResponseTarget {
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  void* allocator_userp = nullptr;
  TRITONSERVER_InferenceResponseCompleteFn_t complete = nullptr;
  void* complete_userp = nullptr;
};

// An input that its maker has put together. It refers to the maker's memory.
struct RequestInput {
  struct Piece {
    const void* data;
    size_t size;
    std::string host_policy;  // "" for all
    std::optional<int64_t> gpu;  // the GPU that it lies on, if any
  };

  std::string name;
  TRITONSERVER_DataType datatype;  // INVALID for a raw input: the model's datatype counts
  Shape shape;
  std::vector<Piece> pieces;
};

// One output from Python; HeldBuffers holds its memory.
struct OutputView {
  std::string name;
  TRITONSERVER_DataType datatype;
  Shape shape;
  const void* data;
  size_t size;
};

// Python buffers that native threads read. When they are no longer needed they go back to Python through the queue, and
// Python is notified.
class HeldBuffers {
 public:
  // Takes a reference to `done`, which is called without arguments, or None. With the GIL.
  explicit HeldBuffers(PyObject* done);
  ~HeldBuffers();
  HeldBuffers(const HeldBuffers&) = delete;
  HeldBuffers& operator=(const HeldBuffers&) = delete;

  // Holds another buffer; null with a Python exception set if it is not contiguous. With the GIL.
  const Py_buffer* Hold(PyObject* exporter);

 private:
  class Return;
  std::unique_ptr<Return> return_;
};

// One response from Python: outputs, a failure, or neither, which only ends the responses.
struct Delivery {
  bool final = false;
  std::optional<Failure> failure;
  std::optional<std::vector<OutputView>> outputs;
  std::deque<TRITONSERVER_Parameter> parameters;
  std::string model;
  int64_t version = 0;
  // Last, because Python may reuse the memory above as soon as this is destroyed.
  std::unique_ptr<HeldBuffers> held;
};

// A request from ServerInferAsync to its last response.
class InferCall : public ServerCall, public std::enable_shared_from_this<InferCall> {
 public:
  // The trace may be null. It is released at the end if the call is accepted.
  InferCall(TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceTrace* trace);

  // Copies inputs on GPUs to main memory. On the maker's thread, before the call is made.
  std::optional<Failure> Fetch();

  // The arguments for Python: (number, model, version, id, correlation id, flags, priority, timeout in us, parameters,
  // inputs, names of outputs or None, context of the trace or "", name of the model that initialises or "", job that is
  // executed or None). Inputs are (name, datatype or None, shape, contents); contents may be read until the call is
  // answered.
  PyObject* Arguments() override;

  void Abandon() override;

  // Makes a call "cancel" with the number of this one, which cancels the request.
  void Cancel();
  bool IsCancelled() const { return cancelled_; }

  // Passes a response to the maker's callbacks, on a thread of the pool. Ignored unless the call was answered, which
  // means that the request was accepted; and after the last response.
  void Respond(Delivery delivery);

 private:
  PyObject* InputsToPython();
  PyObject* ContentsToPython(const RequestInput& input);
  // The contents of a piece, in main memory.
  const void* DataOf(const RequestInput::Piece& piece) const;
  void RunNext();
  void Run(Delivery* delivery);
  void Release();

  // Belongs to the maker again after Release, which may delete it.
  TRITONSERVER_InferenceRequest* const request_;
  TRITONSERVER_InferenceTrace* const trace_;
  const int64_t number_;
  const ResponseTarget target_;
  const std::string id_;
  const std::string loading_;
  // The request whose execution makes the call, if known; empty once Python has the call.
  RequestStatePtr caller_;
  // The joined contents of inputs that consist of several buffers.
  std::deque<std::string> joined_;
  // The contents of pieces on GPUs.
  std::unordered_map<const RequestInput::Piece*, std::string> fetched_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::deque<Delivery> deliveries_;
  bool running_ = false;
  bool finished_ = false;
};

// Makes a response from Python's data. Calls the target's allocator for the memory of the outputs.
std::unique_ptr<TRITONSERVER_InferenceResponse> MakeResponse(
    const ResponseTarget& target, const std::string& id, Delivery* delivery);

}  // namespace pyruntime

struct TRITONSERVER_InferenceRequest {
  std::string model;
  int64_t version;
  std::string id;
  uint32_t flags = 0;
  // The correlation ID is a number, or a text, which may be empty.
  bool has_correlation_text = false;
  uint64_t correlation_id = 0;
  std::string correlation_text;
  uint64_t priority = 0;
  uint64_t timeout_us = 0;
  std::deque<pyruntime::RequestInput> inputs;
  std::vector<std::string> outputs;
  std::deque<TRITONSERVER_Parameter> parameters;
  TRITONSERVER_InferenceRequestReleaseFn_t release = nullptr;
  void* release_userp = nullptr;
  pyruntime::ResponseTarget target;

  // The last call that got this request, and whether it still has it.
  std::shared_ptr<pyruntime::InferCall> call;
  std::atomic<bool> under_way{false};
};

struct TRITONSERVER_InferenceResponse {
  struct Output {
    std::string name;
    TRITONSERVER_DataType datatype;
    pyruntime::Shape shape;
    void* base;
    size_t byte_size;
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_type_id;
    void* userp;
  };

  // Returns the memory of the outputs to the allocator.
  ~TRITONSERVER_InferenceResponse();
  // Returns the first failure of the allocator, if any.
  std::optional<pyruntime::Failure> ReleaseOutputs();

  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  std::string model;
  int64_t version = 0;
  std::string id;
  std::optional<pyruntime::Failure> failure;
  std::deque<Output> outputs;
  std::deque<TRITONSERVER_Parameter> parameters;
};
