/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Requests: pb_utils.InferenceRequest objects, their inputs, and which of them the model keeps.
 */
#include "plain.h"

/* The fields of a request in a message: see WireRequest. */
#define WIRE_FIELDS 9
#define WIRE_OUTPUTS 4
#define WIRE_PLACES 8

/* The names of the outputs that a request wants; a new reference. */
static PyObject *wanted(PyObject *outputs, PyObject *all)
{
    if (outputs != Py_None)
        return PySet_New(outputs);
    Py_INCREF(all);
    return all;
}

/* The request, as InferenceRequest._from_wire makes it. Takes over `serial`. */
static PyObject *make_request(PyObject *wire, PyObject *region, PyObject *all_outputs, PyObject *serial)
{
    /* Where the fields of a message go, in their order. */
    static const int attributes[] = {ID,         CORRELATION_ID, FLAGS,        TIMEOUT_US, REQUESTED_OUTPUTS,
                                     PARAMETERS, TENSORS,        TRACE_CONTEXT};
    const Class *class = &known.request;
    PyObject *request, *outputs;
    int i;

    if (serial == NULL)
        return NULL;
    if (!PyList_CheckExact(wire) || PyList_Size(wire) != WIRE_FIELDS || PyList_GetItem(wire, WIRE_PLACES) != Py_None) {
        request = PyObject_CallFunctionObjArgs(known.request_of, region, wire, all_outputs, serial, NULL);
        Py_DECREF(serial);
        return request;
    }
    outputs = wanted(PyList_GetItem(wire, WIRE_OUTPUTS), all_outputs);
    request = outputs == NULL ? NULL : PyType_GenericAlloc(class->type, 0);
    if (request == NULL) {
        Py_XDECREF(outputs);
        Py_DECREF(serial);
        return NULL;
    }
    for (i = 0; i < WIRE_PLACES; i++)
        set(class, request, attributes[i], PyList_GetItem(wire, i));
    set(class, request, REQUEST_REGION, region);
    set_new(class, request, OUTPUTS, outputs);
    set(class, request, INPUTS, Py_None);
    set(class, request, STREAM, Py_None);
    set(class, request, ANSWERED, Py_False);
    set_new(class, request, SERIAL, serial);
    set_new(class, request, RELEASE_FLAGS, PyLong_FromLong(1));
    return request;
}

/* See _plain.pyi. */
PyObject *make_requests(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *requests, *request, *wires;
    Py_ssize_t i;
    long long batch;

    (void)module;
    if (count != 4 || !PyList_Check(wires = arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "make_requests takes a list, a region, the outputs and a serial");
        return NULL;
    }
    batch = PyLong_AsLongLong(arguments[3]);
    if (batch == -1 && PyErr_Occurred())
        return NULL;
    requests = PyList_New(0);
    for (i = 0; requests != NULL && i < PyList_Size(wires); i++) {
        request = make_request(PyList_GetItem(wires, i), arguments[1], arguments[2], PyLong_FromLongLong(batch + i));
        if (request == NULL || PyList_Append(requests, request) < 0)
            Py_CLEAR(requests);
        Py_XDECREF(request);
    }
    return requests;
}

/* In the place of InferenceRequest.inputs. */
PyObject *inputs_of(PyObject *request, PyObject *unused)
{
    const Class *class = &known.request;
    PyObject *inputs = get(class, request, INPUTS), *tensors = get(class, request, TENSORS);
    PyObject *region = get(class, request, REQUEST_REGION), *tensor;
    Py_ssize_t i;

    (void)unused;
    if (inputs != NULL && inputs != Py_None) {
        Py_INCREF(inputs);
        return inputs;
    }
    if (inputs == NULL || tensors == NULL || !PyList_CheckExact(tensors) || region == NULL)
        return PyObject_CallFunctionObjArgs(known.inputs, request, NULL);
    inputs = PyList_New(0);
    for (i = 0; inputs != NULL && i < PyList_Size(tensors); i++) {
        tensor = tensor_of(region, PyList_GetItem(tensors, i));
        if (tensor == NULL || PyList_Append(inputs, tensor) < 0)
            Py_CLEAR(inputs);
        Py_XDECREF(tensor);
    }
    if (inputs != NULL)
        set(class, request, INPUTS, inputs);
    return inputs;
}

/* The input of a plain request that has this name, borrowed. NULL if there is no telling without Python. */
static PyObject *find_input(PyObject *request, PyObject *name)
{
    PyObject *inputs, *tensor, *other, *found = Py_None;
    Py_ssize_t i;

    if (!is_exact(&known.request, request) || !PyUnicode_CheckExact(name))
        return NULL;
    inputs = inputs_of(request, NULL);
    if (inputs != NULL && !PyList_CheckExact(inputs))
        found = NULL;
    for (i = 0; found == Py_None && inputs != NULL && i < PyList_Size(inputs); i++) {
        tensor = PyList_GetItem(inputs, i);
        other = is_exact(&known.tensor, tensor) ? get(&known.tensor, tensor, NAME) : NULL;
        if (other == NULL || !PyUnicode_CheckExact(other))
            found = NULL;
        else if (other == name || PyUnicode_Compare(other, name) == 0)
            found = tensor;
    }
    Py_XDECREF(inputs); /* the request has it as well */
    return inputs == NULL ? NULL : found;
}

/* In the place of get_input_tensor_by_name. */
PyObject *get_input(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    PyObject *found = NULL, *positional, *named, *result = NULL;
    Py_ssize_t i, more = names == NULL ? 0 : PyTuple_Size(names);

    (void)module;
    if (count == 2 && more == 0)
        found = find_input(arguments[0], arguments[1]);
    if (found != NULL) {
        Py_INCREF(found);
        return found;
    }
    if (PyErr_Occurred())
        return NULL;
    positional = PyTuple_New(count);
    named = PyDict_New();
    for (i = 0; positional != NULL && i < count; i++) {
        Py_INCREF(arguments[i]);
        PyTuple_SetItem(positional, i, arguments[i]);
    }
    for (i = 0; named != NULL && i < more; i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(names, i), arguments[count + i]) < 0)
            Py_CLEAR(named);
    if (positional != NULL && named != NULL)
        result = PyObject_Call(known.get_input, positional, named);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

/* Whether something else than its owner has a reference to an object. Versions of Python from 3.12 on have flags in the
 * other half of the count. */
static int is_shared(PyObject *object)
{
    return (uint32_t)Py_REFCNT(object) > 1;
}

/* Whether the model can still reach an input. -1 if there is no telling without Python. */
static int is_tensor_held(PyObject *tensor)
{
    PyObject *array, *datatype;

    if (!PyObject_TypeCheck(tensor, known.tensor.type))
        return -1;
    array = get(&known.tensor, tensor, ARRAY);
    datatype = get(&known.tensor, tensor, DATATYPE);
    if (array == NULL || datatype == NULL || !PyUnicode_CheckExact(datatype))
        return -1;
    if (is_shared(tensor))
        return 1;
    return array != Py_None && is_shared(array) && PyUnicode_CompareWithASCIIString(datatype, "BYTES") != 0;
}

/* The same of a request that a list has. */
static int is_request_held(PyObject *request)
{
    PyObject *inputs;
    Py_ssize_t i;
    int held = 0;

    if (!PyObject_TypeCheck(request, known.request.type) || (inputs = get(&known.request, request, INPUTS)) == NULL)
        return -1;
    if (is_shared(request))
        return 1;
    if (inputs == Py_None)
        return 0;
    if (!PyList_CheckExact(inputs))
        return -1;
    if (is_shared(inputs))
        return 1;
    for (i = 0; held == 0 && i < PyList_Size(inputs); i++)
        held = is_tensor_held(PyList_GetItem(inputs, i));
    return held;
}

/* See _plain.pyi. */
PyObject *still_held(PyObject *module, PyObject *requests)
{
    PyObject *held = PyList_New(0), *index;
    Py_ssize_t i;

    (void)module;
    for (i = 0; held != NULL && i < PyList_Size(requests); i++) {
        int is_held = is_request_held(PyList_GetItem(requests, i));

        if (is_held < 0) {
            Py_DECREF(held);
            return PyObject_CallFunctionObjArgs(known.still_held, requests, NULL);
        }
        index = is_held ? PyLong_FromSsize_t(i) : NULL;
        if (is_held && (index == NULL || PyList_Append(held, index) < 0))
            Py_CLEAR(held);
        Py_XDECREF(index);
    }
    return held;
}
