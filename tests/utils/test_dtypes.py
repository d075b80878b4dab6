# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from pyruntime.utils.dtypes import BY_CONFIG_NAME, BY_NAME, BY_NUMBER, DATATYPES

WITH_NUMPY = [datatype for datatype in DATATYPES if datatype.numpy]


def test_fourteen_numbered_in_order():
    """The datatypes have the numbers 1 to 14, in order."""
    assert [datatype.number for datatype in DATATYPES] == list(range(1, 15))


def test_tables_hold_all():
    """Each table finds each datatype."""
    for datatype in DATATYPES:
        assert BY_NAME[datatype.name] is datatype
        assert BY_CONFIG_NAME[datatype.config_name] is datatype
        assert BY_NUMBER[datatype.number] is datatype
    assert len(BY_NAME) == len(BY_CONFIG_NAME) == len(BY_NUMBER) == len(DATATYPES)


def test_config_names():
    """A config name is TYPE_ and the protocol name, but for BYTES, which is a string there."""
    odd = {datatype.name: datatype.config_name for datatype in DATATYPES if datatype.config_name[5:] != datatype.name}
    assert odd == {"BYTES": "TYPE_STRING"}


@pytest.mark.parametrize("datatype", WITH_NUMPY, ids=lambda datatype: datatype.name)
def test_numpy_agrees_on_the_size(datatype):
    """numpy's element is as large as Triton's; objects, which stand for BYTES, have no size of their own."""
    dtype = np.dtype(datatype.numpy)
    assert datatype.size == (0 if dtype.hasobject else dtype.itemsize)


def test_only_bf16_lacks_a_numpy_dtype():
    """BF16 is two bytes that numpy has no name for."""
    assert [(datatype.name, datatype.size) for datatype in DATATYPES if not datatype.numpy] == [("BF16", 2)]
