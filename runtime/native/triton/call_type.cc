// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Call: a call from native code to the server, which Python answers.

#include <Python.h>
#include <structmember.h>

#include <new>
#include <utility>

#include "inference.h"
#include "python.h"
#include "server.h"

namespace pyruntime {
namespace {

struct CallObject {
  PyObject_HEAD
  ServerCallPtr call;
  PyObject* method;
  PyObject* arguments;
};

CallObject* CallOf(PyObject* self) { return reinterpret_cast<CallObject*>(self); }

void CallDealloc(PyObject* self) {
  CallObject* object = CallOf(self);
  if (object->call != nullptr) object->call->Abandon();
  object->call.~ServerCallPtr();
  Py_XDECREF(object->method);
  Py_XDECREF(object->arguments);
  FreeObject(self);
}

bool ReadAnswer(PyObject* object, Answer* answer) {
  if (object == Py_None) return true;
  if (PyBool_Check(object)) {
    *answer = object == Py_True;
  } else if (PyLong_Check(object)) {
    const long long number = PyLong_AsLongLong(object);
    if (number == -1 && PyErr_Occurred() != nullptr) return false;
    *answer = static_cast<int64_t>(number);
  } else if (PyBytes_Check(object)) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0) return false;
    *answer = std::string(data, static_cast<size_t>(size));
  } else if (PyTuple_Check(object)) {
    unsigned long long pointer = 0;
    PyObject* owner = nullptr;
    if (!PyArg_ParseTuple(object, "KO", &pointer, &owner)) return false;
    *answer = GpuBlock{reinterpret_cast<void*>(static_cast<uintptr_t>(pointer)), {Py_NewRef(owner), ReleaseHold}};
  } else {
    PyErr_SetString(PyExc_TypeError, "an answer is None, a boolean, an integer, bytes, or a pointer and its owner");
    return false;
  }
  return true;
}

PyObject* CallAnswer(PyObject* self, PyObject* result) {
  Answer answer;
  if (!ReadAnswer(result, &answer)) return nullptr;
  CallOf(self)->call->Finish(std::move(answer));
  Py_RETURN_NONE;
}

PyObject* CallFail(PyObject* self, PyObject* arguments) {
  int code = 0;
  PyObject* message = nullptr;
  Failure failure;
  if (!PyArg_ParseTuple(arguments, "iU:fail", &code, &message)) return nullptr;
  if (!FromPython(message, &failure.message)) return nullptr;
  failure.code = CodeOf(code);
  CallOf(self)->call->Fail(std::move(failure));
  Py_RETURN_NONE;
}

// Like PyArg_ParseTuple, which treats anything but a tuple as a programming error.
bool RequireTuple(PyObject* object) {
  if (PyTuple_Check(object)) return true;
  PyErr_SetString(PyExc_TypeError, "an output and a failure are tuples");
  return false;
}

bool ReadOutput(PyObject* tensor, HeldBuffers* held, OutputView* output) {
  PyObject* name = nullptr;
  PyObject* datatype = nullptr;
  PyObject* shape = nullptr;
  PyObject* contents = nullptr;
  std::string datatype_name;
  if (!RequireTuple(tensor) || !PyArg_ParseTuple(tensor, "UUOO", &name, &datatype, &shape, &contents) ||
      !FromPython(name, &output->name) || !FromPython(datatype, &datatype_name) ||
      !FromPython(shape, &output->shape)) {
    return false;
  }
  const Py_buffer* view = held->Hold(contents);
  if (view == nullptr) return false;
  output->datatype = DatatypeOf(datatype_name);
  output->data = view->buf;
  output->size = static_cast<size_t>(view->len);
  return true;
}

bool ReadOutputs(PyObject* tensors, Delivery* delivery) {
  if (tensors == Py_None) return true;
  const Py_ssize_t count = PySequence_Size(tensors);
  if (count < 0) return false;
  auto& outputs = delivery->outputs.emplace();
  outputs.resize(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    Ref tensor(PySequence_GetItem(tensors, index));
    if (!tensor || !ReadOutput(tensor.get(), delivery->held.get(), &outputs[static_cast<size_t>(index)])) return false;
  }
  return true;
}

bool ReadParameters(PyObject* values, std::deque<TRITONSERVER_Parameter>* parameters) {
  Py_ssize_t position = 0;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(values, &position, &name, &value) != 0) {
    if (!FromPython(name, value, &parameters->emplace_back())) return false;
  }
  return true;
}

bool ReadFailure(PyObject* object, std::optional<Failure>* failure) {
  if (object == Py_None) return true;
  int code = 0;
  PyObject* message = nullptr;
  if (!RequireTuple(object) || !PyArg_ParseTuple(object, "iU", &code, &message)) return false;
  failure->emplace().code = CodeOf(code);
  return FromPython(message, &(*failure)->message);
}

PyObject* CallRespond(PyObject* self, PyObject* arguments) {
  int final = 0;
  PyObject* outputs = nullptr;
  PyObject* parameters = nullptr;
  PyObject* failure = nullptr;
  PyObject* model = nullptr;
  long long version = 0;
  PyObject* done = nullptr;
  if (!PyArg_ParseTuple(
          arguments, "pOO!OULO:respond", &final, &outputs, &PyDict_Type, &parameters, &failure, &model, &version,
          &done)) {
    return nullptr;
  }
  auto* call = dynamic_cast<InferCall*>(CallOf(self)->call.get());
  if (call == nullptr) {
    PyErr_SetString(PyExc_ValueError, "only requests have responses");
    return nullptr;
  }
  Delivery delivery;
  delivery.final = final != 0;
  delivery.version = version;
  delivery.held = std::make_unique<HeldBuffers>(done);
  if (!ReadOutputs(outputs, &delivery) || !ReadParameters(parameters, &delivery.parameters) ||
      !ReadFailure(failure, &delivery.failure) || !FromPython(model, &delivery.model)) {
    return nullptr;
  }
  call->Respond(std::move(delivery));
  Py_RETURN_NONE;
}

PyObject* AcceptCalls(PyObject* /*module*/, PyObject* accepting) {
  const int yes = PyObject_IsTrue(accepting);
  if (yes < 0) return nullptr;
  TRITONSERVER_Server::Get().Accept(yes != 0);
  Py_RETURN_NONE;
}

PyMethodDef call_methods[] = {
    {"answer", Caught<CallAnswer>, METH_O, "Give the result: what it is depends on the method."},
    {"fail", Caught<CallFail>, METH_VARARGS, "Say why there is none."},
    {"respond", Caught<CallRespond>, METH_VARARGS, "One response to a request that was taken."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef call_members[] = {
    {"method", T_OBJECT_EX, offsetof(CallObject, method), READONLY, "What is wanted."},
    {"arguments", T_OBJECT_EX, offsetof(CallObject, arguments), READONLY, "What belongs to it, a tuple."},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot call_slots[] = {
    {Py_tp_doc, const_cast<char*>("Something that native code wants of the server, and waits for.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(CallDealloc)},
    {Py_tp_methods, call_methods},
    {Py_tp_members, call_members},
    {0, nullptr},
};
PyType_Spec call_spec = {
    "pyruntime.runtime.native._triton.Call", sizeof(CallObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, call_slots};

PyMethodDef call_functions[] = {
    {"accept_calls", Caught<AcceptCalls>, METH_O,
     "Whether calls are answered, as they are at first. If not, those that wait fail, and all to come."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* NewCall(const ServerCallPtr& call) {
  Ref method(ToPython(call->method()));
  Ref arguments(method ? call->Arguments() : nullptr);
  if (!arguments) return nullptr;
  PyObject* self = PyType_GenericAlloc(TRITONSERVER_Server::Get().call_type, 0);
  if (self == nullptr) return nullptr;
  CallObject* object = CallOf(self);
  new (&object->call) ServerCallPtr(call);
  object->method = method.release();
  object->arguments = arguments.release();
  return self;
}

bool AddCallType(PyObject* module) {
  Ref type(PyType_FromSpec(&call_spec));
  if (!type || PyModule_AddObjectRef(module, "Call", type.get()) < 0) return false;
  if (PyModule_AddFunctions(module, call_functions) < 0) return false;
  TRITONSERVER_Server::Get().call_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
