// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Instance

#include <algorithm>
#include <new>
#include <string_view>
#include <system_error>

#include "backend_objects.h"
#include "host.h"

namespace pyruntime {
namespace {

struct InstanceObject {
  PyObject_HEAD
  std::shared_ptr<TRITONBACKEND_ModelInstance> instance;
  PyObject* owner;
};

std::shared_ptr<TRITONBACKEND_ModelInstance>& InstanceOf(PyObject* self) {
  return reinterpret_cast<InstanceObject*>(self)->instance;
}

bool ReadDevices(PyObject* sequence, std::vector<TRITONBACKEND_ModelInstance::SecondaryDevice>* devices) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item) return false;
    PyObject* kind = nullptr;
    long long id = 0;
    if (!PyTuple_Check(item.get())) {
      PyErr_SetString(PyExc_TypeError, "a secondary device is a tuple of its kind and its id");
      return false;
    }
    if (PyArg_ParseTuple(item.get(), "UL", &kind, &id) == 0) return false;
    if (!FromPython(kind, &devices->emplace_back().kind)) return false;
    devices->back().id = id;
  }
  return true;
}

PyObject* InstanceNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"model",    "owner",             "name",        "kind", "device_id", "passive",
                                     "profiles", "secondary_devices", "host_policy", nullptr};
  PyObject *model, *owner, *name, *profiles, *secondary_devices, *host_policy;
  int kind = 0;
  int device_id = 0;
  int passive = 0;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!OUiipOOU:Instance", const_cast<char**>(parameters), Host::Get().model_type, &model,
          &owner, &name, &kind, &device_id, &passive, &profiles, &secondary_devices, &host_policy) == 0) {
    return nullptr;
  }
  auto instance = std::make_shared<TRITONBACKEND_ModelInstance>();
  if (!FromPython(name, &instance->name) || !NamesFromPython(profiles, &instance->profiles) ||
      !ReadDevices(secondary_devices, &instance->secondary_devices) ||
      !FromPython(host_policy, &instance->host_policy.json)) {
    return nullptr;
  }
  instance->model = reinterpret_cast<ModelObject*>(model)->model;
  instance->kind = static_cast<TRITONSERVER_InstanceGroupKind>(kind);
  instance->device_id = device_id;
  instance->passive = passive != 0;
  instance->owner = owner;
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&InstanceOf(self)) std::shared_ptr<TRITONBACKEND_ModelInstance>(std::move(instance));
  reinterpret_cast<InstanceObject*>(self)->owner = Py_NewRef(owner);
  return self;
}

int InstanceTraverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<InstanceObject*>(self)->owner);
  return 0;
}

int InstanceClear(PyObject* self) {
  InstanceOf(self)->owner = nullptr;
  Py_CLEAR(reinterpret_cast<InstanceObject*>(self)->owner);
  return 0;
}

void InstanceDealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  InstanceOf(self)->Abandon();
  InstanceClear(self);
  std::destroy_at(&InstanceOf(self));
  FreeObject(self);
}

PyObject* InstanceInitialize(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  return NoneOrRaise(WithoutGil([&] { return instance.Initialize(); }));
}

PyObject* InstanceFinalize(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  {
    const HoldsGil holds_gil;
    instance.StopWaiting();
  }
  return NoneOrRaise(WithoutGil([&] { return instance.Finalize(); }));
}

PyObject* InstanceIsReady(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  const std::optional<Failure> failure = WithoutGil([&] { return instance.IsReady(); });
  if (!failure) Py_RETURN_NONE;
  return ToPython(failure->message);
}

// Reads a batch; false with a Python exception set, and then no effect.
bool ReadBatch(
    PyObject* jobs, PyObject* wires, uint64_t base, const std::shared_ptr<TRITONBACKEND_Model>& model, Batch* batch) {
  const Py_ssize_t count = PyList_Size(jobs);
  if (count < 0 || PyList_Size(wires) < 0) return false;
  if (count == 0 || PyList_Size(wires) != count) {
    PyErr_SetString(PyExc_ValueError, "a batch is of as many jobs as requests, and of one at least");
    return false;
  }
  batch->requests.reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    std::unique_ptr<TRITONBACKEND_Request> request = ReadRequest(
        PyList_GetItem(jobs, index), PyList_GetItem(wires, index), batch->serial + static_cast<uint64_t>(index),
        static_cast<uintptr_t>(base), model);
    if (request == nullptr) {
      for (const auto& read : batch->requests) read->state->Finish();
      return false;
    }
    batch->requests.push_back(std::move(request));
  }
  return true;
}

PyObject* InstanceExecute(PyObject* self, PyObject* arguments) {
  const HoldsGil holds_gil;
  PyObject *jobs, *wires;
  unsigned long long serial = 0;
  unsigned long long base = 0;
  int wake = 1;
  if (PyArg_ParseTuple(arguments, "OOKK|p:execute", &jobs, &wires, &serial, &base, &wake) == 0) return nullptr;
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  if (!instance.IsInitialized()) {
    Raise({TRITONSERVER_ERROR_UNAVAILABLE, "instance '" + instance.name + "' is not initialized"});
    return nullptr;
  }
  Batch batch{serial, {}};
  if (!ReadBatch(jobs, wires, base, instance.model, &batch)) return nullptr;
  instance.Execute(std::move(batch));
  if (wake != 0) instance.Wake();
  Py_RETURN_NONE;
}

// The rows and the id of the plain request whose body begins at `at`, which is with the backend then. None if it is not
// plain.
PyObject* InstanceExecutePlain(PyObject* self, PyObject* arguments) {
  const HoldsGil holds_gil;
  PyObject *object, *job, *data, *socket;
  Py_ssize_t at = 0, document = 0;
  unsigned long long serial = 0;
  if (PyArg_ParseTuple(
          arguments, "O!OSnnKO:execute_plain", Host::Get().plain_requests_type, &object, &job, &data, &at, &document,
          &serial, &socket) == 0) {
    return nullptr;
  }
  const std::shared_ptr<PlainRequests>& plain = reinterpret_cast<PlainRequestsObject*>(object)->plain;
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  std::string_view body(PyBytes_AsString(data), static_cast<size_t>(PyBytes_Size(data)));
  body.remove_prefix(std::min(body.size(), static_cast<size_t>(at)));
  if (!instance.IsInitialized() || plain->model() != instance.model.get()) Py_RETURN_NONE;
  std::shared_ptr<ClientSocket> client;
  if (Py_TYPE(socket) == Host::Get().client_socket_type) client = reinterpret_cast<ClientSocketObject*>(socket)->client;
  int64_t rows = 0;
  std::unique_ptr<TRITONBACKEND_Request> request =
      plain->Read(body, static_cast<size_t>(document), job, serial, {plain, std::move(client), nullptr}, &rows);
  if (request == nullptr) Py_RETURN_NONE;
  Ref read(Tuple({PyLong_FromLongLong(rows), ToPython(request->state->id())}));
  if (!read) {
    request->state->Finish();
    return nullptr;
  }
  Batch batch{serial, {}};
  batch.requests.push_back(std::move(request));
  instance.Execute(std::move(batch));
  return read.release();
}

// Lends a connection, and passes its request and later ones to the backend. None if the request is not plain.
PyObject* InstanceLend(PyObject* self, PyObject* arguments) {
  const HoldsGil holds_gil;
  PyObject *object, *connection, *data, *socket;
  if (PyArg_ParseTuple(
          arguments, "O!OSO!:lend", Host::Get().plain_requests_type, &object, &connection, &data,
          Host::Get().client_socket_type, &socket) == 0) {
    return nullptr;
  }
  const std::shared_ptr<PlainRequests>& plain = reinterpret_cast<PlainRequestsObject*>(object)->plain;
  TRITONBACKEND_ModelInstance& instance = *InstanceOf(self);
  std::string request(PyBytes_AsString(data), static_cast<size_t>(PyBytes_Size(data)));
  PlacedRequest placed;
  int64_t rows = 0;
  if (!instance.IsInitialized() || plain->model() != instance.model.get() ||
      FindRequest(request, &placed) != Found::kWhole || placed.size != request.size() ||
      plain->Read(
          std::string_view(request).substr(placed.head_size), static_cast<size_t>(placed.head.document_length), nullptr,
          0, {}, &rows) == nullptr) {
    Py_RETURN_NONE;
  }
  LentTerms terms{plain, request.substr(0, request.find('\n') + 1)};
  auto lent = std::make_shared<LentConnection>(
      &instance, std::move(terms), reinterpret_cast<ClientSocketObject*>(socket)->client, connection,
      std::move(request));
  Ref made(NewLentConnection(lent, self));
  if (!made) return nullptr;
  try {
    instance.Read(std::move(lent));
  } catch (const std::system_error&) {  // there are no descriptors left
    Py_RETURN_NONE;
  }
  return made.release();
}

PyObject* InstanceWake(PyObject* self, PyObject* /*unused*/) {
  InstanceOf(self)->Wake();
  Py_RETURN_NONE;
}

bool ReadSerial(PyObject* object, uint64_t* serial) {
  *serial = PyLong_AsUnsignedLongLong(object);
  return *serial != static_cast<uint64_t>(-1) || PyErr_Occurred() == nullptr;
}

PyObject* InstanceCancel(PyObject* self, PyObject* serial) {
  uint64_t number = 0;
  if (!ReadSerial(serial, &number)) return nullptr;
  const HoldsGil holds_gil;
  InstanceOf(self)->Cancel(number);
  Py_RETURN_NONE;
}

PyObject* InstanceTake(PyObject* self, PyObject* serial) {
  uint64_t number = 0;
  if (!ReadSerial(serial, &number)) return nullptr;
  const HoldsGil holds_gil;
  InstanceOf(self)->Take(number);
  Py_RETURN_NONE;
}

PyObject* InstanceClaim(PyObject* self, PyObject* serial) {
  uint64_t number = 0;
  if (!ReadSerial(serial, &number)) return nullptr;
  const HoldsGil holds_gil;
  return PyBool_FromLong(InstanceOf(self)->Claim(number) ? 1 : 0);
}

PyObject* InstanceMemoryUsage(PyObject* self, void* /*closure*/) {
  return ToPython(InstanceOf(self)->memory_usage.Get());
}

PyMethodDef instance_methods[] = {
    {"initialize", Caught<InstanceInitialize>, METH_NOARGS, "Initialise the instance, on its thread. Blocks."},
    {"execute", Caught<InstanceExecute>, METH_VARARGS, "Give the backend a batch."},
    {"execute_plain", Caught<InstanceExecutePlain>, METH_VARARGS, "Give the backend a plain request."},
    {"lend", Caught<InstanceLend>, METH_VARARGS, "Have the instance read a connection by itself."},
    {"wake", Caught<InstanceWake>, METH_NOARGS, "Have the backend begin with what it was given."},
    {"cancel", Caught<InstanceCancel>, METH_O, "Let the backend see that nobody waits for a request."},
    {"take", Caught<InstanceTake>, METH_O, "Let the backend go on: the client has taken a response to a request."},
    {"claim", Caught<InstanceClaim>, METH_O, "Have nobody else answer a plain request."},
    {"is_ready", Caught<InstanceIsReady>, METH_NOARGS, "None if the instance is ready, else why not. Blocks."},
    {"finalize", Caught<InstanceFinalize>, METH_NOARGS, "Finalise the instance, after what it was given. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef instance_getters[] = {
    {"memory_usage", InstanceMemoryUsage, nullptr, "The memory that the instance takes, as its backend says.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot instance_slots[] = {
    {Py_tp_doc, const_cast<char*>("One instance of a model.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<InstanceNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(InstanceDealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(InstanceTraverse)},
    {Py_tp_clear, reinterpret_cast<void*>(InstanceClear)},
    {Py_tp_methods, instance_methods},
    {Py_tp_getset, instance_getters},
    {0, nullptr},
};
PyType_Spec instance_spec = {
    "pyruntime.runtime.native._triton.Instance", sizeof(InstanceObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, instance_slots};

}  // namespace

bool AddInstanceType(PyObject* module) {
  const Ref type(PyType_FromSpec(&instance_spec));
  return type && PyModule_AddObjectRef(module, "Instance", type.get()) == 0;
}

}  // namespace pyruntime
