// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Responses as Python objects.

#include <string>
#include <utility>
#include <variant>

#include "plain_requests.h"
#include "python.h"
#include "response.h"

namespace pyruntime {
namespace {

// (name, datatype, shape, Buffer or the owner of memory of a GPU); the buffer is the tuple's from then on.
PyObject* OutputTuple(TRITONBACKEND_Output* output) {
  PyObject* const owner = output->on_gpu.owner.get();
  return Tuple({ToPython(output->name), PyUnicode_FromString(NameOf(output->datatype)), ToPython(output->shape),
                owner != nullptr ? Py_NewRef(owner) : ToPython(std::move(output->buffer))});
}

PyObject* OutputList(std::list<TRITONBACKEND_Output>* outputs) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(outputs->size())));
  if (!list) return nullptr;
  Py_ssize_t index = 0;
  for (TRITONBACKEND_Output& output : *outputs) {
    PyObject* tuple = OutputTuple(&output);
    if (tuple == nullptr) return nullptr;
    PyList_SetItem(list.get(), index++, tuple);
  }
  return list.release();
}

// None if there are none.
PyObject* ParameterDict(const std::vector<TRITONSERVER_Parameter>& parameters) {
  if (parameters.empty()) return Py_NewRef(Py_None);
  Ref dict(PyDict_New());
  if (!dict) return nullptr;
  for (const TRITONSERVER_Parameter& parameter : parameters) {
    Ref name(ToPython(parameter.name));
    Ref value(ToPython(parameter));
    if (!name || !value || PyDict_SetItem(dict.get(), name.get(), value.get()) < 0) return nullptr;
  }
  return dict.release();
}

size_t BytesOf(const TRITONBACKEND_Response& response) {
  size_t bytes = 0;
  for (const TRITONBACKEND_Output& output : response.outputs) bytes += output.attributes.byte_size;
  for (const TRITONSERVER_Parameter& parameter : response.parameters) {
    if (const auto* text = std::get_if<std::string>(&parameter.value)) bytes += text->size();
  }
  return bytes;
}

PyObject* None() { return Py_NewRef(Py_None); }

}  // namespace

ResponseEvent::ResponseEvent(
    RequestStatePtr state, std::unique_ptr<TRITONBACKEND_Response> response, std::optional<Failure> failure, bool final)
    : state_(std::move(state)), response_(std::move(response)), failure_(std::move(failure)), final_(final) {}

void ResponseEvent::WaitForRoom() {
  if (state_->window() == nullptr) return;
  bytes_ = response_ ? BytesOf(*response_) : failure_->message.size();
  state_->window()->Enter(bytes_);
}

void ResponseEvent::Release(const std::optional<Statistics>& statistics) {
  released_ = true;
  statistics_ = statistics;
}

bool ResponseEvent::Execute(const Execution& execution) {
  if (released_) execution_ = execution;
  return released_;
}

Statistics ResponseEvent::times(uint64_t arrived_ns) const {
  return statistics_.value_or(Statistics{true, arrived_ns, arrived_ns, sent_ns_, sent_ns_});
}

PyObject* ResponseEvent::ToPython() {
  state_->job();  // before any lock: a lent connection must be taken back
  if (!final_ && state_->window() != nullptr) state_->window()->Deliver(bytes_);
  if (claimed_) return Sent();
  if (PyObject* encoded = Encoded(); encoded != nullptr || PyErr_Occurred() != nullptr) return encoded;
  Ref failure(failure_ ? pyruntime::ToPython(*failure_) : None());
  Ref outputs(response_ ? OutputList(&response_->outputs) : None());
  Ref parameters(response_ ? ParameterDict(response_->parameters) : None());
  if (!failure || !outputs || !parameters) return nullptr;
  if (released_) {
    return Tuple({PyLong_FromLong(kAnswered), Py_NewRef(state_->job()), failure.release(), outputs.release(),
                  parameters.release(), pyruntime::ToPython(statistics_), pyruntime::ToPython(execution_)});
  }
  return Py_BuildValue(
      "(iOONNN)", state_->IsLeftToNext() ? kEarlierResponse : kResponse, state_->job(), final_ ? Py_True : Py_False, failure.release(), outputs.release(),
      parameters.release());
}

// Whether it is a plain response to a plain request: `text_` is what was written of it then.
bool ResponseEvent::IsWritten() {
  const auto& plain = state_->plain();
  if (!plain || !response_ || failure_) return false;
  return !text_.empty() || plain->requests->Write(*response_, &text_);
}

bool ResponseEvent::ClaimClient() {
  claimed_ = IsWritten() && state_->Claim();
  return claimed_;
}

bool ResponseEvent::SendToClient() {
  sent_ = SendPlain(text_, *response_, state_->plain()->client.get());
  sent_ns_ = Now();
  return sent_ == text_.size() + ContentsOf(*response_);
}

// Null without an exception if the response is not one to be sent as an encoded one.
PyObject* ResponseEvent::Encoded() {
  if (!released_ || !statistics_ || !statistics_->success || !IsWritten()) return nullptr;
  return Tuple({PyLong_FromLong(kEncoded), Py_NewRef(state_->job()), JoinPlain(text_, *response_),
                pyruntime::ToPython(*statistics_), pyruntime::ToPython(execution_)});
}

PyObject* ResponseEvent::Sent() {
  const std::lock_guard<std::mutex> lock(state_->plain()->client->mutex());
  const bool is_whole = sent_ == text_.size() + ContentsOf(*response_);
  return Tuple({PyLong_FromLong(kSent), Py_NewRef(state_->job()),
                is_whole ? None() : JoinPlain(text_, *response_, sent_), PyLong_FromUnsignedLongLong(sent_ns_),
                PyBool_FromLong(released_ ? 1 : 0), pyruntime::ToPython(statistics_),
                pyruntime::ToPython(execution_)});
}

}  // namespace pyruntime
