"""The policy ``agent``: a model works on a private copy of the workspace by shell commands, turn by turn, and submits.

The commands are a model's, so they run in the sandbox, and what they leave is read back as data. Only what was
submitted becomes a proposal: edits that were under way when a limit was reached are thrown away. The protocol is plain
text, so that every model can speak it (it is that of mini-swe-agent).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Protocol

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.cleaning import printable, storable
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, Passed, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Generation, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.redaction import Redactor
from autoresearchd.evaluator.measure.log_text import as_lines
from autoresearchd.models.client import Count, Message, Reply
from autoresearchd.policy import answer_words, workspace_copy
from autoresearchd.policy.edits.answer_parts import in_code, said
from autoresearchd.policy.exchange import AskingPolicy, Exchange, Patience, answer_turn
from autoresearchd.policy.prompt import sections
from autoresearchd.policy.prompt.quote import data_block
from autoresearchd.sandbox.agent_shell import CommandResult

PROMPT_SHARE = 0.5
"""Share of ``context_tokens`` that the prompt may take; the rest is for the work."""
COMMAND_S = 30.0
"""Seconds that one command may take."""
SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MOST_ANSWER = 256 * 1024
"""Characters of an answer that are looked at; nobody writes a longer one on purpose."""
ROOM = 0.75
"""Share of the budget that is used after something was left out: leaving out a little at each turn would change the
beginning of the conversation each time, and neither a provider's cache nor the store could use it again."""
LEFT_OUT = "[What this command printed was left out to save room.]"
ANSWER_LEFT_OUT = "[This answer was left out to save room.]"
_LONGEST_ANSWER = 64 * 1024
_LEAST_S = 1.0
_REFUSALS = 1
_LAST_TURNS = 3
_FENCE = re.compile(r" {0,3}(`{3,})[ \t]*([\w+-]*)[^`\n]*")
_SHELLS = frozenset({"bash", "sh", "shell"})
_THOUGHTS_END = re.compile(r"</think>[ \t]*$", re.MULTILINE)
_MOST_ENDS = 20
_SUBMITS = re.compile(rf"\becho[ \t]+[\"']?{SENTINEL}\b")
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")


class Shell(Protocol):
    """Runs commands in a copy of the workspace. Files last from one command to the next; processes do not."""

    @property
    def folder(self) -> Path: ...

    def run(self, command: str, *, timeout: float, cancel: Cancel) -> CommandResult:
        """Run a script; all its processes are dead when this returns. Whatever it is or does comes back as facts.

        Raises Interrupted, and EnvironmentFailure where the machine is at fault (its disk is full, say).
        """


@dataclass(eq=False)
class AgentPolicy(AskingPolicy):
    """Lets a model edit by commands; ``settings.agent`` has the limits of one proposal.

    open_shell: gives a sandboxed shell over a copy of the workspace at the state's parent, which is gone at the end.
    """

    _: KW_ONLY
    open_shell: Callable[[ResearchState], AbstractContextManager[Shell]]
    command_seconds: float = COMMAND_S

    def work(self, state: ResearchState, exchange: Exchange, cancel: Cancel) -> Proposal:
        try:
            with self.open_shell(state) as shell:
                return _Work(self, state, shell, exchange, cancel).proposal()
        except OSError as error:
            raise EnvironmentFailure(
                f"the agent's copy of the workspace could not be made or read: {error}", hint="see to the disk"
            ) from error


class _Work:
    """The work on one proposal."""

    def __init__(
        self, means: AgentPolicy, state: ResearchState, shell: Shell, exchange: Exchange, cancel: Cancel
    ) -> None:
        self._means, self._settings, self._state, self._shell = means, means.settings, state, shell
        self._exchange, self._cancel = exchange, cancel
        self._until = Patience(cancel, clock=means.clock, deadline=means.clock() + means.settings.agent.seconds)
        exchange.prepare(cancel)
        self._parent = self._start = workspace_copy.look(shell.folder, state.task)
        if state.repair is not None:  # the agent begins with the failed edit
            workspace_copy.put(shell.folder, state.repair.files, state.task)
            self._start = workspace_copy.look(shell.folder, state.task)
        self._refused = self._malformed = 0
        prompt = sections.messages(
            state,
            forms=rules(state, self._settings, means.command_seconds),
            budget=int(PROMPT_SHARE * self._settings.context_tokens),
            count=exchange.count_tokens,
            passing=sections.LEFT_BY_AGENT,
        )
        self._conversation = Conversation(prompt, exchange.count_tokens)

    def proposal(self) -> Proposal:
        turns = self._settings.agent.turns
        for turn in range(1, turns + 1):
            reply = self._ask(turn)
            step = read(reply.text, reply.finish)
            form = "" if step.error else "submit" if step.submits else "command"
            generation = self._exchange.record(reply, error=step.error, form=form)
            outcome = self._again(step) if step.error else self._run(step, reply, generation, last=turn == turns)
            if isinstance(outcome, Proposal):
                return outcome
            if 0 < (left := turns - turn) <= _LAST_TURNS:
                outcome += f"\n\nAnswers left: {left}. Complete the edit and submit it."
            self._conversation.add(storable(reply.text), outcome)
        raise self._limit(f"within {counted(turns, 'answer')}", "agent.turns")

    def _ask(self, turn: int) -> Reply:
        self._look_at_limits()
        timeout = self._rest(self._settings.timeout)
        try:
            return self._exchange.ask(self._conversation.messages, turn, timeout, self._until)
        except Interrupted:
            if self._cancel.is_set() or not self._until.is_set():
                raise
            raise self._limit_of_time() from None

    def _rest(self, most: float) -> float:
        return min(most, max(_LEAST_S, self._until.deadline - self._means.clock()))

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

    def _run(self, step: Step, reply: Reply, generation: Generation, *, last: bool) -> Proposal | str:
        self._malformed = 0
        self._look_at_limits()
        ran = self._shell.run(step.command, timeout=self._rest(self._means.command_seconds), cancel=self._cancel)
        if step.submits and has_submitted(ran):
            return self._submit(step, reply, generation, last=last)
        how = f"Ended: {ran.ended}." if ran.ended else f"Exit code {ran.exit_code}."
        printed = show_printed(ran, self._state.redactor, self._settings.agent.output_bytes)
        told = f"{how}\n{data_block(printed)}" if printed.strip() else f"{how} It printed nothing."
        if step.submits:
            told += f"\n\nNothing was submitted: the command failed, or {SENTINEL} was not on a line of its own."
        return told

    def _submit(self, step: Step, reply: Reply, generation: Generation, *, last: bool) -> Proposal | str:
        try:
            files = self._edit()
        except PolicyError as error:
            outlook = self._state.outlook
            if error.label is Label.NO_OP and not self._refused and outlook is not None and outlook.proposal:
                raise Passed("the agent passed", label=Label.NO_OP) from error
            self._refused += 1
            if self._refused > _REFUSALS:
                raise
            return f"Your submission cannot be taken: {error}\n\nFix it and submit again: the next one is the last."
        # Only while there is an answer left to say what is to be done about it.
        if not last and (alike := self._exchange.find_near(files)):
            return (
                f"Your submission {alike}\n\nSubmit something that differs, or submit again as it is if you mean it: "
                "it is then run."
            )
        return self._exchange.proposal(files, step.words(), reply, generation)

    def _edit(self) -> dict[str, str]:
        """The editable files that differ from the parent's, once they are known to be legal."""
        names, changed = ", ".join(self._state.task.editable), self._changed()
        if not changed:
            before = "the edit that failed" if self._state.repair else "what they were"
            raise PolicyError(f"{names}: nothing differs from {before}", label=Label.NO_OP)
        now = {**self._start.texts, **changed}
        files = {path: text for path, text in now.items() if text != self._parent.texts[path]}
        if not files:
            raise PolicyError(f"{names}: the failed edit was only undone", label=Label.NO_OP)
        self._means.check(self._state, files)
        return files

    def _changed(self) -> dict[str, str]:
        return workspace_copy.changed(self._shell.folder, self._state.task, self._start, who="the agent")

    # -- limits
    def _look_at_limits(self) -> None:
        if self._cancel.is_set():
            raise Interrupted("the agent was asked to stop")
        if self._until.is_set():
            raise self._limit_of_time()
        cap = self._settings.agent.usd
        if cap is not None and sum(cost.usd or 0.0 for cost in self._exchange.costs) >= cap:
            raise self._limit(f"for ${cap:g}", "agent.usd")

    def _limit_of_time(self) -> PolicyError:
        return self._limit(f"within {self._settings.agent.seconds:.0f} s", "agent.seconds")

    def _limit(self, which: str, key: str) -> PolicyError:
        unpriced = sum(cost.usd is None for cost in self._exchange.costs)
        unknown = f"; the price of {unpriced} of its answers is not known, and counts as nothing" if unpriced else ""
        try:
            changed = ", ".join(self._changed())
            left = f"It had changed {changed}, which is not used: an edit counts once it is submitted."
            left = left if changed else "It had changed nothing."
        except PolicyError as error:
            left = f"What it left is not used ({error.what})."
        return PolicyError(
            f"the agent did not submit {which}{unknown}. {left}",
            hint=f"raise {key} in config.yaml, or take a model that needs less",
        )


# ---------------------------------------------------------------------- what is said
def rules(state: ResearchState, settings: ModelSettings, command_seconds: float) -> str:
    """How an agent answers, and what it may do: the part of the prompt that is its own."""
    task = state.task
    repair = ""
    if state.repair is not None:
        repair = "\n\nThe copy holds your last edit, whose run failed as told below. Repair it; do not start over."
    return f"""\
You work on this task through a shell, in a private copy of the task's folder. Each of your answers holds a few \
sentences on what you are about to do and why, and then exactly one command in a block like this:

```bash
sed -n '1,80p' {task.editable[0]}
```

The block is run as a script, and the next message is what it printed. Lines that hold three backticks themselves need \
a block that is opened and closed by four.

- Every command starts in the copy's folder, in a new process: files last, while the working directory, variables and \
background processes do not.
- There is no network and no GPU, and nothing outside the folder can be written. A command may take \
{command_seconds:.0f} seconds; of what it prints, {settings.agent.output_bytes} bytes are shown, beginning and end.
- Your proposal is what the files that may be edited hold when you submit. Changes of others are thrown away.
- Do not train here: your edit is run and measured once you have submitted it. Do check that it parses, for example by \
`python -m py_compile {task.editable[0]}`.

When the edit is complete, submit it. Write, before the block, one line that is a JSON object with the reason:

{{"hypothesis": "why it may help", "description": "the change in a line", "expected_delta": 0.01, \
"next_action_hint": "what to try next"}}

```bash
echo {SENTINEL}
```

You have {counted(settings.agent.turns, "answer")} and {settings.agent.seconds:.0f} seconds. What is not submitted by \
then is lost.{repair}"""


@dataclass(frozen=True, slots=True)
class Step:
    """An answer of the model. error: why there is no command in it, for the model; prose: all outside of the block."""

    command: str = ""
    prose: str = ""
    error: str = ""

    @property
    def submits(self) -> bool:
        return bool(_SUBMITS.search(self.command))

    def words(self) -> dict[str, Any]:
        """The last line of the prose that is a JSON object; empty where there is none."""
        lines = reversed(self.prose.split("\n"))
        return next((found for line in lines if (found := answer_words.last_object(line))), {})


def read(text: str, finish: str = "stop") -> Step:
    """The one command of an answer, or what is wrong with the answer."""
    if len(text) > MOST_ANSWER:
        return Step(error=f"Your answer is longer than {MOST_ANSWER // 1024} KiB. Edit a part of a file at a time.")
    if finish == "length" and not said(text):
        return Step(error="All of max_tokens (config.yaml) went into thinking. Think less, and write a command.")
    blocks, prose, is_open = _blocks(_without_thoughts(text.replace("\r\n", "\n")))
    command = blocks[0] if blocks else ""
    error = ""
    if is_open:
        why = "close it, or open and close it by four backticks where lines in it hold three"
        why = "it was cut off because it was too long: edit a part at a time" if finish == "length" else why
        error = f"A block of your answer is not closed, so nothing was run: {why}."
    elif not blocks:
        empty = "Your answer is empty. " if not text.strip() else "Your answer holds no ```bash block. "
        error = f"{empty}Write exactly one, with the next command in it."
    elif len(blocks) > 1:
        error = (
            f"Your answer holds {len(blocks)} ```bash blocks, and nothing was run. Write exactly one; join "
            "commands by && or new lines where one does not depend on what another prints."
        )
    elif not command.strip():
        error = "The ```bash block of your answer is empty."
    elif word := _torn(command, prose):
        error = (
            f"The block of your answer ends in the middle of what {word} should end, so nothing was run: "
            "open and close it by four backticks where lines in it hold three."
        )
    elif "\0" in command:
        error = "The command of your answer holds a zero byte, and was not run."
    return Step("" if error else command, prose, error)


def _without_thoughts(text: str) -> str:
    """An answer from where its thoughts end; a command may hold such tags itself."""
    while text.lstrip().startswith("<think>") and "</think>" in text:
        text = text.partition("</think>")[2]
    ends = [*_THOUGHTS_END.finditer(text)][: -_MOST_ENDS - 1 : -1]
    end = next((end.end() for end in ends if not in_code(text[: end.start()])), 0)
    return text[end:]


def _torn(command: str, prose: str) -> str:
    """The end mark of a here-document that is not in the command, but further down in the answer; else nothing."""
    inside, outside = ({line.strip() for line in text.splitlines()} for text in (command, prose))
    return next((word for _, word in _HERE.findall(command) if word not in inside and word in outside), "")


def _blocks(text: str) -> tuple[list[str], str, bool]:
    """Contents of the shell blocks, everything outside of them, and whether any block is open at the end.

    As CommonMark 4.5 has it. An open one may be what is left over when the command itself held a line of backticks.
    """
    blocks: list[str] = []
    prose: list[str] = []
    inside: list[str] = []
    fence, is_shell = "", False
    for line in text.split("\n"):
        bare = line.strip(" \t")
        if not fence:
            opened = _FENCE.fullmatch(line)
            if opened is None:
                prose.append(line)
                continue
            fence, is_shell, inside = opened[1], opened[2].lower() in _SHELLS, []
        elif bare == "`" * max(len(fence), len(bare)) and not line.startswith("    "):
            if is_shell:
                blocks.append("\n".join(inside))
            else:
                prose += inside
            fence = ""
        else:
            inside.append(line)
    return blocks, "\n".join(prose), bool(fence)


def show_printed(ran: CommandResult, redactor: Redactor, most: int) -> str:
    """What a command printed, without control codes and secrets, at most ``most`` bytes and a word on what was cut."""
    cut = bool(ran.omitted or ran.tail)
    # Half a line at the cut could hold half a secret, which the redactor would not know.
    head = ran.head.rpartition("\n")[0] or ran.head if cut else ran.head
    tail = ran.tail.partition("\n")[2] or ran.tail
    # Only what is to be seen, a progress bar's line ends as such.
    shown = (printable(redactor.text(as_lines(t.replace("\r\n", "\n"))), keep="\n\t") for t in (head, tail))
    first, last = (text.encode("utf-8", "replace") for text in shown)
    if not cut and len(first) <= most:
        return first.decode()
    if not cut or len(first) + len(last) > most:
        end = last if cut else first
        first, last = first[: most - most // 2], end[max(0, len(end) - most // 2) :]
    head, tail = first.decode("utf-8", "ignore"), last.decode("utf-8", "ignore")
    return f"{head}\n[… bytes left out: print less, or a part of it …]\n{tail}"


def has_submitted(ran: CommandResult) -> bool:
    """Whether a command that submits came to its end: it succeeded, and printed the sentinel on a line of its own."""
    lines = (*ran.head.splitlines(), *ran.tail.splitlines())
    return not ran.ended and ran.exit_code == 0 and SENTINEL in (line.strip() for line in lines)


class Conversation:
    """The messages so far. prompt: what it begins with, always there; count: of tokens."""

    def __init__(self, prompt: Sequence[Message], count: Count) -> None:
        self._messages, self._fixed, self._count = list(prompt), len(prompt), count

    def add(self, answer: str, told: str) -> None:
        if len(answer) > _LONGEST_ANSWER:
            answer = answer[:_LONGEST_ANSWER] + "\n[the rest was left out]"
        self._messages += [answer_turn(answer), {"role": "user", "content": told}]

    def messages(self, budget: int) -> tuple[Message, ...]:
        """The messages to send; what is once left out stays so. Raises PolicyError: they have more tokens.

        The least needed goes first: old output, then old answers; the last turn stays.
        """
        tokens, most = self._count(self._messages), float(budget)
        for role, mark in (("user", LEFT_OUT), ("assistant", ANSWER_LEFT_OUT)):
            for index in range(self._fixed, len(self._messages) - 2):
                message = self._messages[index]
                if tokens > most and message["role"] == role and len(message["content"]) > len(mark):
                    self._messages[index] = {**message, "content": mark}
                    tokens, most = self._count(self._messages), ROOM * budget
        if tokens > budget:
            raise PolicyError(
                f"the agent's conversation has {tokens} tokens when all that can be is left out of it, and may have "
                f"{budget}"
            )
        return tuple(self._messages)
