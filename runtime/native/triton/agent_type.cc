// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Agent and _triton.AgentModel.

#include <new>

#include "agents.h"
#include "backend_objects.h"
#include "host.h"

namespace pyruntime {
namespace {

using AgentPtr = std::shared_ptr<TRITONREPOAGENT_Agent>;
using AgentModelPtr = std::unique_ptr<TRITONREPOAGENT_AgentModel>;

struct AgentObject {
  PyObject_HEAD
  AgentPtr agent;
};

struct AgentModelObject {
  PyObject_HEAD
  AgentModelPtr model;
};

AgentPtr& AgentOf(PyObject* self) { return reinterpret_cast<AgentObject*>(self)->agent; }
AgentModelPtr& AgentModelOf(PyObject* self) { return reinterpret_cast<AgentModelObject*>(self)->model; }

PyObject* AgentNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"path", nullptr};
  PyObject* path = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O:Agent", const_cast<char**>(names), &path) == 0) {
    return nullptr;
  }
  auto agent = std::make_shared<TRITONREPOAGENT_Agent>();
  if (!PathFromPython(path, &agent->library_path)) return nullptr;
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&AgentOf(self)) AgentPtr(std::move(agent));
  return self;
}

void AgentDealloc(PyObject* self) {
  std::destroy_at(&AgentOf(self));
  FreeObject(self);
}

PyObject* AgentOpen(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&agent = *AgentOf(self)] { return agent.Open(); }));
}

PyObject* AgentInitialize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&agent = *AgentOf(self)] { return agent.Initialize(); }));
}

PyObject* AgentFinalize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&agent = *AgentOf(self)] { return agent.Finalize(); }));
}

// [(name, value)]; false with a Python exception set.
bool ParametersFromPython(PyObject* list, std::vector<std::pair<std::string, std::string>>* parameters) {
  const Py_ssize_t count = PySequence_Size(list);
  if (count < 0) return false;
  parameters->reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref pair(PySequence_GetItem(list, index));
    if (!pair) return false;
    const Ref name(PySequence_GetItem(pair.get(), 0));
    if (!name) return false;
    const Ref value(PySequence_GetItem(pair.get(), 1));
    if (!value) return false;
    auto& parameter = parameters->emplace_back();
    if (!FromPython(name.get(), &parameter.first) || !FromPython(value.get(), &parameter.second)) return false;
  }
  return true;
}

PyObject* AgentModelNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"agent", "location", "config", "parameters", nullptr};
  PyObject *agent, *location, *config, *parameters;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "O!OUO:AgentModel", const_cast<char**>(names), Host::Get().agent_type, &agent,
          &location, &config, &parameters) == 0) {
    return nullptr;
  }
  auto model = std::make_unique<TRITONREPOAGENT_AgentModel>();
  model->agent = AgentOf(agent);
  if (!PathFromPython(location, &model->locations.emplace_back()) || !FromPython(config, &model->config) ||
      !ParametersFromPython(parameters, &model->parameters)) {
    return nullptr;
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&AgentModelOf(self)) AgentModelPtr(std::move(model));
  return self;
}

void AgentModelDealloc(PyObject* self) {
  std::destroy_at(&AgentModelOf(self));
  FreeObject(self);
}

PyObject* AgentModelInitialize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&model = *AgentModelOf(self)] { return model.Initialize(); }));
}

PyObject* AgentModelAct(PyObject* self, PyObject* arguments) {
  int action = 0;
  if (PyArg_ParseTuple(arguments, "i:act", &action) == 0) return nullptr;
  return NoneOrRaise(WithoutGil(
      [&model = *AgentModelOf(self), action] { return model.Act(static_cast<TRITONREPOAGENT_ActionType>(action)); }));
}

PyObject* AgentModelFinalize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&model = *AgentModelOf(self)] { return model.Finalize(); }));
}

PyObject* AgentModelLocation(PyObject* self, void* /*closure*/) {
  const std::string& location = AgentModelOf(self)->locations.back();
  return PyUnicode_DecodeFSDefaultAndSize(location.data(), static_cast<Py_ssize_t>(location.size()));
}

PyMethodDef agent_methods[] = {
    {"open", Caught<AgentOpen>, METH_NOARGS, "Open the library. Blocks."},
    {"initialize", Caught<AgentInitialize>, METH_NOARGS, "Initialise the agent. Blocks."},
    {"finalize", Caught<AgentFinalize>, METH_NOARGS, "Finalise the agent. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot agent_slots[] = {
    {Py_tp_doc, const_cast<char*>("A repository agent's library.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<AgentNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(AgentDealloc)},
    {Py_tp_methods, agent_methods},
    {0, nullptr},
};
PyType_Spec agent_spec = {
    "pyruntime.runtime.native._triton.Agent", sizeof(AgentObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    agent_slots};

PyMethodDef agent_model_methods[] = {
    {"initialize", Caught<AgentModelInitialize>, METH_NOARGS, "Let the agent begin with the model. Blocks."},
    {"act", Caught<AgentModelAct>, METH_VARARGS, "Tell the agent what happens to the model. Blocks."},
    {"finalize", Caught<AgentModelFinalize>, METH_NOARGS, "The agent is done with the model. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef agent_model_getters[] = {
    {"location", AgentModelLocation, nullptr, "The folder of the model, where the agent has put it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot agent_model_slots[] = {
    {Py_tp_doc, const_cast<char*>("A model as a repository agent sees it.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<AgentModelNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(AgentModelDealloc)},
    {Py_tp_methods, agent_model_methods},
    {Py_tp_getset, agent_model_getters},
    {0, nullptr},
};
PyType_Spec agent_model_spec = {
    "pyruntime.runtime.native._triton.AgentModel", sizeof(AgentModelObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, agent_model_slots};

}  // namespace

bool AddAgentTypes(PyObject* module) {
  Ref agent(PyType_FromSpec(&agent_spec));
  Ref model(PyType_FromSpec(&agent_model_spec));
  if (!agent || !model || PyModule_AddObjectRef(module, "Agent", agent.get()) < 0 ||
      PyModule_AddObjectRef(module, "AgentModel", model.get()) < 0) {
    return false;
  }
  Host::Get().agent_type = reinterpret_cast<PyTypeObject*>(agent.release());
  return true;
}

}  // namespace pyruntime
