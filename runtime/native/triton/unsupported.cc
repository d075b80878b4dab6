// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Made by scripts/generate_unsupported: the functions of the C interface that are of no use to backends, but to what is
// not loaded here: programs that have a server inside them, repository agents, caches.

#include <string>

#include "error.h"
#include "triton/core/tritonbackend.h"
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
#include "triton/core/tritonserver.h"

namespace {

TRITONSERVER_Error* NotSupported(const char* function) {
  return pyruntime::NewError(TRITONSERVER_ERROR_UNSUPPORTED, std::string(function) + " is not supported");
}

}  // namespace

TRITONSERVER_Error* TRITONSERVER_InferenceTraceNew(
    TRITONSERVER_InferenceTrace**, TRITONSERVER_InferenceTraceLevel, uint64_t, TRITONSERVER_InferenceTraceActivityFn_t,
    TRITONSERVER_InferenceTraceReleaseFn_t, void*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceTensorNew(
    TRITONSERVER_InferenceTrace**, TRITONSERVER_InferenceTraceLevel, uint64_t, TRITONSERVER_InferenceTraceActivityFn_t,
    TRITONSERVER_InferenceTraceTensorActivityFn_t, TRITONSERVER_InferenceTraceReleaseFn_t, void*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerDelete(TRITONSERVER_Server*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerNew(TRITONSERVER_Server**, TRITONSERVER_ServerOptions*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsAddRateLimiterResource(
    TRITONSERVER_ServerOptions*, const char*, const size_t, const int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsDelete(TRITONSERVER_ServerOptions*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsNew(TRITONSERVER_ServerOptions**) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBackendConfig(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBackendDirectory(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(TRITONSERVER_ServerOptions*, unsigned int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCacheConfig(TRITONSERVER_ServerOptions*, const char*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCacheDirectory(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCpuMetrics(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(TRITONSERVER_ServerOptions*, int, uint64_t) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(TRITONSERVER_ServerOptions*, int, size_t) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetEnablePeerAccess(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetExitOnError(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetExitTimeout(TRITONSERVER_ServerOptions*, unsigned int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetGpuMetrics(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetHostPolicy(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogError(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFile(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFormat(TRITONSERVER_ServerOptions*, const TRITONSERVER_LogFormat) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogInfo(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogVerbose(TRITONSERVER_ServerOptions*, int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogWarn(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetrics(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetricsConfig(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetricsInterval(TRITONSERVER_ServerOptions*, uint64_t) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(TRITONSERVER_ServerOptions*, double) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelConfigName(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelControlMode(
    TRITONSERVER_ServerOptions*, TRITONSERVER_ModelControlMode) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
    TRITONSERVER_ServerOptions*, const TRITONSERVER_InstanceGroupKind, const int, const double) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadRetryCount(TRITONSERVER_ServerOptions*, unsigned int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadThreadCount(TRITONSERVER_ServerOptions*, unsigned int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelNamespacing(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelRepositoryPath(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(TRITONSERVER_ServerOptions*, uint64_t) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetRateLimiterMode(
    TRITONSERVER_ServerOptions*, TRITONSERVER_RateLimitMode) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetRepoAgentDirectory(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetResponseCacheByteSize(TRITONSERVER_ServerOptions*, uint64_t) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetServerId(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStartupModel(TRITONSERVER_ServerOptions*, const char*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStrictModelConfig(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStrictReadiness(TRITONSERVER_ServerOptions*, bool) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerPollModelRepository(TRITONSERVER_Server*) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerSetExitTimeout(TRITONSERVER_Server*, unsigned int) {
  return NotSupported(__func__);
}

TRITONSERVER_Error* TRITONSERVER_ServerStop(TRITONSERVER_Server*) {
  return NotSupported(__func__);
}
