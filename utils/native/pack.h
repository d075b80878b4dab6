/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Writes msgpack: what the extensions have in common that make frames of a channel.
 *
 * They keep to the stable ABI of Python 3.8, and to PyUnicode_AsUTF8AndSize, which joined the stable ABI later and has
 * been the same since 3.7. A function returns -1, and NULL if it returns a pointer, with an exception.
 */
#ifndef PYRUNTIME_UTILS_NATIVE_PACK_H
#define PYRUNTIME_UTILS_NATIVE_PACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

extern const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size);

/* Most frames fit here, and need no memory but that of the result. */
#define FIRST_BYTES 2048

typedef struct {
    unsigned char *data;
    size_t size;
    size_t room;
    unsigned char first[FIRST_BYTES];
} Writer;

static inline void begin_writing(Writer *writer)
{
    writer->data = writer->first;
    writer->size = 0;
    writer->room = FIRST_BYTES;
}

/* What was written, or NULL with the exception that there is if `failed`. */
static inline PyObject *end_writing(Writer *writer, int failed)
{
    PyObject *written = NULL;

    if (!failed)
        written = PyBytes_FromStringAndSize((const char *)writer->data, (Py_ssize_t)writer->size);
    if (writer->data != writer->first)
        PyMem_Free(writer->data);
    return written;
}

/* Room for `size` more bytes, which count as written. NULL with an exception if there is no memory. */
static inline unsigned char *extend(Writer *writer, size_t size)
{
    unsigned char *place;

    if (size > writer->room - writer->size) {
        size_t room = 2 * writer->room > writer->size + size ? 2 * writer->room : writer->size + size;
        unsigned char *data = writer->data == writer->first ? PyMem_Malloc(room) : PyMem_Realloc(writer->data, room);

        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (writer->data == writer->first)
            memcpy(data, writer->first, writer->size);
        writer->data = data;
        writer->room = room;
    }
    place = writer->data + writer->size;
    writer->size += size;
    return place;
}

/* One byte, and the lowest `width` bytes of a value, the highest of them first. */
static inline int put_head(Writer *writer, unsigned char tag, uint64_t value, int width)
{
    unsigned char *place = extend(writer, 1 + (size_t)width);
    int i;

    if (place == NULL)
        return -1;
    place[0] = tag;
    for (i = width; i > 0; i--, value >>= 8)
        place[i] = (unsigned char)value;
    return 0;
}

/* The head of what has a length: in the tag up to `fixed`, else in one byte (where `tag8` is not 0), two or four. */
static inline int put_length(Writer *writer, Py_ssize_t length, unsigned char tag, Py_ssize_t fixed, unsigned char tag8,
                      unsigned char tag16)
{
    if (length <= fixed)
        return put_head(writer, (unsigned char)(tag | length), 0, 0);
    if (tag8 != 0 && length <= UINT8_MAX)
        return put_head(writer, tag8, (uint64_t)length, 1);
    if (length <= UINT16_MAX)
        return put_head(writer, tag16, (uint64_t)length, 2);
    if ((uint64_t)length <= UINT32_MAX)
        return put_head(writer, (unsigned char)(tag16 + 1), (uint64_t)length, 4);
    PyErr_SetString(PyExc_ValueError, "more than 2**32 - 1 bytes or elements");
    return -1;
}

static inline int put_raw(Writer *writer, const char *data, Py_ssize_t size)
{
    unsigned char *place = extend(writer, (size_t)size);

    if (place == NULL)
        return -1;
    memcpy(place, data, (size_t)size);
    return 0;
}

static inline int put_text(Writer *writer, PyObject *text)
{
    Py_ssize_t size;
    PyObject *encoded;
    int failed;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);

    if (data != NULL)
        return put_length(writer, size, 0xa0, 31, 0xd9, 0xda) < 0 ? -1 : put_raw(writer, data, size);
    /* A model may put text into a message that UTF-8 cannot encode, such as a lone surrogate in a file name. */
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return -1;
    PyErr_Clear();
    encoded = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (encoded == NULL)
        return -1;
    size = PyBytes_Size(encoded);
    failed = put_length(writer, size, 0xa0, 31, 0xd9, 0xda) < 0 || put_raw(writer, PyBytes_AsString(encoded), size) < 0;
    Py_DECREF(encoded);
    return failed ? -1 : 0;
}

static inline int put_number(Writer *writer, long long value)
{
    if (value >= -32 && value <= INT8_MAX)
        return put_head(writer, (unsigned char)value, 0, 0);
    if (value < 0) {
        if (value >= INT8_MIN)
            return put_head(writer, 0xd0, (uint64_t)value, 1);
        if (value >= INT16_MIN)
            return put_head(writer, 0xd1, (uint64_t)value, 2);
        return value >= INT32_MIN ? put_head(writer, 0xd2, (uint64_t)value, 4)
                                  : put_head(writer, 0xd3, (uint64_t)value, 8);
    }
    if (value <= UINT8_MAX)
        return put_head(writer, 0xcc, (uint64_t)value, 1);
    if (value <= UINT16_MAX)
        return put_head(writer, 0xcd, (uint64_t)value, 2);
    return value <= UINT32_MAX ? put_head(writer, 0xce, (uint64_t)value, 4)
                               : put_head(writer, 0xcf, (uint64_t)value, 8);
}

static inline int put_integer(Writer *writer, PyObject *integer)
{
    int overflow;
    unsigned long long large;
    long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);

    if (overflow != 0) {
        large = PyLong_AsUnsignedLongLong(integer);
        if (large == (unsigned long long)-1 && PyErr_Occurred())
            return -1;
        return put_head(writer, 0xcf, large, 8);
    }
    if (value == -1 && PyErr_Occurred())
        return -1;
    return put_number(writer, value);
}

#endif
