# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The format of messages, and the agreement of the tables about them."""

import typing

import pytest

from pyruntime.utils import messages
from pyruntime.utils.messages import FIELDS, MESSAGES, TAGS, Message

each_message = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


def test_every_message_has_a_tag():
    """The union, the list and the tags are about the same messages."""
    assert set(typing.get_args(Message)) == set(MESSAGES) == set(TAGS)
    assert len(MESSAGES) == len(TAGS) == len(FIELDS)
    assert [TAGS[kind] for kind in MESSAGES] == list(range(len(MESSAGES)))


@each_message
def test_fields_match_annotations(kind):
    """The types that are checked when a field arrives match the field's annotation."""
    annotated = typing.get_type_hints(kind)
    assert list(annotated) == list(kind._fields)
    assert FIELDS[TAGS[kind]] == tuple(checked(annotated[name]) for name in kind._fields)


def checked(annotation):
    """The type, or the types, that a field with this annotation is checked for with isinstance."""
    if typing.get_origin(annotation) is tuple:
        return list  # as which it arrives
    if typing.get_origin(annotation) is typing.Union:
        return tuple(dict.fromkeys(map(checked, typing.get_args(annotation))))
    return object if annotation is typing.Any else typing.get_origin(annotation) or annotation


def test_tags_are_for_ever():
    """A tag is part of the protocol: this list may only grow at its end."""
    assert [kind.__name__ for kind in MESSAGES[:30]] == [
        "Hello", "AutoComplete", "Completed", "Load", "Ready", "LoadFailed", "Infer", "Release", "Result", "Failed",
        "Retired", "Log", "Stop", "Stopped", "Respond", "Credit", "Requeue", "Call", "Answer", "CancelCall", "Consumed",
        "ReleaseHold", "Unread", "Unmap", "Ask", "Reply", "Measure", "CheckReady", "IsReady",
        "DropSequences",
    ]  # fmt: skip


def test_constants_are_outside_of_what_they_mark():
    """Success differs from all error codes, no slot from all offsets, and markers from all responses."""
    assert messages.OK < 0
    assert messages.NO_SLOT < 0
    assert messages.SENDER is None
    assert type(messages.RESCHEDULED) is int
