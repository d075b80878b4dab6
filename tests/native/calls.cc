// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Answers each request with the responses of another model to the same request: that of parameter MODEL, or of the
// request parameter "model".
//
// Inputs are passed on without a copy. Each response of the callee, decoupled or not, becomes a response of this model,
// with its parameters or its error. The callee may have more than one response only if this model is decoupled. Execute
// waits for the last of them.
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common.h"

namespace {

using testing::Error;
using testing::Fail;
using testing::Must;

struct AllocatorDelete {
  void operator()(TRITONSERVER_ResponseAllocator* allocator) const {
    Must(TRITONSERVER_ResponseAllocatorDelete(allocator));
  }
};
struct ResponseDelete {
  void operator()(TRITONSERVER_InferenceResponse* response) const {
    Must(TRITONSERVER_InferenceResponseDelete(response));
  }
};
using Response = std::unique_ptr<TRITONSERVER_InferenceResponse, ResponseDelete>;

// The responses of the callee, and whether its request was released: filled by threads of the server.
class Mailbox {
 public:
  void Put(Response response, bool is_final) {
    const std::lock_guard<std::mutex> lock(mutex_);
    responses_.push_back({std::move(response), is_final});
    changed_.notify_one();
  }

  void PutRequestBack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_request_ = true;
    changed_.notify_one();
  }

  // Waits for the next response, which is null if there are only flags.
  Response Take(bool* is_final) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !responses_.empty(); });
    Letter letter = std::move(responses_.front());
    responses_.pop_front();
    *is_final = letter.is_final;
    return std::move(letter.response);
  }

  void WaitForRequest() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return has_request_; });
  }

 private:
  struct Letter {
    Response response;
    bool is_final;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Letter> responses_;
  bool has_request_ = false;
};

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t size, TRITONSERVER_MemoryType,
                             int64_t, void*, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                             int64_t* actual_type_id) {
  *buffer = size == 0 ? nullptr : std::malloc(size);
  *buffer_userp = nullptr;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* Release(TRITONSERVER_ResponseAllocator*, void* buffer, void*, size_t, TRITONSERVER_MemoryType,
                            int64_t) {
  std::free(buffer);
  return nullptr;
}

void OnRelease(TRITONSERVER_InferenceRequest* request, const uint32_t, void* userp) {
  Must(TRITONSERVER_InferenceRequestDelete(request));
  static_cast<Mailbox*>(userp)->PutRequestBack();
}

void OnResponse(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  static_cast<Mailbox*>(userp)->Put(Response(response), (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0);
}

struct Model {
  TRITONSERVER_Server* server = nullptr;
  std::string callee;
  bool is_batched = false;
  bool is_decoupled = false;
  std::unique_ptr<TRITONSERVER_ResponseAllocator, AllocatorDelete> allocator;
};

TRITONSERVER_Error* CopyInput(TRITONBACKEND_Request* request, uint32_t index, TRITONSERVER_InferenceRequest* call) {
  TRITONBACKEND_Input* input = nullptr;
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t dims = 0;
  uint32_t buffers = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, index, &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, nullptr, &buffers));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddInput(call, name, datatype, shape, dims));
  for (uint32_t part = 0; part < buffers; ++part) {
    const void* buffer = nullptr;
    uint64_t size = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, part, &buffer, &size, &type, &type_id));
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAppendInputData(call, name, buffer, size, type, type_id));
  }
  return nullptr;
}

TRITONSERVER_Error* CopyRequest(TRITONBACKEND_Request* request, TRITONSERVER_InferenceRequest* call) {
  const char* id = nullptr;
  uint32_t flags = 0;
  uint64_t sequence = 0;
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestId(request, &id));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetId(call, id));
  RETURN_IF_ERROR(TRITONBACKEND_RequestFlags(request, &flags));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetFlags(call, flags));
  if (const Error other_kind{TRITONBACKEND_RequestCorrelationId(request, &sequence)}; other_kind == nullptr) {
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetCorrelationId(call, sequence));
  }
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) RETURN_IF_ERROR(CopyInput(request, index, call));
  RETURN_IF_ERROR(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    RETURN_IF_ERROR(TRITONBACKEND_RequestOutputName(request, index, &name));
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddRequestedOutput(call, name));
  }
  return nullptr;
}

std::string CalleeOf(TRITONBACKEND_Request* request, const std::string& otherwise) {
  uint32_t count = 0;
  Must(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    Must(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (std::string(key) == "model" && type == TRITONSERVER_PARAMETER_STRING) return static_cast<const char*>(value);
  }
  return otherwise;
}

// Whether this model can call the callee, before it sends anything.
TRITONSERVER_Error* Check(const Model& model, const std::string& callee) {
  bool is_ready = false;
  uint32_t flags = 0;
  RETURN_IF_ERROR(TRITONSERVER_ServerModelIsReady(model.server, callee.c_str(), -1, &is_ready));
  if (!is_ready) return Fail("model '" + callee + "' is not ready", TRITONSERVER_ERROR_UNAVAILABLE);
  RETURN_IF_ERROR(TRITONSERVER_ServerModelTransactionProperties(model.server, callee.c_str(), -1, &flags, nullptr));
  if ((flags & TRITONSERVER_TXN_DECOUPLED) != 0 && !model.is_decoupled) {
    return Fail("model '" + callee + "' is decoupled", TRITONSERVER_ERROR_UNSUPPORTED);
  }
  return nullptr;
}

// Passes the request on. Without an error the mailbox gets the request back, and responses up to a final one.
TRITONSERVER_Error* Send(const Model& model, TRITONBACKEND_Request* request, Mailbox* mailbox) {
  const std::string callee = CalleeOf(request, model.callee);
  RETURN_IF_ERROR(Check(model, callee));
  TRITONSERVER_InferenceRequest* call = nullptr;
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestNew(&call, model.server, callee.c_str(), -1));
  TRITONSERVER_Error* error = CopyRequest(request, call);
  if (error == nullptr) error = TRITONSERVER_InferenceRequestSetReleaseCallback(call, OnRelease, mailbox);
  if (error == nullptr) {
    error = TRITONSERVER_InferenceRequestSetResponseCallback(call, model.allocator.get(), nullptr, OnResponse, mailbox);
  }
  if (error == nullptr) error = TRITONSERVER_ServerInferAsync(model.server, call, nullptr);
  if (error != nullptr) Must(TRITONSERVER_InferenceRequestDelete(call));
  return error;
}

TRITONSERVER_Error* CopyParameter(TRITONSERVER_InferenceResponse* from, uint32_t index, TRITONBACKEND_Response* to) {
  const char* name = nullptr;
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
  const void* value = nullptr;
  RETURN_IF_ERROR(TRITONSERVER_InferenceResponseParameter(from, index, &name, &type, &value));
  return testing::SetParameter(to, name, type, value);
}

TRITONSERVER_Error* CopyResponse(TRITONSERVER_InferenceResponse* from, TRITONBACKEND_Response* to) {
  uint32_t count = 0;
  if (TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(from)) {
    return Fail(TRITONSERVER_ErrorMessage(error), TRITONSERVER_ErrorCode(error));
  }
  RETURN_IF_ERROR(TRITONSERVER_InferenceResponseOutputCount(from, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
    const int64_t* shape = nullptr;
    uint64_t dims = 0;
    const void* base = nullptr;
    size_t size = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    void* userp = nullptr;
    RETURN_IF_ERROR(TRITONSERVER_InferenceResponseOutput(from, index, &name, &datatype, &shape, &dims, &base, &size,
                                                         &type, &type_id, &userp));
    const std::vector<int64_t> own_shape(shape, shape + dims);
    RETURN_IF_ERROR(testing::WriteOutput(to, name, datatype, own_shape, base, size));
  }
  RETURN_IF_ERROR(TRITONSERVER_InferenceResponseParameterCount(from, &count));
  for (uint32_t index = 0; index < count; ++index) RETURN_IF_ERROR(CopyParameter(from, index, to));
  return nullptr;
}

void Respond(TRITONBACKEND_ResponseFactory* factory, TRITONSERVER_InferenceResponse* from, bool is_final) {
  const uint32_t flags = is_final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0;
  if (from == nullptr) {
    Must(TRITONBACKEND_ResponseFactorySendFlags(factory, flags));
    return;
  }
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  const Error error(CopyResponse(from, response));
  Must(TRITONBACKEND_ResponseSend(response, flags, error.get()));
}

void ExecuteOne(const Model& model, TRITONBACKEND_Request* request) {
  Mailbox mailbox;
  if (const Error error{Send(model, request, &mailbox)}; error != nullptr) {
    TRITONBACKEND_Response* response = nullptr;
    Must(TRITONBACKEND_ResponseNew(&response, request));
    Must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
    return;
  }
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  for (bool is_final = false; !is_final;) {
    const Response response = mailbox.Take(&is_final);
    Respond(factory, response.get(), is_final);
  }
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  mailbox.WaitForRequest();
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const testing::Config config(model);
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  auto state = std::make_unique<Model>();
  state->callee = config.Parameter("MODEL", "");
  state->is_batched = config.Number("max_batch_size") > 0;
  state->is_decoupled = config.json().find("\"decoupled\":true") != std::string::npos;
  RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &state->server));
  RETURN_IF_ERROR(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Release, nullptr));
  state->allocator.reset(allocator);
  RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Model> state(testing::StateOf<Model>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const Model* model = testing::StateOf<Model>(testing::ModelOf(instance));
  const uint64_t start_ns = testing::NowNs();
  uint64_t rows = 0;
  for (uint32_t index = 0; index < count; ++index) {
    rows += testing::RowsOf(requests[index], model->is_batched);
    const uint64_t one_start_ns = testing::NowNs();
    ExecuteOne(*model, requests[index]);
    const uint64_t one_end_ns = testing::NowNs();
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, start_ns, one_start_ns,
                                                     one_end_ns, one_end_ns));
    Must(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  const uint64_t end_ns = testing::NowNs();
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, start_ns, start_ns, end_ns, end_ns));
  return nullptr;
}

}  // extern "C"
