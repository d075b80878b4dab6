// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests: their creation from Python's data, and their end.

#include <new>
#include <utility>

#include "backend.h"
#include "backend_objects.h"
#include "host.h"
#include "lent_connection.h"
#include "python.h"
#include "request.h"
#include "request_layout.h"
#include "response.h"

namespace pyruntime {
namespace {

// The end of a request that can no longer be answered. It takes over the reference to the job, because the state that
// had it is being destroyed.
class LostEvent : public Event {
 public:
  LostEvent(PyObject* job, std::string message) : job_(job), message_(std::move(message)) {}
  ~LostEvent() override { ReleaseHold(job_); }

  PyObject* ToPython() override {
    Ref failure(pyruntime::ToPython(Failure{TRITONSERVER_ERROR_INTERNAL, message_}));
    if (!failure) return nullptr;
    return Py_BuildValue("(iOOOOO)", kResponse, job_, Py_True, failure.get(), Py_None, Py_None);
  }

 private:
  PyObject* job_;
  std::string message_;
};

class ReleasedEvent : public Event {
 public:
  ReleasedEvent(RequestStatePtr state, bool reschedule, std::optional<Statistics> statistics)
      : state_(std::move(state)), reschedule_(reschedule), statistics_(statistics) {}

  PyObject* ToPython() override {
    Ref statistics(pyruntime::ToPython(statistics_));
    if (!statistics) return nullptr;
    if (reschedule_) state_->LeaveToNext();
    return Py_BuildValue(
        "(iOON)", kReleased, state_->job(), reschedule_ ? Py_True : Py_False, statistics.release());
  }

 private:
  RequestStatePtr state_;
  bool reschedule_;
  std::optional<Statistics> statistics_;
};

// A borrowed item of a list or a tuple; null with a Python exception set.
PyObject* Item(PyObject* sequence, Py_ssize_t index) {
  return PyTuple_Check(sequence) ? PyTuple_GetItem(sequence, index) : PyList_GetItem(sequence, index);
}

bool ReadUnsigned(PyObject* object, uint64_t* number) {
  *number = PyLong_AsUnsignedLongLong(object);
  return *number != static_cast<uint64_t>(-1) || PyErr_Occurred() == nullptr;
}

bool ReadCorrelationId(PyObject* object, TRITONBACKEND_Request* request) {
  if (PyUnicode_Check(object)) return FromPython(object, &request->correlation_text);
  return ReadUnsigned(object, &request->correlation_id);
}

bool ReadOutputs(PyObject* names, const TRITONBACKEND_Model& model, std::vector<std::string>* outputs) {
  if (names == Py_None) {
    *outputs = model.outputs;
    return true;
  }
  return NamesFromPython(names, outputs);
}

bool ReadParameters(PyObject* values, std::vector<TRITONSERVER_Parameter>* parameters) {
  if (!PyDict_Check(values)) return true;  // "": there are none
  parameters->reserve(static_cast<size_t>(PyDict_Size(values)));
  Py_ssize_t position = 0;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(values, &position, &name, &value) != 0) {
    if (!FromPython(name, value, &parameters->emplace_back())) return false;
  }
  return true;
}

bool ReadInput(PyObject* tensor, uintptr_t base, TRITONBACKEND_Input* input) {
  PyObject* items[kTensorLength];
  for (Py_ssize_t index = 0; index < kTensorLength; ++index) {
    items[index] = Item(tensor, index);
    if (items[index] == nullptr) return false;
  }
  std::string datatype;
  uint64_t size = 0;
  uint64_t kind = 0;
  uint64_t device = 0;
  if (!FromPython(items[kName], &input->name) || !FromPython(items[kDatatype], &datatype) ||
      !FromPython(items[kShape], &input->shape) || !ReadUnsigned(items[kByteSize], &size) ||
      !ReadUnsigned(items[kMemoryKind], &kind) || !ReadUnsigned(items[kDeviceId], &device)) {
    return false;
  }
  const long long offset = PyLong_AsLongLong(items[kAddress]);
  if (offset == -1 && PyErr_Occurred() != nullptr) return false;
  input->datatype = DatatypeOf(datatype);
  // Unsigned, so that it wraps: memory of clients lies below the base as well as above it.
  input->data = size == 0 ? nullptr : reinterpret_cast<const void*>(base + static_cast<uintptr_t>(offset));
  input->attributes.byte_size = size;
  input->attributes.memory_type = static_cast<TRITONSERVER_MemoryType>(kind);
  input->attributes.memory_type_id = static_cast<int64_t>(device);
  return true;
}

bool ReadInputs(PyObject* tensors, uintptr_t base, std::vector<TRITONBACKEND_Input>* inputs) {
  const Py_ssize_t count = PySequence_Size(tensors);
  if (count < 0) return false;
  inputs->reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyObject* tensor = Item(tensors, index);
    if (tensor == nullptr || !ReadInput(tensor, base, &inputs->emplace_back())) return false;
  }
  return true;
}

bool Read(PyObject* wire, uintptr_t base, const TRITONBACKEND_Model& model, std::string* id,
          TRITONBACKEND_Request* request) {
  PyObject* items[kRequestLength];
  for (Py_ssize_t index = 0; index < kRequestLength; ++index) {
    items[index] = Item(wire, index);
    if (items[index] == nullptr) return false;
  }
  uint64_t flags = 0;
  if (!FromPython(items[kId], id) || !ReadCorrelationId(items[kCorrelationId], request) ||
      !ReadUnsigned(items[kFlags], &flags) || !ReadUnsigned(items[kTimeoutUs], &request->timeout_us) ||
      !ReadOutputs(items[kRequestedOutputs], model, &request->outputs) ||
      !ReadParameters(items[kParameters], &request->parameters) ||
      !ReadInputs(items[kTensors], base, &request->inputs) ||
      !FromPython(items[kTraceContext], &request->trace_context)) {
    return false;
  }
  request->flags = static_cast<uint32_t>(flags);
  return true;
}

}  // namespace

RequestState::RequestState(
    PyObject* job, std::shared_ptr<TRITONBACKEND_Model> model, std::string id, uint64_t serial,
    std::optional<Plain> plain)
    : job_(Py_XNewRef(job)),
      model_(std::move(model)),
      id_(std::move(id)),
      serial_(serial),
      plain_(std::move(plain)),
      window_(
          model_->decoupled
              ? std::make_unique<ResponseWindow>(Host::Get().responses_ahead_max, Host::Get().bytes_ahead_max)
              : nullptr) {}

RequestState::~RequestState() {
  if (job_ == nullptr) return;  // of a lent connection: it was answered
  if (finished_ || rescheduled_) {
    ReleaseHold(job_);
    return;
  }
  std::string message =
      "model '" + model_->name + "' sent no final response: its backend released the request, and can send none now";
  Host::Get().queue().Push(std::make_unique<LostEvent>(job_, std::move(message)));
}

PyObject* RequestState::job() {
  if (job_ == nullptr) job_ = lent()->Adopt(shared_from_this());
  return job_;
}

void RequestState::Cancel() {
  cancelled_ = true;
  LetGo();
}

bool RequestState::Finish() {
  if (finished_.exchange(true)) return false;
  if (window_ != nullptr) window_->Close();
  return true;
}

// The client that receives its responses is assumed to receive those of the next execution too.
void RequestState::Reschedule() {
  rescheduled_ = true;
  LetGo();
}

void RequestState::LetGo() {
  if (window_ != nullptr) window_->LetGo();
}

std::unique_ptr<TRITONBACKEND_Request> ReadRequest(
    PyObject* job, PyObject* wire, uint64_t serial, uintptr_t base, const std::shared_ptr<TRITONBACKEND_Model>& model) {
  try {
    auto request = std::make_unique<TRITONBACKEND_Request>();
    std::string id;
    if (!Read(wire, base, *model, &id, request.get())) return nullptr;
    PyObject* const places = Item(wire, kPlaces);
    std::vector<std::string> on_gpu;
    if (PyTuple_Check(places) && !NamesFromPython(places, &on_gpu)) return nullptr;
    // Last, because a state that is destroyed without an answer reports its request as lost.
    request->state = std::make_shared<RequestState>(job, model, std::move(id), serial);
    request->state->ShareOutputs(OutputPoolOf(places));
    request->state->AllowOnGpu(std::move(on_gpu));
    return request;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return nullptr;
  }
}

void ReleaseRequest(std::unique_ptr<TRITONBACKEND_Request> request, bool reschedule) {
  const RequestStatePtr state = request->state;
  const std::optional<Statistics> statistics = request->statistics;
  // After all other events of the backend for this request.
  const bool told_more = !request->states.empty() || !request->trace_context.empty();
  PassOnSharedStates(request.get());
  state->Release();
  if (reschedule) state->Reschedule();
  // Before the event, after which Python reuses the memory of the inputs.
  request.reset();
  const bool is_plain = !reschedule && !told_more;
  if (is_plain && state->lent() != nullptr && state->lent()->Release(statistics)) return;
  EventQueue& queue = Host::Get().queue();
  if (is_plain && queue.Amend(*state->answer(), [&](Event* event) {
        static_cast<ResponseEvent*>(event)->Release(statistics);
      })) {
    return;
  }
  queue.Push(std::make_unique<ReleasedEvent>(state, reschedule, statistics));
}

void FailRequest(std::unique_ptr<TRITONBACKEND_Request> request, TRITONSERVER_Error_Code code, std::string message) {
  if (request->state->Finish()) {
    Host::Get().queue().Push(
        std::make_unique<ResponseEvent>(request->state, nullptr, Failure{code, std::move(message)}, /*final=*/true),
        request->state->answer());
  }
  ReleaseRequest(std::move(request), /*reschedule=*/false);
}

}  // namespace pyruntime
