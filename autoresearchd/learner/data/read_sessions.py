"""What a learner learns from, read: the sessions of repositories as a dataset, split, with all that was left out.

The databases are opened read-only: a daemon may write, and a disk may be read-only. What a version and those that it
comes from have learned from is not held out for their child: it is compared with its parent at states that neither has
seen. Sessions are told apart by what they are known by in their own database: names depend on what they are read
beside, and folders are moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoresearchd.config.load_task import parse_task
from autoresearchd.domain.errors import RepositoryError, StoreError, UsageError
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.learner.data.reward_signal import Signal, signal
from autoresearchd.learner.data.trajectories import Dataset, Filters, Reason, Record, Split, Trajectory, dataset, split
from autoresearchd.learner.data.trajectory_records import is_agent, records
from autoresearchd.store.corpus import Corpus
from autoresearchd.workspace import layout

UNKNOWN_HINT = (
    "name the folder of the server's model in config.yaml (`learn: {model: DIR}`), or serve it from its folder "
    "(`autoresearchd serve DIR`), and the next answers can be replayed; --mode live learns from the states of these"
)
"""What helps against answers that tell no hash of their model."""

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ReadSession:
    """A session that was read.

    name: unique over all that were read. root: top of its repository. task: None where it cannot be read. decided: its
    experiments beside the baselines; answers: of models, without questions that got no reply. foreign: it is of another
    repository than the one that the command stands in. identity: what it is known by, wherever it lies.
    """

    name: str
    root: Path
    tag: str
    policy: str
    task: Task | None
    decided: int
    answers: int
    foreign: bool = False
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """All sessions of some repositories.

    dropped: answers of which no record could be made, by reason. models: how many answers each base model gave, by its
    name and the beginning of its hash. warnings: what a user should know, in sentences.
    """

    records: tuple[Record, ...]
    sessions: tuple[ReadSession, ...]
    dropped: Mapping[Reason, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def unknown(self) -> int:
        """How many answers have tokens and tell no hash of their model, so that no replay can use them."""
        stored = (record.answer.generation for record in self.records)
        return sum(bool(g.token_ids and g.logprobs) and g.model_hash is None for g in stored)


@dataclass(frozen=True, slots=True)
class Material:
    """What there is to learn from.

    parts: None where it cannot be split; problem and fix then say why. signal: of the training part, or of all where
    there is none.
    """

    data: Dataset
    parts: Split | None
    signal: Signal
    problem: str = ""
    hint: str = ""


# ---------------------------------------------------------------------- sessions
def locate(directory: Path, others: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The tops of the checkouts that are meant, each repository once, and warnings.

    That of ``directory``, where the command stands, if it has sessions, and ``others``, that were named. Raises
    UsageError: there is none, or one that was named is no repository or has no session.
    """
    found: dict[Path, Path] = {}
    warnings: list[str] = []
    try:
        here = layout.find_session_root(directory)
    except RepositoryError:
        if not others:
            raise
    else:
        if _database(here).is_file():
            found[_database(here)] = here
        elif not others:
            raise _no_session(here)
    for other in others:
        root = _named_root(directory / other.expanduser(), other)
        database = _database(root)
        if database in found:
            warnings.append(f"--from {other} is the repository {found[database]}, which is read once")
        else:
            found[database] = root
    return list(found.values()), warnings


def home_of(directory: Path) -> Path | None:
    """The top of the checkout that a command stands in, None where it stands in none."""
    try:
        return layout.find_root(directory)
    except RepositoryError:
        return None


def read_sessions(roots: Sequence[Path], home: Path | None = None) -> Reading:
    """The sessions of some repositories, as records.

    roots: tops of checkouts, as ``locate`` finds them. home: that of the repository that the command stands in; the
    sessions of all others are foreign. Raises UsageError: there is no session, or no model has answered in any;
    StoreError: a database cannot be read; SchemaTooNew: a newer version wrote it.
    """
    prefixes = _prefixes(roots)
    found: list[Record] = []
    sessions: list[ReadSession] = []
    warnings: list[str] = []
    lost = 0
    for root in roots:
        with Corpus(layout.database_path(root)) as corpus:
            for facts in corpus.sessions():
                name, task, warning = prefixes[root] + facts.tag, None, ""
                try:
                    task = parse_task(facts.task_json)
                except StoreError as error:
                    warning = f"session {name}: {error.what}; its experiments have no feedback to learn from"
                session = ReadSession(
                    name, root, facts.tag, facts.policy, task, facts.decided, 0, root != home, facts.identity
                )
                if facts.answers:  # else it is an import, or a search, and needs no task
                    warnings += [warning] if warning else []
                    transcripts = corpus.transcripts(facts.id)
                    made, unreadable = records(session.name, session.task, transcripts, agent=is_agent(facts.policy))
                    found += made
                    lost += unreadable
                    session = replace(session, answers=len(made) + unreadable)
                sessions.append(session)
    if not any(session.answers for session in sessions):
        raise _no_answers(roots, sessions)
    dropped = {Reason.CORRUPT: lost} if lost else {}
    return Reading(tuple(found), tuple(sessions), dropped, _models(found), tuple(warnings))


def material(reading: Reading, filters: Filters, share: float = 0.25, *, at_home: bool = False) -> Material:
    """The dataset of what was read, split; where there is too little to split, why.

    share: about how much is held out. at_home: hold nothing out of foreign sessions, where there are others.
    """
    data = dataset(reading.records, filters, reading.dropped)
    if not data.trajectories:
        problem = f"none of {counted(data.read, 'answer')} can be learned from"
        return Material(data, None, signal(()), problem, _hint(data))
    try:
        own = {session.name for session in reading.sessions if not session.foreign}
        parts = split(data.trajectories, share, own if at_home else None)
    except UsageError as error:
        return Material(data, None, signal(data.trajectories), error.what, error.hint)
    return Material(data, parts, signal(parts.train))


# ---------------------------------------------------------------------- what was learned from before
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


def lesson(train: Sequence[Trajectory], sessions: Sequence[ReadSession]) -> dict[str, Any]:
    """What a version's manifest keeps of what it learned from: names for people, and what ``seen`` goes by."""
    last: dict[str, int] = {}
    for each in train:
        last[each.session] = max(each.number, last.get(each.session, 0))
    trained = {session.identity: last[session.name] for session in sessions if session.name in last}
    return {_SESSIONS: sorted(last), _TRAIN: len(train), _LAST: trained}


def seen(lessons: Iterable[Mapping[str, Any]], sessions: Sequence[ReadSession]) -> Seen:
    """What was learned from of the sessions that were read.

    lessons: ``data`` of the manifests of a version and of all that it comes from. One that was written before sessions
    were told apart names them alone: a session of that name is then held to have been seen as a whole.
    """
    last: dict[str, int | None] = {}
    for data in lessons:
        trained = data.get(_LAST)
        if isinstance(trained, dict):
            for session in sessions:
                number = trained.get(session.identity)
                if isinstance(number, int) and last.get(session.name, 0) is not None:
                    last[session.name] = max(number, last.get(session.name) or 0)
        else:
            named = data.get(_SESSIONS)
            old = {str(name).rpartition("/")[2] for name in named} if isinstance(named, list) else set()
            last |= {session.name: None for session in sessions if session.tag in old}
    return Seen(last)


def filters_for(mode: str, base: BaseModel | None = None) -> Filters:
    """What an answer must be, to be learned from in a mode.

    Replay weighs stored tokens by their stored log-probabilities, which are those of one base model. Live, stored
    answers lend their states alone: proposals are made anew.

    mode: ``replay`` or ``live``. base: the model that is to learn; None, or a hash of None, is not compared.
    """
    tokens = mode == "replay"
    if base is None:
        return Filters(tokens=tokens)
    return Filters(base.model_hash, base.tokenizer_hash, base.template_hash, tokens=tokens)


# ---------------------------------------------------------------------- parts
def _named_root(place: Path, named: Path) -> Path:
    """The top of the checkout that a named folder stands in."""
    if not place.is_dir():
        raise UsageError(f"--from {named}: there is no such folder", hint="name the folder of a repository")
    try:
        root = layout.find_root(place)
    except RepositoryError as error:
        raise UsageError(
            f"--from {named} is in no git repository", hint="name the folder of a repository with sessions"
        ) from error
    if not _database(root).is_file():
        raise _no_session(root)
    return root


def _database(root: Path) -> Path:
    """What tells repositories apart: all worktrees of one share it."""
    place = layout.database_path(root)
    try:
        return place.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself, which is no file
        return place


def _no_session(root: Path) -> UsageError:
    return UsageError(
        f"there is no session in {root} yet", hint="begin one whose answers can be learned from: start --policy local"
    )


def _no_answers(roots: Sequence[Path], sessions: Sequence[ReadSession]) -> UsageError:
    if not sessions:
        return _no_session(roots[0]) if roots else UsageError("no repository was named", hint="--from DIR names one")
    shown = ", ".join(f"{session.name} (policy {session.policy[:40]})" for session in sessions[:_MOST_NAMED])
    more = f" and {len(sessions) - _MOST_NAMED} more" if len(sessions) > _MOST_NAMED else ""
    return UsageError(
        f"no model has answered in any session, so that there is nothing to learn from: {shown}{more}",
        hint="let a model propose (start --policy local), or name other repositories with --from",
    )


def _prefixes(roots: Sequence[Path]) -> dict[Path, str]:
    """What goes before the tags of each repository: nothing for one, else as much of the path as tells them apart."""
    if len(roots) < 2:
        return dict.fromkeys(roots, "")
    for length in range(1, max(len(root.parts) for root in roots)):
        names = ["/".join(root.parts[-length:]) for root in roots]
        if len(set(names)) == len(names):
            return {root: f"{name}/" for root, name in zip(roots, names, strict=True)}
    return {root: f"{root}/" for root in roots}


def _models(found: Sequence[Record]) -> dict[str, int]:
    """By hash where it is known; a server calls a model by the name of its adapter, which tells nothing of the base."""
    names: dict[str, str] = {}
    count: Counter[str] = Counter()
    for answer in (record.answer for record in found):
        digest = (answer.generation.model_hash or "")[:8]
        if digest or not answer.generation.adapter:
            key = digest or answer.model
            names.setdefault(key, f"{answer.model} ({digest})" if digest else answer.model)
            count[key] += 1
    return {names[key]: number for key, number in count.most_common()}


def _hint(data: Dataset) -> str:
    """What would help against the reason that held most often."""
    match max(data.dropped, key=lambda reason: (data.dropped[reason], reason.value), default=None):
        case Reason.NO_TOKENS | Reason.BAD_TOKENS:
            return (
                "let a local model answer (start --policy local:DIR): its tokens and log-probabilities are stored, "
                "which those of most providers are not; --mode live needs the states alone"
            )
        case Reason.UNKNOWN_LOGPROBS:
            return (
                "ask a server at `temperature: 1` (config.yaml), and start it without top-p, top-k and min-p, as "
                "`autoresearchd serve` does; --mode live needs the states alone"
            )
        case Reason.UNKNOWN_MODEL:
            return UNKNOWN_HINT
        case Reason.OTHER_MODEL | Reason.OTHER_TOKENIZER | Reason.OTHER_TEMPLATE:
            return "name the model that gave the answers with --model, or let this one answer first"
        case Reason.AGENT_TURN:
            return "let the model answer without a shell: start --policy local"
        case _:
            return "run more experiments, or name other repositories with --from"
