/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* The interface of custom backends: libraries that are a model, for `platform: "custom"`.
 *
 * This is what such libraries were compiled against before there were backends in the sense of tritonbackend.h. Names,
 * values and signatures are those of the releases 19.11 to 21.04, which in version 1 are also those of 19.03 to 19.10.
 * New code is better off with tritonbackend.h; this header is for what exists.
 *
 * A library defines CustomInitialize, CustomFinalize and CustomErrorString; CustomVersion, unless it is of version 1;
 * and CustomExecute in version 1 or CustomExecuteV2 in version 2. One instance of a model is one call of
 * CustomInitialize, and everything of that instance happens in one thread. Functions return 0, or an error code of the
 * library's own that CustomErrorString makes words of.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

/* `gpu_device_id` of an instance that is to run on the CPU. */
#define CUSTOM_NO_GPU_DEVICE -1

/* The number of entries of `server_parameters`. */
#define CUSTOM_SERVER_PARAMETER_CNT 2

/* The positions of the entries of `server_parameters`. */
typedef enum custom_serverparamkind_enum {
  INFERENCE_SERVER_VERSION = 0, /* The server's version. */
  MODEL_REPOSITORY_PATH = 1     /* The folder that the model's folder is in. */
} CustomServerParameter;

/* Where a tensor's memory is. */
typedef enum custommemorytype_enum {
  CUSTOM_MEMORY_CPU = 0,
  CUSTOM_MEMORY_GPU = 1,
  CUSTOM_MEMORY_CPU_PINNED = 2
} CustomMemoryType;

/* The properties of an instance. All memory that it points to is the server's, and lasts as long as the instance. */
typedef struct custom_initdata_struct {
  const char* instance_name;           /* Unique: <group>_<i>_cpu, or <group>_<i>_gpu<device>. */
  const char* serialized_model_config; /* A message inference.ModelConfig; it may contain zeros. */
  size_t serialized_model_config_size; /* Its size in bytes. */
  int gpu_device_id;                   /* CUSTOM_NO_GPU_DEVICE, or the number of a CUDA device. */
  size_t server_parameter_cnt;         /* CUSTOM_SERVER_PARAMETER_CNT, or more in a later server. */
  const char** server_parameters;      /* By CustomServerParameter. */
} CustomInitializeData;

/* One request. Everything it points to is the server's, and lasts until the call that it is given to returns. */
typedef struct custom_payload_struct {
  uint32_t batch_size;                /* 1 or more, 1 also where the model does not batch. */
  uint32_t input_cnt;                 /* The number of inputs that the request has. */
  const char** input_names;           /* Their names. */
  const size_t* input_shape_dim_cnts; /* How many dimensions each has, without that of the batch. */
  const int64_t** input_shape_dims;   /* Those dimensions. */
  uint32_t output_cnt;                /* The number of outputs that are asked for. */
  const char** required_output_names; /* Their names. */
  void* input_context;                /* For the function that gets inputs. */
  void* output_context;               /* For the function that gets outputs. */
  int error_code;                     /* For the library to set, if this request fails and others may not. */
} CustomPayload;

/* Gets the next block of an input, all of which make up its contents in order.
 *
 * Sets `content` and `content_byte_size`, and after the last block to NULL and 0. Returns false if there is no such
 * input. Not to be called by two threads at once.
 */
typedef bool (*CustomGetNextInputFn_t)(
    void* input_context, const char* name, const void** content, uint64_t* content_byte_size);

/* The same in version 2: of memory, in goes what the library prefers, and out comes what it gets. */
typedef bool (*CustomGetNextInputV2Fn_t)(
    void* input_context, const char* name, const void** content, uint64_t* content_byte_size,
    CustomMemoryType* memory_type, int64_t* memory_type_id);

/* Gets the memory that the library writes an output to. The dimensions include that of the batch if the model batches.
 *
 * Sets `content`, which is NULL for an output that nobody asked for. Returns false if there is no memory. Not to be
 * called by two threads at once.
 */
typedef bool (*CustomGetOutputFn_t)(
    void* output_context, const char* name, size_t shape_dim_cnt, int64_t* shape_dims, uint64_t content_byte_size,
    void** content);

/* The same in version 2: of memory, in goes what the library prefers, and out comes what it gets. What is written to a
 * GPU must be complete when CustomExecuteV2 returns.
 */
typedef bool (*CustomGetOutputV2Fn_t)(
    void* output_context, const char* name, size_t shape_dim_cnt, int64_t* shape_dims, uint64_t content_byte_size,
    void** content, CustomMemoryType* memory_type, int64_t* memory_type_id);

/* The types of the functions below, by which a host finds them. */
typedef uint32_t (*CustomVersionFn_t)(void);
typedef int (*CustomInitializeFn_t)(const CustomInitializeData* data, void** custom_context);
typedef int (*CustomFinalizeFn_t)(void* custom_context);
typedef const char* (*CustomErrorStringFn_t)(void* custom_context, int errcode);
typedef int (*CustomExecuteFn_t)(
    void* custom_context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn);
typedef int (*CustomExecuteV2Fn_t)(
    void* custom_context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputV2Fn_t input_fn,
    CustomGetOutputV2Fn_t output_fn);

/* The version of this interface that the library is of: 1 or 2. A library without it is of version 1. */
uint32_t CustomVersion(void);

/* Makes an instance. `custom_context` must not be NULL afterwards: it is what the other functions are given. */
int CustomInitialize(const CustomInitializeData* data, void** custom_context);

/* Ends an instance. */
int CustomFinalize(void* custom_context);

/* An error code in words, which are the library's own; NULL if it has none. */
const char* CustomErrorString(void* custom_context, int errcode);

/* Executes requests. If it fails they all do; `error_code` of a payload is for a failure of that one alone. */
int CustomExecute(
    void* custom_context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputFn_t input_fn,
    CustomGetOutputFn_t output_fn);

/* The same in version 2. */
int CustomExecuteV2(
    void* custom_context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputV2Fn_t input_fn,
    CustomGetOutputV2Fn_t output_fn);

#ifdef __cplusplus
}
#endif
