// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.LentConnection

#include <new>
#include <utility>

#include "backend_objects.h"
#include "host.h"

namespace pyruntime {
namespace {

std::shared_ptr<LentConnection>& LentOf(PyObject* self) { return reinterpret_cast<LentConnectionObject*>(self)->lent; }

void LentDealloc(PyObject* self) {
  const HoldsGil holds_gil;
  PyObject* instance = reinterpret_cast<LentConnectionObject*>(self)->instance;
  std::destroy_at(&LentOf(self));
  FreeObject(self);
  Py_DECREF(instance);
}

PyObject* LentTakeBack(PyObject* self, PyObject* /*unused*/) {
  const HoldsGil holds_gil;
  return LentOf(self)->TakeBack();
}

PyObject* LentBegun(PyObject* self, void* /*closure*/) { return PyLong_FromUnsignedLongLong(LentOf(self)->begun()); }

PyMethodDef lent_methods[] = {
    {"take_back", Caught<LentTakeBack>, METH_NOARGS, "Have it back; what was read of the next request."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef lent_getters[] = {
    {"begun", LentBegun, nullptr, "How many of its requests have begun.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot lent_slots[] = {
    {Py_tp_doc, const_cast<char*>("A connection that an instance reads by itself.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(LentDealloc)},
    {Py_tp_methods, lent_methods},
    {Py_tp_getset, lent_getters},
    {0, nullptr},
};
PyType_Spec lent_spec = {
    "pyruntime.runtime.native._triton.LentConnection", sizeof(LentConnectionObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, lent_slots};

}  // namespace

PyObject* NewLentConnection(std::shared_ptr<LentConnection> lent, PyObject* instance) {
  PyObject* self = PyType_GenericAlloc(Host::Get().lent_connection_type, 0);
  if (self == nullptr) return nullptr;
  new (&LentOf(self)) std::shared_ptr<LentConnection>(std::move(lent));
  reinterpret_cast<LentConnectionObject*>(self)->instance = Py_NewRef(instance);
  return self;
}

bool AddLentConnectionType(PyObject* module) {
  Ref type(PyType_FromSpec(&lent_spec));
  if (!type || PyModule_AddObjectRef(module, "LentConnection", type.get()) < 0) return false;
  Host::Get().lent_connection_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
