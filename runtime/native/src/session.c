/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The type Session: its creation and destruction, and its methods for the connection.
 */
#include "http2.h"

/* RFC 9113, sections 6.5.2 and 6.9.1. */
#define WINDOW_MAX INT32_MAX
#define FRAME_BYTES_LEAST 16384
#define FRAME_BYTES_MOST 16777215
/* The most queued answers to SETTINGS and PING, which is nghttp2's default. Usual clients need a handful. */
#define ACKS_MAX 1000
/* The most settings in a frame, which is nghttp2's default. HTTP/2 has 6 settings, extensions a few more. */
#define SETTINGS_MAX 32
/* The most streams that a client may reset, at once and per second. Deadlines of all open streams may end at once; but
 * thousands of resets in each second are an attack, because the server begins work for each stream. */
#define RESETS_BURST 10000
#define RESETS_PER_SECOND 1000

/* Missing in older versions of nghttp2. */
extern void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *, uint64_t, uint64_t) __attribute__((weak));

static int set_up_options(nghttp2_option **options)
{
    if (nghttp2_option_new(options) != 0)
        return -1;
    nghttp2_option_set_no_auto_window_update(*options, 1);
    nghttp2_option_set_no_closed_streams(*options, 1);
    nghttp2_option_set_no_http_messaging(*options, 1); /* see headers.c */
    nghttp2_option_set_max_outbound_ack(*options, ACKS_MAX);
    nghttp2_option_set_max_settings(*options, SETTINGS_MAX);
    if (nghttp2_option_set_stream_reset_rate_limit != NULL)
        nghttp2_option_set_stream_reset_rate_limit(*options, RESETS_BURST, RESETS_PER_SECOND);
    return 0;
}

static int set_up(Session *self, const nghttp2_settings_entry *settings, size_t count, int32_t connection_window)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *options = NULL;
    int failed = -1;

    if (nghttp2_session_callbacks_new(&callbacks) == 0 && set_up_options(&options) == 0) {
        receiving_callbacks(callbacks);
        sending_callbacks(callbacks);
        if (nghttp2_session_server_new2(&self->http2, callbacks, self, options) == 0 &&
            nghttp2_submit_settings(self->http2, NGHTTP2_FLAG_NONE, settings, count) == 0 &&
            nghttp2_session_set_local_window_size(self->http2, NGHTTP2_FLAG_NONE, 0, connection_window) == 0)
            failed = 0;
    }
    nghttp2_option_del(options);
    nghttp2_session_callbacks_del(callbacks);
    if (failed < 0)
        PyErr_NoMemory();
    return failed;
}

static int in_range(const char *name, Py_ssize_t value, Py_ssize_t least, Py_ssize_t most)
{
    if (value >= least && value <= most)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be between %zd and %zd, not %zd", name, least, most, value);
    return -1;
}

static PyObject *session_new(PyTypeObject *type, PyObject *positional, PyObject *named)
{
    static char *names[] = {"place",         "max_streams", "stream_window", "connection_window", "header_list_bytes",
                            "message_bytes", "large_bytes", "frame_bytes",   "alignment",         NULL};
    Py_ssize_t streams, stream_window, connection_window, headers, message, large, frame, alignment;
    nghttp2_settings_entry settings[4];
    PyObject *place;
    allocfunc allocate;
    Session *self;

    if (!PyArg_ParseTupleAndKeywords(positional, named, "O$nnnnnnnn:Session", names, &place, &streams, &stream_window,
                                     &connection_window, &headers, &message, &large, &frame, &alignment))
        return NULL;
    if (in_range("max_streams", streams, 1, INT32_MAX) < 0 ||
        in_range("stream_window", stream_window, 1, WINDOW_MAX) < 0 ||
        in_range("connection_window", connection_window, NGHTTP2_INITIAL_CONNECTION_WINDOW_SIZE, WINDOW_MAX) < 0 ||
        in_range("header_list_bytes", headers, 1, INT32_MAX) < 0 ||
        in_range("message_bytes", message, 1, MESSAGE_BYTES_MAX) < 0 ||
        in_range("large_bytes", large, 0, MESSAGE_BYTES_MAX) < 0 ||
        in_range("frame_bytes", frame, FRAME_BYTES_LEAST, FRAME_BYTES_MOST) < 0 ||
        in_range("alignment", alignment, 1, INT32_MAX) < 0)
        return NULL;
    allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    self = (Session *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(place);
    self->place = place;
    self->header_list_bytes = (size_t)headers;
    self->message_bytes = (size_t)message;
    self->large_bytes = (size_t)large;
    self->alignment = (size_t)alignment;
    self->stream_window = (size_t)stream_window;
    self->frame_left = NGHTTP2_CLIENT_MAGIC_LEN; /* the client's preface comes before its frames */
    settings[0] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)streams};
    settings[1] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)stream_window};
    settings[2] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_FRAME_SIZE, (uint32_t)frame};
    settings[3] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)headers};
    if (set_up(self, settings, sizeof(settings) / sizeof(*settings), (int32_t)connection_window) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* End the session, and put everything it holds into the lists to free. */
static void forget(Session *self)
{
    nghttp2_session *http2 = self->http2;

    self->http2 = NULL;
    while (self->streams != NULL)
        stream_bury(self, self->streams);
    if (http2 != NULL)
        nghttp2_session_del(http2);
    bytes_free(&self->out);
    bytes_free(&self->head);
}

static int session_traverse(Session *self, visitproc visit, void *arg)
{
    const Stream *lists[] = {self->streams, self->buried};
    const Segment *segment;
    size_t i;

    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->place);
    Py_VISIT(self->events);
    Py_VISIT(self->value);
    Py_VISIT(self->released);
    for (i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        const Stream *stream;
        for (stream = lists[i]; stream != NULL; stream = stream->next) {
            Py_VISIT(stream->whole);
            Py_VISIT(stream->trailers);
            if (stream->walk != NULL)
                Py_VISIT(stream->walk->destination.obj);
            for (segment = stream->first; segment != NULL; segment = segment->next) {
                Py_VISIT(segment->view.obj);
                Py_VISIT(segment->release);
            }
        }
    }
    for (segment = self->spent; segment != NULL; segment = segment->next) {
        Py_VISIT(segment->view.obj);
        Py_VISIT(segment->release);
    }
    return 0;
}

static int session_clear(Session *self)
{
    forget(self);
    let_go(self);
    Py_CLEAR(self->place);
    Py_CLEAR(self->events);
    Py_CLEAR(self->value);
    Py_CLEAR(self->released);
    return 0;
}

static void session_dealloc(Session *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    PyObject_GC_UnTrack(self);
    session_clear(self);
    release(self);
    Py_DECREF(type);
}

/* Whether a method that sends may continue: 1, 0 for a closed session, or -1. */
static int may_speak(Session *self)
{
    if (self->busy == IN_SEND) {
        session_in_use();
        return -1;
    }
    return self->http2 != NULL && !self->terminating;
}

static PyObject *said(int code)
{
    if (code == NGHTTP2_ERR_NOMEM)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *session_hold(Session *self, PyObject *id)
{
    Stream *stream = stream_find(self, id);

    if (stream != NULL)
        stream->held = true;
    else if (PyErr_Occurred() != NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *session_resume(Session *self, PyObject *id)
{
    Stream *stream = stream_find(self, id);
    uint64_t unopened;

    if (stream == NULL) {
        if (PyErr_Occurred() != NULL)
            return NULL;
        Py_RETURN_NONE;
    }
    if (self->busy == IN_SEND)
        return session_in_use();
    unopened = stream->unopened;
    stream->held = false;
    stream->unopened = 0;
    if (unopened == 0 || stream->client_done)
        Py_RETURN_NONE;
    return said(nghttp2_session_consume_stream(self->http2, stream->id, (size_t)unopened));
}

static PyObject *session_limit(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_ssize_t limit;
    Stream *stream;

    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "limit() needs a stream and a number of bytes");
        return NULL;
    }
    limit = PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred() != NULL || in_range("limit", limit, 0, MESSAGE_BYTES_MAX) < 0)
        return NULL;
    stream = stream_find(self, arguments[0]);
    if (stream != NULL)
        stream->limit = (size_t)limit;
    else if (PyErr_Occurred() != NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *session_largest(Session *self, PyObject *unused)
{
    const Stream *stream, *largest = NULL;

    (void)unused;
    for (stream = self->streams; stream != NULL; stream = stream->next)
        if (stream->gathered > (largest != NULL ? largest->gathered : 0))
            largest = stream;
    return PyLong_FromLong(largest != NULL ? largest->id : 0);
}

static PyObject *session_ping(Session *self, PyObject *unused)
{
    int may = may_speak(self);

    (void)unused;
    if (may < 0)
        return NULL;
    return said(may ? nghttp2_submit_ping(self->http2, NGHTTP2_FLAG_NONE, PING_ALIVE) : 0);
}

static PyObject *session_shut_down(Session *self, PyObject *unused)
{
    int may = may_speak(self), code = 0;

    (void)unused;
    if (may < 0)
        return NULL;
    if (may && !self->shut_down) {
        self->shut_down = self->shutting_down = true;
        code = nghttp2_submit_shutdown_notice(self->http2);
    }
    return said(code);
}

static PyObject *session_terminate(Session *self, PyObject *arguments)
{
    unsigned long code;
    const char *reason;
    Py_ssize_t length;
    int may = may_speak(self);

    if (may < 0 || !PyArg_ParseTuple(arguments, "ky#:terminate", &code, &reason, &length))
        return NULL;
    if (!may)
        Py_RETURN_NONE;
    self->terminating = true;
    return said(nghttp2_submit_goaway(self->http2, NGHTTP2_FLAG_NONE,
                                      nghttp2_session_get_last_proc_stream_id(self->http2), (uint32_t)code,
                                      (const uint8_t *)reason, (size_t)length));
}

static PyObject *session_close(Session *self, PyObject *unused)
{
    (void)unused;
    if (self->busy != IDLE)
        return session_in_use();
    forget(self);
    let_go(self);
    Py_RETURN_NONE;
}

static PyObject *session_queued(Session *self, PyObject *id)
{
    const Stream *stream = stream_find(self, id);

    if (stream == NULL && PyErr_Occurred() != NULL)
        return NULL;
    return PyLong_FromSize_t(stream != NULL ? stream->queued : 0);
}

/* Whether the client has begun a message on a stream, and may send the rest of it. */
static bool is_halfway(const Stream *stream)
{
    bool inside = stream->in == IN_PREFIX ? stream->come > 0 : stream->in != IN_NOTHING;

    return inside && !stream->held && stream->announced && !stream->over && !stream->ended;
}

static PyObject *session_waiting(Session *self, PyObject *unused)
{
    PyObject *rows = PyList_New(0);
    const Stream *stream;

    (void)unused;
    for (stream = self->streams; rows != NULL && stream != NULL; stream = stream->next) {
        bool halfway = is_halfway(stream);
        PyObject *row;

        if (!halfway && stream->queued == 0)
            continue;
        row = Py_BuildValue("(iLL)", (int)stream->id, halfway ? (long long)stream->taken : -1,
                            stream->queued > 0 ? (long long)stream->sent : -1);
        if (row == NULL || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

static PyObject *session_begun(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->begun);
}

static PyObject *session_blocked(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->queued > 0);
}

static PyObject *session_gathered(Session *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(self->gathered);
}

static PyObject *session_open_streams(Session *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(self->open_streams);
}

static PyObject *session_wants_io(Session *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->http2 != NULL && !self->terminated &&
                           (self->out.length > 0 || nghttp2_session_want_write(self->http2) ||
                            (!self->broken && nghttp2_session_want_read(self->http2))));
}

#define METHOD(name, flags) {#name, (PyCFunction)(void (*)(void))session_##name, flags, NULL}

static PyMethodDef methods[] = {
    METHOD(receive, METH_O),
    METHOD(send, METH_NOARGS),
    METHOD(respond, METH_FASTCALL),
    METHOD(refuse, METH_FASTCALL),
    METHOD(begin, METH_FASTCALL),
    METHOD(message, METH_FASTCALL),
    METHOD(end, METH_FASTCALL),
    METHOD(reset, METH_FASTCALL),
    METHOD(hold, METH_O),
    METHOD(resume, METH_O),
    METHOD(limit, METH_FASTCALL),
    METHOD(largest, METH_NOARGS),
    METHOD(ping, METH_NOARGS),
    METHOD(shut_down, METH_NOARGS),
    METHOD(terminate, METH_VARARGS),
    METHOD(close, METH_NOARGS),
    METHOD(queued, METH_O),
    METHOD(waiting, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"begun", (getter)session_begun, NULL, NULL, NULL},
    {"blocked", (getter)session_blocked, NULL, NULL, NULL},
    {"gathered", (getter)session_gathered, NULL, NULL, NULL},
    {"open_streams", (getter)session_open_streams, NULL, NULL, NULL},
    {"wants_io", (getter)session_wants_io, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The server's side of one HTTP/2 connection that carries gRPC."},
    {Py_tp_new, session_new},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_traverse, session_traverse},
    {Py_tp_clear, session_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec session_spec = {
    .name = "pyruntime.runtime.native._http2.Session",
    .basicsize = sizeof(Session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
