/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Inputs: pb_utils.Tensor objects, and their contents as arrays over shared memory.
 */
#include "plain.h"

/* The tensor that a reference stands for, as Tensor._from_region makes it. */
PyObject *tensor_of(PyObject *region, PyObject *ref)
{
    /* The items of a reference, in their order: see TENSOR_FIELDS. */
    static const int attributes[] = {NAME, DATATYPE, SHAPE, ADDRESS, SIZE};
    const Class *class = &known.tensor;
    PyObject *tensor, *kind;
    int i;

    if (!PyList_CheckExact(ref) || PyList_Size(ref) != 7 || !PyLong_CheckExact(kind = PyList_GetItem(ref, 5)) ||
        PyObject_IsTrue(kind) != 0)
        return PyObject_CallFunctionObjArgs(known.tensor_of, region, ref, NULL);
    tensor = PyType_GenericAlloc(class->type, 0);
    if (tensor == NULL)
        return NULL;
    for (i = 0; i < 5; i++)
        set(class, tensor, attributes[i], PyList_GetItem(ref, i));
    set(class, tensor, ARRAY, Py_None);
    set(class, tensor, REGION, region);
    return tensor;
}

/* The array over the contents of a tensor that lies in the request region. NULL, maybe without an exception, if there
 * is another way to make it. */
static PyObject *view(PyObject *tensor, PyObject *region, PyObject *dtype_and_size)
{
    PyObject *array = NULL, *own, *address = get(&known.tensor, tensor, ADDRESS);
    PyObject *shape = get(&known.tensor, tensor, SHAPE);
    long long at, end, item;

    if (Py_TYPE(region) != known.regions || address == NULL || !PyLong_CheckExact(address) || shape == NULL)
        return NULL;
    at = PyLong_AsLongLong(address);
    item = PyLong_AsLongLong(PyTuple_GetItem(dtype_and_size, 1));
    if (at < 0 || item <= 0 || at % item != 0)
        return NULL;
    own = PyObject_GetAttrString(region, "own");
    if (own == NULL)
        return NULL;
    end = PyLong_AsLongLong(PyTuple_GetItem(own, 1));
    if (at <= end)
        array = PyObject_CallFunctionObjArgs((PyObject *)known.ndarray, shape, PyTuple_GetItem(dtype_and_size, 0),
                                             PyTuple_GetItem(own, 0), address, NULL);
    Py_DECREF(own);
    return array;
}

/* In the place of Tensor.as_numpy. */
PyObject *as_numpy(PyObject *tensor, PyObject *unused)
{
    const Class *class = &known.tensor;
    PyObject *array, *dtype, *region, *datatype;

    (void)unused;
    if (!is_exact(class, tensor) || (datatype = get(class, tensor, DATATYPE)) == NULL ||
        (dtype = PyDict_GetItem(known.dtypes, datatype)) == NULL || (array = get(class, tensor, ARRAY)) == NULL)
        return PyObject_CallFunctionObjArgs(known.as_numpy, tensor, NULL);
    if (array == Py_None) {
        region = get(class, tensor, REGION);
        array = region == NULL ? NULL : view(tensor, region, dtype);
        if (array == NULL) {
            PyErr_Clear();
            return PyObject_CallFunctionObjArgs(known.as_numpy, tensor, NULL);
        }
        set_new(class, tensor, ARRAY, array);
    }
    Py_INCREF(array);
    return array;
}
