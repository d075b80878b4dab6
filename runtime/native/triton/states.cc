// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONBACKEND_State*: backends write the states of a sequence. Python keeps the states; it gets an event for each
// update, before the event for the release of the request. A state with use_same_buffer_for_input_output is changed in
// place, as in Triton: with or without an update, until the request is released.

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "arguments.h"
#include "backend.h"
#include "host.h"
#include "python.h"
#include "request.h"

namespace pyruntime {
namespace {

class StateEvent : public Event {
 public:
  // Takes ownership of the contents of the state.
  explicit StateEvent(TRITONBACKEND_State* state)
      : request_(state->request),
        name_(state->name),
        datatype_(state->datatype),
        shape_(state->shape),
        buffer_(std::move(state->buffer)) {}

  PyObject* ToPython() override {
    Ref name(pyruntime::ToPython(name_));
    Ref shape(pyruntime::ToPython(shape_));
    Ref buffer(pyruntime::ToPython(std::move(buffer_)));
    if (!name || !shape || !buffer) return nullptr;
    return Py_BuildValue(
        "(iONsNN)", kState, request_->job(), name.release(), NameOf(datatype_), shape.release(), buffer.release());
  }

 private:
  RequestStatePtr request_;
  std::string name_;
  TRITONSERVER_DataType datatype_;
  Shape shape_;
  Buffer buffer_;
};

TRITONSERVER_Error* Refused(const std::string& name, const std::string& why) {
  return NewError(TRITONSERVER_ERROR_INVALID_ARG, "unable to add state '" + name + "'. " + why);
}

std::string TextOf(const Shape& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool Fits(const Shape& shape, const Shape& wanted) {
  return std::equal(
      shape.begin(), shape.end(), wanted.begin(), wanted.end(),
      [](int64_t size, int64_t dim) { return size >= 0 && (dim == -1 || dim == size); });
}

// Whether the model has such a state. Unlike in Triton, where the next request reads whatever was written, it must be
// as configured.
TRITONSERVER_Error* Check(const TRITONBACKEND_Model& model, const TRITONBACKEND_State& state) {
  if (model.states.empty()) {
    return Refused(state.name, "State configuration is missing for model '" + model.name + "'.");
  }
  const auto spec = std::find_if(
      model.states.begin(), model.states.end(), [&](const StateSpec& each) { return each.name == state.name; });
  if (spec == model.states.end()) {
    return NewError(TRITONSERVER_ERROR_INVALID_ARG, "state '" + state.name + "' is not a valid state name.");
  }
  if (spec->datatype != state.datatype) {
    return Refused(
        state.name, "Its datatype is " + std::string(NameOf(spec->datatype)) + ", got " + NameOf(state.datatype));
  }
  if (!Fits(state.shape, spec->shape)) {
    return Refused(state.name, "Its shape is " + TextOf(spec->shape) + ", got " + TextOf(state.shape));
  }
  return nullptr;
}

// Whether the size of its contents fits its shape.
TRITONSERVER_Error* CheckSize(const TRITONBACKEND_State& state) {
  size_t size = TRITONSERVER_DataTypeByteSize(state.datatype);
  if (size == 0) return nullptr;  // strings
  for (const int64_t dim : state.shape) {
    if (__builtin_mul_overflow(size, dim, &size)) {
      return Refused(state.name, "No memory has the shape " + TextOf(state.shape));
    }
  }
  if (size == state.byte_size()) return nullptr;
  return Refused(state.name, "It has " + std::to_string(size) + " bytes, got " + std::to_string(state.byte_size()));
}

// The input with whose memory a state begins; null if there is none.
const TRITONBACKEND_Input* SharedInput(const TRITONBACKEND_Request& request, const std::string& state_name) {
  for (const StateSpec& spec : request.state->model()->states) {
    if (spec.name != state_name || spec.shared_input.empty()) continue;
    const auto input = std::find_if(request.inputs.begin(), request.inputs.end(), [&](const TRITONBACKEND_Input& each) {
      return each.name == spec.shared_input;
    });
    if (input != request.inputs.end()) return &*input;
  }
  return nullptr;
}

}  // namespace

void PassOnSharedStates(TRITONBACKEND_Request* request) {
  for (TRITONBACKEND_State& state : request->states) {
    if (state.shared == nullptr) continue;
    try {
      state.buffer = Buffer(&Host::Get().buffers(), state.byte_size());
    } catch (const std::bad_alloc&) {
      const std::string message = "no memory for the " + std::to_string(state.byte_size()) + " bytes of state '" +
                                  state.name + "', which stays as it was";
      TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, message.c_str());
      continue;
    }
    std::memcpy(state.buffer.data(), state.shared->data, state.byte_size());
    if (!state.updated) state.shape = state.shared->shape;
    Host::Get().queue().Push(std::make_unique<StateEvent>(&state));
  }
}

}  // namespace pyruntime

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_StateNew(
    TRITONBACKEND_State** state, TRITONBACKEND_Request* request, const char* name, const TRITONSERVER_DataType datatype,
    const int64_t* shape, const uint32_t dims_count) {
  PYRUNTIME_REQUIRE(state);
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(name);
  if (dims_count != 0) PYRUNTIME_REQUIRE(shape);
  PYRUNTIME_GUARD({
    *state = nullptr;
    if (!pyruntime::IsDatatype(datatype)) {
      return pyruntime::InvalidArgument(__func__, std::string("state '") + name + "' has no datatype");
    }
    TRITONBACKEND_State made;
    made.request = request->state;
    made.name = name;
    made.datatype = datatype;
    made.shape.assign(shape, shape + dims_count);
    TRITONSERVER_Error* error = pyruntime::Check(*request->state->model(), made);
    if (error != nullptr) return error;
    made.input = pyruntime::SharedInput(*request, made.name);
    *state = &request->states.emplace_back(std::move(made));
    return nullptr;
  });
}

// Returns the existing buffer if it has this size, and a new one for another size or after an update: the next request
// of the sequence reads the old one.
TRITONSERVER_Error* TRITONBACKEND_StateBuffer(
    TRITONBACKEND_State* state, void** buffer, const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  PYRUNTIME_REQUIRE(state);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_REQUIRE(memory_type);
  PYRUNTIME_REQUIRE(memory_type_id);
  PYRUNTIME_GUARD({
    *buffer = nullptr;
    const bool shares =
        state->input != nullptr && state->input->data != nullptr && state->input->attributes.byte_size == buffer_byte_size;
    state->shared = shares ? state->input : nullptr;
    if (shares) {
      // The memory of an input is that of this request alone.
      *buffer = const_cast<void*>(state->input->data);
      state->attributes.byte_size = buffer_byte_size;
      *memory_type = TRITONSERVER_MEMORY_CPU;
      *memory_type_id = 0;
      return nullptr;
    }
    if (state->buffer.data() == nullptr || state->buffer.size() != buffer_byte_size) {
      try {
        state->buffer = pyruntime::Buffer(&pyruntime::Host::Get().buffers(), buffer_byte_size);
      } catch (const std::bad_alloc&) {
        return pyruntime::NewError(
            TRITONSERVER_ERROR_UNAVAILABLE,
            "no memory for the " + std::to_string(buffer_byte_size) + " bytes of state '" + state->name + "'");
      }
      state->updated = false;
      state->attributes.byte_size = buffer_byte_size;
    }
    *buffer = state->buffer.data();
    *memory_type = TRITONSERVER_MEMORY_CPU;
    *memory_type_id = 0;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_StateBufferAttributes(
    TRITONBACKEND_State* state, TRITONSERVER_BufferAttributes** buffer_attributes) {
  PYRUNTIME_GET(state, buffer_attributes, &state->attributes);
}

// A second update without a new buffer has no effect.
TRITONSERVER_Error* TRITONBACKEND_StateUpdate(TRITONBACKEND_State* state) {
  PYRUNTIME_REQUIRE(state);
  PYRUNTIME_GUARD({
    if (state->updated) return nullptr;
    if (TRITONSERVER_Error* error = pyruntime::CheckSize(*state)) return error;
    state->updated = true;
    if (state->shared != nullptr) return nullptr;  // passed on when the request is released
    pyruntime::Host::Get().queue().Push(std::make_unique<pyruntime::StateEvent>(state));
    return nullptr;
  });
}

}  // extern "C"
