/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The events that `receive` returns. The newest event is kept back until the next one: END_STREAM arrives after the
 * message that it belongs to, often in the same frame, and is reported together with it.
 */
#include "http2.h"

/* Append the event that is kept back to the list. */
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

/* Report an event; steals the reference to its value. A value of NULL means that an exception is set. */
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

/* Report an event of a stream, and record the time. */
int tell_of(Session *self, Stream *stream, int kind, PyObject *value)
{
    stream->round = self->round;
    return tell(self, kind, stream->id, value);
}

/* Report END_STREAM: with the stream's newest event, or as an event of its own. */
int tell_end(Session *self, int32_t stream)
{
    if (self->value == NULL || self->stream != stream) {
        Py_INCREF(Py_None);
        if (tell(self, END, stream, Py_None) < 0)
            return -1;
    }
    return tell_newest(self, true);
}
