// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Responses as Python sees them.

#include <string>
#include <utility>
#include <variant>

#include "python.h"
#include "response.h"

namespace pyruntime {
namespace {

// (name, datatype, shape, Buffer); the buffer is the tuple's from then on.
PyObject* OutputTuple(TRITONBACKEND_Output* output) {
  Ref tuple(PyTuple_New(4));
  if (!tuple) return nullptr;
  PyObject* items[] = {
      ToPython(output->name),
      PyUnicode_FromString(NameOf(output->datatype)),
      ToPython(output->shape),
      ToPython(std::move(output->buffer)),
  };
  // The tuple takes the references over, and gives them back if it goes with one of them missing.
  bool complete = true;
  for (Py_ssize_t index = 0; index < 4; ++index) {
    complete = complete && items[index] != nullptr;
    PyTuple_SetItem(tuple.get(), index, items[index]);
  }
  return complete ? tuple.release() : nullptr;
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
  for (const TRITONBACKEND_Output& output : response.outputs) bytes += output.buffer.size();
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

PyObject* ResponseEvent::ToPython() {
  if (!final_ && state_->window() != nullptr) state_->window()->Deliver(bytes_);
  Ref failure(failure_ ? pyruntime::ToPython(*failure_) : None());
  Ref outputs(response_ ? OutputList(&response_->outputs) : None());
  Ref parameters(response_ ? ParameterDict(response_->parameters) : None());
  if (!failure || !outputs || !parameters) return nullptr;
  if (released_) {
    Ref statistics(StatisticsToPython(statistics_));
    if (!statistics) return nullptr;
    // Nearly every event is of this kind, and no format is read for it.
    Ref tuple(PyTuple_New(6));
    Ref kind(PyLong_FromLong(kAnswered));
    if (!tuple || !kind) return nullptr;
    PyObject* items[] = {kind.release(),    Py_NewRef(state_->job()), failure.release(),
                         outputs.release(), parameters.release(),     statistics.release()};
    for (Py_ssize_t index = 0; index < 6; ++index) PyTuple_SetItem(tuple.get(), index, items[index]);
    return tuple.release();
  }
  return Py_BuildValue(
      "(iOONNN)", kResponse, state_->job(), final_ ? Py_True : Py_False, failure.release(), outputs.release(),
      parameters.release());
}

}  // namespace pyruntime
