"""Who proposes: each module adapts one source of edits."""
