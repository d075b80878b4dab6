// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a whole response over HTTP, head and body, whose outputs are all binary: objects of Python become bytes.

#include "binary_answer.h"

#include <cstring>
#include <deque>
#include <string>

#include "infer_response.h"
#include "objects.h"
#include "written_responses.h"

namespace pyruntime {
namespace {

// A response while it is written: its document, and the contents that follow that.
struct Answer {
  InferDocument document;
  Ref contents{PyList_New(0)};
  // A deque, as views do not move.
  std::deque<View> views;
  uint64_t length = 0;
};

// The number of items of a list; -1 with an exception for what is none.
Py_ssize_t ListSize(PyObject* list) {
  if (PyList_Check(list)) return PyList_Size(list);
  PyErr_SetString(PyExc_TypeError, "outputs, or the shape of one, are no list");
  return -1;
}

// Returns 1; 0 for an output that is not plain; or -1 with an exception.
int AddDims(PyObject* shape, InferDocument* document) {
  const Py_ssize_t dims = ListSize(shape);
  if (dims < 0) return -1;
  for (Py_ssize_t index = 0; index < dims; ++index) {
    const long long dim = PyLong_AsLongLong(PyList_GetItem(shape, index));
    if (dim == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
    document->AddDim(dim);
  }
  return 1;
}

// As AddDims.
int AddToAnswer(const State& state, PyObject* output, Answer* answer) {
  const Ref name = Get(state, output, Attribute::kName), datatype = Get(state, output, Attribute::kDatatype);
  const Ref shape = Get(state, output, Attribute::kShape), data = Get(state, output, Attribute::kData);
  std::string_view name_text, datatype_text;
  if (!TextOf(name.get(), &name_text) || !TextOf(datatype.get(), &datatype_text) || !shape || !data) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  if (!answer->document.BeginOutput(name_text, datatype_text)) return 0;
  const int added = AddDims(shape.get(), &answer->document);
  if (added != 1) return added;
  const View& view = answer->views.emplace_back(data.get());
  if (!view) return -1;
  answer->document.EndOutput(view.bytes().size());
  answer->length += view.bytes().size();
  return PyList_Append(answer->contents.get(), data.get()) < 0 ? -1 : 1;
}

// The head, the document and all contents as one.
PyObject* Join(const std::string& head, const std::string& document, const Answer& answer) {
  Ref whole(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head.size() + answer.length)));
  if (!whole) return nullptr;
  char* at = PyBytes_AsString(whole.get());
  const auto add = [&](std::string_view bytes) {
    std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  };
  add(head);
  add(document);
  for (const View& view : answer.views) add(view.bytes());
  return whole.release();
}

// The parts of a response: one if its body has no more than so many bytes, else the head with the document, and then the
// contents.
PyObject* Parts(const std::string& head, const std::string& document, uint64_t joined_max, const Answer& answer) {
  Ref parts(PyList_New(1));
  if (!parts) return nullptr;
  PyObject* first = answer.length <= joined_max ? Join(head, document, answer) : Bytes(head + document);
  if (first == nullptr) return nullptr;
  PyList_SetItem(parts.get(), 0, first);
  if (answer.length > joined_max && PyList_SetSlice(parts.get(), 1, 1, answer.contents.get()) < 0) return nullptr;
  return parts.release();
}

}  // namespace

PyObject* WriteAnswer(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "write_answer() takes an id, the name of a model, its version, outputs, parameters, "
                                     "headers, and the size of what is joined");
    return nullptr;
  }
  std::string_view id, model;
  const long long version = PyLong_AsLongLong(arguments[2]);
  const unsigned long long joined_max = PyLong_AsUnsignedLongLong(arguments[6]);
  const Py_ssize_t outputs = ListSize(arguments[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!TextOf(arguments[0], &id) || !TextOf(arguments[1], &model)) return NoneIf(PyExc_UnicodeEncodeError);
  const View parameters(arguments[4]), lines(arguments[5]);
  Answer answer;
  if (!parameters || !lines || !answer.contents) return nullptr;
  if (!answer.document.Begin(id, model, version, parameters.bytes())) Py_RETURN_NONE;
  for (Py_ssize_t index = 0; index < outputs; ++index) {
    const int added = AddToAnswer(StateOf(module), PyList_GetItem(arguments[3], index), &answer);
    if (added < 0) return nullptr;
    if (added == 0) Py_RETURN_NONE;
  }
  const std::string& document = answer.document.End();
  answer.length += document.size();
  const size_t lead = outputs == 0 ? 0 : document.size();
  const std::string head = InferHead(lead, answer.length, lines.bytes());
  return Tuple({Parts(head, document, joined_max, answer), PyLong_FromUnsignedLongLong(answer.length),
                PyLong_FromSize_t(lead)});
}

}  // namespace pyruntime
