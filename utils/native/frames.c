/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The module pyruntime.utils._frames, which _frames.pyi describes: msgpack for the frames of a channel.
 *
 * Stubs load it, too, under any Python from 3.8 on: see pack.h.
 *
 * What comes from a stub is not trusted. Nothing is read behind the end of the data. A container that announces more
 * elements than the data has bytes for, together with those that the containers around it still lack, is not made: so
 * the memory that announced lengths take is bounded by the size of the data.
 */
#include "pack.h"

/* How deep containers may be nested, in both directions: as much as msgpack packs. */
#define DEPTH_MAX 511

/* Packing. */

static int put_bytes(Writer *writer, const char *data, Py_ssize_t size)
{
    return put_length(writer, size, 0, -1, 0xc4, 0xc5) < 0 ? -1 : put_raw(writer, data, size);
}

static int put_float(Writer *writer, PyObject *number)
{
    uint64_t bits;
    double value = PyFloat_AsDouble(number);

    memcpy(&bits, &value, sizeof(bits));
    return put_head(writer, 0xcb, bits, 8);
}

static int put(Writer *writer, PyObject *object, int depth);

static int put_tuple(Writer *writer, PyObject *tuple, int depth)
{
    Py_ssize_t i, size = PyTuple_Size(tuple);

    if (put_length(writer, size, 0x90, 15, 0, 0xdc) < 0)
        return -1;
    for (i = 0; i < size; i++)
        if (put(writer, PyTuple_GetItem(tuple, i), depth) < 0)
            return -1;
    return 0;
}

static int changed(void)
{
    PyErr_SetString(PyExc_ValueError, "a list or dict changed while it was packed");
    return -1;
}

static int put_list(Writer *writer, PyObject *list, int depth)
{
    Py_ssize_t i, size = PyList_Size(list);

    if (put_length(writer, size, 0x90, 15, 0, 0xdc) < 0)
        return -1;
    for (i = 0; i < size; i++) {
        PyObject *item = i < PyList_Size(list) ? PyList_GetItem(list, i) : NULL;
        int failed;

        if (item == NULL)
            break;
        Py_INCREF(item);
        failed = put(writer, item, depth) < 0;
        Py_DECREF(item);
        if (failed)
            return -1;
    }
    return PyList_Size(list) == size ? 0 : changed();
}

static int put_dict(Writer *writer, PyObject *dict, int depth)
{
    Py_ssize_t at = 0, left = PyDict_Size(dict);
    PyObject *key, *value;

    if (put_length(writer, left, 0x80, 15, 0, 0xde) < 0)
        return -1;
    while (PyDict_Next(dict, &at, &key, &value)) {
        int failed;

        left--;
        Py_INCREF(key);
        Py_INCREF(value);
        failed = put(writer, key, depth) < 0 || put(writer, value, depth) < 0;
        Py_DECREF(key);
        Py_DECREF(value);
        if (failed)
            return -1;
    }
    return left == 0 ? 0 : changed();
}

static int put_view(Writer *writer, PyObject *view)
{
    PyObject *contents = PyBytes_FromObject(view);
    int failed;

    if (contents == NULL)
        return -1;
    failed = put_bytes(writer, PyBytes_AsString(contents), PyBytes_Size(contents));
    Py_DECREF(contents);
    return failed;
}

static int put(Writer *writer, PyObject *object, int depth)
{
    PyTypeObject *type = Py_TYPE(object);

    if (type == &PyUnicode_Type)
        return put_text(writer, object);
    if (type == &PyLong_Type)
        return put_integer(writer, object);
    if (object == Py_None)
        return put_head(writer, 0xc0, 0, 0);
    if (object == Py_True || object == Py_False)
        return put_head(writer, object == Py_True ? 0xc3 : 0xc2, 0, 0);
    if (type == &PyBytes_Type)
        return put_bytes(writer, PyBytes_AsString(object), PyBytes_Size(object));
    if (PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object)) {
        if (depth == 0) {
            PyErr_SetString(PyExc_ValueError, "recursion limit exceeded");
            return -1;
        }
        if (PyTuple_Check(object))
            return put_tuple(writer, object, depth - 1);
        return PyList_Check(object) ? put_list(writer, object, depth - 1) : put_dict(writer, object, depth - 1);
    }
    if (PyLong_Check(object))
        return put_integer(writer, object);
    if (PyFloat_Check(object))
        return put_float(writer, object);
    if (PyUnicode_Check(object))
        return put_text(writer, object);
    if (PyBytes_Check(object))
        return put_bytes(writer, PyBytes_AsString(object), PyBytes_Size(object));
    if (PyObject_TypeCheck(object, &PyByteArray_Type))
        return put_bytes(writer, PyByteArray_AsString(object), PyByteArray_Size(object));
    if (type == &PyMemoryView_Type)
        return put_view(writer, object);
    PyErr_Format(PyExc_TypeError, "can not serialize %R object", (PyObject *)type);
    return -1;
}

static PyObject *pack(PyObject *module, PyObject *object)
{
    Writer writer;

    (void)module;
    begin_writing(&writer);
    return end_writing(&writer, put(&writer, object, DEPTH_MAX) < 0);
}

/* Unpacking. A function returns NULL, with or without an exception, where it leaves the rest to another parser. */

typedef struct {
    const unsigned char *at;
    const unsigned char *end;
    size_t owed; /* how many elements the containers still lack that have begun, but for the one being read */
} Reader;

static size_t left(const Reader *reader)
{
    return (size_t)(reader->end - reader->at);
}

/* The next `width` bytes as a number. The caller has seen that they are there. */
static uint64_t take_number(Reader *reader, int width)
{
    uint64_t value = 0;

    for (; width > 0; width--)
        value = value << 8 | *reader->at++;
    return value;
}

/* Names and datatypes come again and again, so the latest short texts are kept, each in the place of its hash. */
#define KEPT_TEXTS 256
#define KEPT_TEXT_BYTES 31

static struct {
    PyObject *text;
    unsigned char size;
    unsigned char data[KEPT_TEXT_BYTES];
} kept_texts[KEPT_TEXTS];

static PyObject *take_kept(const unsigned char *data, size_t size)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    PyObject *text, *before;
    size_t i, place;

    for (i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 16777619u;
    place = (hash ^ hash >> 16) % KEPT_TEXTS;
    if (kept_texts[place].text != NULL && kept_texts[place].size == size &&
        memcmp(kept_texts[place].data, data, size) == 0) {
        Py_INCREF(kept_texts[place].text);
        return kept_texts[place].text;
    }
    text = PyUnicode_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    if (text == NULL)
        return NULL;
    before = kept_texts[place].text;
    kept_texts[place].text = text;
    kept_texts[place].size = (unsigned char)size;
    memcpy(kept_texts[place].data, data, size);
    Py_INCREF(text);
    Py_XDECREF(before);
    return text;
}

static PyObject *take_text(Reader *reader, size_t size)
{
    const unsigned char *data = reader->at;

    if (size > left(reader))
        return NULL;
    reader->at += size;
    if (size > 0 && size <= KEPT_TEXT_BYTES)
        return take_kept(data, size);
    return PyUnicode_FromStringAndSize((const char *)data, (Py_ssize_t)size);
}

static PyObject *take_bytes(Reader *reader, size_t size)
{
    PyObject *bytes;

    if (size > left(reader))
        return NULL;
    bytes = PyBytes_FromStringAndSize((const char *)reader->at, (Py_ssize_t)size);
    reader->at += size;
    return bytes;
}

static PyObject *take(Reader *reader, int depth);

/* Whether a container may begin that has so many elements: then they are owed. */
static int begin(Reader *reader, size_t elements, int depth)
{
    if (depth == 0 || elements > left(reader) || elements + reader->owed > left(reader))
        return 0;
    reader->owed += elements;
    return 1;
}

static PyObject *take_list(Reader *reader, size_t size, int depth)
{
    PyObject *list, *item;
    size_t i;

    if (!begin(reader, size, depth))
        return NULL;
    list = PyList_New((Py_ssize_t)size);
    for (i = 0; list != NULL && i < size; i++) {
        reader->owed--;
        item = take(reader, depth - 1);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *take_dict(Reader *reader, size_t size, int depth)
{
    PyObject *dict, *key, *value;
    size_t i;
    int failed;

    if (!begin(reader, 2 * size, depth))
        return NULL;
    dict = PyDict_New();
    for (i = 0; dict != NULL && i < size; i++) {
        reader->owed--;
        key = take(reader, depth - 1);
        reader->owed--;
        value = key == NULL ? NULL : take(reader, depth - 1);
        failed = value == NULL || PyDict_SetItem(dict, key, value) < 0;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (failed) {
            Py_DECREF(dict);
            return NULL;
        }
    }
    return dict;
}

static PyObject *take_float(Reader *reader, int width)
{
    uint64_t bits = take_number(reader, width);
    uint32_t half = (uint32_t)bits;
    double value;
    float single;

    if (width == 8) {
        memcpy(&value, &bits, sizeof(value));
        return PyFloat_FromDouble(value);
    }
    memcpy(&single, &half, sizeof(single));
    return PyFloat_FromDouble(single);
}

/* The bytes behind the tags from 0xc4 on: the number, or the length. 0: there is none. */
static const signed char widths[] = {
    1, 2, 4, 0, 0, 0, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, /* bin, ext, float, uint, int */
    0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4,             /* fixext, str, array, map */
};

static PyObject *take(Reader *reader, int depth)
{
    unsigned char tag;
    int width;

    if (reader->at == reader->end)
        return NULL;
    tag = *reader->at++;
    if (tag <= 0x7f)
        return PyLong_FromLong(tag);
    if (tag <= 0x8f)
        return take_dict(reader, tag & 0x0f, depth);
    if (tag <= 0x9f)
        return take_list(reader, tag & 0x0f, depth);
    if (tag <= 0xbf)
        return take_text(reader, tag & 0x1f);
    if (tag >= 0xe0)
        return PyLong_FromLong((signed char)tag);
    if (tag == 0xc0 || tag == 0xc2 || tag == 0xc3) {
        PyObject *constant = tag == 0xc0 ? Py_None : tag == 0xc3 ? Py_True : Py_False;

        Py_INCREF(constant);
        return constant;
    }
    width = tag >= 0xc4 ? widths[tag - 0xc4] : 0;
    if (width == 0 || (size_t)width > left(reader))
        return NULL;
    switch (tag) {
    case 0xc4: case 0xc5: case 0xc6:
        return take_bytes(reader, (size_t)take_number(reader, width));
    case 0xca: case 0xcb:
        return take_float(reader, width);
    case 0xcc: case 0xcd: case 0xce: case 0xcf:
        return PyLong_FromUnsignedLongLong(take_number(reader, width));
    case 0xd0:
        return PyLong_FromLong((int8_t)take_number(reader, width));
    case 0xd1:
        return PyLong_FromLong((int16_t)take_number(reader, width));
    case 0xd2:
        return PyLong_FromLong((int32_t)take_number(reader, width));
    case 0xd3:
        return PyLong_FromLongLong((int64_t)take_number(reader, width));
    case 0xd9: case 0xda: case 0xdb:
        return take_text(reader, (size_t)take_number(reader, width));
    case 0xdc: case 0xdd:
        return take_list(reader, (size_t)take_number(reader, width), depth);
    default:
        return take_dict(reader, (size_t)take_number(reader, width), depth);
    }
}

/* One message, of the kind that its tag says, if it has as many fields, and of the types, that it is to have. */
static PyObject *take_message(Reader *reader, PyObject *kinds, PyObject *types)
{
    PyObject *kind, *expected, *message, *item;
    Py_ssize_t tag, i, size;

    if (left(reader) < 3 || reader->at[0] != 0x92 || reader->at[1] > 0x7f || (reader->at[2] & 0xf0) != 0x90)
        return NULL;
    tag = reader->at[1];
    size = reader->at[2] & 0x0f;
    if (tag >= PyTuple_Size(kinds) || tag >= PyTuple_Size(types))
        return NULL;
    kind = PyTuple_GetItem(kinds, tag);
    expected = PyTuple_GetItem(types, tag);
    if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type) || PyTuple_Size(expected) != size)
        return NULL;
    reader->at += 3;
    message = PyType_GenericAlloc((PyTypeObject *)kind, size); /* as tuple.__new__, but without a copy */
    for (i = 0; message != NULL && i < size; i++) {
        PyObject *type = PyTuple_GetItem(expected, i);

        reader->owed = (size_t)(size - i - 1);
        item = take(reader, DEPTH_MAX);
        if (item != NULL && (PyObject *)Py_TYPE(item) != type && PyObject_IsInstance(item, type) != 1)
            Py_CLEAR(item);
        if (item == NULL || PyTuple_SetItem(message, i, item) < 0)
            Py_CLEAR(message);
    }
    return message;
}

static PyObject *unpack(PyObject *module, PyObject *arguments)
{
    Reader reader;
    Py_ssize_t size, parsed;
    char *bytes;
    PyObject *data, *kinds, *types, *messages, *message;

    (void)module;
    if (!PyArg_UnpackTuple(arguments, "unpack", 3, 3, &data, &kinds, &types) ||
        PyBytes_AsStringAndSize(data, &bytes, &size) < 0)
        return NULL;
    reader.at = (const unsigned char *)bytes;
    reader.end = reader.at + size;
    parsed = 0;
    messages = PyList_New(0);
    while (messages != NULL && parsed < size) {
        message = take_message(&reader, kinds, types);
        if (message == NULL) {
            PyErr_Clear();
            break;
        }
        if (PyList_Append(messages, message) < 0)
            Py_CLEAR(messages);
        Py_DECREF(message);
        parsed = (Py_ssize_t)(reader.at - (const unsigned char *)bytes);
    }
    return messages == NULL ? NULL : Py_BuildValue("(Nn)", messages, parsed);
}

static PyMethodDef functions[] = {
    {"pack", pack, METH_O, NULL},
    {"unpack", unpack, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pyruntime.utils._frames",
    .m_doc = "msgpack for the frames of a channel.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__frames(void)
{
    return PyModuleDef_Init(&definition);
}
