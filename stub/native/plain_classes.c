/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Learns of the classes of models: where the attributes of their objects lie.
 */
#include "plain.h"

Known known;

static const char *const tensor_attributes[TENSOR_ATTRIBUTES] = {
    "_name", "_datatype", "_shape", "_array", "_region", "_address", "_size",
};
static const char *const request_attributes[REQUEST_ATTRIBUTES] = {
    "_id",            "_correlation_id", "_flags",  "_timeout_us", "_requested_outputs",
    "_parameters",    "_tensors",        "_trace_context", "_region", "_outputs",
    "_inputs",        "_stream",         "_answered", "_serial",   "_release_flags",
};
static const char *const response_attributes[RESPONSE_ATTRIBUTES] = {"_error", "_output_tensors", "_parameters"};

/* The size of an object of a type, 0 with an exception. */
static Py_ssize_t size_of(PyTypeObject *type)
{
    PyObject *number = PyObject_GetAttrString((PyObject *)type, "__basicsize__");
    Py_ssize_t size = number == NULL ? 0 : PyLong_AsSsize_t(number);

    Py_XDECREF(number);
    return size > 0 ? size : 0;
}

/* The one place in an object that has this value, 0 if there is none, or another one. */
static Py_ssize_t find(PyObject *object, Py_ssize_t size, PyObject *value)
{
    Py_ssize_t at, found = 0;

    for (at = sizeof(PyObject); at + (Py_ssize_t)sizeof(PyObject *) <= size; at += sizeof(PyObject *)) {
        if (*(PyObject **)((char *)object + at) != value)
            continue;
        if (found != 0)
            return 0;
        found = at;
    }
    return found;
}

/* Have an object show where its attributes lie. -1 with an exception if it does not. */
static int measure(Class *class, PyObject *type, const char *const *names, int count)
{
    Py_ssize_t size;
    PyObject *object, *value;
    int i;

    if (!PyType_Check(type) || (size = size_of((PyTypeObject *)type)) == 0)
        return -1;
    object = PyType_GenericAlloc((PyTypeObject *)type, 0);
    for (i = 0; object != NULL && i < count; i++) {
        value = PyList_New(0);
        if (value == NULL || PyObject_SetAttrString(object, names[i], value) < 0)
            Py_CLEAR(object);
        else
            class->at[i] = find(object, size, value);
        if (object != NULL && class->at[i] == 0) {
            PyErr_Format(PyExc_ImportError, "%R objects do not show where they have %s", type, names[i]);
            Py_CLEAR(object);
        }
        Py_XDECREF(value);
    }
    if (object == NULL)
        return -1;
    Py_DECREF(object);
    Py_INCREF(type);
    class->type = (PyTypeObject *)type;
    return 0;
}

static PyMethodDef tensor_methods[] = {
    {"as_numpy", as_numpy, METH_NOARGS,
     "as_numpy($self, /)\n--\n\nThe contents as an array; BYTES as an object array of `bytes`.\n\n"
     "Raises TritonModelException for BF16, which numpy does not have."},
    {"__init__", (PyCFunction)(void (*)(void))(PyCFunctionWithKeywords)init_tensor, METH_VARARGS | METH_KEYWORDS,
     "__init__($self, __name, __numpy_array, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef request_methods[] = {
    {"inputs", inputs_of, METH_NOARGS,
     "inputs($self, /)\n--\n\nThe inputs of the request; optional ones may be missing."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef response_methods[] = {
    {"__init__", (PyCFunction)(void (*)(void))(PyCFunctionWithKeywords)init_response, METH_VARARGS | METH_KEYWORDS,
     "__init__($self, output_tensors=(), error=None, parameters=None)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

/* Put methods in the place of those of a class. */
static int replace(PyObject *type, PyMethodDef *methods)
{
    for (; methods->ml_name != NULL; methods++) {
        PyObject *method = PyDescr_NewMethod((PyTypeObject *)type, methods);
        int failed = method == NULL || PyObject_SetAttrString(type, methods->ml_name, method) < 0;

        Py_XDECREF(method);
        if (failed)
            return -1;
    }
    return 0;
}

/* A function in Python that one here stands for. */
static PyObject *function(PyObject *functions, const char *name)
{
    PyObject *found = PyDict_GetItemString(functions, name);

    if (found == NULL)
        PyErr_Format(PyExc_ImportError, "there is no function %s", name);
    Py_XINCREF(found);
    return found;
}

/* See _plain.pyi. */
PyObject *use(PyObject *module, PyObject *arguments)
{
    PyObject *tensor, *request, *response, *regions, *ndarray, *dtypes, *datatypes, *functions;

    (void)module;
    if (!PyArg_UnpackTuple(arguments, "use", 8, 8, &tensor, &request, &response, &regions, &ndarray, &dtypes,
                           &datatypes, &functions))
        return NULL;
    if (known.tensor.type != NULL) {
        PyErr_SetString(PyExc_ImportError, "the classes are in use already");
        return NULL;
    }
    if ((known.as_numpy = function(functions, "as_numpy")) == NULL ||
        (known.inputs = function(functions, "inputs")) == NULL ||
        (known.get_input = function(functions, "get_input_tensor_by_name")) == NULL ||
        (known.tensor_of = function(functions, "tensor_of")) == NULL ||
        (known.request_of = function(functions, "request_of")) == NULL ||
        (known.still_held = function(functions, "still_held")) == NULL ||
        measure(&known.request, request, request_attributes, REQUEST_ATTRIBUTES) < 0 ||
        measure(&known.response, response, response_attributes, RESPONSE_ATTRIBUTES) < 0 ||
        (known.init_tensor = function(functions, "init_tensor")) == NULL ||
        (known.init_response = function(functions, "init_response")) == NULL ||
        (known.tobytes = PyUnicode_InternFromString("tobytes")) == NULL ||
        (known.dtype = PyUnicode_InternFromString("dtype")) == NULL ||
        (known.shape = PyUnicode_InternFromString("shape")) == NULL ||
        (known.no_text = PyUnicode_InternFromString("")) == NULL ||
        measure(&known.tensor, tensor, tensor_attributes, TENSOR_ATTRIBUTES) < 0)
        return NULL;
    Py_INCREF(regions);
    known.regions = (PyTypeObject *)regions;
    Py_INCREF(ndarray);
    known.ndarray = (PyTypeObject *)ndarray;
    Py_INCREF(dtypes);
    known.dtypes = dtypes;
    Py_INCREF(datatypes);
    known.datatypes = datatypes;
    if (replace(tensor, tensor_methods) < 0 || replace(request, request_methods) < 0 ||
        replace(response, response_methods) < 0)
        return NULL;
    Py_RETURN_NONE;
}
