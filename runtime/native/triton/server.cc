// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONSERVER_Server*: queries of native code to its server, and InferAsync.

#include "server.h"

#include <utility>

#include "arguments.h"
#include "inference.h"

using pyruntime::Answer;
using pyruntime::Query;
using Server = TRITONSERVER_Server;

// The metrics page at the time of its request.
struct TRITONSERVER_Metrics {
  std::string text;
};

namespace {

using Arguments = std::vector<Query::Argument>;

// Calls Python, and passes the answer, which has this type, to `take`.
template <typename Result, typename Take>
TRITONSERVER_Error* Ask(Server* server, const char* method, Arguments arguments, const Take& take) {
  PYRUNTIME_GUARD({
    Answer answer;
    if (auto failure = server->Ask(std::make_shared<Query>(method, std::move(arguments)), &answer)) {
      return pyruntime::ToError(std::move(failure));
    }
    Result* result = std::get_if<Result>(&answer);
    if (result == nullptr) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INTERNAL, std::string(method) + " was answered with something else");
    }
    take(std::move(*result));
    return nullptr;
  });
}

TRITONSERVER_Error* AskFact(Server* server, const char* method, Arguments arguments, bool* fact) {
  return Ask<bool>(server, method, std::move(arguments), [fact](bool answer) { *fact = answer; });
}

TRITONSERVER_Error* AskFlags(
    Server* server, const char* method, Arguments arguments, uint32_t* flags, void** nothing) {
  if (nothing != nullptr) *nothing = nullptr;
  return Ask<int64_t>(server, method, std::move(arguments), [flags](int64_t answer) {
    *flags = static_cast<uint32_t>(answer);
  });
}

TRITONSERVER_Error* AskMessage(
    Server* server, const char* method, Arguments arguments, TRITONSERVER_Message** message) {
  return Ask<std::string>(server, method, std::move(arguments), [message](std::string json) {
    *message = std::make_unique<TRITONSERVER_Message>(TRITONSERVER_Message{std::move(json)}).release();
  });
}

TRITONSERVER_Error* AskNothing(Server* server, const char* method, Arguments arguments) {
  return Ask<std::monostate>(server, method, std::move(arguments), [](std::monostate) {});
}

// The contents of a request to load a model: its configuration, and files by their names.
TRITONSERVER_Error* ReadParameters(
    const TRITONSERVER_Parameter** parameters, uint64_t count, std::string* config, Query::Files* files) {
  for (uint64_t index = 0; index < count; ++index) {
    const TRITONSERVER_Parameter& parameter = *parameters[index];
    if (const auto* bytes = std::get_if<TRITONSERVER_Parameter::Bytes>(&parameter.value)) {
      files->emplace_back(parameter.name, bytes->data);
    } else if (parameter.name == "config" && parameter.type() == TRITONSERVER_PARAMETER_STRING) {
      *config = std::get<std::string>(parameter.value);
    } else {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG, "Unrecognized load parameter '" + parameter.name + "' of type '" +
                                              TRITONSERVER_ParameterTypeString(parameter.type()) + "'");
    }
  }
  return nullptr;
}

TRITONSERVER_Error* Unsupported(const char* function) {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_UNSUPPORTED,
      std::string(function) + " is not supported: repositories are named when the server starts");
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ServerIsLive(Server* server, bool* live) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(live);
  PYRUNTIME_GUARD({ return AskFact(server, "ServerIsLive", {}, live); });
}

TRITONSERVER_Error* TRITONSERVER_ServerIsReady(Server* server, bool* ready) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(ready);
  PYRUNTIME_GUARD({ return AskFact(server, "ServerIsReady", {}, ready); });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(
    Server* server, const char* model_name, const int64_t model_version, bool* ready) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(ready);
  PYRUNTIME_GUARD({ return AskFact(server, "ServerModelIsReady", {std::string(model_name), model_version}, ready); });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelBatchProperties(
    Server* server, const char* model_name, const int64_t model_version, uint32_t* flags, void** voidp) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(flags);
  PYRUNTIME_GUARD({
    return AskFlags(server, "ServerModelBatchProperties", {std::string(model_name), model_version}, flags, voidp);
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelTransactionProperties(
    Server* server, const char* model_name, const int64_t model_version, uint32_t* txn_flags, void** voidp) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(txn_flags);
  PYRUNTIME_GUARD({
    const Arguments arguments{std::string(model_name), model_version};
    return AskFlags(server, "ServerModelTransactionProperties", arguments, txn_flags, voidp);
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerMetadata(Server* server, TRITONSERVER_Message** server_metadata) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(server_metadata);
  PYRUNTIME_GUARD({ return AskMessage(server, "ServerMetadata", {}, server_metadata); });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelMetadata(
    Server* server, const char* model_name, const int64_t model_version, TRITONSERVER_Message** model_metadata) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(model_metadata);
  PYRUNTIME_GUARD({
    return AskMessage(server, "ServerModelMetadata", {std::string(model_name), model_version}, model_metadata);
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelStatistics(
    Server* server, const char* model_name, const int64_t model_version, TRITONSERVER_Message** model_stats) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(model_stats);
  PYRUNTIME_GUARD({
    return AskMessage(server, "ServerModelStatistics", {std::string(model_name), model_version}, model_stats);
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelConfig(
    Server* server, const char* model_name, const int64_t model_version, const uint32_t config_version,
    TRITONSERVER_Message** model_config) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(model_config);
  const Arguments arguments{std::string(model_name), model_version, static_cast<int64_t>(config_version)};
  PYRUNTIME_GUARD({ return AskMessage(server, "ServerModelConfig", arguments, model_config); });
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIndex(Server* server, uint32_t flags, TRITONSERVER_Message** model_index) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_index);
  const bool ready_only = (flags & TRITONSERVER_INDEX_FLAG_READY) != 0;
  PYRUNTIME_GUARD({ return AskMessage(server, "ServerModelIndex", {ready_only}, model_index); });
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModel(Server* server, const char* model_name) {
  return TRITONSERVER_ServerLoadModelWithParameters(server, model_name, nullptr, 0);
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModelWithParameters(
    Server* server, const char* model_name, const TRITONSERVER_Parameter** parameters, const uint64_t parameter_count) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  if (parameter_count != 0) PYRUNTIME_REQUIRE(parameters);
  PYRUNTIME_GUARD({
    std::string config;
    Query::Files files;
    if (auto* error = ReadParameters(parameters, parameter_count, &config, &files)) return error;
    const Arguments arguments{std::string(model_name), config, files, pyruntime::LoadingModel()};
    return AskNothing(server, "ServerLoadModel", arguments);
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModel(Server* server, const char* model_name) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_GUARD({
    return AskNothing(server, "ServerUnloadModel", {std::string(model_name), false, pyruntime::LoadingModel()});
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModelAndDependents(Server* server, const char* model_name) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_GUARD({
    return AskNothing(server, "ServerUnloadModel", {std::string(model_name), true, pyruntime::LoadingModel()});
  });
}

TRITONSERVER_Error* TRITONSERVER_ServerRegisterModelRepository(
    Server* /*server*/, const char* /*repository_path*/, const TRITONSERVER_Parameter** /*name_mapping*/,
    const uint32_t /*mapping_count*/) {
  return Unsupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerUnregisterModelRepository(Server* /*server*/, const char* /*repository_path*/) {
  return Unsupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerMetrics(Server* server, TRITONSERVER_Metrics** metrics) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(metrics);
  return Ask<std::string>(server, "ServerMetrics", {}, [metrics](std::string text) {
    *metrics = std::make_unique<TRITONSERVER_Metrics>(TRITONSERVER_Metrics{std::move(text)}).release();
  });
}

TRITONSERVER_Error* TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics* metrics) {
  std::unique_ptr<TRITONSERVER_Metrics>{metrics};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricsFormatted(
    TRITONSERVER_Metrics* metrics, TRITONSERVER_MetricFormat format, const char** base, size_t* byte_size) {
  PYRUNTIME_REQUIRE(metrics);
  PYRUNTIME_REQUIRE(base);
  PYRUNTIME_REQUIRE(byte_size);
  if (format != TRITONSERVER_METRIC_PROMETHEUS) {
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INVALID_ARG, "unknown metrics format '" + std::to_string(static_cast<int>(format)) + "'");
  }
  *base = metrics->text.data();
  *byte_size = metrics->text.size();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(
    Server* server, TRITONSERVER_InferenceRequest* inference_request, TRITONSERVER_InferenceTrace* trace) {
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(inference_request);
  if (inference_request->release == nullptr) {
    return pyruntime::InvalidArgument(__func__, "the request has no release callback");
  }
  if (inference_request->target.complete == nullptr) {
    return pyruntime::InvalidArgument(__func__, "the request has no response callback");
  }
  PYRUNTIME_GUARD({
    if (inference_request->under_way.exchange(true)) {
      return pyruntime::InvalidArgument(__func__, "the request was given to the server before, and is not released");
    }
    auto call = std::make_shared<pyruntime::InferCall>(inference_request, trace);
    inference_request->call = call;
    Answer answer;
    std::optional<pyruntime::Failure> failure = call->Fetch();
    if (!failure) failure = server->Ask(call, &answer);
    if (!failure) return nullptr;  // the request is the server's, if it is not released already
    inference_request->under_way = false;
    return pyruntime::ToError(std::move(failure));
  });
}

}  // extern "C"
