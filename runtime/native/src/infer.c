/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Splits a small, complete ModelInferRequest: see walk.c for the grammar, and for large ones.
 */
#include "http2.h"

enum { ID = 3, RAW_CONTENTS = 7 };
enum { TYPE_VARINT = 0, TYPE_64_BIT = 1, TYPE_BYTES = 2, TYPE_32_BIT = 5 };
#define DIGITS_MAX 10

/* A field of a message. Only a length-delimited field has a value. */
typedef struct {
    uint64_t number;
    bool is_bytes;
    const uint8_t *start, *value, *end;
} Field;

/* Read a varint. Returns the address after it, or NULL if there is none. */
static const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *number)
{
    int digit;

    *number = 0;
    for (digit = 0; digit < DIGITS_MAX && at < end; digit++, at++) {
        *number |= (uint64_t)(*at & 0x7f) << (7 * digit);
        if (*at < 0x80)
            return at + 1;
    }
    return NULL;
}

/* Read the field at `at`. Returns the address after it, or NULL if there is none. */
static const uint8_t *read_field(const uint8_t *at, const uint8_t *end, Field *field)
{
    uint64_t tag, length;

    field->start = at;
    at = read_varint(at, end, &tag);
    if (at == NULL || tag > UINT32_MAX || tag >> 3 == 0)
        return NULL;
    field->number = tag >> 3;
    field->is_bytes = (tag & 7) == TYPE_BYTES;
    switch (tag & 7) {
    case TYPE_VARINT:
        at = read_varint(at, end, &length);
        length = 0;
        break;
    case TYPE_64_BIT:
        length = 8;
        break;
    case TYPE_BYTES:
        at = read_varint(at, end, &length);
        break;
    case TYPE_32_BIT:
        length = 4;
        break;
    default:
        return NULL;
    }
    if (at == NULL || length > (uint64_t)(end - at))
        return NULL;
    field->value = at;
    field->end = at + length;
    return field->end;
}

/* The next multiple. Cannot overflow, because lengths are of objects in memory. */
static uint64_t aligned(uint64_t offset, uint64_t alignment)
{
    uint64_t over = offset % alignment;
    return over == 0 ? offset : offset + (alignment - over);
}

static PyObject *raw_pair(uint64_t offset, uint64_t length)
{
    return Py_BuildValue("(KK)", (unsigned long long)offset, (unsigned long long)length);
}

PyObject *raws_tuple(const Raw *raws, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count), *pair;
    size_t i;

    for (i = 0; tuple != NULL && i < count; i++) {
        pair = raw_pair(raws[i].offset, raws[i].length);
        if (pair == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, pair) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static int parse_alignment(PyObject *object, uint64_t *alignment)
{
    long value = PyLong_AsLong(object);

    if (value == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (value < 1 || value > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "alignment must be positive, and not huge");
        return -1;
    }
    *alignment = (uint64_t)value;
    return 0;
}

/* Copy the fields of the key, and record the raw contents; the sizes of both are already validated. */
static void gather(const uint8_t *start, const uint8_t *end, char *key, PyObject *raws, bool *failed)
{
    const uint8_t *at = start;
    Py_ssize_t count = 0;
    Field field;

    while (at < end && !*failed) {
        at = read_field(at, end, &field);
        if (field.is_bytes && field.number == RAW_CONTENTS) {
            PyObject *pair = raw_pair((uint64_t)(field.value - start), (uint64_t)(field.end - field.value));
            *failed = pair == NULL || PyTuple_SetItem(raws, count++, pair) < 0;
        } else if (!field.is_bytes || field.number != ID) {
            memcpy(key, field.start, (size_t)(field.end - field.start));
            key += field.end - field.start;
        }
    }
}

PyObject *infer_split(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    const uint8_t *start, *at, *end, *id = NULL;
    size_t key_bytes = 0, id_bytes = 0, raws = 0;
    uint64_t size = 0, alignment;
    PyObject *key, *places;
    bool failed = false;
    char *bytes;
    Py_ssize_t length;
    Field field;

    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "split() needs a message and an alignment");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &length) < 0 || parse_alignment(arguments[1], &alignment) < 0)
        return NULL;
    start = at = (const uint8_t *)bytes;
    end = start + length;
    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL)
            Py_RETURN_NONE;
        if (field.is_bytes && field.number == ID) {
            id = field.value;
            id_bytes = (size_t)(field.end - field.value);
        } else if (field.is_bytes && field.number == RAW_CONTENTS) {
            size = aligned(size, alignment) + (uint64_t)(field.end - field.value);
            if (++raws > RAWS_MAX)
                Py_RETURN_NONE;
        } else {
            key_bytes += (size_t)(field.end - field.start);
        }
    }
    key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)key_bytes);
    places = PyTuple_New((Py_ssize_t)raws);
    if (key != NULL && places != NULL)
        gather(start, end, PyBytes_AsString(key), places, &failed);
    if (key == NULL || places == NULL || failed) {
        Py_XDECREF(key);
        Py_XDECREF(places);
        return NULL;
    }
    return Py_BuildValue("(Ny#NK)", key, id != NULL ? (const char *)id : "", (Py_ssize_t)id_bytes, places,
                         (unsigned long long)size);
}

/* Copy the raw contents; -1 with an exception set if their positions are invalid, or they do not fit. */
static int scatter(const Py_buffer *message, PyObject *raws, const Py_buffer *destination, uint64_t alignment)
{
    Py_ssize_t count = PyTuple_Size(raws), i;
    uint64_t size = (uint64_t)destination->len, end = 0;

    for (i = 0; i < count; i++) {
        Py_ssize_t offset, length;
        if (!PyArg_ParseTuple(PyTuple_GetItem(raws, i), "nn", &offset, &length))
            return -1;
        if (offset < 0 || length < 0 || offset > message->len || length > message->len - offset) {
            PyErr_SetString(PyExc_ValueError, "raw contents do not lie in the message");
            return -1;
        }
        end = aligned(end, alignment);
        if (end > size || (uint64_t)length > size - end) {
            PyErr_SetString(PyExc_ValueError, "the raw contents do not fit");
            return -1;
        }
        if (length > 0)
            memcpy((char *)destination->buf + end, (const char *)message->buf + offset, (size_t)length);
        end += (uint64_t)length;
    }
    return 0;
}

PyObject *infer_scatter(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer message, destination;
    uint64_t alignment;
    int failed;

    (void)module;
    if (count != 4 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "scatter() needs a message, a tuple of its raws, a destination, an alignment");
        return NULL;
    }
    if (parse_alignment(arguments[3], &alignment) < 0 || PyObject_GetBuffer(arguments[0], &message, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[2], &destination, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&message);
        return NULL;
    }
    failed = scatter(&message, arguments[1], &destination, alignment);
    PyBuffer_Release(&destination);
    PyBuffer_Release(&message);
    if (failed < 0)
        return NULL;
    Py_RETURN_NONE;
}
