// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The function of the module that writes messages of gRPC: objects of Python become bytes.

#include "written_responses.h"

#include <string>
#include <vector>

#include "message_response.h"
#include "objects.h"

namespace pyruntime {
namespace {

// These functions return 1; 0 for what is not plain; or -1 with an exception.

// Adds an output, and its contents to `contents`.
int AddMessageOutput(const State& state, PyObject* output, std::vector<Ref>* contents, ResponseMessage* message) {
  const Ref name = Get(state, output, Attribute::kName), datatype = Get(state, output, Attribute::kDatatype);
  const Ref shape = Get(state, output, Attribute::kShape), place = Get(state, output, Attribute::kPlace);
  std::string_view name_text, datatype_text;
  std::vector<int64_t> dims;
  if (!shape || !place) return -1;
  if (place.get() != Py_None || PyList_Check(shape.get()) == 0) return 0;
  if (!TextOf(name.get(), &name_text) || !TextOf(datatype.get(), &datatype_text)) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  const Py_ssize_t count = PyList_Size(shape.get());
  dims.reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    dims.push_back(PyLong_AsLongLong(PyList_GetItem(shape.get(), index)));
    if (dims.back() == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
  }
  message->AddOutput(name_text, datatype_text, dims);
  contents->push_back(Get(state, output, Attribute::kData));
  return contents->back() ? 1 : -1;
}

int AddMessageOutputs(const State& state, PyObject* outputs, std::vector<Ref>* contents, ResponseMessage* message) {
  int added = PyList_Check(outputs) != 0 ? 1 : 0;
  for (Py_ssize_t index = 0; added == 1 && index < PyList_Size(outputs); ++index) {
    const Ref output(Py_NewRef(PyList_GetItem(outputs, index)));
    added = AddMessageOutput(state, output.get(), contents, message);
  }
  return added;
}

int AddMessageParameter(PyObject* name, PyObject* value, ResponseMessage* message) {
  std::string_view name_text, text;
  if (PyUnicode_Check(name) == 0) return 0;
  if (!TextOf(name, &name_text)) return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  if (PyBool_Check(value) != 0) {
    message->AddBool(name_text, value == Py_True);
  } else if (PyLong_Check(value) != 0) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
    message->AddInteger(name_text, number);
  } else if (PyFloat_Check(value) != 0) {
    message->AddDouble(name_text, PyFloat_AsDouble(value));
  } else if (PyUnicode_Check(value) == 0) {
    return 0;
  } else if (!TextOf(value, &text)) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  } else {
    message->AddText(name_text, text);
  }
  return 1;
}

int AddMessageParameters(PyObject* parameters, ResponseMessage* message) {
  if (PyDict_Check(parameters) == 0) return 0;
  PyObject *name, *value;
  Py_ssize_t at = 0;
  int added = 1;
  while (added == 1 && PyDict_Next(parameters, &at, &name, &value) != 0) added = AddMessageParameter(name, value, message);
  return added;
}

// Adds all of a response but its contents, which go to `contents`.
int AddMessage(const State& state, PyObject* response, std::vector<Ref>* contents, ResponseMessage* message) {
  const Ref id = Get(state, response, Attribute::kId), model = Get(state, response, Attribute::kModelName);
  const Ref version = Get(state, response, Attribute::kModelVersion);
  const Ref outputs = Get(state, response, Attribute::kOutputs);
  const Ref parameters = Get(state, response, Attribute::kParameters);
  std::string_view id_text, model_text;
  if (!version || !outputs || !parameters) return -1;
  const long long number = PyLong_AsLongLong(version.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return -1;
  if (!TextOf(id.get(), &id_text) || !TextOf(model.get(), &model_text)) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  message->Begin(model_text, number);
  const int added = AddMessageOutputs(state, outputs.get(), contents, message);
  if (added != 1) return added;
  message->AddId(id_text);
  return AddMessageParameters(parameters.get(), message);
}

// The texts of a message with the contents between them.
PyObject* MessageParts(const std::vector<std::string>& texts, const std::vector<Ref>& contents) {
  Ref parts(PyList_New(0));
  for (size_t number = 0; parts && number < texts.size(); ++number) {
    const bool is_last = number == contents.size();
    if (is_last && texts[number].empty()) break;
    const Ref text(Bytes(texts[number]));
    if (!text || PyList_Append(parts.get(), text.get()) < 0) return nullptr;
    if (!is_last && PyList_Append(parts.get(), contents[number].get()) < 0) return nullptr;
  }
  return parts.release();
}

}  // namespace

PyObject* WriteMessage(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "write_message() takes a response, and whether it is the last one of a stream");
    return nullptr;
  }
  ResponseMessage message;
  std::vector<Ref> contents;
  const int added = AddMessage(StateOf(module), arguments[0], &contents, &message);
  if (added < 0) return nullptr;
  if (added == 0) Py_RETURN_NONE;
  for (const Ref& each : contents) {
    const Py_ssize_t size = PyObject_Size(each.get());
    if (size < 0) return nullptr;
    message.BeginContents(static_cast<uint64_t>(size));
  }
  if (arguments[1] != Py_None) message.EndEvent(arguments[1] == Py_True);
  return MessageParts(message.End(), contents);
}

}  // namespace pyruntime
