// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Everything to write a backend with, in C++17 and without a library to link: it uses the public C API alone, so what
// is built with it runs wherever that API is served. This is a whole backend:
//
//   #include <pyruntime/backend.hpp>
//
//   namespace {
//
//   class Doubler {
//    public:
//     explicit Doubler(const pyruntime::Model&) {}
//
//     void Execute(pyruntime::Batch& batch) {
//       batch.ForEach([](pyruntime::Request& request) {
//         const auto input = request.Input<float>("INPUT");
//         const auto output = request.Output<float>("OUTPUT", input.shape());
//         for (size_t i = 0; i < input.size(); ++i) {
//           output[i] = 2 * input[i];
//         }
//       });
//     }
//   };
//
//   }  // namespace
//
//   PYRUNTIME_BACKEND(Doubler)

#pragma once

#include <triton/core/tritonbackend.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "batch.hpp"
#include "error.hpp"
#include "json.hpp"
#include "log.hpp"
#include "model.hpp"
#include "request.hpp"
#include "response.hpp"
#include "tensor.hpp"

namespace pyruntime::detail {

// An instance, and the author's object that executes for it.
template <typename Executor>
class BackendInstance {
 public:
  BackendInstance(const Model& model, TRITONBACKEND_ModelInstance* native)
      : model_(model), instance_(native), executor_(Make(model_, instance_)) {}

  void Execute(TRITONBACKEND_Request** requests, uint32_t count) {
    Batch batch(model_, instance_, requests, count);
    try {
      executor_->Execute(batch);
    } catch (...) {
      batch.Fail(CurrentError());
    }
    batch.Complete();
  }

 private:
  static std::unique_ptr<Executor> Make(const Model& model, const Instance& instance) {
    if constexpr (std::is_constructible_v<Executor, const Model&, const Instance&>) {
      return std::make_unique<Executor>(model, instance);
    } else {
      return std::make_unique<Executor>(model);
    }
  }

  const Model& model_;
  const Instance instance_;
  const std::unique_ptr<Executor> executor_;
};

inline TRITONSERVER_Error* Initialize() noexcept {
  return Guarded([] {
    uint32_t major = 0;
    uint32_t minor = 0;
    Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < TRITONBACKEND_API_VERSION_MINOR) {
      throw Error(TRITONSERVER_ERROR_UNSUPPORTED,
                  "the backend needs version " + std::to_string(TRITONBACKEND_API_VERSION_MAJOR) + "." +
                      std::to_string(TRITONBACKEND_API_VERSION_MINOR) + " of the backend API, and the server has " +
                      std::to_string(major) + "." + std::to_string(minor));
    }
  });
}

inline TRITONSERVER_Error* ModelInitialize(TRITONBACKEND_Model* native) noexcept {
  return Guarded([native] {
    auto model = std::make_unique<Model>(native);
    Check(TRITONBACKEND_ModelSetState(native, model.get()));
    model.release();  // ModelFinalize deletes it
  });
}

inline TRITONSERVER_Error* ModelFinalize(TRITONBACKEND_Model* native) noexcept {
  return Guarded([native] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelState(native, &state));
    const std::unique_ptr<Model> model(static_cast<Model*>(state));
    Check(TRITONBACKEND_ModelSetState(native, nullptr));
  });
}

template <typename Executor>
BackendInstance<Executor>* StateOf(TRITONBACKEND_ModelInstance* native) {
  void* state = nullptr;
  Check(TRITONBACKEND_ModelInstanceState(native, &state));
  return static_cast<BackendInstance<Executor>*>(state);
}

template <typename Executor>
TRITONSERVER_Error* ModelInstanceInitialize(TRITONBACKEND_ModelInstance* native) noexcept {
  return Guarded([native] {
    TRITONBACKEND_Model* model = nullptr;
    Check(TRITONBACKEND_ModelInstanceModel(native, &model));
    void* state = nullptr;
    Check(TRITONBACKEND_ModelState(model, &state));
    auto instance = std::make_unique<BackendInstance<Executor>>(*static_cast<Model*>(state), native);
    Check(TRITONBACKEND_ModelInstanceSetState(native, instance.get()));
    instance.release();  // ModelInstanceFinalize deletes it
  });
}

template <typename Executor>
TRITONSERVER_Error* ModelInstanceFinalize(TRITONBACKEND_ModelInstance* native) noexcept {
  return Guarded([native] {
    const std::unique_ptr<BackendInstance<Executor>> instance(StateOf<Executor>(native));
    Check(TRITONBACKEND_ModelInstanceSetState(native, nullptr));
  });
}

template <typename Executor>
TRITONSERVER_Error* ModelInstanceExecute(TRITONBACKEND_ModelInstance* native, TRITONBACKEND_Request** requests,
                                         uint32_t count) noexcept {
  return Guarded([&] { StateOf<Executor>(native)->Execute(requests, count); });
}

}  // namespace pyruntime::detail

// Makes a library the backend whose instances are objects of a class. To be used once, outside of any namespace.
//
// The class has a constructor that takes `const pyruntime::Model&`, or that and `const pyruntime::Instance&`; both live
// as long as the object. Its exceptions fail the load. `void Execute(pyruntime::Batch&)` is called by one thread at a
// time for each object. Its exceptions fail the requests that have not been answered.
#define PYRUNTIME_BACKEND(Executor)                                                                                   \
  extern "C" {                                                                                                        \
  PYRUNTIME_ENTRY TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) { return ::pyruntime::detail::Initialize(); }      \
  PYRUNTIME_ENTRY TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {                                         \
    return ::pyruntime::detail::ModelInitialize(model);                                                               \
  }                                                                                                                   \
  PYRUNTIME_ENTRY TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {                                           \
    return ::pyruntime::detail::ModelFinalize(model);                                                                 \
  }                                                                                                                   \
  PYRUNTIME_ENTRY TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {                      \
    return ::pyruntime::detail::ModelInstanceInitialize<Executor>(instance);                                          \
  }                                                                                                                   \
  PYRUNTIME_ENTRY TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {                        \
    return ::pyruntime::detail::ModelInstanceFinalize<Executor>(instance);                                            \
  }                                                                                                                   \
  PYRUNTIME_ENTRY TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,                           \
                                                     TRITONBACKEND_Request** requests, const uint32_t count) {        \
    return ::pyruntime::detail::ModelInstanceExecute<Executor>(instance, requests, count);                            \
  }                                                                                                                   \
  }

// What the server looks up by name, also in libraries that hide whatever they can.
#define PYRUNTIME_ENTRY __attribute__((visibility("default"))) TRITONSERVER_Error*
