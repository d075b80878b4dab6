// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.KnownRequest

#include <new>

#include "backend_objects.h"
#include "host.h"
#include "known_request.h"

namespace pyruntime {
namespace {

std::shared_ptr<KnownRequest>& KnownOf(PyObject* self) { return reinterpret_cast<KnownRequestObject*>(self)->known; }

PyObject* KnownNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"model", "document", "size", "wire", nullptr};
  PyObject *model, *document, *wire;
  Py_ssize_t size = 0;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!SnO:KnownRequest", const_cast<char**>(parameters), Host::Get().model_type, &model,
          &document, &size, &wire) == 0) {
    return nullptr;
  }
  if (size < PyBytes_Size(document)) {
    PyErr_SetString(PyExc_ValueError, "a body that is shorter than its document");
    return nullptr;
  }
  const std::shared_ptr<TRITONBACKEND_Model>& owner = reinterpret_cast<ModelObject*>(model)->model;
  std::unique_ptr<TRITONBACKEND_Request> pattern = ReadPattern(wire, *owner);
  if (pattern == nullptr) return nullptr;
  std::string text(PyBytes_AsString(document), static_cast<size_t>(PyBytes_Size(document)));
  auto known = std::make_shared<KnownRequest>(owner, std::move(text), static_cast<size_t>(size), std::move(pattern));
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&KnownOf(self)) std::shared_ptr<KnownRequest>(std::move(known));
  return self;
}

void KnownDealloc(PyObject* self) {
  std::destroy_at(&KnownOf(self));
  FreeObject(self);
}

bool ReadOutput(PyObject* item, TRITONBACKEND_Output* output) {
  PyObject *name, *datatype, *shape;
  unsigned long long size = 0;
  std::string kind;
  if (!PyTuple_Check(item)) {
    PyErr_SetString(PyExc_TypeError, "an output is a tuple of its name, its datatype, its shape and its size");
    return false;
  }
  if (PyArg_ParseTuple(item, "UUOK", &name, &datatype, &shape, &size) == 0) return false;
  if (!FromPython(name, &output->name) || !FromPython(datatype, &kind) || !FromPython(shape, &output->shape)) {
    return false;
  }
  output->datatype = DatatypeOf(kind);
  output->attributes.byte_size = size;
  return true;
}

PyObject* KnownRemember(PyObject* self, PyObject* arguments) {
  PyObject *head, *sequence;
  if (PyArg_ParseTuple(arguments, "SO:remember", &head, &sequence) == 0) return nullptr;
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return nullptr;
  std::vector<TRITONBACKEND_Output> outputs;
  outputs.reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item || !ReadOutput(item.get(), &outputs.emplace_back())) return nullptr;
  }
  KnownOf(self)->Remember(std::make_shared<KnownAnswer>(
      std::string(PyBytes_AsString(head), static_cast<size_t>(PyBytes_Size(head))), std::move(outputs)));
  Py_RETURN_NONE;
}

PyMethodDef known_methods[] = {
    {"remember", Caught<KnownRemember>, METH_VARARGS, "What such requests are answered with, but for contents."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot known_slots[] = {
    {Py_tp_doc, const_cast<char*>("What requests have in common that differ in nothing but their contents.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<KnownNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(KnownDealloc)},
    {Py_tp_methods, known_methods},
    {0, nullptr},
};
PyType_Spec known_spec = {
    "pyruntime.runtime.native._triton.KnownRequest", sizeof(KnownRequestObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, known_slots};

}  // namespace

bool AddKnownRequestType(PyObject* module) {
  Ref type(PyType_FromSpec(&known_spec));
  if (!type || PyModule_AddObjectRef(module, "KnownRequest", type.get()) < 0) return false;
  Host::Get().known_request_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
