/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Does one thing wrong. What that is the macros that it is compiled with say, or the one number that its input IN has.
 *
 * VERSION=n defines CustomVersion; INITIALIZE_ERROR=n is what CustomInitialize returns; NO_CONTEXT leaves its context
 * NULL; FINALIZE_ERROR=n is what CustomFinalize returns; NO_INITIALIZE, NO_FINALIZE, NO_ERROR_STRING and NO_EXECUTE
 * leave out a function, UNRESOLVED calls one that is nowhere, and NEEDS_MORE cannot be loaded without it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "gather.h"

enum {
  kNothingWrong,
  kPayloadError,      /* with words */
  kPayloadWordless,   /* without */
  kExecuteError,
  kCrash,
  kNoOutput,
  kUnknownInput,      /* asks for an input that the request does not have, and returns what comes of it */
  kUnknownOutput,     /* writes an output that the model does not have */
  kWrongSize,         /* and goes on as if it had written it */
  kNegativeShape,
  kNoContext,
  kHugeOutput,
  kOtherThread,       /* executes in another thread than it was initialized in */
  kTwice,             /* writes its output twice */
  kUnresolved,
  kCut,               /* writes to OUT, which has to be of BYTES, what is none */
  kOtherThreadsCall   /* has the callbacks be called by a thread of its own */
};

#ifdef VERSION
uint32_t CustomVersion(void) { return VERSION; }
#endif

#if defined(UNRESOLVED) || defined(NEEDS_MORE)
int function_of_nobody(void);
#endif
#ifdef NEEDS_MORE
int (*needed)(void) = function_of_nobody;
#endif

typedef struct {
  pthread_t thread;
} Instance;

#ifndef INITIALIZE_ERROR
#define INITIALIZE_ERROR 0
#endif
#ifndef FINALIZE_ERROR
#define FINALIZE_ERROR 0
#endif

#ifndef NO_INITIALIZE
int CustomInitialize(const CustomInitializeData* data, void** context) {
  (void)data;
#ifdef NO_CONTEXT
  *context = NULL;
#else
  Instance* instance = (Instance*)malloc(sizeof(Instance));
  instance->thread = pthread_self();
  *context = instance;
#endif
  return INITIALIZE_ERROR;
}
#endif

#ifndef NO_FINALIZE
int CustomFinalize(void* context) {
  int same = pthread_equal(((Instance*)context)->thread, pthread_self());
  printf("finalized by %s\n", same ? "its thread" : "another thread");
  fflush(stdout);
  free(context);
  return FINALIZE_ERROR;
}
#endif

#ifndef NO_ERROR_STRING
const char* CustomErrorString(void* context, int error) {
  if (context == NULL) abort();
  return error == kPayloadWordless ? NULL : "it is the test's fault";
}
#endif

#ifndef NO_EXECUTE
static int write_out(CustomPayload* payload, CustomGetOutputFn_t output_fn, const char* name, int32_t value) {
  int64_t shape[2] = {1, 1};
  void* content = NULL;
  if (!output_fn(payload->output_context, name, 2, shape, sizeof(value), &content)) return kPayloadError;
  if (content != NULL) memcpy(content, &value, sizeof(value));
  return 0;
}

typedef struct {
  CustomPayload* payload;
  CustomGetOutputFn_t output_fn;
  int error;
} Call;

static void* call(void* call_) {
  Call* call = (Call*)call_;
  call->error = write_out(call->payload, call->output_fn, "OUT", 3);
  return NULL;
}

static int execute_one(
    Instance* instance, CustomPayload* payload, CustomGetNextInputFn_t input_fn, CustomGetOutputFn_t output_fn) {
  uint64_t size = sizeof(int32_t);
  int32_t* what = (int32_t*)gather(input_fn, payload, "IN", &size);
  int32_t todo = what == NULL ? kCrash : *what;
  free(what);
  int64_t shape[2] = {1, 1};
  void* content = NULL;
  const void* block = NULL;
  switch (todo) {
    case kPayloadError:
    case kPayloadWordless:
    case kExecuteError:
      return todo;
    case kCrash:
      raise(SIGSEGV);
      return 0;
    case kNoOutput:
      return 0;
    case kUnknownInput:
      return input_fn(payload->input_context, "MISSING", &block, &size) ? 0 : kPayloadError;
    case kUnknownOutput:
      if (!output_fn(payload->output_context, "MISSING", 2, shape, 4, &content)) return kPayloadError;
      if (content != NULL) return kPayloadError;
      return write_out(payload, output_fn, "OUT", todo);
    case kWrongSize:
      output_fn(payload->output_context, "OUT", 2, shape, 3, &content);
      return 0;
    case kNegativeShape:
      shape[1] = -1;
      return output_fn(payload->output_context, "OUT", 2, shape, 4, &content) ? 0 : kPayloadError;
    case kNoContext:
      if (input_fn(NULL, "IN", &block, &size) || output_fn((void*)99, "OUT", 2, shape, 4, &content)) return 0;
      return kPayloadError;
    case kHugeOutput:
      shape[1] = INT64_C(1) << 59;
      return output_fn(payload->output_context, "OUT", 2, shape, UINT64_C(1) << 61, &content) ? 0 : kPayloadError;
    case kOtherThread:
      return pthread_equal(instance->thread, pthread_self()) ? write_out(payload, output_fn, "OUT", 1) : kPayloadError;
    case kTwice:
      return write_out(payload, output_fn, "OUT", 1) | write_out(payload, output_fn, "OUT", 2);
#ifdef UNRESOLVED
    case kUnresolved:
      return function_of_nobody();
#endif
    case kOtherThreadsCall: {
      pthread_t thread;
      Call of = {payload, output_fn, 0};
      pthread_create(&thread, NULL, call, &of);
      pthread_join(thread, NULL);
      return of.error;
    }
    default: /* nothing, and kCut */
      return write_out(payload, output_fn, "OUT", todo == kCut ? 1000 : todo);
  }
}

int CustomExecute(
    void* context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn) {
  for (uint32_t i = 0; i < payload_cnt; ++i) {
    payloads[i].error_code = execute_one((Instance*)context, &payloads[i], input_fn, output_fn);
    if (payloads[i].error_code == kExecuteError) return kExecuteError;
  }
  return 0;
}
#endif
