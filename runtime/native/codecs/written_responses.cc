// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the module that write responses: objects of Python become bytes.

#include "written_responses.h"

#include <string>

#include "infer_response.h"
#include "objects.h"

namespace pyruntime {
namespace {

// Adds an output, its contents to `parts` and their size to `length`. Returns 1; 0 for one that is not plain; or -1 with
// an exception.
int AddOutput(const State& state, PyObject* output, PyObject* parts, uint64_t* length, InferDocument* document) {
  const Ref name(PyObject_GetAttr(output, state.name)), datatype(PyObject_GetAttr(output, state.datatype));
  const Ref shape(PyObject_GetAttr(output, state.shape)), data(PyObject_GetAttr(output, state.data));
  std::string_view name_text, datatype_text;
  if (!TextOf(name.get(), &name_text) || !TextOf(datatype.get(), &datatype_text) || !shape || !data) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  if (!document->BeginOutput(name_text, datatype_text)) return 0;
  const Py_ssize_t dims = PyList_Size(shape.get()), size = PyObject_Size(data.get());
  if (dims < 0 || size < 0) return -1;
  for (Py_ssize_t index = 0; index < dims; ++index) {
    const long long dim = PyLong_AsLongLong(PyList_GetItem(shape.get(), index));
    if (dim == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
    document->AddDim(dim);
  }
  document->EndOutput(static_cast<uint64_t>(size));
  *length += static_cast<uint64_t>(size);
  return PyList_Append(parts, data.get()) < 0 ? -1 : 1;
}

}  // namespace

PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "write_document() takes an id, the name of a model, its version, and outputs");
    return nullptr;
  }
  std::string_view id, model;
  const long long version = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!TextOf(arguments[0], &id) || !TextOf(arguments[1], &model)) return NoneIf(PyExc_UnicodeEncodeError);
  InferDocument document;
  if (!document.Begin(id, model, version)) Py_RETURN_NONE;
  Ref parts(PyList_New(0));
  const Py_ssize_t outputs = PyList_Size(arguments[3]);
  if (!parts || outputs < 0) return nullptr;
  uint64_t length = 0;
  for (Py_ssize_t index = 0; index < outputs; ++index) {
    const int added =
        AddOutput(StateOf(module), PyList_GetItem(arguments[3], index), parts.get(), &length, &document);
    if (added < 0) return nullptr;
    if (added == 0) Py_RETURN_NONE;
  }
  const std::string& text = document.End();
  return Tuple({Bytes(text), parts.release(), PyLong_FromUnsignedLongLong(length + text.size())});
}

}  // namespace pyruntime
