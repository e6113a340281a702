"""How the policy `agent` and a model talk: the rules, one command in each answer, and what came of it in words.

The protocol is plain text, so that every model can speak it (it is that of mini-swe-agent).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.evaluator.measure.log_text import as_lines
from autoresearchd.models.client import Count, Message
from autoresearchd.policy import answer_words
from autoresearchd.policy.prompt.quote import data_block
from autoresearchd.sandbox.agent_shell import CommandResult

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MOST_ANSWER = 256 * 1024
"""Characters of an answer that are looked at; nobody writes a longer one on purpose."""

_FENCE = re.compile(r" {0,3}(`{3,})[ \t]*([\w+-]*)[^`\n]*")
_SHELLS = frozenset({"bash", "sh", "shell"})
_THOUGHTS_END = "</think>"
_SUBMITS = re.compile(rf"\becho[ \t]+[\"']?{SENTINEL}\b")
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_LAST_TURNS = 3
ROOM = 0.75
"""Share of the budget that is used after something was left out: leaving out a little at each turn would change the
beginning of the conversation each time, and neither a provider's cache nor the store could use it again."""

LEFT_OUT = "[What this command printed was left out to save room.]"
ANSWER_LEFT_OUT = "[This answer was left out to save room.]"
_LONGEST_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model, read. error: why there is no command in it, in words for the model.

    prose: all of the answer that is not in the block.
    """

    command: str = ""
    prose: str = ""
    error: str = ""

    @property
    def submits(self) -> bool:
        """Whether the command says that the work is done."""
        return bool(_SUBMITS.search(self.command))

    def words(self) -> dict[str, Any]:
        """The last line of the prose that is a JSON object; empty where there is none."""
        lines = reversed(self.prose.splitlines())
        return next((found for line in lines if (found := answer_words.last_object(line))), {})


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
{command_seconds:.0f} seconds; of what it prints, {settings.agent_output_bytes} bytes are shown, beginning and end.
- Your proposal is what the files that may be edited hold when you submit. Changes of others are thrown away.
- Do not train here: your edit is run and measured once you have submitted it. Do check that it parses, for example by \
`python -m py_compile {task.editable[0]}`.

When the edit is complete, submit it. Write, before the block, one line that is a JSON object with the reason:

{{"hypothesis": "why it may help", "description": "the change in a line", "expected_delta": 0.01, \
"next_action_hint": "what to try next"}}

```bash
echo {SENTINEL}
```

You have {counted(settings.agent_turns, "answer")} and {settings.agent_seconds:.0f} seconds. What is not submitted by \
then is lost.{repair}"""


def read(text: str, finish: str = "stop") -> Step:
    """The one command of an answer, or what is wrong with the answer."""
    if len(text) > MOST_ANSWER:
        return Step(error=f"Your answer is longer than {MOST_ANSWER // 1024} KiB. Edit a part of a file at a time.")
    text = text.replace("\r\n", "\n").rpartition(_THOUGHTS_END)[2]
    blocks, prose, is_open = _blocks(text)
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


def _torn(command: str, prose: str) -> str:
    """The end mark of a here-document that is not in the command, but further down in the answer; else nothing."""
    inside = {line.strip() for line in command.splitlines()}
    outside = {line.strip() for line in prose.splitlines()}
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
        if not fence:
            opened = _FENCE.fullmatch(line)
            if opened is None:
                prose.append(line)
                continue
            fence, is_shell, inside = opened[1], opened[2].lower() in _SHELLS, []
        elif line.strip(" \t") == "`" * max(len(fence), len(line.strip(" \t"))) and not line.startswith("    "):
            if is_shell:
                blocks.append("\n".join(inside))
            else:
                prose += inside
            fence = ""
        else:
            inside.append(line)
    return blocks, "\n".join(prose), bool(fence)


# -- what came of it -------------------------------------------------------------------------------------------------


def describe_result(ran: CommandResult, redactor: Redactor, most: int) -> str:
    """What a command did, for the model."""
    how = f"Ended: {ran.ended}." if ran.ended else f"Exit code {ran.exit_code}."
    printed = show_printed(ran, redactor, most)
    return f"{how}\n{data_block(printed)}" if printed.strip() else f"{how} It printed nothing."


def show_printed(ran: CommandResult, redactor: Redactor, most: int) -> str:
    """What a command printed, without control codes and secrets, at most ``most`` bytes and a word on what was cut."""
    if not ran.omitted and not ran.tail:
        return _middle_cut(_clean(ran.head, redactor), most)
    # Half a line at the cut could hold half a secret, which the redactor would not know.
    head = ran.head.rpartition("\n")[0] or ran.head
    tail = ran.tail.partition("\n")[2] or ran.tail
    lost = ran.omitted + _size(ran.head) - _size(head) + _size(ran.tail) - _size(tail)
    return _middle_cut(_clean(head, redactor), most, _clean(tail, redactor), lost)


def _clean(text: str, redactor: Redactor) -> str:
    """Only what is to be seen, a progress bar's line ends as such."""
    return printable(redactor.text(as_lines(text.replace("\r\n", "\n"))), keep="\n\t")


def _middle_cut(head: str, most: int, tail: str | None = None, lost: int = 0) -> str:
    """Beginning and end of a text, ``most`` bytes together. tail: its end where ``lost`` bytes are gone before that."""
    if tail is None and _size(head) <= most:
        return head
    end = head if tail is None else tail
    if tail is not None and _size(head) + _size(tail) <= most:
        first, last = head, tail
    else:
        first = head.encode("utf-8", "replace")[: most - most // 2].decode("utf-8", "ignore")
        last = end.encode("utf-8", "replace")[max(0, _size(end) - most // 2) :].decode("utf-8", "ignore")
    gone = lost + _size(head) + (0 if tail is None else _size(tail)) - _size(first) - _size(last)
    return f"{first}\n[… {gone:,} bytes left out: print less, or a part of it …]\n{last}"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def explain_not_submitted(ran: CommandResult) -> str:
    """Why a command that should have submitted did not."""
    how = ran.ended or f"it ended with exit code {ran.exit_code}"
    return (
        f"Nothing was submitted: the command that was to do it did not come to its end well ({how}), or did not print "
        f"{SENTINEL} on a line of its own."
    )


def has_submitted(ran: CommandResult) -> bool:
    """Whether a command that submits came to its end: it succeeded, and printed the sentinel on a line of its own."""
    lines = (*ran.head.splitlines(), *ran.tail.splitlines())
    return not ran.ended and ran.exit_code == 0 and SENTINEL in (line.strip() for line in lines)


def remind_of_end(answers: int) -> str:
    """A reminder when few answers are left; else nothing."""
    verb = "is" if answers == 1 else "are"
    told = f"\n\n{counted(answers, 'answer')} {verb} left: complete the edit and submit it."
    return told if 0 < answers <= _LAST_TURNS else ""


# -- the conversation -----------------------------------------------------------------------------------------------


class Conversation:
    """The messages so far. prompt: what it begins with, always there; budget: tokens that it may have, by ``count``."""

    def __init__(self, prompt: Sequence[Message], *, budget: int, count: Count) -> None:
        self._messages: list[Message] = list(prompt)
        self._fixed, self._budget, self._count = len(self._messages), budget, count

    def add(self, answer: str, told: str) -> None:
        """A turn: what the model answered, and what it was told."""
        if len(answer) > _LONGEST_ANSWER:
            answer = answer[:_LONGEST_ANSWER] + "\n[the rest was left out]"
        self._messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]

    def messages(self) -> tuple[Message, ...]:
        """The messages to send. Raises PolicyError: they do not fit, whatever is left out."""
        if self._count(self._messages) > self._budget:
            self._shrink(ROOM * self._budget)
        return tuple(self._messages)

    def too_long(self) -> None:
        """The model found it too long: its budget is smaller than was thought, or the count was too low."""
        self._budget = int(ROOM * min(self._budget, self._count(self._messages)))

    def allow(self, budget: int) -> None:
        """It may have so many tokens from now on; what was left out stays so."""
        self._budget = budget

    def _shrink(self, target: float) -> None:
        for index, mark in self._order():
            self._messages[index] = {**self._messages[index], "content": mark}
            if self._count(self._messages) <= target:
                return
        tokens = self._count(self._messages)
        if tokens > self._budget:
            raise PolicyError(
                f"the agent's conversation has {tokens} tokens when all that can be is left out of it, and may have "
                f"{self._budget}",
                label=Label.ERROR,
                hint="raise context_tokens in config.yaml for a model that can read as much, or make the files shorter",
            )

    def _order(self) -> list[tuple[int, str]]:
        """What may be left out, the least needed first: old output, then old answers; the last turn stays."""
        old = [(i, m) for i, m in enumerate(self._messages[:-2]) if i >= self._fixed]
        marks = (("user", LEFT_OUT), ("assistant", ANSWER_LEFT_OUT))
        return [(i, k) for role, k in marks for i, m in old if m["role"] == role and len(m["content"]) > len(k)]
