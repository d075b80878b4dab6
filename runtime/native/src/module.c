/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The module pyruntime.runtime.native._http2, which _http2.pyi describes.
 */
#include "http2.h"

typedef struct {
    PyObject *error;
} State;

PyObject *http2_error(PyObject *session)
{
    return ((State *)PyType_GetModuleState(Py_TYPE(session)))->error;
}

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"REQUEST", REQUEST}, {"MESSAGE", MESSAGE}, {"COMPRESSED", COMPRESSED}, {"PLACED", PLACED},
        {"END", END},         {"RESET", RESET},     {"TOO_LARGE", TOO_LARGE},   {"MALFORMED", MALFORMED},
        {"PING", PING},       {"GOAWAY", GOAWAY},
    };
    size_t i;

    for (i = 0; i < sizeof(constants) / sizeof(*constants); i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static int execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyObject *type;
    int failed;

    state->error = PyErr_NewExceptionWithDoc("pyruntime.runtime.native._http2.Http2Error",
                                             "The client does not speak HTTP/2, or breaks its rules beyond repair.",
                                             NULL, NULL);
    if (state->error == NULL || PyModule_AddObjectRef(module, "Http2Error", state->error) < 0)
        return -1;
    type = PyType_FromModuleAndSpec(module, &session_spec, NULL);
    if (type == NULL)
        return -1;
    failed = PyModule_AddObjectRef(module, "Session", type);
    Py_DECREF(type);
    return failed < 0 ? -1 : add_constants(module);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);

    if (state != NULL)
        Py_VISIT(state->error);
    return 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);

    if (state != NULL)
        Py_CLEAR(state->error);
    return 0;
}

static void destroy(void *module)
{
    clear(module);
}

static PyMethodDef functions[] = {
    {"split", (PyCFunction)(void (*)(void))infer_split, METH_FASTCALL, NULL},
    {"scatter", (PyCFunction)(void (*)(void))infer_scatter, METH_FASTCALL, NULL},
    {"count_fields", (PyCFunction)(void (*)(void))infer_count_fields, METH_FASTCALL, NULL},
    {"pack", (PyCFunction)(void (*)(void))infer_pack, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pyruntime.runtime.native._http2",
    .m_doc = "The server's side of one HTTP/2 connection that carries gRPC, by libnghttp2.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = destroy,
};

PyMODINIT_FUNC PyInit__http2(void)
{
    return PyModuleDef_Init(&definition);
}
