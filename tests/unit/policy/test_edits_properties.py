"""No text makes the reader of edits fail or reach another file, and an edit made from two texts gives the second."""

from __future__ import annotations

import difflib
import json
import re

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autoresearchd.policy.edits.read_answer import EditError, read_answer

FILE = "train.py"
ODD = ["", "a", "b", "    a", "x = 1 ", "-", "+", "--- a", "-- a", "++ b", "@@ -1 +1 @@", "```", "{", " ", "\u2028"]
LINE = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\0.…"), max_size=12
)
END = st.sampled_from(["\n", "\r\n"])
TEXT = st.lists(LINE, max_size=12)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts, the second mostly made from the first."""
    old = draw(TEXT)
    if draw(st.booleans()):
        lines = draw(TEXT)
    else:
        lines = list(old)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
    return "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in lines)


def pieces(text: str) -> list[str]:
    """Lines with their line feeds; no other character ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def unified(old: str, new: str, context: int) -> str:
    return "".join(difflib.unified_diff(pieces(old), pieces(new), f"a/{FILE}", f"b/{FILE}", n=context))


@settings(max_examples=400, deadline=None)
@given(pairs(), st.integers(1, 3))
@example(("", "a\n"), 1)
@example(("-- a\n++ b\n", "a\n"), 1)
def test_a_diff_of_two_texts_makes_the_second_of_the_first(pair: tuple[str, str], context: int) -> None:
    old, new = pair
    assume(old != new)
    diff = unified(old, new, context)
    for answer in (diff, f"Why not.\n\n```diff\n{diff}```\nDone.\n", json.dumps({"diff": diff})):
        found = read_answer(answer, {FILE: old})
        assert (found.form, found.files) == ("diff", {FILE: new})


@st.composite
def replacements(draw: st.DrawFn) -> tuple[list[str], int, int, list[str], str, bool]:
    line = LINE
    lines = draw(st.lists(line, min_size=1, max_size=12))
    start = draw(st.integers(0, len(lines) - 1))
    stop = draw(st.integers(start + 1, len(lines)))
    return lines, start, stop, draw(st.lists(line, max_size=4)), draw(END), draw(st.booleans())


def rendered(lines: list[str], end: str, final: bool) -> str:
    return end.join(lines) + (end if final else "") if lines else ""


@settings(max_examples=300, deadline=None)
@given(replacements())
def test_a_search_that_is_there_once_is_replaced_whatever_the_texts(
    case: tuple[list[str], int, int, list[str], str, bool],
) -> None:
    lines, start, stop, new, end, final = case
    search = lines[start:stop]
    assume(final or lines[-1])
    assume(any(line.strip() for line in search))
    assume(not any("think" in line or "reason" in line for line in (*lines, *new)))  # such a section is dropped whole
    assume(sum(lines[i : i + len(search)] == search for i in range(len(lines))) == 1)
    after = lines[:start] + new + lines[stop:]
    old, wanted = rendered(lines, end, final), rendered(after, end, final)
    assume(old != wanted and (end in old or end == "\n"))  # a single open line does not tell how lines end
    block = "".join(f"{line}\n" for line in ["<<<<<<< SEARCH", *search, "=======", *new, ">>>>>>> REPLACE"])
    pair = {"search": "".join(f"{line}\n" for line in search), "replace": "".join(f"{line}\n" for line in new)}
    for answer in (block, f"{FILE}\n```python\n{block}```\n", json.dumps({"search_replace": [pair]})):
        assert read_answer(answer, {FILE: old}).files == {FILE: wanted}


@settings(deadline=None)
@given(pairs())
def test_line_operations_made_from_two_texts_give_the_second(pair: tuple[str, str]) -> None:
    old, new = pair
    assume(old != new)
    before, after = pieces(old), pieces(new)
    edits: list[dict[str, object]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        item = {"file": FILE, "op": tag, "line": i + 1, "end": j, "expect": "".join(before[i : i + 1])}
        if tag == "insert":
            item = {"file": FILE, "op": tag, "line": i}
        if tag != "equal":
            edits.append({**item, "text": "".join(after[k:m])})
    assert read_answer(json.dumps({"edits": edits}), {FILE: old}).files == {FILE: new}


SOUP = st.lists(
    st.sampled_from(
        [
            *["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```python", "```diff", "```json", "~~~"],
            *["--- a/train.py", "+++ b/train.py", "@@ -1,2 +1,2 @@", "@@", " import x", "-import x", "+import y"],
            *["diff --git a/train.py b/train.py", "--- /dev/null", "rename from x", "<think>", "</think>", "x = 1"],
            *['{"edits": [', '{"line": 1, "op": "delete"}', "]}", '{"diff": "@@', '"}', '{"files": {"train.py": "'],
            *['{"hypothesis": "\\ud800"}', "Hypothesis: x", "/etc/passwd", "lib.py", "\r", "\0", "\ud800", "# ..."],
            *["train.py", "\\ No", "", " ", "{"],
            *['{"edits": [{"op": "insert", "line": 0, "text": "\\ud800"}]}', '{"files": {"train.py": "\\u0000"}}'],
        ]
    )
    | st.text(max_size=8),
    max_size=14,
)


@settings(max_examples=600, deadline=None)
@given(SOUP.map("\n".join) | SOUP.map("".join) | st.text(st.characters(), max_size=200))
def test_no_text_makes_the_reader_fail_or_touch_another_file(answer: str) -> None:
    for code in ({"train.py": "import x\nx = 1\n"}, {"train.py": "", "lib.py": "x = 1"}, {}):
        try:
            found = read_answer(answer, code)
        except EditError as error:
            assert error.what
            str(error).encode()
        else:
            assert found.files
            assert found.files.keys() <= code.keys()
            for text in found.files.values():
                assert "\0" not in text
                text.encode()
            json.dumps(dict(found.words), allow_nan=False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats()
    | st.sampled_from(["replace", FILE, "x = 1", "@@", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "line", "end", "file", "text", "expect", "search", "replace"]), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["edits", "search_replace", "diff", "files", "hypothesis", FILE]), JSON))
def test_no_object_makes_the_reader_fail(found: dict[str, object]) -> None:
    try:
        assert read_answer(json.dumps(found), {FILE: "x = 1\n"}).files.keys() == {FILE}
    except EditError as error:
        assert error.what
