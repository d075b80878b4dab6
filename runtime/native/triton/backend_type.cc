// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Backend, and the common parts of the types of backends, models and instances.

#include <new>

#include "backend_objects.h"
#include "host.h"

namespace pyruntime {

bool PathFromPython(PyObject* object, std::string* path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(object, &bytes) == 0) return false;
  const Ref owned(bytes);
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return false;
  path->assign(data, static_cast<size_t>(size));
  return true;
}

bool NamesFromPython(PyObject* sequence, std::vector<std::string>* names) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  names->clear();
  names->reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref name(PySequence_GetItem(sequence, index));
    if (!name || !FromPython(name.get(), &names->emplace_back())) return false;
  }
  return true;
}

PyObject* ToPython(const std::vector<TRITONSERVER_BufferAttributes>& usage) {
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const TRITONSERVER_BufferAttributes& entry : usage) {
    const Ref item(Py_BuildValue(
        "(iLK)", static_cast<int>(entry.memory_type), static_cast<long long>(entry.memory_type_id),
        static_cast<unsigned long long>(entry.byte_size)));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

namespace {

std::shared_ptr<TRITONBACKEND_Backend>& BackendOf(PyObject* self) {
  return reinterpret_cast<BackendObject*>(self)->backend;
}

PyObject* BackendNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"name", "path", "directory", "config", nullptr};
  PyObject *name, *path, *directory, *config;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "UOOU:Backend", const_cast<char**>(names), &name, &path, &directory, &config) == 0) {
    return nullptr;
  }
  auto backend = std::make_shared<TRITONBACKEND_Backend>();
  if (!FromPython(name, &backend->name) || !PathFromPython(path, &backend->library_path) ||
      !PathFromPython(directory, &backend->directory) || !FromPython(config, &backend->config.json)) {
    return nullptr;
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&BackendOf(self)) std::shared_ptr<TRITONBACKEND_Backend>(std::move(backend));
  return self;
}

void BackendDealloc(PyObject* self) {
  std::destroy_at(&BackendOf(self));
  FreeObject(self);
}

PyObject* BackendOpen(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_Backend& backend = *BackendOf(self);
  return NoneOrRaise(WithoutGil([&] { return backend.Open(); }));
}

PyObject* BackendInitialize(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_Backend& backend = *BackendOf(self);
  return NoneOrRaise(WithoutGil([&] { return backend.Initialize(); }));
}

PyObject* BackendFinalize(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_Backend& backend = *BackendOf(self);
  return NoneOrRaise(WithoutGil([&] { return backend.Finalize(); }));
}

PyObject* BackendPolicy(PyObject* self, void* /*closure*/) { return PyLong_FromLong(BackendOf(self)->policy); }

PyObject* BackendParallelLoading(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(BackendOf(self)->attributes.parallel_loading ? 1 : 0);
}

PyObject* GroupToPython(const TRITONBACKEND_BackendAttribute::Group& group) {
  const Ref devices(ToPython(Shape(group.devices.begin(), group.devices.end())));
  if (!devices) return nullptr;
  return Py_BuildValue(
      "(iKO)", static_cast<int>(group.kind), static_cast<unsigned long long>(group.count), devices.get());
}

PyObject* BackendPreferredGroups(PyObject* self, void* /*closure*/) {
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const TRITONBACKEND_BackendAttribute::Group& group : BackendOf(self)->attributes.preferred_groups) {
    const Ref item(GroupToPython(group));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

PyMethodDef backend_methods[] = {
    {"open", Caught<BackendOpen>, METH_NOARGS, "Open the library. Blocks."},
    {"initialize", Caught<BackendInitialize>, METH_NOARGS, "Initialise the backend. Blocks."},
    {"finalize", Caught<BackendFinalize>, METH_NOARGS, "Finalise the backend. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef backend_getters[] = {
    {"policy", BackendPolicy, nullptr, "0 for blocking, 1 for device-blocking.", nullptr},
    {"preferred_groups", BackendPreferredGroups, nullptr, "The instance groups that models get.", nullptr},
    {"parallel_loading", BackendParallelLoading, nullptr, "Whether instances may be initialised at once.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot backend_slots[] = {
    {Py_tp_doc, const_cast<char*>("A backend's library.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<BackendNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(BackendDealloc)},
    {Py_tp_methods, backend_methods},
    {Py_tp_getset, backend_getters},
    {0, nullptr},
};
PyType_Spec backend_spec = {
    "pyruntime.runtime.native._triton.Backend", sizeof(BackendObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, backend_slots};

}  // namespace

bool AddBackendType(PyObject* module) {
  Ref type(PyType_FromSpec(&backend_spec));
  if (!type || PyModule_AddObjectRef(module, "Backend", type.get()) < 0) return false;
  Host::Get().backend_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
