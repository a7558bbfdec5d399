"""exporters/json_values.py: the standard library's json is the witness."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_topo.exporters.json_values import encode, string

# Every code point, lone surrogates (undecodable names of files) among them.
TEXT = st.text(st.characters(exclude_categories=()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(TEXT, inner),
)


@given(TEXT)
@example('a "quoted" \\ name')
@example("\x00\x1f\x7f\x80\b\f\n\r\t")
@example("\u00e9\u2028\ud800\U0001f600")
def test_strings(text: str) -> None:
    """Any text, escaped as json does."""
    assert string(text) == json.dumps(text)


@given(VALUES)
@example([1e16, 1e22, 5e-324, -0.0, 1.5, 10**30, True, 0])
@example({"": [{}, [], ()]})
def test_values(value: object) -> None:
    """Any value, written as json does."""
    assert encode(value) == json.dumps(value, allow_nan=False)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_number(number: float) -> None:
    """JSON has no word for what is no number."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"a": [number]})


def test_no_json() -> None:
    """What has no JSON is a bug, not a string."""
    with pytest.raises(TypeError, match="bytes"):
        encode([b"x"])
