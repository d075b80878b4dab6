// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.BatchStrategy.

#include <new>

#include "backend_objects.h"
#include "batch_strategy.h"
#include "host.h"

namespace pyruntime {
namespace {

using StrategyPtr = std::unique_ptr<BatchStrategy>;

struct StrategyObject {
  PyObject_HEAD
  StrategyPtr strategy;
};

StrategyPtr& StrategyOf(PyObject* self) { return reinterpret_cast<StrategyObject*>(self)->strategy; }

PyObject* StrategyNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"model", "path", nullptr};
  PyObject *model, *path;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!O:BatchStrategy", const_cast<char**>(names), Host::Get().model_type, &model,
          &path) == 0) {
    return nullptr;
  }
  std::string library;
  if (!PathFromPython(path, &library)) return nullptr;
  auto strategy = std::make_unique<BatchStrategy>(reinterpret_cast<ModelObject*>(model)->model, std::move(library));
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&StrategyOf(self)) StrategyPtr(std::move(strategy));
  return self;
}

void StrategyDealloc(PyObject* self) {
  std::destroy_at(&StrategyOf(self));
  FreeObject(self);
}

PyObject* StrategyOpen(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&strategy = *StrategyOf(self)] { return strategy.Open(); }));
}

PyObject* StrategyInitialize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&strategy = *StrategyOf(self)] { return strategy.Initialize(); }));
}

PyObject* StrategyFinalize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&strategy = *StrategyOf(self)] { return strategy.Finalize(); }));
}

// A call of the library to the server on this thread could not be answered, so it is refused while the GIL is held.
PyObject* StrategyBegin(PyObject* self, PyObject* /*unused*/) {
  const HoldsGil holds_gil;
  return NoneOrRaise(StrategyOf(self)->Begin());
}

PyObject* StrategyEnd(PyObject* self, PyObject* /*unused*/) {
  const HoldsGil holds_gil;
  return NoneOrRaise(StrategyOf(self)->End());
}

PyObject* StrategyInclude(PyObject* self, PyObject* arguments) {
  PyObject* wire = nullptr;
  unsigned long long base = 0;
  if (PyArg_ParseTuple(arguments, "OK:include", &wire, &base) == 0) return nullptr;
  const HoldsGil holds_gil;
  BatchStrategy& strategy = *StrategyOf(self);
  const std::unique_ptr<TRITONBACKEND_Request> request =
      ReadRequest(Py_None, wire, 0, static_cast<uintptr_t>(base), strategy.model());
  if (request == nullptr) return nullptr;
  // It exists for this query only: it gets no answer, and causes no event.
  request->state->Finish();
  bool included = false;
  if (const std::optional<Failure> failure = strategy.Include(request.get(), &included)) {
    Raise(*failure);
    return nullptr;
  }
  return PyBool_FromLong(included ? 1 : 0);
}

PyMethodDef strategy_methods[] = {
    {"open", Caught<StrategyOpen>, METH_NOARGS, "Open the library. Blocks."},
    {"initialize", Caught<StrategyInitialize>, METH_NOARGS, "Begin with the model. Blocks."},
    {"finalize", Caught<StrategyFinalize>, METH_NOARGS, "Be done with the model. Blocks."},
    {"begin", Caught<StrategyBegin>, METH_NOARGS, "Begin a batch."},
    {"include", Caught<StrategyInclude>, METH_VARARGS, "Whether a request is to join the batch."},
    {"end", Caught<StrategyEnd>, METH_NOARGS, "End the batch."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot strategy_slots[] = {
    {Py_tp_doc, const_cast<char*>("A library that says which requests of a model are executed together.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<StrategyNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(StrategyDealloc)},
    {Py_tp_methods, strategy_methods},
    {0, nullptr},
};
PyType_Spec strategy_spec = {
    "pyruntime.runtime.native._triton.BatchStrategy", sizeof(StrategyObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, strategy_slots};

}  // namespace

bool AddBatchStrategyType(PyObject* module) {
  const Ref type(PyType_FromSpec(&strategy_spec));
  return type && PyModule_AddObjectRef(module, "BatchStrategy", type.get()) == 0;
}

}  // namespace pyruntime
