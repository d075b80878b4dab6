/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The inputs of a ModelInferRequest, and the typed contents in them: see contents.c. None of it needs Python's lock.
 */
#ifndef PYRUNTIME_CONTENTS_H
#define PYRUNTIME_CONTENTS_H

#include "wire.h"

/* The members of InferTensorContents are its fields from 1 to this one. */
#define MEMBERS 8

/* The counts of one input. Sizes are in bytes. */
typedef struct {
    const uint8_t *datatype; /* the last one, as on the wire */
    size_t datatype_length;
    bool has_contents;
    uint64_t contents;              /* bytes of the input that are its contents, with their tags and lengths */
    uint64_t fields;                /* fields of the input, however deep, and elements of its shape; without contents */
    uint64_t elements[MEMBERS + 1]; /* of each member of the contents, by its number */
    uint64_t string_bytes;          /* of the elements of bytes_contents */
} Input;

/* Count a parameter, or the entry of a map of parameters: its fields, however deep. -1 if it cannot be parsed. */
int count_parameter(const uint8_t *at, const uint8_t *end, uint64_t *fields);

/* Count an input. -1 if it cannot be parsed. */
int count_input(const uint8_t *at, const uint8_t *end, Input *input);

/* The members that have elements: bit N - 1 stands for field N. */
unsigned int members_of(const Input *input);

/* The number of elements that belong to the input's datatype; and their size as a tensor. */
uint64_t elements_of(const Input *input);
uint64_t packed_size(const Input *input);

/* Write the elements that belong to the input's datatype as a tensor of exactly `size` bytes. Returns 1, 0 if values
 * are out of the range of the datatype, and -1 if their size is another one or they cannot be parsed. */
int pack_input(const uint8_t *at, const uint8_t *end, uint8_t *to, uint64_t size);

#endif
