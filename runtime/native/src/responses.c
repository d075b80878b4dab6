/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The methods that send on a stream: a head, messages, trailers.
 */
#include "http2.h"

/* Up to this number of headers, no allocation is needed. */
#define HEADERS_FEW 16

PyObject *session_in_use(void)
{
    PyErr_SetString(PyExc_RuntimeError, "the session is in use");
    return NULL;
}

/* Raise the error of nghttp2, unless it only means that the stream has ended. */
static int checked(int code)
{
    switch (code) {
    case 0:
    case NGHTTP2_ERR_STREAM_CLOSED:
    case NGHTTP2_ERR_STREAM_CLOSING:
        return 0;
    case NGHTTP2_ERR_NOMEM:
        PyErr_NoMemory();
        return -1;
    default:
        PyErr_SetString(PyExc_RuntimeError, nghttp2_strerror(code));
        return -1;
    }
}

/* Unpack headers. Uses `few` if they fit; else the caller must free the result. NULL with an exception set if the bytes
 * are malformed. */
static nghttp2_nv *unpack(const char *packed, size_t length, nghttp2_nv *few, size_t *count)
{
    const char *end = packed + length, *at;
    nghttp2_nv *headers = few;
    size_t nuls = 0, i;

    for (at = packed; at < end && (at = memchr(at, 0, (size_t)(end - at))) != NULL; at++)
        nuls++;
    if (nuls % 2 != 0 || (length > 0 && end[-1] != 0)) {
        PyErr_SetString(PyExc_ValueError, "these bytes are no packed headers");
        return NULL;
    }
    *count = nuls / 2;
    if (*count > HEADERS_FEW && (headers = PyMem_Malloc(*count * sizeof(*headers))) == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (at = packed, i = 0; i < *count; i++) {
        headers[i].name = (uint8_t *)at;
        headers[i].namelen = strlen(at);
        at += headers[i].namelen + 1;
        headers[i].value = (uint8_t *)at;
        headers[i].valuelen = strlen(at);
        at += headers[i].valuelen + 1;
        headers[i].flags = NGHTTP2_NV_FLAG_NONE;
    }
    return headers;
}

/* The number of bytes that a stream can send now; on_send_data() then takes them. */
static ssize_t on_read(nghttp2_session *http2, int32_t id, uint8_t *buffer, size_t length, uint32_t *flags,
                       nghttp2_data_source *source, void *user_data)
{
    Stream *stream = nghttp2_session_get_stream_user_data(http2, id);

    (void)buffer;
    (void)source;
    if (stream == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (stream->queued == 0 && !stream->ended) {
        stream->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (stream->queued > length)
        return (ssize_t)length;
    if (stream->ended) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (submit_trailers(user_data, stream) < 0)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return (ssize_t)stream->queued;
}

static int submit_head(Session *self, Stream *stream, const char *packed, size_t length, bool messages)
{
    nghttp2_data_provider provider = {.source = {.ptr = NULL}, .read_callback = on_read};
    nghttp2_nv few[HEADERS_FEW], *headers;
    size_t count;
    int code;

    headers = unpack(packed, length, few, &count);
    if (headers == NULL)
        return -1;
    code = nghttp2_submit_response(self->http2, stream->id, headers, count, messages ? &provider : NULL);
    if (headers != few)
        PyMem_Free(headers);
    return checked(code);
}

/* Queue the trailers after the last data. Called inside nghttp2's request for data. */
int submit_trailers(Session *self, Stream *stream)
{
    nghttp2_nv few[HEADERS_FEW], *headers;
    char *packed = NULL;
    Py_ssize_t length = 0;
    size_t count;
    int code;

    if (PyBytes_AsStringAndSize(stream->trailers, &packed, &length) < 0)
        return -1;
    headers = unpack(packed, (size_t)length, few, &count);
    if (headers == NULL)
        return -1;
    /* Skip ":status" of a trailers-only response that is sent as trailers. */
    if (count > 0 && headers[0].name[0] == ':')
        code = nghttp2_submit_trailer(self->http2, stream->id, headers + 1, count - 1);
    else
        code = nghttp2_submit_trailer(self->http2, stream->id, headers, count);
    if (headers != few)
        PyMem_Free(headers);
    return checked(code);
}

/* Find the stream of a method call: 1, 0 if it has ended or never existed, or -1. */
static int enter(Session *self, PyObject *const *arguments, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most,
                 Stream **stream)
{
    if (count < least || count > most) {
        PyErr_Format(PyExc_TypeError, "%zd to %zd arguments are needed, not %zd", least, most, count);
        return -1;
    }
    if (self->busy == IN_SEND) {
        session_in_use();
        return -1;
    }
    *stream = stream_find(self, arguments[0]);
    if (*stream == NULL)
        return PyErr_Occurred() != NULL ? -1 : 0;
    return 1;
}

static PyObject *leave(Session *self, int failed)
{
    if (failed < 0)
        return NULL;
    if (self->busy == IDLE && self->spent != NULL)
        let_go(self);
    Py_RETURN_NONE;
}

static int must_be_begun(const Stream *stream, bool begun)
{
    if (stream->begun == begun)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, begun ? "the response has not begun" : "the response has begun before");
    return -1;
}

/* Validate packed headers that are used later. */
static int check_packed(PyObject *packed)
{
    nghttp2_nv few[HEADERS_FEW], *headers;
    char *bytes;
    Py_ssize_t length;
    size_t count;

    if (PyBytes_AsStringAndSize(packed, &bytes, &length) < 0)
        return -1;
    headers = unpack(bytes, (size_t)length, few, &count);
    if (headers == NULL)
        return -1;
    if (headers != few)
        PyMem_Free(headers);
    return 0;
}

/* End the response after its messages. Ignores further data of the client. */
static int end_with(Session *self, Stream *stream, PyObject *trailers)
{
    if (stream->ended)
        return 0;
    if (check_packed(trailers) < 0)
        return -1;
    Py_INCREF(trailers);
    stream->trailers = trailers;
    stream->ended = true;
    framing_stop(self, stream);
    return 0;
}

/* Resume a stream that nghttp2 has deferred because it had no data. */
static int wake(Session *self, Stream *stream)
{
    if (!stream->deferred)
        return 0;
    stream->deferred = false;
    return nghttp2_session_resume_data(self->http2, stream->id) == NGHTTP2_ERR_NOMEM ? checked(NGHTTP2_ERR_NOMEM) : 0;
}

static int begin_with(Session *self, Stream *stream, PyObject *head)
{
    char *packed;
    Py_ssize_t length;

    if (must_be_begun(stream, false) < 0 || PyBytes_AsStringAndSize(head, &packed, &length) < 0 ||
        submit_head(self, stream, packed, (size_t)length, true) < 0)
        return -1;
    stream->begun = true;
    return 0;
}

PyObject *session_respond(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    PyObject *release = count > 4 ? arguments[4] : NULL;
    int there = enter(self, arguments, count, 4, 5, &stream);

    if (there < 0)
        return NULL;
    if (there == 0)
        return leave(self, release_later(self, release));
    if (must_be_begun(stream, false) < 0 || check_packed(arguments[1]) < 0 || check_packed(arguments[3]) < 0 ||
        queue_message(self, stream, arguments[2], release, false, false) < 0 || begin_with(self, stream, arguments[1]) < 0)
        return NULL;
    return leave(self, end_with(self, stream, arguments[3]));
}

PyObject *session_refuse(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    char *packed;
    Py_ssize_t length;
    int there = enter(self, arguments, count, 2, 2, &stream);

    if (there <= 0)
        return leave(self, there);
    if (!stream->begun) {
        if (PyBytes_AsStringAndSize(arguments[1], &packed, &length) < 0 ||
            submit_head(self, stream, packed, (size_t)length, false) < 0)
            return NULL;
        stream->begun = stream->ended = true;
        framing_stop(self, stream);
        return leave(self, 0);
    }
    if (end_with(self, stream, arguments[1]) < 0)
        return NULL;
    return leave(self, wake(self, stream));
}

PyObject *session_begin(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    int there = enter(self, arguments, count, 2, 2, &stream);

    if (there <= 0)
        return leave(self, there);
    return leave(self, begin_with(self, stream, arguments[1]));
}

PyObject *session_message(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    PyObject *release = count > 2 ? arguments[2] : NULL;
    int there = enter(self, arguments, count, 2, 4, &stream), compressed = 0;

    if (count == 4 && there >= 0 && (compressed = PyObject_IsTrue(arguments[3])) < 0)
        return NULL;
    if (there < 0)
        return NULL;
    if (there == 0 || stream->ended)
        return leave(self, release_later(self, release));
    if (must_be_begun(stream, true) < 0 ||
        queue_message(self, stream, arguments[1], release, compressed != 0, true) < 0)
        return NULL;
    return leave(self, wake(self, stream));
}

PyObject *session_end(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    int there = enter(self, arguments, count, 2, 2, &stream);

    if (there <= 0)
        return leave(self, there);
    if (must_be_begun(stream, true) < 0 || end_with(self, stream, arguments[1]) < 0)
        return NULL;
    return leave(self, wake(self, stream));
}

PyObject *session_reset(Session *self, PyObject *const *arguments, Py_ssize_t count)
{
    Stream *stream;
    unsigned long code;
    int there = enter(self, arguments, count, 2, 2, &stream);

    if (there <= 0)
        return leave(self, there);
    code = PyLong_AsUnsignedLong(arguments[1]);
    if (PyErr_Occurred() != NULL)
        return NULL;
    if (code > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an error code has 32 bits");
        return NULL;
    }
    stream->over = true;
    framing_stop(self, stream);
    stream_forget_output(self, stream);
    return leave(self, checked(nghttp2_submit_rst_stream(self->http2, NGHTTP2_FLAG_NONE, stream->id, (uint32_t)code)));
}
