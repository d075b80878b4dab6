/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Version 1: OUTPUT is the sum of what INPUT was since START, of each sequence by its CORRID. All shapes are [1].
 *
 * Requests that are not READY are padding: nothing comes of them.
 */
#include "gather.h"

enum { kSuccess, kInput, kOutput, kTooMany };
enum { kSequences = 16 };

typedef struct {
  uint64_t id;
  int32_t sum;
} Sequence;

int CustomInitialize(const CustomInitializeData* data, void** context) {
  (void)data;
  *context = calloc(kSequences, sizeof(Sequence));
  return kSuccess;
}

int CustomFinalize(void* context) {
  free(context);
  return kSuccess;
}

const char* CustomErrorString(void* context, int error) {
  (void)context;
  static const char* texts[] = {"", "no such input", "no room for an output", "too many sequences"};
  return error > 0 && error <= kTooMany ? texts[error] : NULL;
}

static int read_input(
    CustomPayload* payload, CustomGetNextInputFn_t input_fn, const char* name, void* to, uint64_t size) {
  void* contents = gather(input_fn, payload, name, &size);
  if (contents == NULL) return kInput;
  memcpy(to, contents, size);
  free(contents);
  return kSuccess;
}

static int execute_one(
    Sequence* sequences, CustomPayload* payload, CustomGetNextInputFn_t input_fn, CustomGetOutputFn_t output_fn) {
  int32_t start = 0, ready = 0, value = 0;
  uint64_t id = 0;
  int error = read_input(payload, input_fn, "READY", &ready, sizeof(ready)) |
              read_input(payload, input_fn, "START", &start, sizeof(start)) |
              read_input(payload, input_fn, "CORRID", &id, sizeof(id)) |
              read_input(payload, input_fn, "INPUT", &value, sizeof(value));
  if (error || !ready) return error;
  Sequence* sequence = sequences;
  while (sequence < sequences + kSequences && sequence->id != 0 && sequence->id != id) ++sequence;
  if (sequence == sequences + kSequences) return kTooMany;
  sequence->id = id;
  sequence->sum = value + (start ? 0 : sequence->sum);
  int64_t shape[2] = {1, 1};
  void* content = NULL;
  if (!output_fn(payload->output_context, "OUTPUT", 2, shape, sizeof(int32_t), &content)) return kOutput;
  if (content != NULL) memcpy(content, &sequence->sum, sizeof(int32_t));
  return kSuccess;
}

int CustomExecute(
    void* context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn) {
  for (uint32_t i = 0; i < payload_cnt; ++i) {
    payloads[i].error_code = execute_one((Sequence*)context, &payloads[i], input_fn, output_fn);
  }
  return kSuccess;
}
