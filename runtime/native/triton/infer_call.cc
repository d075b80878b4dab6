// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A request from native code: passes it to Python, and the responses back.

#include <algorithm>
#include <utility>

#include "cuda_driver.h"
#include "host.h"
#include "inference.h"
#include "python.h"
#include "traces.h"

namespace pyruntime {
namespace {

const char kUnanswered[] = "the server has lost the request";

RequestStatePtr RequestOfThread() {
  const CallerScope* caller = CallerScope::Now();
  return caller != nullptr ? caller->request() : nullptr;
}

// A datatype's name, or None for the one of a raw input.
PyObject* DatatypeToPython(TRITONSERVER_DataType datatype) {
  if (datatype == TRITONSERVER_TYPE_INVALID) return Py_NewRef(Py_None);
  return PyUnicode_FromString(NameOf(datatype));
}

// The pieces that are for every instance; or else those of the first policy that there are some for, because the
// instance that will execute the request is not known.
std::vector<const RequestInput::Piece*> Chosen(const RequestInput& input) {
  const auto is_for_all = [](const RequestInput::Piece& piece) { return piece.host_policy.empty(); };
  const bool any_for_all = std::any_of(input.pieces.begin(), input.pieces.end(), is_for_all);
  std::vector<const RequestInput::Piece*> chosen;
  for (const RequestInput::Piece& piece : input.pieces) {
    const bool wanted = any_for_all ? is_for_all(piece) : piece.host_policy == input.pieces.front().host_policy;
    if (wanted && piece.size != 0) chosen.push_back(&piece);
  }
  return chosen;
}

PyObject* NamesToPython(const std::vector<std::string>& names) {
  if (names.empty()) return Py_NewRef(Py_None);
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const std::string& name : names) {
    Ref item(ToPython(name));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* ParametersToPython(const std::deque<TRITONSERVER_Parameter>& parameters) {
  Ref dict(PyDict_New());
  if (!dict) return nullptr;
  for (const TRITONSERVER_Parameter& parameter : parameters) {
    Ref name(ToPython(parameter.name));
    Ref value(ToPython(parameter));
    if (!name || !value || PyDict_SetItem(dict.get(), name.get(), value.get()) < 0) return nullptr;
  }
  return dict.release();
}

}  // namespace

InferCall::InferCall(TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceTrace* trace)
    : ServerCall("infer"),
      request_(request),
      trace_(trace),
      number_(TRITONSERVER_Server::Get().NextCall()),
      target_(request->target),
      id_(request->id),
      loading_(LoadingModel()),
      caller_(RequestOfThread()) {}

std::optional<Failure> InferCall::Fetch() {
  for (const RequestInput& input : request_->inputs) {
    for (const RequestInput::Piece* piece : Chosen(input)) {
      if (!piece->gpu) continue;
      std::string& contents = fetched_[piece];
      contents.resize(piece->size);
      std::string reason;
      CudaDriver* const driver = CudaDriver::Find(&reason);
      if (driver != nullptr) {
        const auto failed = driver->Read(*piece->gpu, contents.data(), piece->data, piece->size);
        if (!failed) continue;
        reason = *failed;
      }
      return Failure{
          TRITONSERVER_ERROR_INTERNAL, "input '" + input.name + "' cannot be copied from GPU " +
                                           std::to_string(*piece->gpu) + ": " + reason};
    }
  }
  return std::nullopt;
}

const void* InferCall::DataOf(const RequestInput::Piece& piece) const {
  return piece.gpu ? fetched_.at(&piece).data() : piece.data;
}

PyObject* InferCall::ContentsToPython(const RequestInput& input) {
  const auto pieces = Chosen(input);
  if (pieces.empty()) return PyBytes_FromStringAndSize(nullptr, 0);
  if (pieces.size() == 1) return NewView(DataOf(*pieces.front()), pieces.front()->size, Py_None);
  std::string& whole = joined_.emplace_back();
  for (const RequestInput::Piece* piece : pieces) whole.append(static_cast<const char*>(DataOf(*piece)), piece->size);
  return NewView(whole.data(), whole.size(), Py_None);
}

PyObject* InferCall::InputsToPython() {
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const RequestInput& input : request_->inputs) {
    Ref contents(ContentsToPython(input));
    if (!contents) return nullptr;
    Ref tensor(Py_BuildValue(
        "(NNNO)", ToPython(input.name), DatatypeToPython(input.datatype), ToPython(input.shape), contents.get()));
    if (!tensor || PyList_Append(list.get(), tensor.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* InferCall::Arguments() {
  const TRITONSERVER_InferenceRequest& request = *request_;
  const RequestStatePtr caller = std::exchange(caller_, nullptr);
  PyObject* correlation_id = request.has_correlation_text ? ToPython(request.correlation_text)
                                                          : PyLong_FromUnsignedLongLong(request.correlation_id);
  return Py_BuildValue(
      "(LNLNNIKKNNNNNO)", static_cast<long long>(number_), ToPython(request.model),
      static_cast<long long>(request.version), ToPython(request.id), correlation_id, request.flags,
      static_cast<unsigned long long>(request.priority), static_cast<unsigned long long>(request.timeout_us),
      ParametersToPython(request.parameters), InputsToPython(), NamesToPython(request.outputs),
      ToPython(trace_ != nullptr ? trace_->server_context : std::string()), ToPython(loading_),
      caller != nullptr ? caller->job() : Py_None);
}

void InferCall::Cancel() {
  if (cancelled_.exchange(true)) return;
  TRITONSERVER_Server::Get().Tell(
      std::make_shared<Query>("cancel", std::vector<Query::Argument>{Query::Argument(number_)}));
}

void InferCall::Abandon() {
  ServerCall::Abandon();  // unless it was answered
  Delivery delivery;
  delivery.final = true;
  delivery.failure = Failure{TRITONSERVER_ERROR_INTERNAL, kUnanswered};
  Respond(std::move(delivery));
}

void InferCall::Respond(Delivery delivery) {
  if (state() != State::kAnswered) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  finished_ = delivery.final;
  deliveries_.push_back(std::move(delivery));
  if (running_) return;
  running_ = true;
  TRITONSERVER_Server::Get().callbacks().Post([self = shared_from_this()] { self->RunNext(); });
}

void InferCall::RunNext() {
  Delivery delivery;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    delivery = std::move(deliveries_.front());
    deliveries_.pop_front();
  }
  Run(&delivery);
  if (delivery.final) {
    Release();
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = !deliveries_.empty();
  if (!running_) return;
  // Queued after other work, so that a model with endless responses does not occupy a thread.
  TRITONSERVER_Server::Get().callbacks().Post([self = shared_from_this()] { self->RunNext(); });
}

void InferCall::Run(Delivery* delivery) {
  std::unique_ptr<TRITONSERVER_InferenceResponse> response;
  if (delivery->failure || delivery->outputs) response = MakeResponse(target_, id_, delivery);
  delivery->held = nullptr;
  target_.complete(
      response.release(), delivery->final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, target_.complete_userp);
}

void InferCall::Release() {
  if (trace_ != nullptr && trace_->is_child) TRITONSERVER_InferenceTraceDelete(trace_);
  const auto release = request_->release;
  void* const userp = request_->release_userp;
  request_->under_way = false;
  release(request_, TRITONSERVER_REQUEST_RELEASE_ALL, userp);
}

}  // namespace pyruntime
