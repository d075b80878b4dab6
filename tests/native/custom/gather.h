/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* What all libraries of version 1 here do with an input: collect its blocks. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "custom.h"

/* The contents of an input, to be freed; NULL if there is no such input, or its size is not `size` (0 for any). */
static inline void* gather(CustomGetNextInputFn_t input_fn, CustomPayload* payload, const char* name, uint64_t* size) {
  char* contents = (char*)malloc(1);
  uint64_t total = 0;
  for (;;) {
    const void* block = NULL;
    uint64_t block_size = *size - total;
    if (!input_fn(payload->input_context, name, &block, &block_size)) break;
    if (block == NULL) {
      if (*size != 0 && total != *size) break;
      *size = total;
      return contents;
    }
    contents = (char*)realloc(contents, total + block_size + 1);
    memcpy(contents + total, block, block_size);
    total += block_size;
  }
  free(contents);
  return NULL;
}
