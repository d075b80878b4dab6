/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Version 1, without CustomVersion: OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1, all INT32. */
#include <stdio.h>

#include "gather.h"

enum { kSuccess, kInput, kOutput };

int CustomInitialize(const CustomInitializeData* data, void** context) {
  (void)data;
  *context = malloc(1);
  return kSuccess;
}

int CustomFinalize(void* context) {
  free(context);
  return kSuccess;
}

const char* CustomErrorString(void* context, int error) {
  (void)context;
  return error == kInput ? "no such input" : error == kOutput ? "no room for an output" : NULL;
}

static int execute_one(CustomPayload* payload, CustomGetNextInputFn_t input_fn, CustomGetOutputFn_t output_fn) {
  int64_t shape[8] = {payload->batch_size};
  size_t dim_count = payload->input_shape_dim_cnts[0];
  uint64_t count = payload->batch_size;
  for (size_t i = 0; i < dim_count; ++i) {
    shape[i + 1] = payload->input_shape_dims[0][i];
    count *= (uint64_t)shape[i + 1];
  }
  uint64_t size = count * sizeof(int32_t), size1 = size;
  int32_t* left = (int32_t*)gather(input_fn, payload, "INPUT0", &size);
  int32_t* right = (int32_t*)gather(input_fn, payload, "INPUT1", &size1);
  int error = left == NULL || right == NULL ? kInput : kSuccess;
  for (uint32_t i = 0; !error && i < payload->output_cnt; ++i) {
    const char* name = payload->required_output_names[i];
    void* content = NULL;
    if (!output_fn(payload->output_context, name, dim_count + 1, shape, size, &content)) {
      error = kOutput;
    } else if (content != NULL) {
      int sign = strcmp(name, "OUTPUT0") == 0 ? 1 : -1;
      for (uint64_t k = 0; k < count; ++k) ((int32_t*)content)[k] = left[k] + sign * right[k];
    }
  }
  free(left);
  free(right);
  return error;
}

int CustomExecute(
    void* context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn) {
  (void)context;
  printf("add_sub executes %u payloads\n", payload_cnt);
  fflush(stdout);
  for (uint32_t i = 0; i < payload_cnt; ++i) payloads[i].error_code = execute_one(&payloads[i], input_fn, output_fn);
  return kSuccess;
}
