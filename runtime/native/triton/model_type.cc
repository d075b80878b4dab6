// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Model

#include <new>
#include <utility>

#include "backend_objects.h"
#include "host.h"

namespace pyruntime {
namespace {

std::shared_ptr<TRITONBACKEND_Model>& ModelOf(PyObject* self) { return reinterpret_cast<ModelObject*>(self)->model; }

// The parts of a model's configuration that the extension uses.
struct Facts {
  int decoupled = 0;
  int iterative = 0;
  PyObject* outputs = nullptr;
  PyObject* states = nullptr;
};

bool ReadStates(PyObject* sequence, std::vector<StateSpec>* states) {
  states->clear();
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item) return false;
    PyObject *name, *datatype, *shape, *shared_input;
    if (!PyTuple_Check(item.get())) {
      PyErr_SetString(PyExc_TypeError, "a state is a tuple of its name, its datatype, its shape and its shared input");
      return false;
    }
    if (PyArg_ParseTuple(item.get(), "UUOU", &name, &datatype, &shape, &shared_input) == 0) return false;
    StateSpec& state = states->emplace_back();
    std::string kind;
    if (!FromPython(name, &state.name) || !FromPython(datatype, &kind) || !FromPython(shape, &state.shape) ||
        !FromPython(shared_input, &state.shared_input)) {
      return false;
    }
    state.datatype = DatatypeOf(kind);
  }
  return true;
}

bool ReadFacts(const Facts& facts, TRITONBACKEND_Model* model) {
  model->decoupled = facts.decoupled != 0;
  model->iterative = facts.iterative != 0;
  return NamesFromPython(facts.outputs, &model->outputs) &&
         (facts.states == nullptr || ReadStates(facts.states, &model->states));
}

PyObject* ModelNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"backend",       "name",      "version", "folder",    "config",
                                     "auto_complete", "decoupled", "outputs", "iterative", "states", nullptr};
  PyObject *backend, *name, *folder, *config;
  unsigned long long version = 0;
  int auto_complete = 0;
  Facts facts;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!UKOUppO|pO:Model", const_cast<char**>(parameters), Host::Get().backend_type, &backend,
          &name, &version, &folder, &config, &auto_complete, &facts.decoupled, &facts.outputs, &facts.iterative,
          &facts.states) == 0) {
    return nullptr;
  }
  auto model = std::make_shared<TRITONBACKEND_Model>();
  std::string json;
  if (!FromPython(name, &model->name) || !PathFromPython(folder, &model->repository) || !FromPython(config, &json) ||
      !ReadFacts(facts, model.get())) {
    return nullptr;
  }
  model->backend = reinterpret_cast<BackendObject*>(backend)->backend;
  model->version = version;
  model->auto_complete = auto_complete != 0;
  model->SetConfig(std::move(json));
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&ModelOf(self)) std::shared_ptr<TRITONBACKEND_Model>(std::move(model));
  return self;
}

// Like an instance, a model that was not finalised stays, because its backend may use it for ever: this reference to it
// is never given up.
void ModelDealloc(PyObject* self) {
  if (ModelOf(self)->phase != Phase::kInitialized) std::destroy_at(&ModelOf(self));
  FreeObject(self);
}

// What `complete` makes of a configuration that the backend sets. Any thread, without the GIL.
std::optional<Failure> Complete(PyObject* complete, std::string* config) {
  const PyGILState_STATE state = PyGILState_Ensure();
  std::optional<Failure> failure;
  {
    const HoldsGil holds_gil;
    const Ref text(ToPython(*config));
    const Ref result(text ? PyObject_CallFunctionObjArgs(complete, text.get(), nullptr) : nullptr);
    int code = 0;
    const char* message = nullptr;
    if (result && PyTuple_Check(result.get()) && PyArg_ParseTuple(result.get(), "is", &code, &message) != 0) {
      failure = Failure{static_cast<TRITONSERVER_Error_Code>(code), message};
    } else if (!result || PyErr_Occurred() != nullptr || !FromPython(result.get(), config)) {
      PyErr_WriteUnraisable(complete);
      failure = Failure{TRITONSERVER_ERROR_INTERNAL, "the configuration cannot be completed: see the server's log"};
    }
  }
  PyGILState_Release(state);
  return failure;
}

PyObject* ModelInitialize(PyObject* self, PyObject* arguments) {
  PyObject* complete = Py_None;
  if (PyArg_ParseTuple(arguments, "|O:initialize", &complete) == 0) return nullptr;
  TRITONBACKEND_Model& model = *ModelOf(self);
  TRITONBACKEND_Model::Complete function;
  if (complete != Py_None) {
    function = [complete](std::string* config) { return Complete(complete, config); };
  }
  return NoneOrRaise(WithoutGil([&] { return model.Initialize(std::move(function)); }));
}

PyObject* ModelFinalize(PyObject* self, PyObject* /*unused*/) {
  TRITONBACKEND_Model& model = *ModelOf(self);
  return NoneOrRaise(WithoutGil([&] { return model.Finalize(); }));
}

PyObject* ModelConfigure(PyObject* self, PyObject* arguments) {
  PyObject* config;
  Facts facts;
  if (PyArg_ParseTuple(
          arguments, "UpO|pO:configure", &config, &facts.decoupled, &facts.outputs, &facts.iterative,
          &facts.states) == 0) {
    return nullptr;
  }
  TRITONBACKEND_Model& model = *ModelOf(self);
  std::string json;
  if (!FromPython(config, &json) || !ReadFacts(facts, &model)) return nullptr;
  model.SetConfig(std::move(json));
  Py_RETURN_NONE;
}

PyObject* ModelSetConfig(PyObject* self, PyObject* text) {
  std::string json;
  if (!FromPython(text, &json)) return nullptr;
  ModelOf(self)->SetConfig(std::move(json));
  Py_RETURN_NONE;
}

PyObject* ModelMemoryUsage(PyObject* self, void* /*closure*/) { return ToPython(ModelOf(self)->memory_usage.Get()); }

PyMethodDef model_methods[] = {
    {"initialize", Caught<ModelInitialize>, METH_VARARGS, "Initialise the model. Blocks."},
    {"finalize", Caught<ModelFinalize>, METH_NOARGS, "Finalise the model. Blocks."},
    {"configure", Caught<ModelConfigure>, METH_VARARGS, "Set the final configuration, before instances execute."},
    {"set_config", Caught<ModelSetConfig>, METH_O, "Replace the text of the configuration while instances execute."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef model_getters[] = {
    {"memory_usage", ModelMemoryUsage, nullptr, "The memory that the model takes, as its backend says.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot model_slots[] = {
    {Py_tp_doc, const_cast<char*>("One version of one model.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<ModelNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(ModelDealloc)},
    {Py_tp_methods, model_methods},
    {Py_tp_getset, model_getters},
    {0, nullptr},
};
PyType_Spec model_spec = {
    "pyruntime.runtime.native._triton.Model", sizeof(ModelObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    model_slots};

}  // namespace

bool AddModelType(PyObject* module) {
  Ref type(PyType_FromSpec(&model_spec));
  if (!type || PyModule_AddObjectRef(module, "Model", type.get()) < 0) return false;
  Host::Get().model_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
