"""What a version and those that it comes from have learned from, so that nothing of it is held out for their child.

A child is compared with its parent at states that neither has seen. Sessions are told apart by what they are known by
in their own database: names depend on what they are read beside, and folders are moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.learner.data.read_sessions import ReadSession
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.store.corpus import Corpus
from autoresearchd.workspace import layout

TRAINED = "a version that this one comes from was trained on it"
"""Why a state is not held out for a child, in the words that a user reads."""

_SESSIONS, _LAST, _TRAIN = "sessions", "trained_on", "train"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was learned from. last: by the session's name, the last experiment of it; None: any of its experiments."""

    last: Mapping[str, int | None] = field(default_factory=dict)

    def holds(self, each: Trajectory) -> bool:
        """Whether an answer, or what came after it in its session, was learned from.

        Up to the last experiment and not one by one: later prompts tell what came of the earlier ones.
        """
        if each.session not in self.last:
            return False
        last = self.last[each.session]
        return last is None or each.number <= last


def identities(sessions: Sequence[ReadSession]) -> dict[str, str]:
    """What sessions that were read are known by, by their names; those of a database that is gone are left out."""
    found: dict[str, str] = {}
    for root in dict.fromkeys(session.root for session in sessions):
        try:
            with Corpus(layout.database_path(root)) as corpus:
                known = {facts.tag: facts.identity for facts in corpus.sessions()}
        except AutoresearchdError:  # whoever asks about its states is told why
            continue
        found |= {each.name: known[each.tag] for each in sessions if each.root == root and each.tag in known}
    return found


def lesson(train: Sequence[Trajectory], sessions: Sequence[ReadSession]) -> dict[str, Any]:
    """What a version's manifest keeps of what it learned from: names for people, and what ``seen`` goes by.

    train: the answers that were learned from. sessions: those that were read.
    """
    last: dict[str, int] = {}
    for each in train:
        last[each.session] = max(each.number, last.get(each.session, 0))
    known = identities([session for session in sessions if session.name in last])
    trained = {known[name]: number for name, number in last.items() if name in known}
    return {_SESSIONS: sorted(last), _TRAIN: len(train), _LAST: trained}


def seen(lessons: Iterable[Mapping[str, Any]], sessions: Sequence[ReadSession]) -> Seen:
    """What was learned from of the sessions that were read.

    Args:
        lessons: ``data`` of the manifests of a version and of all that it comes from. One that was written before
            sessions were told apart names them alone: a session of that name is then held to have been seen as a whole.
        sessions: those that were read.
    """
    known = identities(sessions)
    last: dict[str, int | None] = {}
    for data in lessons:
        trained = data.get(_LAST)
        if isinstance(trained, dict):
            for name, identity in known.items():
                number = trained.get(identity)
                if isinstance(number, int) and last.get(name, 0) is not None:
                    last[name] = max(number, last.get(name) or 0)
        else:
            named = data.get(_SESSIONS)
            old = {str(name).rpartition("/")[2] for name in named} if isinstance(named, list) else set()
            last |= {session.name: None for session in sessions if session.tag in old}
    return Seen(last)
