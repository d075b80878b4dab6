/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The module pyruntime.stub._plain, which _plain.pyi describes.
 */
#include "plain.h"

static PyMethodDef functions[] = {
    {"use", use, METH_VARARGS, NULL},
    {"make_requests", FAST(make_requests), METH_FASTCALL, NULL},
    {"still_held", still_held, METH_O, NULL},
    {"result", FAST(result), METH_FASTCALL, NULL},
    {"get_input_tensor_by_name", FAST_WITH_NAMES(get_input), METH_FASTCALL | METH_KEYWORDS,
     "get_input_tensor_by_name($module, inference_request, name)\n--\n\n"
     "The request's input of that name; None if the client did not send it."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_responses},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pyruntime.stub._plain",
    .m_doc = "Requests and responses of a stub that are plain.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__plain(void)
{
    return PyModuleDef_Init(&definition);
}
