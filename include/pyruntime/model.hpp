// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What a backend is told of the model that it executes, and of the instance.

#pragma once

#include <triton/core/tritonbackend.h>

#include <cstdint>
#include <locale>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>

#include "error.hpp"
#include "json.hpp"

namespace pyruntime {

// One version of a model. There is one object for all its instances, which lives as long as they do; nothing in it
// changes, so that all of them may read it at a time.
class Model {
 public:
  // Reads what there is to know. Throws Error.
  explicit Model(TRITONBACKEND_Model* native) : native_(native) {
    const char* name = nullptr;
    Check(TRITONBACKEND_ModelName(native, &name));
    name_ = name;
    Check(TRITONBACKEND_ModelVersion(native, &version_));
    TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    const char* folder = nullptr;
    Check(TRITONBACKEND_ModelRepository(native, &type, &folder));
    folder_ = folder;
    ReadConfig();
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  TRITONBACKEND_Model* native() const noexcept { return native_; }
  const std::string& name() const noexcept { return name_; }
  uint64_t version() const noexcept { return version_; }
  // The folder of the model, and the one of this version in it, where files of the model are.
  const std::string& folder() const noexcept { return folder_; }
  std::string version_folder() const { return folder_ + "/" + std::to_string(version_); }

  // The configuration: what config.pbtxt says, completed, with the names of its fields.
  const Json& config() const noexcept { return config_; }
  // 0 for a model whose tensors have no dimension for the batch.
  int64_t max_batch_size() const noexcept { return max_batch_size_; }
  // Whether it may answer a request with any number of responses.
  bool decoupled() const noexcept { return decoupled_; }

  // The value of an entry of `parameters` in the configuration. Throws Error if there is none.
  const std::string& Parameter(const std::string& key) const {
    if (const std::string* value = FindParameter(key)) {
      return *value;
    }
    throw InvalidArgument("model '" + name_ + "' needs a parameter '" + key + "' in its configuration");
  }

  // The same as a number, or as a boolean that is written true or false. Throws Error if it is none.
  template <typename T>
  T ParameterAs(const std::string& key) const {
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) > 1 || std::is_same_v<T, bool>), "a number or a boolean");
    std::istringstream stream(Parameter(key));
    stream.imbue(std::locale::classic());
    T value{};
    stream >> std::boolalpha >> value;
    if (stream.fail() || stream.peek() != std::istringstream::traits_type::eof()) {
      throw InvalidArgument("parameter '" + key + "' of model '" + name_ + "' cannot be '" + Parameter(key) + "'");
    }
    return value;
  }

  // As the first, with a value for models that have no such parameter.
  std::string Parameter(const std::string& key, const std::string& otherwise) const {
    const std::string* value = FindParameter(key);
    return value != nullptr ? *value : otherwise;
  }

 private:
  struct MessageDeleter {
    void operator()(TRITONSERVER_Message* message) const noexcept { TRITONSERVER_MessageDelete(message); }
  };

  void ReadConfig() {
    constexpr uint32_t kConfigVersion = 1;
    TRITONSERVER_Message* returned = nullptr;
    Check(TRITONBACKEND_ModelConfig(native_, kConfigVersion, &returned));
    const std::unique_ptr<TRITONSERVER_Message, MessageDeleter> message(returned);
    const char* text = nullptr;
    size_t size = 0;
    Check(TRITONSERVER_MessageSerializeToJson(message.get(), &text, &size));
    config_ = Json::Parse({text, size});
    if (const Json* found = config_.Find("max_batch_size")) {
      max_batch_size_ = found->Int();
    }
    const Json* policy = config_.Find("model_transaction_policy");
    const Json* found = policy != nullptr ? policy->Find("decoupled") : nullptr;
    decoupled_ = found != nullptr && found->Bool();
  }

  const std::string* FindParameter(const std::string& key) const {
    const Json* parameters = config_.Find("parameters");
    const Json* parameter = parameters != nullptr ? parameters->Find(key) : nullptr;
    const Json* value = parameter != nullptr ? parameter->Find("string_value") : nullptr;
    return value != nullptr ? &value->String() : nullptr;
  }

  TRITONBACKEND_Model* native_;
  std::string name_;
  uint64_t version_ = 0;
  std::string folder_;
  Json config_;
  int64_t max_batch_size_ = 0;
  bool decoupled_ = false;
};

// One instance of a model.
class Instance {
 public:
  // Reads what there is to know. Throws Error.
  explicit Instance(TRITONBACKEND_ModelInstance* native) : native_(native) {
    const char* name = nullptr;
    Check(TRITONBACKEND_ModelInstanceName(native, &name));
    name_ = name;
    Check(TRITONBACKEND_ModelInstanceKind(native, &kind_));
    Check(TRITONBACKEND_ModelInstanceDeviceId(native, &device_id_));
  }

  TRITONBACKEND_ModelInstance* native() const noexcept { return native_; }
  const std::string& name() const noexcept { return name_; }
  TRITONSERVER_InstanceGroupKind kind() const noexcept { return kind_; }
  // The GPU's number where the kind is that of GPUs.
  int32_t device_id() const noexcept { return device_id_; }

 private:
  TRITONBACKEND_ModelInstance* native_;
  std::string name_;
  TRITONSERVER_InstanceGroupKind kind_ = TRITONSERVER_INSTANCEGROUPKIND_CPU;
  int32_t device_id_ = 0;
};

}  // namespace pyruntime
