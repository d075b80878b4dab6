// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The Python module _triton: see ../_triton.pyi.

#include <Python.h>
#include <dlfcn.h>

#include <map>
#include <utility>

#include "backend_objects.h"
#include "host.h"
#include "metrics.h"
#include "python.h"
#include "queue.h"
#include "request_layout.h"

namespace pyruntime {
namespace {

PyObject* Descriptor(PyObject* /*module*/, PyObject* /*unused*/) {
  return PyLong_FromLong(Host::Get().queue().descriptor());
}

PyObject* Drain(PyObject* /*module*/, PyObject* /*unused*/) {
  const HoldsGil holds_gil;
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (std::unique_ptr<Event>& event : Host::Get().queue().TakeAll()) {
    const Ref tuple(event->ToPython());
    if (tuple ? PyList_Append(list.get(), tuple.get()) < 0 : PyErr_Occurred() != nullptr) {
      PyErr_WriteUnraisable(nullptr);
    }
    event = nullptr;  // now, one by one, so that memory of the event is freed early
  }
  return list.release();
}

PyObject* SetLog(PyObject* /*module*/, PyObject* arguments) {
  unsigned levels = 0;
  int verbose = 0;
  if (PyArg_ParseTuple(arguments, "Ii:set_log", &levels, &verbose) == 0) return nullptr;
  Host::Get().log_levels = levels;
  Host::Get().log_verbose = verbose;
  Py_RETURN_NONE;
}

PyObject* SetHurried(PyObject* /*module*/, PyObject* hurried) {
  Host::Get().queue().SetHurried(PyObject_IsTrue(hurried) == 1);
  Py_RETURN_NONE;
}

PyObject* SetResponseWindow(PyObject* /*module*/, PyObject* arguments) {
  Py_ssize_t responses = 0;
  Py_ssize_t bytes = 0;
  if (PyArg_ParseTuple(arguments, "nn:set_response_window", &responses, &bytes) == 0) return nullptr;
  Host::Get().responses_ahead_max = static_cast<size_t>(responses);
  Host::Get().bytes_ahead_max = static_cast<size_t>(bytes);
  Py_RETURN_NONE;
}

bool ReadPools(PyObject* sizes, std::map<int64_t, size_t>* pools) {
  Py_ssize_t position = 0;
  PyObject* device = nullptr;
  PyObject* size = nullptr;
  while (PyDict_Next(sizes, &position, &device, &size) != 0) {
    (*pools)[PyLong_AsLongLong(device)] = PyLong_AsSize_t(size);
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

PyObject* SetMemoryPools(PyObject* /*module*/, PyObject* arguments) {
  Py_ssize_t pinned = 0;
  PyObject* sizes = nullptr;
  std::map<int64_t, size_t> gpus;
  if (PyArg_ParseTuple(arguments, "nO!:set_memory_pools", &pinned, &PyDict_Type, &sizes) == 0) return nullptr;
  if (!ReadPools(sizes, &gpus)) return nullptr;
  Host::Get().pools().SetSizes(static_cast<size_t>(pinned), std::move(gpus));
  Py_RETURN_NONE;
}

PyObject* PinnedMemory(PyObject* /*module*/, PyObject* /*unused*/) {
  const MemoryPools& pools = Host::Get().pools();
  return Py_BuildValue(
      "(nn)", static_cast<Py_ssize_t>(pools.pinned_size()), static_cast<Py_ssize_t>(pools.pinned_used()));
}

PyObject* Metrics(PyObject* /*module*/, PyObject* /*unused*/) { return MetricsToPython(); }

PyMethodDef module_functions[] = {
    {"descriptor", Caught<Descriptor>, METH_NOARGS, "Readable while there are events."},
    {"drain", Caught<Drain>, METH_NOARGS, "All events so far, in order."},
    {"set_hurried", Caught<SetHurried>, METH_O, "Whether the descriptor is to be readable with every event."},
    {"set_log", Caught<SetLog>, METH_VARARGS, "Set which levels native code is to log, and the verbose level."},
    {"set_response_window", Caught<SetResponseWindow>, METH_VARARGS, "Set how far backends may be ahead of a client."},
    {"set_memory_pools", Caught<SetMemoryPools>, METH_VARARGS, "Set the sizes of pools of pinned and GPU memory."},
    {"pinned_memory", Caught<PinnedMemory>, METH_NOARGS, "The size of the pool of pinned memory, and what is in use."},
    {"metrics", Caught<Metrics>, METH_NOARGS, "Families that native code has made."},
    {"view", View, METH_VARARGS, "Native memory, readable."},
    {nullptr, nullptr, 0, nullptr},
};

struct Constant {
  const char* name;
  EventKind kind;
};
constexpr Constant kConstants[] = {
    {"RESPONSE", kResponse},
    {"RELEASED", kReleased},
    {"EXECUTED", kExecuted},
    {"BATCH_STATISTICS", kBatchStatistics},
    {"RESPONSE_STATISTICS", kResponseStatistics},
    {"STATE", kState},
    {"LOG", kLog},
    {"CALL", kCall},
    {"ACTIVITY", kActivity},
    {"ANSWERED", kAnswered},
    {"ENCODED", kEncoded},
    {"SENT", kSent},
    {"RETURNED", kReturned},
    {"COUNTED", kCounted},
    {"EARLIER_RESPONSE", kEarlierResponse},
};

// Python loads its modules for themselves alone. Backends that do not name the library they take their functions from
// find them only among those that are everybody's.
bool Promote() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&Promote), &self) != 0 &&
      dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    return true;
  }
  const char* message = dlerror();
  PyErr_Format(PyExc_ImportError, "unable to show itself to libraries: %s", message == nullptr ? "" : message);
  return false;
}

template <size_t Count>
bool AddNames(PyObject* module, const char* constant, const char* const (&names)[Count]) {
  Ref tuple(PyTuple_New(Count));
  if (!tuple) return false;
  for (size_t index = 0; index < Count; ++index) {
    PyObject* name = PyUnicode_FromString(names[index]);
    if (name == nullptr) return false;
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(index), name);
  }
  return PyModule_AddObjectRef(module, constant, tuple.get()) >= 0;
}

bool AddAll(PyObject* module) {
  for (const Constant& constant : kConstants) {
    if (PyModule_AddIntConstant(module, constant.name, constant.kind) < 0) return false;
  }
  return AddNames(module, "REQUEST_FIELDS", kRequestFields) && AddNames(module, "TENSOR_FIELDS", kTensorFields) &&
         AddNativeError(module) && AddBufferType(module) && AddCallType(module) && AddBackendTypes(module) &&
         AddAgentTypes(module) && AddBatchStrategyType(module) && AddCacheType(module) && AddProcessFunctions(module);
}

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_triton",
    "Native backends in this process.",
    -1,  // there is one for a process, as there is one Host
    module_functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

bool AddBackendTypes(PyObject* module) {
  return AddBackendType(module) && AddModelType(module) && AddPlainRequestsType(module) && AddClientSocketType(module) &&
         AddLentConnectionType(module) && AddOutputRegionType(module) && AddInstanceType(module);
}

}  // namespace pyruntime

PyMODINIT_FUNC PyInit__triton() {
  pyruntime::Ref module(PyModule_Create(&pyruntime::definition));
  if (!module || !pyruntime::Promote() || !pyruntime::AddAll(module.get())) return nullptr;
  return module.release();
}
