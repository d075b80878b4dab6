/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The events that `receive` returns. The newest waits for what comes next: END_STREAM comes after the message that it
 * belongs to, often in the same frame, and is told with it.
 */
#include "http2.h"

/* Put the event that waits into the list. */
int tell_newest(Session *self, bool ended)
{
    PyObject *value = self->value, *kind, *stream, *event = NULL;
    int failed;

    if (value == NULL)
        return 0;
    self->value = NULL;
    if (self->events == NULL && (self->events = PyList_New(0)) == NULL) {
        Py_DECREF(value);
        return -1;
    }
    kind = PyLong_FromLong(self->kind);
    stream = PyLong_FromLong(self->stream);
    if (kind != NULL && stream != NULL)
        event = PyTuple_Pack(4, kind, stream, value, ended ? Py_True : Py_False);
    Py_XDECREF(kind);
    Py_XDECREF(stream);
    Py_DECREF(value);
    if (event == NULL)
        return -1;
    failed = PyList_Append(self->events, event);
    Py_DECREF(event);
    return failed;
}

/* Tell an event; takes over the reference to its value. A value of NULL is an error that has been set. */
int tell(Session *self, int kind, int32_t stream, PyObject *value)
{
    if (value == NULL)
        return -1;
    if (tell_newest(self, false) < 0) {
        Py_DECREF(value);
        return -1;
    }
    self->value = value;
    self->kind = kind;
    self->stream = stream;
    return 0;
}

/* Tell an event of a stream, and note when. */
int tell_of(Session *self, Stream *stream, int kind, PyObject *value)
{
    stream->round = self->round;
    return tell(self, kind, stream->id, value);
}

/* Tell that a stream's client is done: with its newest event, or by itself. */
int tell_end(Session *self, int32_t stream)
{
    if (self->value == NULL || self->stream != stream) {
        Py_INCREF(Py_None);
        if (tell(self, END, stream, Py_None) < 0)
            return -1;
    }
    return tell_newest(self, true);
}
