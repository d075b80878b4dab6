// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.PlainRequests

#include <new>
#include <utility>

#include "backend_objects.h"
#include "host.h"
#include "plain_requests.h"

namespace pyruntime {
namespace {

std::shared_ptr<PlainRequests>& PlainOf(PyObject* self) { return reinterpret_cast<PlainRequestsObject*>(self)->plain; }

// Calls `take` with each item of a sequence of tuples, of which there may be as many as kTensorsMax; false with a Python
// exception set.
template <typename Take>
bool ForEachTuple(PyObject* sequence, Take take) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  if (static_cast<size_t>(count) > kTensorsMax) {
    PyErr_Format(PyExc_ValueError, "%zd tensors, expected at most %zu", count, kTensorsMax);
    return false;
  }
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item) return false;
    if (!PyTuple_Check(item.get())) {
      PyErr_SetString(PyExc_TypeError, "a tensor is described by a tuple");
      return false;
    }
    if (!take(item.get())) return false;
  }
  return true;
}

bool IsShort(const Shape& shape) {
  if (shape.size() <= kDimsMax) return true;
  PyErr_Format(PyExc_ValueError, "%zu dimensions, expected at most %zu", shape.size(), kDimsMax);
  return false;
}

bool ReadDeclared(PyObject* item, DeclaredInput* input) {
  PyObject *name, *datatype, *shape;
  long long element_bytes;
  int required;
  if (PyArg_ParseTuple(item, "UULOp", &name, &datatype, &element_bytes, &shape, &required) == 0) return false;
  input->element_bytes = element_bytes;
  input->required = required != 0;
  return FromPython(name, &input->name) && FromPython(datatype, &input->datatype) && FromPython(shape, &input->shape) &&
         IsShort(input->shape);
}

bool ReadDeclared(PyObject* item, DeclaredOutput* output) {
  PyObject *name, *datatype, *shape;
  std::string kind;
  if (PyArg_ParseTuple(item, "UUO", &name, &datatype, &shape) == 0) return false;
  if (!FromPython(name, &output->name) || !FromPython(datatype, &kind) || !FromPython(shape, &output->shape)) {
    return false;
  }
  output->datatype = DatatypeOf(kind);
  return true;
}

PyObject* PlainNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"model", "inputs", "outputs", "max_batch_size", nullptr};
  PyObject *model, *inputs, *outputs;
  long long max_batch_size;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!OOL:PlainRequests", const_cast<char**>(parameters), Host::Get().model_type, &model,
          &inputs, &outputs, &max_batch_size) == 0) {
    return nullptr;
  }
  DeclaredModel declared;
  std::vector<DeclaredOutput> declared_outputs;
  declared.max_batch_size = max_batch_size;
  const bool is_read =
      ForEachTuple(inputs, [&](PyObject* item) { return ReadDeclared(item, &declared.inputs.emplace_back()); }) &&
      ForEachTuple(outputs, [&](PyObject* item) { return ReadDeclared(item, &declared_outputs.emplace_back()); });
  if (!is_read) return nullptr;
  for (const DeclaredOutput& output : declared_outputs) declared.outputs.push_back(output.name);
  auto plain = std::make_shared<PlainRequests>(
      reinterpret_cast<ModelObject*>(model)->model, std::move(declared), std::move(declared_outputs));
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&PlainOf(self)) std::shared_ptr<PlainRequests>(std::move(plain));
  return self;
}

void PlainDealloc(PyObject* self) {
  std::destroy_at(&PlainOf(self));
  FreeObject(self);
}

PyType_Slot plain_slots[] = {
    {Py_tp_doc, const_cast<char*>("What a model declares, by which its plain requests are read.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<PlainNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(PlainDealloc)},
    {0, nullptr},
};
PyType_Spec plain_spec = {
    "pyruntime.runtime.native._triton.PlainRequests", sizeof(PlainRequestsObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, plain_slots};

}  // namespace

bool AddPlainRequestsType(PyObject* module) {
  Ref type(PyType_FromSpec(&plain_spec));
  if (!type || PyModule_AddObjectRef(module, "PlainRequests", type.get()) < 0) return false;
  Host::Get().plain_requests_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
