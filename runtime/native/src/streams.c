/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Creates and frees streams and the objects that they own.
 */
#include "http2.h"

/* The first allocation of a growing buffer. */
#define BYTES_FIRST 256

int bytes_add(Bytes *bytes, const void *more, size_t length)
{
    if (length > bytes->capacity - bytes->length) {
        size_t needed = bytes->length + length, capacity = bytes->capacity * 2;
        char *moved;
        if (needed < length || needed > PY_SSIZE_T_MAX) {
            PyErr_NoMemory();
            return -1;
        }
        if (capacity < needed)
            capacity = needed;
        if (capacity < BYTES_FIRST)
            capacity = BYTES_FIRST;
        moved = PyMem_Realloc(bytes->bytes, capacity);
        if (moved == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        bytes->bytes = moved;
        bytes->capacity = capacity;
    }
    if (length > 0)
        memcpy(bytes->bytes + bytes->length, more, length);
    bytes->length += length;
    return 0;
}

void bytes_free(Bytes *bytes)
{
    PyMem_Free(bytes->bytes);
    memset(bytes, 0, sizeof(*bytes));
}

Stream *stream_open(Session *self, int32_t id)
{
    Stream *stream = PyMem_Calloc(1, sizeof(*stream));
    if (stream == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    stream->id = id;
    stream->limit = self->message_bytes;
    stream->announced_length = LENGTH_NONE;
    stream->next = self->streams;
    if (stream->next != NULL)
        stream->next->previous = stream;
    self->streams = stream;
    self->open_streams++;
    return stream;
}

/* Find a stream by its id; NULL if there is none, or with an exception set if the id is not an integer. */
Stream *stream_find(Session *self, PyObject *id)
{
    long number = PyLong_AsLong(id);
    Stream *stream;

    if (number == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Clear();
        return NULL;
    }
    if (self->http2 == NULL || number <= 0 || number > INT32_MAX)
        return NULL;
    stream = nghttp2_session_get_stream_user_data(self->http2, (int32_t)number);
    return stream != NULL && stream->announced && !stream->over ? stream : NULL;
}

/* Return an object to the caller by the next `send`. None and NULL mean no object. */
int release_later(Session *self, PyObject *release)
{
    if (release == NULL || release == Py_None)
        return 0;
    if (self->released == NULL && (self->released = PyList_New(0)) == NULL)
        return -1;
    return PyList_Append(self->released, release);
}

/* Drop a stream's unsent data. let_go(), at the end of every call, returns the objects to release. */
void stream_forget_output(Session *self, Stream *stream)
{
    if (stream->last != NULL) {
        stream->last->next = self->spent;
        self->spent = stream->first;
    }
    stream->first = stream->last = NULL;
    self->queued -= stream->queued;
    stream->queued = 0;
}

/* Remove a stream from the session. */
void stream_bury(Session *self, Stream *stream)
{
    stream_forget_output(self, stream);
    framing_count(self, stream, 0);
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        self->streams = stream->next;
    self->open_streams--;
    stream->next = self->buried;
    self->buried = stream;
}

static void stream_free(Stream *stream)
{
    walk_leave(stream);
    Py_XDECREF(stream->whole);
    Py_XDECREF(stream->trailers);
    bytes_free(&stream->body);
    PyMem_Free(stream);
}

/* Free everything in the lists. Destructors may run and call methods again, so each object is unlinked first. */
void let_go(Session *self)
{
    while (self->spent != NULL) {
        Segment *segment = self->spent;
        self->spent = segment->next;
        /* Without memory for the list the object cannot be returned, so it is only released. */
        if (release_later(self, segment->release) < 0)
            PyErr_WriteUnraisable(segment->release);
        Py_XDECREF(segment->release);
        if (segment->view.obj != NULL)
            PyBuffer_Release(&segment->view);
        PyMem_Free(segment);
    }
    while (self->buried != NULL) {
        Stream *stream = self->buried;
        self->buried = stream->next;
        stream_free(stream);
    }
}
