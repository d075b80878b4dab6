// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONBACKEND_Response* and Output*: backends create and send responses.

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.h"
#include "client_socket.h"
#include "backend.h"
#include "host.h"
#include "lent_connection.h"
#include "response.h"
#include "server.h"

namespace pyruntime {
namespace {

TRITONSERVER_Error* AddParameter(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_Parameter::Value value) {
  PYRUNTIME_GUARD({
    response->parameters.push_back({name, std::move(value)});
    return nullptr;
  });
}

// Queues an event unless the request already had its final response.
TRITONSERVER_Error* Send(const RequestStatePtr& state, std::unique_ptr<ResponseEvent> event, bool final) {
  if (final ? !state->Finish() : state->IsFinished()) {
    return NewError(
        TRITONSERVER_ERROR_INVALID_ARG, "model '" + state->model()->name + "' has sent the final response to request '"
                                            + state->id() + "' before: what comes after it is not sent");
  }
  EventQueue& queue = Host::Get().queue();
  ClientSocket* client = final && state->plain() ? state->plain()->client.get() : nullptr;
  if (client != nullptr) {
    const std::lock_guard<std::mutex> lock(client->mutex());
    if (event->ClaimClient()) {
      if (state->lent() != nullptr && state->lent()->Send(&event)) return nullptr;
      // The event comes first: when the client has its response, and sends its next request, Python is to find it there.
      // It stays until Python has had the mutex.
      ResponseEvent& sent = *event;
      queue.Push(std::move(event), state->answer(), kLater);
      if (!sent.SendToClient()) queue.Signal();
      return nullptr;
    }
  }
  queue.Push(std::move(event), final ? state->answer() : nullptr);
  return nullptr;
}

// Whether a model has an output. Readers of a response could not interpret an unknown one.
bool HasOutput(const TRITONBACKEND_Model& model, const char* name) {
  return std::find(model.outputs.begin(), model.outputs.end(), name) != model.outputs.end();
}

// Many backends drop the error, so that nobody would hear of the mistake.
TRITONSERVER_Error* RefuseOutput(TRITONBACKEND_Model* model, const std::string& name) {
  std::string message = "unexpected inference output '" + name + "' for model '" + model->name + "'";
  if (model->IsNewlyRefused(name)) {
    const std::string line = message + ", whose configuration does not declare it: the backend got an error (said once)";
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, __FILE__, __LINE__, line.c_str());
  }
  return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::move(message));
}

// In the process's own memory if it is small, or if there is no room in the shared memory: Python copies it then for
// whoever needs that. Throws std::bad_alloc.
Buffer BufferFor(const TRITONBACKEND_Output& output, size_t size) {
  if (output.shared != nullptr && size >= BufferPool::kKeptBlockBytesMin) {
    try {
      return Buffer(output.shared, size);
    } catch (const std::bad_alloc&) {
    }
  }
  return Buffer(&Host::Get().buffers(), size);
}

// Memory of a GPU, if Python has any. Waits for that.
GpuBlock BlockOnGpu(int64_t gpu, size_t size) {
  const std::vector<Query::Argument> arguments{gpu, static_cast<int64_t>(size)};
  Answer answer;
  if (TRITONSERVER_Server::Get().Ask(std::make_shared<Query>("OutputBuffer", arguments), &answer)) return {};
  auto* const block = std::get_if<GpuBlock>(&answer);
  return block != nullptr ? std::move(*block) : GpuBlock{};
}

void Describe(
    const TRITONBACKEND_Output& output, TRITONSERVER_DataType* datatype, const int64_t** shape, uint64_t* dim_count) {
  *datatype = output.datatype;
  *shape = output.shape.data();
  *dim_count = output.shape.size();
}

}  // namespace
}  // namespace pyruntime

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryNew(
    TRITONBACKEND_ResponseFactory** factory, TRITONBACKEND_Request* request) {
  PYRUNTIME_REQUIRE(factory);
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_GUARD({
    *factory = std::make_unique<TRITONBACKEND_ResponseFactory>(TRITONBACKEND_ResponseFactory{request->state}).release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory* factory) {
  PYRUNTIME_REQUIRE(factory);
  PYRUNTIME_GUARD({
    std::unique_ptr<TRITONBACKEND_ResponseFactory> owned(factory);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactorySendFlags(
    TRITONBACKEND_ResponseFactory* factory, const uint32_t send_flags) {
  PYRUNTIME_REQUIRE(factory);
  PYRUNTIME_GUARD({
    if ((send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) == 0) return nullptr;  // no response, and no news
    auto event = std::make_unique<pyruntime::ResponseEvent>(factory->state, nullptr, std::nullopt, /*final=*/true);
    return pyruntime::Send(factory->state, std::move(event), /*final=*/true);
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryIsCancelled(
    TRITONBACKEND_ResponseFactory* factory, bool* is_cancelled) {
  PYRUNTIME_REQUIRE(factory);
  PYRUNTIME_REQUIRE(is_cancelled);
  *is_cancelled = factory->state->IsCancelled();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<TRITONBACKEND_Response>();
    made->state = request->state;
    *response = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNewFromFactory(
    TRITONBACKEND_Response** response, TRITONBACKEND_ResponseFactory* factory) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(factory);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<TRITONBACKEND_Response>();
    made->state = factory->state;
    *response = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response* response) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_GUARD({
    std::unique_ptr<TRITONBACKEND_Response> owned(response);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetStringParameter(
    TRITONBACKEND_Response* response, const char* name, const char* value) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(value);
  PYRUNTIME_GUARD({ return pyruntime::AddParameter(response, name, std::string(value)); });
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetIntParameter(
    TRITONBACKEND_Response* response, const char* name, const int64_t value) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  return pyruntime::AddParameter(response, name, value);
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetBoolParameter(
    TRITONBACKEND_Response* response, const char* name, const bool value) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  return pyruntime::AddParameter(response, name, value);
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetDoubleParameter(
    TRITONBACKEND_Response* response, const char* name, const double value) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  return pyruntime::AddParameter(response, name, value);
}

TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response* response, TRITONBACKEND_Output** output, const char* name,
    const TRITONSERVER_DataType datatype, const int64_t* shape, const uint32_t dims_count) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(output);
  PYRUNTIME_REQUIRE(name);
  if (dims_count != 0) PYRUNTIME_REQUIRE(shape);
  PYRUNTIME_GUARD({
    *output = nullptr;
    TRITONBACKEND_Model& model = *response->state->model();
    if (!pyruntime::HasOutput(model, name)) return pyruntime::RefuseOutput(&model, name);
    if (!pyruntime::IsDatatype(datatype)) {
      return pyruntime::InvalidArgument(__func__, std::string("output '") + name + "' has no datatype");
    }
    TRITONBACKEND_Output& made = response->outputs.emplace_back();
    made.name = name;
    made.datatype = datatype;
    made.shape.assign(shape, shape + dims_count);
    made.shared = response->state->outputs();
    // Python has no texts on a GPU.
    made.may_be_on_gpu = datatype != TRITONSERVER_TYPE_BYTES && response->state->MayBeOnGpu(made.name);
    *output = &made;
    return nullptr;
  });
}

// Only a GPU is preferred with effect, for an output that may be there. In all other cases the memory is on the host.
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output* output, void** buffer, const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  PYRUNTIME_REQUIRE(output);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_REQUIRE(memory_type);
  PYRUNTIME_REQUIRE(memory_type_id);
  PYRUNTIME_GUARD({
    *buffer = nullptr;
    if (output->attributes.byte_size != 0) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_ALREADY_EXISTS, "allocated buffer for output '" + output->name + "' already exists");
    }
    TRITONSERVER_BufferAttributes* const attributes = &output->attributes;
    if (output->may_be_on_gpu && *memory_type == TRITONSERVER_MEMORY_GPU && buffer_byte_size != 0) {
      output->on_gpu = pyruntime::BlockOnGpu(*memory_type_id, buffer_byte_size);
    }
    if (output->on_gpu.owner) {
      attributes->memory_type = TRITONSERVER_MEMORY_GPU;
      attributes->memory_type_id = *memory_type_id;
      *buffer = output->on_gpu.data;
    } else {
      try {
        output->buffer = pyruntime::BufferFor(*output, buffer_byte_size);
      } catch (const std::bad_alloc&) {
        return pyruntime::NewError(
            TRITONSERVER_ERROR_UNAVAILABLE,
            "no memory for the " + std::to_string(buffer_byte_size) + " bytes of output '" + output->name + "'");
      }
      *buffer = output->buffer.data();
    }
    attributes->byte_size = buffer_byte_size;
    *memory_type = attributes->memory_type;
    *memory_type_id = attributes->memory_type_id;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_OutputBufferAttributes(
    TRITONBACKEND_Output* output, TRITONSERVER_BufferAttributes** buffer_attributes) {
  PYRUNTIME_REQUIRE(output);
  PYRUNTIME_REQUIRE(buffer_attributes);
  *buffer_attributes = &output->attributes;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSend(
    TRITONBACKEND_Response* response, const uint32_t send_flags, TRITONSERVER_Error* error) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_GUARD({
    std::unique_ptr<TRITONBACKEND_Response> owned(response);
    const pyruntime::RequestStatePtr state = owned->state;
    const bool final = (send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    std::optional<pyruntime::Failure> failure;
    if (error != nullptr) {
      // A failed response has no outputs, so their memory is freed early.
      owned.reset();
      failure = pyruntime::Failure{error->code, error->message};
    }
    auto event = std::make_unique<pyruntime::ResponseEvent>(state, std::move(owned), std::move(failure), final);
    if (!final) event->WaitForRoom();
    return pyruntime::Send(state, std::move(event), final);
  });
}

TRITONSERVER_Error* TRITONBACKEND_InferenceResponseOutput(
    TRITONBACKEND_Response* response, const uint32_t index, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint64_t* dim_count) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(datatype);
  PYRUNTIME_REQUIRE(shape);
  PYRUNTIME_REQUIRE(dim_count);
  PYRUNTIME_GUARD({
    uint32_t left = index;
    for (const TRITONBACKEND_Output& output : response->outputs) {
      if (left-- != 0) continue;
      *name = output.name.c_str();
      pyruntime::Describe(output, datatype, shape, dim_count);
      return nullptr;
    }
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index " + std::to_string(index) + ": response has " +
                                            std::to_string(response->outputs.size()) + " outputs");
  });
}

TRITONSERVER_Error* TRITONBACKEND_InferenceResponseOutputByName(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType* datatype, const int64_t** shape,
    uint64_t* dim_count) {
  PYRUNTIME_REQUIRE(response);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(datatype);
  PYRUNTIME_REQUIRE(shape);
  PYRUNTIME_REQUIRE(dim_count);
  PYRUNTIME_GUARD({
    for (const TRITONBACKEND_Output& output : response->outputs) {
      if (output.name != name) continue;
      pyruntime::Describe(output, datatype, shape, dim_count);
      return nullptr;
    }
    return pyruntime::NewError(TRITONSERVER_ERROR_NOT_FOUND, "Output name " + std::string(name) + " not found.");
  });
}

}  // extern "C"
