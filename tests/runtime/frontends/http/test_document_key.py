# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""split_document: what it cuts out, and that documents with one key differ in nothing else."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http import document_key
from pyruntime.runtime.frontends.http.document_key import PLAIN_BYTES_MAX, PLAIN_KEPT_MAX, split_document

INPUTS = b'"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'
SEQUENCE = b'"sequence_id":%d,"sequence_start":%b,"sequence_end":%b'


def with_sequence(id, start=b"false", end=b"false", name=b"1"):
    return b'{"id":"%b","parameters":{' % name + SEQUENCE % (id, start, end) + b"}," + INPUTS


class TestCut:
    def test_id(self):
        """Requests with different ids, or none, have one key; another size of the contents makes another."""
        key, id, sequence = split_document(b'{"id":"first",' + INPUTS, 4)
        assert (id, sequence) == ("first", None)
        assert split_document(b'{"id":"2",' + INPUTS, 4)[:2] == (key, "2")
        assert split_document(b'{"id":"",' + INPUTS, 4)[:2] == (key, "")
        assert split_document(b'{"id": "\xc3\xa9", ' + INPUTS, 4)[:2] == (key, "é")
        assert split_document(b"{" + INPUTS, 4)[:2] == (key, "")
        assert split_document(b'{"id":"2",' + INPUTS, 8)[0] != key

    @pytest.mark.parametrize(
        ("start", "end", "flags"), [(b"false", b"false", 0), (b"true", b"false", 1), (b"false", b"true", 2)]
    )
    def test_sequence(self, start, end, flags):
        """So have requests of different sequences."""
        key, id, sequence = split_document(with_sequence(7, start, end), 4)
        assert (id, sequence) == ("1", (7, flags))
        assert split_document(with_sequence(10**19 - 1, name=b"234"), 4) == (key, "234", (10**19 - 1, 0))

    def test_start_and_end(self):
        """A sequence of one request."""
        assert split_document(with_sequence(7, b"true", b"true"), 4)[2] == (7, 3)

    def test_two_flags(self):
        """The last one of two flags counts, so that a sequence with two is not cut out. The id is."""
        document = with_sequence(7).replace(b"},", b',"sequence_start":true},', 1)
        assert split_document(document, 4)[1:] == ("1", None)

    def test_spaces(self):
        """As Python's json writes them."""
        document = orjson.loads(with_sequence(7))
        text = orjson.dumps(document).replace(b":", b": ").replace(b",", b", ")
        assert split_document(text, 4)[1:] == ("1", (7, 0))

    def test_no_sequence(self):
        """A document from which a sequence is cut is not one that never had any."""
        without = b'{"id":"1","parameters":{},' + INPUTS
        assert split_document(with_sequence(7), 4)[0] != split_document(without, 4)[0]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b'{"id":"a\\u0062",' + INPUTS, id="escaped id"),
        pytest.param(b'{"id":"a","id\\u0022":1,' + INPUTS, id="escaped name"),
        pytest.param(b'{"id":"a","id":"b",' + INPUTS, id="two ids"),
        pytest.param(b'{"id":"\xff",' + INPUTS, id="no text"),
        pytest.param(b'{"id":"a\x01",' + INPUTS, id="control character"),
        pytest.param(b'{"id":7,' + INPUTS, id="number"),
        pytest.param(b'{"id":"7",}', id="no other member"),
        pytest.param(b'{"x":1,"id":"a",' + INPUTS, id="id in another place"),
        pytest.param(b'{"parameters":{"sequence_id":0,"sequence_start":true,"sequence_end":false},' + INPUTS, id="0"),
        pytest.param(b'{"parameters":{"sequence_id":"a","sequence_start":true},' + INPUTS, id="name"),
        pytest.param(b'{"parameters":{' + SEQUENCE % (1, b"true", b"1") + b"}," + INPUTS, id="flag"),
        pytest.param(
            b'{"parameters":{' + SEQUENCE % (1, b"true", b"true") + b',"sequence_id":2},' + INPUTS, id="two sequences"
        ),
        pytest.param(
            b'{"parameters":{' + SEQUENCE % (1, b"true", b"true") + b',"sequence_start":false},' + INPUTS,
            id="two flags",
        ),
        pytest.param(
            b'{"parameters":{' + SEQUENCE % (10**19, b"true", b"true") + b"}," + INPUTS, id="number of 20 digits"
        ),
    ],
)
def test_kept(document):
    """What can be read in two ways, or is an error, is left to the parser."""
    key, id, sequence = split_document(document, 4)
    assert key[0] is document
    assert (id, sequence) == ("", None)


PARTS = [b'{"id":"1",', b"{", b'"id":"2",', b'"parameters":{', SEQUENCE % (7, b"true", b"false"), b"},", b"\\", b"\xff"]
PARTS += [b'"sequence_id"', b'{"id":"\xff",', b'{"id": "a", ', INPUTS]


documents = st.lists(st.sampled_from(PARTS), max_size=6).map(b"".join)


@given(documents, documents)
def test_what_is_remembered_changes_nothing(document, other):
    """A document is split in the same way the first time, when its parts are remembered, and without any memory."""
    expected = document_key._split_unusual(document, 4)
    for _ in range(2):
        assert split_document(document, 4)[1:] == expected[1:]
    if split_document(document, 4)[0] == split_document(other, 4)[0]:
        assert expected[0] == document_key._split_unusual(other, 4)[0]


def test_what_is_remembered_is_bounded():
    """Clients cannot make it grow."""
    for number in range(2 * PLAIN_KEPT_MAX):
        split_document(b'{"x":%d}' % number, 4)
    split_document(b'{"x":"%b"}' % (b"y" * PLAIN_BYTES_MAX), 4)
    assert len(document_key._plain) <= PLAIN_KEPT_MAX
    assert max(map(len, document_key._plain)) <= PLAIN_BYTES_MAX
