/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Version 1: has no inputs to speak of, and answers with what the instance was told about itself.
 *
 * CONFIG is the serialized configuration, as UINT8; TEXTS, of BYTES, has the instance's name and the server's
 * parameters; NUMBERS, of INT64, has the device and the number of parameters.
 */
#include <stdlib.h>
#include <string.h>

#include "custom.h"

int CustomInitialize(const CustomInitializeData* data, void** context) {
  *context = (void*)data; /* it lasts as long as the instance */
  return 0;
}

int CustomFinalize(void* context) {
  (void)context;
  return 0;
}

const char* CustomErrorString(void* context, int error) {
  (void)context;
  (void)error;
  return NULL;
}

static char* append(char* at, const char* text) {
  uint32_t size = (uint32_t)strlen(text);
  memcpy(at, &size, sizeof(size));
  memcpy(at + sizeof(size), text, size);
  return at + sizeof(size) + size;
}

static int put(
    CustomPayload* payload, CustomGetOutputFn_t output_fn, const char* name, int64_t count, const void* from,
    uint64_t size) {
  void* content = NULL;
  if (!output_fn(payload->output_context, name, 1, &count, size, &content)) return 1;
  if (content != NULL) memcpy(content, from, size);
  return 0;
}

static int execute_one(const CustomInitializeData* data, CustomPayload* payload, CustomGetOutputFn_t output_fn) {
  size_t room = 4 + strlen(data->instance_name);
  for (size_t i = 0; i < data->server_parameter_cnt; ++i) room += 4 + strlen(data->server_parameters[i]);
  char* texts = (char*)malloc(room);
  char* end = append(texts, data->instance_name);
  for (size_t i = 0; i < data->server_parameter_cnt; ++i) end = append(end, data->server_parameters[i]);
  int64_t numbers[2] = {data->gpu_device_id, (int64_t)data->server_parameter_cnt};
  int64_t config_size = (int64_t)data->serialized_model_config_size;
  int error = put(payload, output_fn, "CONFIG", config_size, data->serialized_model_config, (uint64_t)config_size) |
              put(payload, output_fn, "TEXTS", 1 + numbers[1], texts, (uint64_t)(end - texts)) |
              put(payload, output_fn, "NUMBERS", 2, numbers, sizeof(numbers));
  free(texts);
  return error;
}

int CustomExecute(
    void* context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn) {
  (void)input_fn;
  for (uint32_t i = 0; i < payload_cnt; ++i) {
    payloads[i].error_code = execute_one((const CustomInitializeData*)context, &payloads[i], output_fn);
  }
  return 0;
}
