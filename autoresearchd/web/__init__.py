"""The live page over the store: a process of its own that only reads, and asks as the commands do."""
