"""The instructions that a model is given: how to write an edit in each form that is read."""

from __future__ import annotations

FORMS = """\
Write your change in one of these forms. Every file keeps its exact name; only editable files may be changed.

1. SEARCH/REPLACE blocks, best for small changes. SEARCH holds whole lines copied exactly from the file, indentation
included, and must be in it exactly once; REPLACE holds what they become. Several blocks are allowed; each is matched
against the file as shown.

train.py
<<<<<<< SEARCH
learning_rate = 3e-4
=======
learning_rate = 1e-3
>>>>>>> REPLACE

2. Line operations, as JSON. Numbers are those of the file as shown, from 1, "end" included; "insert" puts its text
after "line" (0: at the top); "expect" is the present text of "line" and guards against a wrong number.

```json
{"edits": [{"file": "train.py", "op": "replace", "line": 12, "end": 12, "expect": "depth = 4", "text": "depth = 6"},
           {"file": "train.py", "op": "insert", "line": 20, "text": "warmup = 100"},
           {"file": "train.py", "op": "delete", "line": 31, "end": 33}]}
```

3. A unified diff with unchanged lines around each change. No file may be created, deleted or renamed.

```diff
--- a/train.py
+++ b/train.py
@@ -11,3 +11,3 @@
 width = 256
-depth = 4
+depth = 6
 heads = 8
```

4. The whole new file, every line of it, with its name after the opening fence. Leave nothing out.

```python train.py
…all lines of the file…
```

Say why in a JSON object on a line of its own. "expected_delta" is the expected improvement, positive for better.

{"hypothesis": "why it may help", "description": "what changes", "expected_delta": 0.01, "next_action_hint": "…"}
"""
"""Short and with one example each; the answer is read by ``parse.read_answer``."""
