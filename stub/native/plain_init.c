/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Outputs: pb_utils.Tensor and pb_utils.InferenceResponse objects that a model makes.
 */
#include "plain.h"

/* Call a function in Python with an object before all other arguments. */
static PyObject *call_with(PyObject *function, PyObject *object, PyObject *arguments, PyObject *names)
{
    Py_ssize_t i, count = PyTuple_Size(arguments);
    PyObject *all = PyTuple_New(count + 1), *result;

    if (all == NULL)
        return NULL;
    Py_INCREF(object);
    PyTuple_SetItem(all, 0, object);
    for (i = 0; i < count; i++) {
        Py_INCREF(PyTuple_GetItem(arguments, i));
        PyTuple_SetItem(all, i + 1, PyTuple_GetItem(arguments, i));
    }
    result = PyObject_Call(function, all, names);
    Py_DECREF(all);
    return result;
}

/* The datatype of an array, if it is plain: borrowed. NULL, maybe with an exception. */
static PyObject *datatype_of(PyObject *array)
{
    PyObject *dtype, *datatype;

    if (Py_TYPE(array) != known.ndarray || (dtype = PyObject_GetAttr(array, known.dtype)) == NULL)
        return NULL;
    datatype = PyDict_GetItem(known.datatypes, dtype);
    Py_DECREF(dtype);
    return datatype;
}

/* In the place of Tensor.__init__. */
PyObject *init_tensor(PyObject *tensor, PyObject *arguments, PyObject *names)
{
    const Class *class = &known.tensor;
    PyObject *name = NULL, *array = NULL, *datatype = NULL, *sizes, *shape = NULL;

    if ((names == NULL || PyDict_Size(names) == 0) && PyTuple_Size(arguments) == 2) {
        name = PyTuple_GetItem(arguments, 0);
        array = PyTuple_GetItem(arguments, 1);
        if (PyUnicode_CheckExact(name) && PyUnicode_GetLength(name) > 0)
            datatype = datatype_of(array);
    }
    if (datatype != NULL && (sizes = PyObject_GetAttr(array, known.shape)) != NULL) {
        shape = PySequence_List(sizes);
        Py_DECREF(sizes);
    }
    if (shape == NULL) {
        PyErr_Clear();
        return call_with(known.init_tensor, tensor, arguments, names);
    }
    set(class, tensor, NAME, name);
    set(class, tensor, DATATYPE, datatype);
    set_new(class, tensor, SHAPE, shape);
    set(class, tensor, ARRAY, array);
    set(class, tensor, REGION, Py_None);
    Py_RETURN_NONE;
}

/* The outputs of a response whose only argument is a list of tensors; a new list. NULL, maybe with an exception. */
static PyObject *only_outputs(PyObject *arguments, PyObject *names)
{
    PyObject *tensors = NULL;
    Py_ssize_t i, named = names == NULL ? 0 : PyDict_Size(names);

    if (PyTuple_Size(arguments) == 1 && named == 0)
        tensors = PyTuple_GetItem(arguments, 0);
    else if (PyTuple_Size(arguments) == 0 && named == 1)
        tensors = PyDict_GetItemString(names, "output_tensors");
    if (tensors == NULL || !PyList_CheckExact(tensors))
        return NULL;
    for (i = 0; i < PyList_Size(tensors); i++)
        if (!is_exact(&known.tensor, PyList_GetItem(tensors, i)))
            return NULL;
    return PyList_GetSlice(tensors, 0, PyList_Size(tensors));
}

/* In the place of InferenceResponse.__init__. */
PyObject *init_response(PyObject *response, PyObject *arguments, PyObject *names)
{
    const Class *class = &known.response;
    PyObject *tensors = only_outputs(arguments, names);

    if (tensors == NULL) {
        PyErr_Clear();
        return call_with(known.init_response, response, arguments, names);
    }
    set(class, response, ERROR, Py_None);
    set(class, response, JSON, known.no_text);
    set_new(class, response, OUTPUT_TENSORS, tensors);
    Py_RETURN_NONE;
}
