/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The C interface between the server and a response cache, version 0.1. A cache is a shared library,
 * libtritoncache_<name>.so: it calls what stands in the first part of this file and implements what stands in the last.
 *
 * A function returns NULL on success, else an error that the caller deletes (TRITONSERVER_ErrorDelete).
 */
#ifndef TRITON_CORE_TRITONCACHE_H_
#define TRITON_CORE_TRITONCACHE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DECLSPEC marks what the server implements, ISPEC what the cache implements. */
#if defined(__GNUC__)
#define TRITONCACHE_DECLSPEC __attribute__((__visibility__("default")))
#define TRITONCACHE_ISPEC __attribute__((__visibility__("default")))
#else
#define TRITONCACHE_DECLSPEC
#define TRITONCACHE_ISPEC
#endif

/* A cache is whatever the library makes of it; entries and allocators are the server's. */
typedef struct TRITONCACHE_Cache TRITONCACHE_Cache;
typedef struct TRITONCACHE_CacheEntry TRITONCACHE_CacheEntry;
typedef struct TRITONCACHE_Allocator TRITONCACHE_Allocator;

/* ------------------------------------------------------------------------------------------------------------------
 * Version. A cache loads where the major numbers are equal and the server's minor number is not the lower one.
 */

#define TRITONCACHE_API_VERSION_MAJOR 0
#define TRITONCACHE_API_VERSION_MINOR 1

/* The version that the running server implements. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_ApiVersion(uint32_t* major, uint32_t* minor);

/* ------------------------------------------------------------------------------------------------------------------
 * Entries: what is kept for one key, a row of buffers. The server does not free the buffers of an entry.
 */

/* How many buffers the entry has. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryBufferCount(
    TRITONCACHE_CacheEntry* entry, size_t* count);

/* Adds a buffer at the end. The attributes, which still belong to the caller, must hold its byte size and memory. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryAddBuffer(
    TRITONCACHE_CacheEntry* entry, void* base, TRITONSERVER_BufferAttributes* buffer_attributes);

/* A buffer of the entry. The attributes, which the caller made, are filled in. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryGetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void** base, TRITONSERVER_BufferAttributes* buffer_attributes);

/* Puts another buffer where one is. The attributes still belong to the caller. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntrySetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void* new_base, TRITONSERVER_BufferAttributes* buffer_attributes);

/* Copies between the buffers of the entry and those of the allocator's owner: in a lookup out of the cache, in an
 * insertion into it. The cache must keep its buffers from changing meanwhile. */
TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_Copy(
    TRITONCACHE_Allocator* allocator, TRITONCACHE_CacheEntry* entry);

/* ------------------------------------------------------------------------------------------------------------------
 * The functions that a cache implements, all of them. The server takes over a returned error. Several threads may look
 * up and insert at once.
 */

/* Makes the cache from its settings (JSON), and ends it. */
TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config);
TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache);

/* Adds to the entry the buffers kept for the key, and copies them out (TRITONCACHE_Copy). An error with the code
 * NOT_FOUND if there are none. */
TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator);

/* Keeps the entry's buffers for the key: sets buffers of its own in the entry, and copies into them
 * (TRITONCACHE_Copy). An error with the code ALREADY_EXISTS if the key is there. */
TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator);

#ifdef __cplusplus
}
#endif

#endif  /* TRITON_CORE_TRITONCACHE_H_ */
