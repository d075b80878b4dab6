# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Values in JSON near the border of what native code reads: texts, numbers, and the elements of tensors."""

import json

from hypothesis import strategies as st

from pyruntime.utils.dtypes import BY_NAME

WHATEVER = st.sampled_from([None, True, 0, -1, 1.5, "", "x", "é", "\\", '"', [], {}, [1], {"a": 1}])


def mostly(usual, odd, rare=30):
    """What clients send, and once in so many times something else: with more of that hardly any would be accepted.

    A number from the middle stands for that: hypothesis draws the ends of a range more often, and shrinks to the first.
    """
    return st.integers(0, rare).flatmap(lambda number: odd if number == (rare + 1) // 2 else usual)


class Raw(str):
    """A text that is written as it is: any JSON, or none. Half surrogates stand for bytes that are not UTF-8."""


TEXTS_OF_CLIENTS = st.one_of(
    st.sampled_from(["", "1", "x" * 50, "é", "a\nb", '"\\', "\x7f", "\0", "\U0001f600", "\u2028"]),
    st.text(max_size=9),
    st.text(max_size=9).map(lambda text: Raw(json.dumps(text, ensure_ascii=True))),
)
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Raw(json.dumps(number))),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda number: Raw(json.dumps(number))),
    st.integers(-(2**65), 2**65),
    st.sampled_from(
        [
            "0",
            "-0",
            "1",
            "-1",
            "127",
            "128",
            "-128",
            "-129",
            "255",
            "256",
            "32767",
            "32768",
            "65535",
            "65536",
            "2147483647",
            "2147483648",
            "-2147483648",
            "-2147483649",
            "4294967295",
            "4294967296",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "-9223372036854775809",
            "18446744073709551615",
            "18446744073709551616",
            "9007199254740993",
            "9007199254740993.0",
            "123456789012345678901234567890",
            "1.0",
            "-0.0",
            "0.1",
            "1.5",
            "1e5",
            "1E+5",
            "1e-7",
            "1e22",
            "1e23",
            "9e15",
            "5e-324",
            "2e-324",
            "2.2250738585072011e-308",
            "1.7976931348623157e308",
            "3.4028234663852886e38",
            "3.4028235677973366e38",
            "1e39",
            "16777217",
            "0.10000000149011612",
            "1.00000005960464477539",
            "0e0",
            "-0e5",
            "0e999",
            "0.0000000000000000000000000000000000001",
            "1000000000000000000000000e-24",
        ]
    ).map(Raw),
)
ODD_NUMBERS = st.sampled_from(
    [
        "1e400",
        "-1e400",
        "1e-400",
        "1e99999999999",
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        "-01",
        "1.",
        ".5",
        "+1",
        "1e",
        "1e+",
        "-",
        "0x1",
        "1_0",
        "1e5.0",
        "--1",
    ]
).map(Raw)
STRINGS = st.one_of(
    TEXTS_OF_CLIENTS,
    st.sampled_from([r'"\ud83d\ude00"', r'"\/\b\f\n\r\t\\\""', r'"\u0000"', '"\ue000\uffff"', r'"\uE000"']).map(Raw),
)
ODD_STRINGS = st.sampled_from(
    [
        *[rf'"\{rest}"' for rest in ("ud83d", "ude00", "ud83dx", r"ud83d\n", r"ud83d\ud83d", "x", "u12g4", "u12", "")],
        '"\n"',
        "'a'",
        # Bytes that are no UTF-8: alone, cut off, overlong, a surrogate, too large.
        *[
            f'"{text}"'
            for text in ("\udcff", "\udcc3", "\udcc3(", "\udcc0\udcaf", "\udce0\udc80\udcaf", "\udce2\udc82")
        ],
        *[f'"{text}"' for text in ("\udced\udca0\udc80", "\udcf4\udc90\udc80\udc80", "\udcf0\udc80\udc80\udc80")],
        '"\udcf8"',
        '"\udc80"',
    ]
).map(Raw)


@st.composite
def elements(draw, datatype):
    """An element of a tensor as JSON."""
    if datatype == "BYTES":
        usual, odd = STRINGS, ODD_STRINGS
    elif datatype == "BOOL":
        usual, odd = st.booleans(), st.just(Raw("tru"))
    elif datatype.startswith("FP"):
        usual, odd = NUMBERS, ODD_NUMBERS
    else:
        bits = 8 * BY_NAME[datatype].size
        least = 0 if datatype.startswith("U") else -(1 << bits - 1)
        usual, odd = st.integers(least, least + (1 << bits) - 1), st.one_of(NUMBERS, ODD_NUMBERS)
    return draw(mostly(usual, st.one_of(odd, WHATEVER), rare=40))


@st.composite
def nested(draw, flat):
    """The elements in lists of any depth."""
    if len(flat) < 2 or not draw(st.booleans()):
        return flat
    at = draw(st.integers(0, len(flat)))
    parts = [draw(nested(flat[:at])), draw(nested(flat[at:]))]
    return draw(mostly(st.just(parts), st.sampled_from([[*parts, []], [[parts]], [*flat[:at], parts[1]]]), rare=9))
