/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the module pyruntime.stub._plain share: the classes of models, as C sees their objects.
 *
 * The classes are Python's, with __slots__. An attribute lies at the same place in all objects of a class and of its
 * subclasses; where that is, is measured when the module is told of the classes. So an object is the same whoever made
 * it, and the code keeps to the stable ABI of Python 3.8, and to what has been the same since then and joined the stable
 * ABI later: it is declared here, and in pack.h.
 *
 * A function that finds anything that is not plain calls the function in Python that it stands for. That one is the
 * reference: it decides, and it words the errors.
 */
#ifndef PYRUNTIME_STUB_NATIVE_PLAIN_H
#define PYRUNTIME_STUB_NATIVE_PLAIN_H

#include "pack.h"

#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

typedef PyObject *(*FastFunction)(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
typedef PyObject *(*FastFunctionWithNames)(PyObject *self, PyObject *const *arguments, Py_ssize_t count,
                                           PyObject *names);
#define FAST(function) ((PyCFunction)(void (*)(void))(FastFunction)(function))
#define FAST_WITH_NAMES(function) ((PyCFunction)(void (*)(void))(FastFunctionWithNames)(function))

/* The attributes, each list in the order of the names in plain_classes.c. */
enum { NAME, DATATYPE, SHAPE, ARRAY, REGION, ADDRESS, SIZE, TENSOR_ATTRIBUTES };
enum {
    ID,
    CORRELATION_ID,
    FLAGS,
    TIMEOUT_US,
    REQUESTED_OUTPUTS,
    PARAMETERS,
    TENSORS,
    TRACE_CONTEXT,
    REQUEST_REGION,
    OUTPUTS,
    INPUTS,
    STREAM,
    ANSWERED,
    SERIAL,
    RELEASE_FLAGS,
    REQUEST_ATTRIBUTES
};

enum { ERROR, OUTPUT_TENSORS, JSON, RESPONSE_ATTRIBUTES };

typedef struct {
    PyTypeObject *type;
    Py_ssize_t at[REQUEST_ATTRIBUTES]; /* as many as any class has */
} Class;

/* The classes, and the functions in Python that functions here stand for. */
typedef struct {
    Class tensor;
    Class request;
    Class response;
    PyTypeObject *regions;
    PyTypeObject *ndarray;
    PyObject *dtypes;    /* {datatype: (dtype, size of an item)} of numbers that numpy has */
    PyObject *datatypes; /* {dtype: datatype} of the same */
    PyObject *init_tensor;
    PyObject *init_response;
    PyObject *as_numpy;
    PyObject *inputs;
    PyObject *get_input;
    PyObject *tensor_of;  /* Tensor._from_region */
    PyObject *request_of; /* InferenceRequest._from_wire */
    PyObject *still_held;
    PyObject *tobytes; /* names */
    PyObject *dtype;
    PyObject *shape;
    PyObject *no_text;
} Known;

extern Known known;

/* The place of an attribute in an object of a class, which has NULL there where the attribute is not set. */
static inline PyObject **place_of(const Class *class, PyObject *object, int attribute)
{
    return (PyObject **)((char *)object + class->at[attribute]);
}

static inline PyObject *get(const Class *class, PyObject *object, int attribute)
{
    return *place_of(class, object, attribute);
}

/* Set an attribute to a value that the object then owns. */
static inline void set_new(const Class *class, PyObject *object, int attribute, PyObject *value)
{
    PyObject **place = place_of(class, object, attribute);
    PyObject *before = *place;

    *place = value;
    Py_XDECREF(before);
}

static inline void set(const Class *class, PyObject *object, int attribute, PyObject *value)
{
    Py_INCREF(value);
    set_new(class, object, attribute, value);
}

static inline int is_exact(const Class *class, PyObject *object)
{
    return Py_TYPE(object) == class->type;
}

/* plain_classes.c */
PyObject *use(PyObject *module, PyObject *arguments);

/* plain_requests.c */
PyObject *make_requests(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *still_held(PyObject *module, PyObject *requests);
PyObject *get_input(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);
PyObject *inputs_of(PyObject *request, PyObject *unused);

/* plain_responses.c */
int add_responses(PyObject *module);
PyObject *result(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* plain_tensors.c */
PyObject *tensor_of(PyObject *region, PyObject *ref);
PyObject *as_numpy(PyObject *tensor, PyObject *unused);

/* plain_init.c */
PyObject *init_tensor(PyObject *tensor, PyObject *arguments, PyObject *names);
PyObject *init_response(PyObject *response, PyObject *arguments, PyObject *names);

#endif
