"""Text for language models of characters: a grammar of sentences, drawn once."""

import random

SUBJECTS = ["the daemon", "a model", "the owner", "an editor", "the machine", "a small test"]
VERBS = ["keeps", "reverts", "measures", "forgets", "repeats", "explains"]
OBJECTS = ["every run", "the best commit", "its own log", "a noisy metric", "the last edit", "nothing at all"]
TAILS = ["", " at night", " without a word", " twice", " and stops", " when asked"]


def sentences(count, seed):
    """Sentences of the grammar."""
    rng = random.Random(seed)
    return [
        f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}{rng.choice(TAILS)}." for _ in range(count)
    ]
