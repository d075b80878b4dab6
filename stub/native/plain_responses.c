/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The responses to a batch: their outputs are copied to shared memory, and they are written as a message has them.
 *
 * First all of them are looked at, which changes nothing. Then their slots are allocated, under the lock of those who
 * allocate, and their requests are marked as answered. What cannot be done by then is undone, and left to Python. From
 * there on nothing fails but memory of the process itself.
 */
#include "plain.h"

/* The buffer protocol, which joined the stable ABI later and has been the same since 3.3. */
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} Buffer;

extern int PyObject_GetBuffer(PyObject *object, Buffer *buffer, int flags);
extern void PyBuffer_Release(Buffer *buffer);
#define SIMPLE 0
#define WRITABLE 1

/* Up to this size, tobytes() is faster than the buffer of an array. */
#define SMALL_BYTES (16 << 10)
/* From this size on, other threads run while contents are copied. */
#define LARGE_BYTES (64 << 10)
#define ALIGNMENT 64
#define SLOT_BYTES_MIN 256
/* The codes in a response: see utils/messages.py. */
#define OK (-1)
#define NO_SLOT (-1)

typedef struct {
    PyObject_HEAD
    PyObject *acquire;
    PyObject *release;
    PyObject *allocate;
    PyObject *free;
    PyObject *warm; /* the free slots of an arena: {size: [offset]} */
    PyObject *live; /* its allocated slots: {offset: size} */
    PyObject *taken_back;
    PyObject *outputs;
    Buffer map;
} Responses;

/* An output. The buffer is that of an array, or it has no object, and `contents` are bytes. */
typedef struct {
    PyObject *tensor;
    PyObject *contents;
    Buffer buffer;
} Output;

typedef struct {
    Py_ssize_t outputs;
    long long size; /* of its slot, 0 if it has none */
    long long slot;
} Response;

/* A batch while it is written. */
typedef struct {
    Response *responses;
    Output *outputs;
    Py_ssize_t count; /* of outputs */
    Py_ssize_t room;
} Batch;

static const char *begin_of(const Output *output)
{
    return output->buffer.obj != NULL ? output->buffer.buf : PyBytes_AsString(output->contents);
}

static long long size_of(const Output *output)
{
    return output->buffer.obj != NULL ? output->buffer.len : PyBytes_Size(output->contents);
}

static long long aligned(long long size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* About how many bytes the contents of a tensor have: more than SMALL_BYTES if there is no telling. */
static long long about(PyObject *shape, PyObject *dtype_and_size)
{
    long long size = PyLong_AsLongLong(PyTuple_GetItem(dtype_and_size, 1));
    Py_ssize_t i;

    if (shape == NULL || !PyList_CheckExact(shape))
        return SMALL_BYTES + 1;
    for (i = 0; i < PyList_Size(shape); i++) {
        long long items = PyLong_AsLongLong(PyList_GetItem(shape, i));

        if (items < 0 || items > SMALL_BYTES || size > SMALL_BYTES) {
            PyErr_Clear();
            return SMALL_BYTES + 1;
        }
        size *= items;
    }
    return size;
}

/* The contents of an output. 0 if Python is to look at them, maybe with an exception. */
static int take_contents(Output *output)
{
    PyObject *array = get(&known.tensor, output->tensor, ARRAY);
    PyObject *datatype = get(&known.tensor, output->tensor, DATATYPE), *dtype;

    if (array == NULL || datatype == NULL)
        return 0;
    dtype = PyDict_GetItem(known.dtypes, datatype);
    if (array == Py_None || dtype == NULL)
        array = PyObject_CallMethod(output->tensor, "_encoded", NULL);
    else
        Py_INCREF(array);
    if (array == NULL)
        return 0;
    if (dtype != NULL && Py_TYPE(array) == known.ndarray &&
        about(get(&known.tensor, output->tensor, SHAPE), dtype) <= SMALL_BYTES) {
        output->contents = PyObject_CallMethodObjArgs(array, known.tobytes, NULL);
        Py_DECREF(array);
        return output->contents != NULL && PyBytes_CheckExact(output->contents);
    }
    output->contents = array;
    if (PyBytes_CheckExact(array))
        return 1;
    return Py_TYPE(array) == known.ndarray && PyObject_GetBuffer(array, &output->buffer, SIMPLE) == 0;
}

/* Room for one more output. */
static Output *add(Batch *batch, PyObject *tensor)
{
    Output *output;

    if (batch->count == batch->room) {
        Py_ssize_t room = batch->room > 0 ? 2 * batch->room : 8;
        Output *outputs = PyMem_Realloc(batch->outputs, (size_t)room * sizeof(Output));

        if (outputs == NULL)
            return NULL;
        batch->outputs = outputs;
        batch->room = room;
    }
    output = &batch->outputs[batch->count++];
    memset(output, 0, sizeof(*output));
    Py_INCREF(tensor);
    output->tensor = tensor;
    return output;
}

static void drop(Batch *batch)
{
    Py_ssize_t i;

    for (i = 0; i < batch->count; i++) {
        if (batch->outputs[i].buffer.obj != NULL)
            PyBuffer_Release(&batch->outputs[i].buffer);
        Py_XDECREF(batch->outputs[i].contents);
        Py_DECREF(batch->outputs[i].tensor);
    }
    PyMem_Free(batch->outputs);
    PyMem_Free(batch->responses);
}

static int is_text(PyObject *object)
{
    return object != NULL && PyUnicode_CheckExact(object);
}

/* Whether nothing but a response from execute may answer a request, and only outputs that it wants count. */
static int is_plain_request(PyObject *request)
{
    PyObject *flags, *wanted;

    if (!PyObject_TypeCheck(request, known.request.type))
        return 0;
    flags = get(&known.request, request, RELEASE_FLAGS);
    wanted = get(&known.request, request, OUTPUTS);
    return flags != NULL && PyLong_CheckExact(flags) && PyLong_AsLong(flags) == 1 && wanted != NULL &&
           Py_TYPE(wanted) == &PySet_Type && get(&known.request, request, STREAM) == Py_None;
}

/* Look at one response. 0 if it is not plain, maybe with an exception. */
static int look_at(Responses *self, Batch *batch, Response *to, PyObject *response, PyObject *request)
{
    PyObject *wanted, *tensors, *tensor, *name, *shape;
    Output *output;
    Py_ssize_t i;

    if (!is_exact(&known.response, response) || !is_plain_request(request) ||
        get(&known.response, response, ERROR) != Py_None || !is_text(get(&known.response, response, JSON)) ||
        (tensors = get(&known.response, response, OUTPUT_TENSORS)) == NULL || !PyList_CheckExact(tensors))
        return 0;
    wanted = get(&known.request, request, OUTPUTS);
    for (i = 0; i < PyList_Size(tensors); i++) {
        tensor = PyList_GetItem(tensors, i);
        if (!is_exact(&known.tensor, tensor) || !is_text(name = get(&known.tensor, tensor, NAME)) ||
            !is_text(get(&known.tensor, tensor, DATATYPE)) ||
            (shape = get(&known.tensor, tensor, SHAPE)) == NULL || !PyList_CheckExact(shape))
            return 0;
        if (PySet_Contains(wanted, name) != 1) {
            if (PySet_Contains(self->outputs, name) != 1)
                return 0;
            continue;
        }
        output = add(batch, tensor);
        if (output == NULL || !take_contents(output))
            return 0;
        to->outputs++;
        to->size += aligned(size_of(output));
    }
    return 1;
}

/* The size of the slot that an arena has for so many bytes: see slot_bytes. */
static long long slot_bytes(long long size)
{
    int shift = 0;

    if (size <= SLOT_BYTES_MIN)
        return SLOT_BYTES_MIN;
    while ((size - 1) >> shift >= 8)
        shift++;
    return (size + (1LL << shift) - 1) >> shift << shift;
}

/* A slot that was free before. -1 if there is none, or it is large. */
static long long warm_slot(Responses *self, long long size)
{
    long long slot = slot_bytes(size), found = -1;
    PyObject *key, *offsets, *offset;
    Py_ssize_t count;

    if (slot >= LARGE_BYTES || (key = PyLong_FromLongLong(slot)) == NULL)
        return -1;
    offsets = PyDict_GetItem(self->warm, key);
    count = offsets != NULL && PyList_CheckExact(offsets) ? PyList_Size(offsets) : 0;
    if (count > 0) {
        offset = PyList_GetItem(offsets, count - 1);
        Py_INCREF(offset);
        if (PyDict_SetItem(self->live, offset, key) == 0 && PyList_SetSlice(offsets, count - 1, count, NULL) == 0)
            found = PyLong_AsLongLong(offset);
        Py_DECREF(offset);
    }
    Py_DECREF(key);
    return found;
}

/* The caller has the lock. -1, with or without an exception, if there is no memory. */
static long long allocate(Responses *self, long long size)
{
    long long found = warm_slot(self, size);
    PyObject *offset;

    if (found >= 0 || PyErr_Occurred())
        return found;
    offset = PyObject_CallFunction(self->allocate, "L", size);
    if (offset == NULL)
        return -1;
    found = PyLong_AsLongLong(offset);
    Py_DECREF(offset);
    return found;
}

/* Free slots that nobody has heard of. The caller has the lock. */
static void free_slots(Responses *self, Batch *batch, Py_ssize_t count)
{
    Py_ssize_t i;

    PyErr_Clear();
    for (i = 0; i < count; i++) {
        if (batch->responses[i].slot != NO_SLOT) {
            PyObject *freed = PyObject_CallFunction(self->free, "L", batch->responses[i].slot);

            Py_XDECREF(freed);
        }
    }
}

/* Allocate the slots of all responses, and mark their requests as answered: of either all or none. */
static int claim(Responses *self, Batch *batch, PyObject *requests, Py_ssize_t count)
{
    PyObject *locked = PyObject_CallFunctionObjArgs(self->acquire, Py_False, NULL), *released;
    Py_ssize_t i, done = 0;
    int is_locked = locked == Py_True, failed = 0;

    Py_XDECREF(locked);
    if (!is_locked)
        return 0;
    if (PyObject_IsTrue(self->taken_back) != 0)
        failed = 1;
    for (; !failed && done < count; done++) {
        Response *response = &batch->responses[done];

        response->slot = response->size > 0 ? allocate(self, response->size) : NO_SLOT;
        if (response->size > 0 && (response->slot < 0 || response->slot + response->size > self->map.len)) {
            failed = 1;
            break;
        }
    }
    /* Threads may have run. From here on none does, until all requests are marked. */
    for (i = 0; !failed && i < count; i++)
        failed = PyList_Size(requests) != count ||
                 get(&known.request, PyList_GetItem(requests, i), STREAM) != Py_None;
    for (i = 0; !failed && i < count; i++)
        set(&known.request, PyList_GetItem(requests, i), ANSWERED, Py_True);
    if (failed)
        free_slots(self, batch, done);
    released = PyObject_CallFunctionObjArgs(self->release, NULL);
    Py_XDECREF(released);
    return !failed;
}

static void copy(Responses *self, const Output *output, long long at)
{
    char *to = (char *)self->map.buf + at;
    const char *from = begin_of(output);
    size_t size = (size_t)size_of(output);

    if (size < LARGE_BYTES) {
        memcpy(to, from, size);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(to, from, size);
    Py_END_ALLOW_THREADS
}

static int put_shape(Writer *writer, PyObject *shape)
{
    Py_ssize_t i;

    if (put_length(writer, PyList_Size(shape), 0x90, 15, 0, 0xdc) < 0)
        return -1;
    for (i = 0; i < PyList_Size(shape); i++)
        if (put_integer(writer, PyList_GetItem(shape, i)) < 0)
            return -1;
    return 0;
}

/* A reference to a tensor: see TENSOR_FIELDS. */
static int put_tensor(Writer *writer, const Output *output, long long at)
{
    const Class *class = &known.tensor;

    if (put_length(writer, 7, 0x90, 15, 0, 0xdc) < 0 || put_text(writer, get(class, output->tensor, NAME)) < 0 ||
        put_text(writer, get(class, output->tensor, DATATYPE)) < 0 ||
        put_shape(writer, get(class, output->tensor, SHAPE)) < 0 || put_number(writer, at) < 0 ||
        put_number(writer, size_of(output)) < 0 || put_number(writer, 0) < 0)
        return -1;
    return put_number(writer, 0);
}

/* Write one response, whose outputs begin at `output`, and copy these. */
static int put_response(Responses *self, Writer *writer, const Response *response, PyObject *object,
                        const Output *output)
{
    long long at = response->slot == NO_SLOT ? 0 : response->slot;
    Py_ssize_t i;

    if (put_length(writer, 5, 0x90, 15, 0, 0xdc) < 0 || put_number(writer, OK) < 0 ||
        put_length(writer, 0, 0xa0, 31, 0xd9, 0xda) < 0 || put_number(writer, response->slot) < 0 ||
        put_length(writer, response->outputs, 0x90, 15, 0, 0xdc) < 0)
        return -1;
    for (i = 0; i < response->outputs; i++, output++) {
        if (put_tensor(writer, output, at) < 0)
            return -1;
        if (response->slot != NO_SLOT)
            copy(self, output, at);
        at += aligned(size_of(output));
    }
    return put_text(writer, get(&known.response, object, JSON));
}

static PyObject *put_responses(Responses *self, Batch *batch, PyObject *responses, Py_ssize_t count)
{
    const Output *output = batch->outputs;
    Writer writer;
    Py_ssize_t i;
    int failed;

    begin_writing(&writer);
    failed = put_length(&writer, count, 0x90, 15, 0, 0xdc) < 0;
    for (i = 0; !failed && i < count; i++) {
        failed = put_response(self, &writer, &batch->responses[i], PyList_GetItem(responses, i), output) < 0;
        output += batch->responses[i].outputs;
    }
    return end_writing(&writer, failed);
}

/* The responses as a message has them, or None if any of them is not plain. */
static PyObject *write_responses(PyObject *object, PyObject *const *arguments, Py_ssize_t argument_count)
{
    Responses *self = (Responses *)object;
    PyObject *responses, *requests, *written = NULL;
    Batch batch = {NULL, NULL, 0, 0};
    Py_ssize_t i, count;
    int is_plain;

    if (argument_count != 2 || !PyList_CheckExact(requests = arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "write takes responses and a list of requests");
        return NULL;
    }
    count = PyList_Size(requests);
    if (!PyList_CheckExact(arguments[0]) || PyList_Size(arguments[0]) != count)
        Py_RETURN_NONE;
    /* A copy, whose elements nobody takes away. */
    responses = PyList_GetSlice(arguments[0], 0, count);
    batch.responses = PyMem_Calloc(count > 0 ? (size_t)count : 1, sizeof(Response));
    is_plain = responses != NULL && batch.responses != NULL;
    for (i = 0; is_plain && i < count; i++)
        is_plain = look_at(self, &batch, &batch.responses[i], PyList_GetItem(responses, i),
                           PyList_GetItem(requests, i));
    is_plain = is_plain && !PyErr_Occurred() && claim(self, &batch, requests, count);
    if (is_plain)
        written = put_responses(self, &batch, responses, count);
    else if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        Py_INCREF(Py_None);
        written = Py_None;
    }
    drop(&batch);
    Py_XDECREF(responses);
    return written;
}

/* See _plain.pyi. */
PyObject *result(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Writer writer;
    PyObject *retained;
    Py_ssize_t i;
    int failed;

    (void)module;
    if (count != 6 || !PyBytes_CheckExact(arguments[2]) || !PyList_CheckExact(retained = arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "result takes a tag, a batch, bytes, a list and two times");
        return NULL;
    }
    begin_writing(&writer);
    failed = put_length(&writer, 2, 0x90, 15, 0, 0xdc) < 0 || put_integer(&writer, arguments[0]) < 0 ||
             put_length(&writer, 5, 0x90, 15, 0, 0xdc) < 0 || put_integer(&writer, arguments[1]) < 0 ||
             put_raw(&writer, PyBytes_AsString(arguments[2]), PyBytes_Size(arguments[2])) < 0 ||
             put_length(&writer, PyList_Size(retained), 0x90, 15, 0, 0xdc) < 0;
    for (i = 0; !failed && i < PyList_Size(retained); i++)
        failed = put_integer(&writer, PyList_GetItem(retained, i)) < 0;
    failed = failed || put_integer(&writer, arguments[4]) < 0 || put_integer(&writer, arguments[5]) < 0;
    return end_writing(&writer, failed);
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    PyObject *lock, *arena, *taken_back, *map, *outputs;
    Responses *self;

    if (names != NULL ||
        !PyArg_UnpackTuple(arguments, "Responses", 5, 5, &lock, &arena, &taken_back, &map, &outputs))
        return names != NULL ? PyErr_Format(PyExc_TypeError, "Responses takes no names") : NULL;
    self = (Responses *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(taken_back);
    self->taken_back = taken_back;
    Py_INCREF(outputs);
    self->outputs = outputs;
    if ((self->acquire = PyObject_GetAttrString(lock, "acquire")) == NULL ||
        (self->release = PyObject_GetAttrString(lock, "release")) == NULL ||
        (self->allocate = PyObject_GetAttrString(arena, "allocate")) == NULL ||
        (self->free = PyObject_GetAttrString(arena, "free")) == NULL ||
        (self->warm = PyObject_GetAttrString(arena, "_warm")) == NULL ||
        (self->live = PyObject_GetAttrString(arena, "_live")) == NULL ||
        PyObject_GetBuffer(map, &self->map, WRITABLE) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void end(PyObject *object)
{
    Responses *self = (Responses *)object;
    PyTypeObject *type = Py_TYPE(object);

    Py_XDECREF(self->acquire);
    Py_XDECREF(self->release);
    Py_XDECREF(self->allocate);
    Py_XDECREF(self->free);
    Py_XDECREF(self->warm);
    Py_XDECREF(self->live);
    Py_XDECREF(self->taken_back);
    Py_XDECREF(self->outputs);
    if (self->map.obj != NULL)
        PyBuffer_Release(&self->map);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"write", FAST(write_responses), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, end},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"pyruntime.stub._plain.Responses", sizeof(Responses), 0, Py_TPFLAGS_DEFAULT, slots};

/* Add the type to the module. */
int add_responses(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int failed = type == NULL || PyObject_SetAttrString(module, "Responses", type) < 0;

    Py_XDECREF(type);
    return failed ? -1 : 0;
}
