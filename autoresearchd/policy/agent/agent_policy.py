"""The policy ``agent``: a model works on a private copy of the workspace by shell commands, turn by turn, and submits.

The commands are a model's, so they run in the sandbox, and what they leave is read back as data. Only what was
submitted becomes a proposal: edits that were under way when a limit was reached are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Generation, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.models.client import Message, ModelError, Reply
from autoresearchd.policy import answer_words
from autoresearchd.policy.agent import dialogue, workspace_copy
from autoresearchd.policy.agent.dialogue import Conversation, Step
from autoresearchd.policy.agent.workspace_copy import Before
from autoresearchd.policy.exchange import AskingPolicy, Exchange, clean_error, make_storable
from autoresearchd.policy.prompt import sections
from autoresearchd.sandbox.agent_shell import CommandResult

PROMPT_SHARE = 0.5
"""Share of ``context_tokens`` that the prompt may take; the rest is for the work."""
COMMAND_S = 30.0
"""Seconds that one command may take."""
SHRINKS = 3
"""How often a conversation is shortened that the model finds too long."""
_LEAST_S = 1.0
_REFUSALS = 1
_SUBMIT_FORM, _COMMAND_FORM = "submit", "command"


class Shell(Protocol):
    """Runs commands in a copy of the workspace. Files last from one command to the next; processes do not."""

    @property
    def folder(self) -> Path:
        """The copy. Nothing runs in it between two commands."""
        ...

    def run(self, command: str, *, timeout: float, cancel: Cancel) -> CommandResult:
        """Run a shell script in the copy; all its processes are dead when this returns.

        Whatever the script is or does comes back as facts. Raises Interrupted soon after ``cancel`` is set, and
        EnvironmentFailure where the machine is at fault (its disk is full, the sandbox does not start).
        """
        ...


class Shells(Protocol):
    """Makes shells."""

    def open(self, state: ResearchState) -> AbstractContextManager[Shell]:
        """A shell over a fresh copy of the workspace at the state's parent; copy and all, it is gone at the end."""
        ...


@dataclass(eq=False)
class AgentPolicy(AskingPolicy):
    """Lets a model edit by commands; ``settings.agent_*`` are the limits of one proposal.

    shells: make the sandboxed shells. command_seconds: how long one command may take.
    """

    _: KW_ONLY
    shells: Shells
    command_seconds: float = COMMAND_S

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """What the model submitted.

        Raises PolicyError: it submitted nothing usable within its limits, and its cost has been charged;
        EnvironmentFailure: no model gave a reply, or the shell or its copy cannot be had; SpendCapReached; Interrupted.
        """
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        try:
            with self.shells.open(state) as shell:
                work = _Work(self, state, shell, cancel)
                try:
                    return work.done()
                except PolicyError as error:
                    error.cost = work.exchange.cost if work.exchange.asked else None
                    raise
        except OSError as error:
            raise EnvironmentFailure(
                f"the agent's copy of the workspace could not be made or read: {error}", hint="see to the disk"
            ) from error


@dataclass(frozen=True, slots=True)
class _Until:
    """A ``Cancel`` that is also set once the time is over."""

    cancel: Cancel
    deadline: float
    clock: Callable[[], float]

    def is_set(self) -> bool:
        return self.cancel.is_set() or self.clock() >= self.deadline

    def wait(self, timeout: float | None = None) -> bool:
        rest = max(0.0, self.deadline - self.clock())
        self.cancel.wait(rest if timeout is None else min(timeout, rest))
        return self.is_set()


class _Work:
    """The work on one proposal."""

    def __init__(self, means: AgentPolicy, state: ResearchState, shell: Shell, cancel: Cancel) -> None:
        self._means, self._settings, self._check, self._near = means, means.settings, means.check, means.near
        self._state, self._shell, self._cancel = state, shell, cancel
        self._deadline = means.clock() + means.settings.agent_seconds
        self.exchange = Exchange(means, state)
        self.exchange.prepare(cancel)
        self._parent, self._start = self._prepared()
        self._refused = self._malformed = 0
        self._turns_left = self._settings.agent_turns
        self._conversation = Conversation(
            self._prompt(), budget=self._settings.context_tokens, count=self.exchange.count_tokens
        )

    def _prepared(self) -> tuple[Before, Before]:
        """The copy at the parent, and as the agent finds it: with the failed edit where one is to be fixed."""
        root, task = self._shell.folder, self._state.task
        parent = workspace_copy.look(root, task)
        if self._state.repair is None:
            return parent, parent
        workspace_copy.put(root, self._state.repair.files, task)
        return parent, workspace_copy.look(root, task)

    def _prompt(self) -> tuple[Message, ...]:
        return sections.messages(
            self._state,
            forms=dialogue.rules(self._state, self._settings, self._means.command_seconds),
            budget=int(PROMPT_SHARE * self._settings.context_tokens),
            count=self.exchange.count_tokens,
        )

    # -- the turns
    def done(self) -> Proposal:
        """Turn after turn, until something is submitted or a limit is reached."""
        turns = self._settings.agent_turns
        for turn in range(1, turns + 1):
            reply, self._turns_left = self._ask(turn), turns - turn
            step = dialogue.read(reply.text, reply.finish)
            form = "" if step.error else _SUBMIT_FORM if step.submits else _COMMAND_FORM
            generation = self.exchange.record(reply, error=step.error, form=form)
            outcome = self._again(step) if step.error else self._run(step, reply, generation)
            if isinstance(outcome, Proposal):
                return outcome
            told = outcome + dialogue.remind_of_end(self._turns_left)
            # An empty turn is refused by most providers.
            self._conversation.add(make_storable(reply.text) if reply.text.strip() else "(nothing)", told)
        raise self._limit(f"within {counted(turns, 'answer')}", "agent.turns")

    def _ask(self, turn: int) -> Reply:
        """The reply to the conversation so far: it is shortened until the model takes it, or the next one does."""
        shrinks = 0
        while True:
            self._look_at_limits()
            rest = max(_LEAST_S, self._deadline - self._means.clock())
            try:
                messages = self._conversation.messages()
            except PolicyError:
                if not shrinks or not self._skip():
                    raise
                shrinks = 0
                continue
            try:
                return self.exchange.ask(
                    messages,
                    turn,
                    min(self._settings.timeout, rest),
                    _Until(self._cancel, self._deadline, self._means.clock),
                )
            except Interrupted:
                if self._cancel.is_set() or self._means.clock() < self._deadline:
                    raise
                raise self._late() from None
            except ModelError as error:  # the context is too long
                shrinks += 1
                if shrinks <= SHRINKS:
                    self._conversation.too_long()
                elif self._skip():
                    shrinks = 0
                else:
                    raise PolicyError(
                        f"the model finds the agent's conversation too long, however much is left out: {error.what}",
                        hint="set context_tokens in config.yaml to what the model can read",
                    ) from error

    def _skip(self) -> bool:
        """Go on with the next model, where there is one; it may be able to read more."""
        if not self.exchange.skip():
            return False
        self._conversation.allow(self._settings.context_tokens)
        return True

    def _again(self, step: Step) -> str:
        """An answer without a command: its exact error goes back, so many times in a row."""
        self._malformed += 1
        if self._malformed > self._settings.reasks:
            raise PolicyError(
                f"none of {counted(self._malformed, 'answer')} in a row held a command that could be run, the last: "
                f"{step.error}",
                label=Label.MALFORMED_ANSWER,
            )
        return step.error

    def _run(self, step: Step, reply: Reply, generation: Generation) -> Proposal | str:
        self._malformed = 0
        self._look_at_limits()
        rest = max(_LEAST_S, self._deadline - self._means.clock())
        ran = self._shell.run(step.command, timeout=min(self._means.command_seconds, rest), cancel=self._cancel)
        if step.submits and dialogue.has_submitted(ran):
            return self._submit(step, reply, generation)
        told = dialogue.describe_result(ran, self._state.redactor, self._settings.agent_output_bytes)
        return f"{told}\n\n{dialogue.explain_not_submitted(ran)}" if step.submits else told

    # -- submitting
    def _submit(self, step: Step, reply: Reply, generation: Generation) -> Proposal | str:
        try:
            files = self._edit()
        except PolicyError as error:
            self._refused += 1
            if self._refused > _REFUSALS:
                raise
            return f"Your submission cannot be taken: {error}\n\nFix it and submit again: the next one is the last."
        alike = self._alike(files)
        if alike:
            return (
                f"Your submission is nearly the same as what has been tried: {alike}\n\nSubmit something that differs, "
                "or submit again as it is if you mean it: it is then run."
            )
        words = self._state.redactor.value(step.words())
        return self.exchange.proposal(files, words, self._parent.texts, reply, generation)

    def _edit(self) -> dict[str, str]:
        """The editable files that differ from the parent's, once they are known to be legal."""
        task = self._state.task
        changed = workspace_copy.taken_back(self._shell.folder, task, self._start, who="the agent")
        if not changed:
            before = "the edit that failed" if self._state.repair else "what they were"
            raise PolicyError(f"{', '.join(task.editable)}: nothing differs from {before}", label=Label.NO_OP)
        now = {**self._start.texts, **changed}
        files = {path: text for path, text in now.items() if text != self._parent.texts[path]}
        if not files:
            raise PolicyError(f"{', '.join(task.editable)}: the failed edit was only undone", label=Label.NO_OP)
        self._check(self._state, files)
        return files

    def _alike(self, files: Mapping[str, str]) -> str:
        """What the edit is nearly the same as, while there is an answer left to say what is to be done about it."""
        if self._near is None or self._state.repair is not None or self._turns_left == 0:
            return ""
        return clean_error(self._state, self._near(self._state, files, answer_words.changes(self._parent.texts, files)))

    # -- limits
    def _look_at_limits(self) -> None:
        if self._cancel.is_set():
            raise Interrupted("the agent was asked to stop")
        if self._means.clock() >= self._deadline:
            raise self._late()
        cap = self._settings.agent_usd
        if cap is not None and self.exchange.known_usd >= cap:
            raise self._limit(f"for ${cap:g}", "agent.usd")

    def _late(self) -> PolicyError:
        return self._limit(f"within {self._settings.agent_seconds:.0f} s", "agent.seconds")

    def _limit(self, which: str, key: str) -> PolicyError:
        unpriced = self.exchange.unpriced
        unknown = f"; the price of {unpriced} of its answers is not known, and counts as nothing" if unpriced else ""
        return PolicyError(
            f"the agent did not submit {which}{unknown}. {self._unsubmitted()}",
            hint=f"raise {key} in config.yaml, or take a model that needs less",
        )

    def _unsubmitted(self) -> str:
        try:
            changed = workspace_copy.taken_back(self._shell.folder, self._state.task, self._start, who="the agent")
        except PolicyError as error:
            return f"What it left is not used ({error.what})."
        if not changed:
            return "It had changed nothing."
        return f"It had changed {', '.join(changed)}, which is not used: an edit counts once it is submitted."
