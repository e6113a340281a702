"""What a learner learns from, read: the sessions of repositories as a dataset, split, with all that was left out.

The databases are opened read-only. What a version and those that it comes from have learned from is not held out for
their child: it is compared with its parent at states that neither has seen.

Rewards are those of ``evaluator.feedback`` alone. Of the answers to one question:

- one that could not be used (malformed, illegal, no change) earned the penalty of that label, whatever came of the
  experiment later; its feedback is the error that it was sent back with;
- the one that became the proposal earned what the decision says;
- one whose proposal failed and was given back to be fixed earned the penalty of the label under which its run failed;
- one that passed in a hybrid earns nothing and is left out: a reward for what the search then did would teach to pass;
- one that was not used, though it could have been, was cut off from its outcome when the daemon ended: interrupted.

Answers to an agent are left out. Its proposal is the work of all of its turns, and neither the step that the learner
knows (one question, one answer, one outcome) nor the gate, which asks a question once, can tell what a turn was worth.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from autoresearchd.config.load_task import parse_task
from autoresearchd.domain.errors import RepositoryError, StoreError, UsageError
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.outlook import PASSES
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.domain.proposal import Answer, Proposal
from autoresearchd.domain.quantities import counted, some_of
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.feedback import FORMULA, PENALTIES, feedback
from autoresearchd.learner.data.data_summary import Signal, signal
from autoresearchd.learner.data.trajectories import Dataset, Reason, Record, Split, Trajectory, dataset, record, split
from autoresearchd.policy.policy_names import PolicySpec
from autoresearchd.store.reader import Corpus, Transcript
from autoresearchd.store.shared import Shared, where
from autoresearchd.workspace import layout

UNKNOWN_HINT = (
    "name the folder of the server's model in config.yaml (`learn: {model: DIR}`), or serve it from its folder "
    "(`autoresearchd serve DIR`), and the next answers can be replayed; --mode live learns from the states of these"
)
"""What helps against answers that tell no hash of their model."""

NO_REPLY = "no reply: "
"""How the error of a question begins that was charged but not answered."""

UNREAD = "the answer could not be looked at"

_NO_OP = ("the edit changes nothing", "the edit in the answer is empty", "the constants have these values already")
_NEAR = ("the edit is nearly the same as what has been tried", "the edit brings back ")
_TRIED = re.compile(
    r"[^\s=]+ = (?:[+-]?\d[\d.]*(?:e[+-]?\d+)?|True|False|'[^'\n]*'|\"[^\"\n]*\") was tried already(?:\n|\Z)"
)
"""A value that the brief prompt did not offer any more; no other error begins so, whatever the model's words in it."""
_CUT_OFF = re.compile(r"\Ait was cut off at max_tokens \(\d+ tokens\): make a smaller edit\. As it stands: ")
_AGENT_FORMS = frozenset({"command", "submit"})


@dataclass(frozen=True, slots=True)
class ReadSession:
    """A session that was read. name: unique over all that were; identity: its own database's, wherever that is moved.

    task: None where it cannot be read. decided: its experiments beside the baselines; answers: of models. foreign: of
    another repository than the one that the command stands in.
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
    """All sessions of some repositories. dropped: answers without a record; models: answers of each base model."""

    records: tuple[Record, ...]
    sessions: tuple[ReadSession, ...]
    dropped: Mapping[Reason, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def unknown(self) -> int:
        """How many answers have tokens and tell no hash of their model, so that no replay can use them."""
        stored = (each.answer.generation for each in self.records)
        return sum(bool(g.token_ids and g.logprobs) and g.model_hash is None for g in stored)


@dataclass(frozen=True, slots=True)
class Material:
    """What there is to learn from; signal: of the training part, or of all where it cannot be split: the problem."""

    data: Dataset
    parts: Split | None
    signal: Signal
    problem: str = ""
    hint: str = ""


# ---------------------------------------------------------------------- sessions
def locate(directory: Path, others: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The tops of the checkouts, each repository once: where the command stands, and ``others``; and warnings."""
    roots: dict[Path | Shared, Path] = {}  # by their databases
    warnings: list[str] = []
    try:
        here = layout.find_session_root(directory)
    except RepositoryError:
        if not others:
            raise
    else:
        if _is_there(_database(here)):
            roots[_database(here)] = here
        elif not others:
            raise _no_session(here)
    for other in others:
        place = directory / other.expanduser()
        if not place.is_dir():
            raise UsageError(f"--from {other}: there is no such folder", hint="name the folder of a repository")
        try:
            root = layout.find_root(place)
        except RepositoryError as error:
            hint = "name the folder of a repository with sessions"
            raise UsageError(f"--from {other} is in no git repository", hint=hint) from error
        database = _database(root)
        if not _is_there(database):
            raise _no_session(root)
        if database in roots:
            warnings.append(f"--from {other} is the repository {roots[database]}, which is read once")
        else:
            roots[database] = root
    return list(roots.values()), warnings


def home_of(directory: Path) -> Path | None:
    """The top of the checkout that a command stands in, None where it stands in none."""
    try:
        return layout.find_root(directory)
    except RepositoryError:
        return None


def read_sessions(roots: Sequence[Path], home: Path | None = None) -> Reading:
    """The sessions of some checkouts, as records; foreign are those of another than ``home``.

    Raises UsageError: there is no session, or no model has answered in any; StoreError: a database cannot be read;
    SchemaTooNew: a newer version wrote it.
    """
    prefixes = _prefixes(roots)
    found: list[Record] = []
    sessions: list[ReadSession] = []
    warnings: list[str] = []
    lost = 0
    for root in roots:
        with Corpus(_database(root)) as corpus:
            for facts in corpus.sessions():
                name, task, answers = prefixes[root] + facts.tag, None, 0
                try:
                    task = parse_task(facts.task_json)
                except StoreError as error:
                    if facts.answers:  # else it is an import, or a search, and needs no task
                        warnings.append(f"session {name}: {error.what}; its experiments have no feedback to learn from")
                if facts.answers:
                    agent = is_agent(facts.policy)
                    made, unreadable = records(name, task, corpus.transcripts(facts.id), agent=agent)
                    found += made
                    lost += unreadable
                    answers = len(made) + unreadable
                known = root, facts.tag, facts.policy, task, facts.decided
                sessions.append(ReadSession(name, *known, answers, root != home, facts.identity))
    if not sessions:
        raise _no_session(roots[0])
    if not any(session.answers for session in sessions):
        shown = some_of([f"{session.name} (policy {session.policy[:40]})" for session in sessions])
        raise UsageError(
            f"no model has answered in any session, so that there is nothing to learn from: {shown}",
            hint="let a model propose (start --policy local), or name other repositories with --from",
        )
    dropped = {Reason.CORRUPT: lost} if lost else {}
    return Reading(tuple(found), tuple(sessions), dropped, _models(found), tuple(warnings))


def material(
    reading: Reading, mode: str, base: BaseModel | None = None, share: float = 0.25, *, at_home: bool = False
) -> Material:
    """The dataset of what was read, split; where there is too little to split, why.

    mode: ``replay`` weighs stored tokens by their stored log-probabilities, which are those of one base model; in
    ``live`` stored answers lend their states alone, and proposals are made anew. base: the model that is to learn.
    share: about how much is held out. at_home: hold nothing out of foreign sessions, where there are others.
    """
    data = dataset(reading.records, base, tokens=mode == "replay", before=reading.dropped)
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


# ---------------------------------------------------------------------- answers
def records(
    session: str, task: Task | None, transcripts: Iterable[Transcript], *, agent: bool = False
) -> tuple[list[Record], int]:
    """Records of all answers of a session, and how many answers could not be read.

    task: None where it cannot be read: then there is no feedback on decided experiments.
    """
    made: list[Record] = []
    readable: list[tuple[Experiment, Transcript]] = []
    lost = 0
    for transcript in transcripts:
        if transcript.experiment is None:
            lost += len(transcript.answers)
        else:
            lost += transcript.answers.count(None)
            readable.append((transcript.experiment, transcript))
    rounds = _rounds(session, readable)
    for e, transcript in readable:
        own = _of_experiment(session, task, e, transcript, rounds[e.number])
        turn = agent or _of_agent(transcript)
        made += [replace(each, refusal=Reason.AGENT_TURN) for each in own] if turn else own
    return made, lost


def label_of(answer: Answer) -> Label:
    """Why an answer could not be used; the store keeps the words that the model was told."""
    error = _CUT_OFF.sub("", answer.error, count=1)
    if error.startswith(UNREAD):
        return Label.ERROR
    if error.startswith(_NO_OP):
        return Label.NO_OP
    if error.startswith(_NEAR) or _TRIED.match(error):
        return Label.DUPLICATE
    # An edit that was read, and so has a form, was refused for what it does.
    return Label.ILLEGAL_EDIT if answer.form else Label.MALFORMED_ANSWER


def is_agent(policy: str) -> bool:
    """Whether a policy, by its name, works turn by turn in a shell."""
    return policy.partition(":")[0] == "agent"


def is_reply(answer: Answer) -> bool:
    """Whether a model said anything; a question that failed and cost something is stored as an answer too."""
    return bool(answer.generation.completion) or not answer.error.startswith(NO_REPLY)


def _of_experiment(
    session: str, task: Task | None, e: Experiment, transcript: Transcript, around: tuple[str, str]
) -> list[Record]:
    given = [answer for answer in transcript.answers if answer is None or is_reply(answer)]
    proposals = {proposal.attempt: proposal for proposal in transcript.proposals}
    last = {answer.attempt: index for index, answer in enumerate(given) if answer is not None}
    made = []
    for index, answer in enumerate(given):
        if answer is None:
            continue
        proposal = proposals.get(answer.attempt) if index == last[answer.attempt] else None
        label, earned, words = _outcome(task, e, answer, proposal)
        own = proposals.get(answer.attempt) if answer.attempt else None
        round_id, state_id = (own.round_id, own.state_id) if own else around
        decided = not answer.error and earned is not None and answer.attempt == e.attempt
        old = decided and e.decision is not None and e.decision.reward_formula != FORMULA
        unusable = Reason.PASSED if answer.form == PASSES else Reason.OTHER_FORMULA if old else None
        ids = index, round_id, state_id
        made.append(record(session, e, answer, label, earned, words, *ids, unusable=unusable))
    return made


def _outcome(
    task: Task | None, e: Experiment, answer: Answer, proposal: Proposal | None
) -> tuple[Label | None, float | None, str]:
    """Label, reward and feedback of an answer. proposal: that it became, if it did."""
    if e.decision is None:  # its last run may say why
        open_label = e.runs[-1].label if e.runs and not e.runs[-1].open else Label.NONE
        return open_label if RULES[open_label] is None else None, None, ""
    if answer.error:
        label = label_of(answer)
        return label, None if label is Label.ERROR else PENALTIES.get(label), answer.error
    # Once the money is spent, or where a model passed, another policy proposes in its place.
    if proposal is None or not PolicySpec(proposal.policy.partition(":")[0]).asks_model:
        return Label.INTERRUPTED, None, ""
    if answer.attempt == e.attempt:
        label = Label.NO_GAIN if e.confirmed is False else e.decision.label  # its chain fell: nothing to imitate
        return label, _earned(e, e.decision), "" if task is None else feedback(task, e)
    runs = (run for run in reversed(e.runs) if run.attempt == answer.attempt and run.of is None and not run.open)
    failed = next((run for run in runs if run.label is not Label.NONE and RULES[run.label] is not None), None)
    if failed is None:
        return Label.INTERRUPTED, None, ""
    status = RULES[failed.label] or Status.CRASH
    reason = f"{failed.label.value}: {failed.detail}".rstrip(". ") + "."
    given_back = replace(e, proposal=proposal, decision=Decision(status, failed.label, reason=reason))
    return failed.label, PENALTIES.get(failed.label), "" if task is None else feedback(task, given_back)


def _earned(e: Experiment, decision: Decision) -> float | None:
    """The reward that it was given, less that for a gain which a confirmation has refuted."""
    if e.confirmed is not False or decision.reward is None:
        return decision.reward
    parts = decision.reward_parts or {}
    return decision.reward - sum(max(0.0, parts.get(name, 0.0)) for name in ("improvement", "efficiency"))


def _of_agent(transcript: Transcript) -> bool:
    """Whether an agent was at work: its turns have forms of their own."""
    named = any(is_agent(proposal.policy) for proposal in transcript.proposals)
    return named or any(answer is not None and answer.form in _AGENT_FORMS for answer in transcript.answers)


def _rounds(session: str, experiments: Sequence[tuple[Experiment, Transcript]]) -> dict[int, tuple[str, str]]:
    """Round and state of each experiment's first question, by number.

    A proposal tells them. Without one it is the round before it that was asked the same, or else the one after it.
    """

    def question(each: tuple[Experiment, Transcript]) -> object:
        """What the experiment was asked first; where that is not known, no other was asked the same."""
        e, transcript = each
        first = next((a for a in transcript.answers if a is None or is_reply(a)), None)
        asked = None if first is None or first.attempt else first.generation.messages
        return (e.segment, asked) if asked else e.number

    def ids(transcript: Transcript) -> tuple[str, str] | None:
        first = next((p for p in transcript.proposals if p.attempt == 0), None)
        return (first.round_id, first.state_id) if first and first.round_id and first.state_id else None

    rounds: dict[int, tuple[str, str]] = {}
    for _, group in groupby(experiments, question):
        same = [(e.number, ids(transcript)) for e, transcript in group]
        current = next((known for _, known in same if known), (f"{session}/{same[0][0]}",) * 2)
        for number, known in same:
            current = known or current
            rounds[number] = current
    return rounds


# ---------------------------------------------------------------------- parts
def _database(root: Path) -> Path | Shared:
    """What tells repositories apart: all worktrees of one share it."""
    place = where(layout.database_path(root))
    return place if isinstance(place, Shared) else Path(os.path.realpath(place))


def _is_there(database: Path | Shared) -> bool:
    return isinstance(database, Shared) or database.is_file()


def _no_session(root: Path) -> UsageError:
    return UsageError(
        f"there is no session in {root} yet", hint="begin one whose answers can be learned from: start --policy local"
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
    for answer in (each.answer for each in found):
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
