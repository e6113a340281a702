"""The forms in which a model may write an edit, each read and applied in memory: `read_answer` is the door."""
