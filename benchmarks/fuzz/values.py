"""JSON values, and values that are almost right: a sound one in which any part may be replaced by another value."""

from typing import Any

from hypothesis import strategies as st

ODD = (
    "",
    " ",
    "\n",
    "\x00",
    "\u2028",
    "é",
    "日本",
    "🧭",
    '"',
    "\\",
    "<|im_end|>",
    "<|image_pad|>",
    "..",
    "1e999",
)
TEXT = st.text(max_size=20) | st.sampled_from(ODD)
SCALAR = (
    TEXT
    | st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10
)


@st.composite
def damaged(draw: st.DrawFn, sound: Any, changes: int = 3, other: st.SearchStrategy[Any] = JSON) -> Any:
    """``sound`` with up to so many parts replaced, removed or added."""
    value = sound
    for _ in range(draw(st.integers(0, changes))):
        value = _change(draw, value, other)
    return value


def _change(draw: st.DrawFn, value: Any, other: st.SearchStrategy[Any]) -> Any:
    """One change somewhere in ``value``, which stays as it is."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
        return draw(other)
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    place = draw(st.sampled_from(places))
    copy = value.copy()
    action = draw(st.sampled_from(("inside", "inside", "inside", "remove", "add")))
    if action == "inside":
        copy[place] = _change(draw, value[place], other)
    elif action == "remove":
        del copy[place]
    elif isinstance(copy, dict):
        copy[draw(TEXT)] = draw(other)
    else:
        copy.insert(place, draw(other))
    return copy
