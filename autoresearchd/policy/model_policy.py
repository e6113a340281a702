"""The policy that asks a model: the state becomes a question, the answer an edit, and what is unusable is sent back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from autoresearchd.domain.cleaning import clean, storable
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, Passed, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.outlook import PASSES, Outlook, Value
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.models.client import Message, Reply
from autoresearchd.policy.answer_words import MAX_LINE
from autoresearchd.policy.edits.answer_parts import Edit, means_to_edit, said
from autoresearchd.policy.edits.read_answer import FORMS, SCHEMA, SCHEMA_FORMS, read_answer
from autoresearchd.policy.exchange import (
    GRACE_S,
    AskingPolicy,
    Exchange,
    Patience,
    answer_turn,
    clean_error,
    cut_middle,
)
from autoresearchd.policy.prompt import brief, sections

MAX_ECHO = 8_000
"""Characters of its unusable answer that a model is shown again."""


@dataclass(eq=False)
class ModelPolicy(AskingPolicy):
    """Asks a model for an edit; the same policy for any provider and for a model of one's own.

    Every answer is stored and charged the moment that it has come, usable or not. One that is malformed, illegal or
    changes nothing goes back to the model with the exact error, at most ``settings.reasks`` times. Passed is raised
    where a search stands by (``state.outlook``) and the model leaves the turn to it.

    outlook: what a search would consider, for the brief prompt of a model that has none beside it.
    """

    _: KW_ONLY
    outlook: Callable[[ResearchState], Outlook] | None = None

    @property
    def repairs(self) -> int:
        """As the user has set it; none where constants are all that is asked for, which fix no program."""
        return 0 if self.settings.prompt == brief.BRIEF else self.settings.repairs

    def work(self, state: ResearchState, exchange: Exchange, cancel: Cancel) -> Proposal:
        if not self.settings.feedback:
            state = replace(state, recent=(), top=(), diagnostics={}, failures={}, streak=0, memo="", outlook=None)
        elif state.outlook is None and self.outlook is not None:
            with suppress(PolicyError):
                state = replace(state, outlook=replace(self.outlook(state), proposal={}))
        return _Talk(self, state, exchange, cancel).proposal()


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What an answer came to.

    files: the editable files that differ from the parent. words: what the answer says of itself. error: why it is not
    used, in the words that the model is told; empty: it is. final: whether it is of no use to ask again. changes: the
    constants that it sets, if it names them and does nothing else.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    form: str = ""
    error: str = ""
    label: Label = Label.NONE
    final: bool = False
    changes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        return self.form == PASSES


_UNREAD = _Verdict(error="the answer could not be looked at", label=Label.ERROR)
"""What is stored with an answer whose reading failed for a reason that is not the answer's."""


class _Talk:
    """The questions and answers of one proposal."""

    def __init__(self, means: ModelPolicy, state: ResearchState, exchange: Exchange, cancel: Cancel) -> None:
        self._settings, self._check, self._state, self._exchange = means.settings, means.check, state, exchange
        asked = means.settings
        self._menu = brief.menu(state, anonymous=asked.anonymous) if asked.prompt == brief.BRIEF else None
        self._may_pass = state.outlook is not None and bool(state.outlook.proposal)
        self._until, self._ended = Patience(cancel, means.ending, GRACE_S), Patience(cancel, means.ending)
        self._base = {**state.code, **(state.repair.files if state.repair else {})}
        self._turns: list[Message] = []
        exchange.prepare(cancel)
        # As JSON or not, it is the same for the whole proposal, whoever is asked in the end.
        wanted = self._settings.structured
        structured = exchange.client.takes_schema() if wanted is None else wanted
        self._schema = (SCHEMA if self._menu is None else self._menu.schema) if structured else None

    def proposal(self) -> Proposal:
        count = 1 + self._settings.reasks
        verdict = _UNREAD
        for index in range(count):
            reply = self._exchange.ask(
                self._build,
                index,
                self._settings.timeout,
                self._until,
                schema=self._schema,
                # No other experiment would fit, unless it was a failed edit's doing.
                misfit=EnvironmentFailure if self._state.repair is None else PolicyError,
            )
            verdict = _UNREAD
            try:
                verdict = self._judge(reply, last=index == count - 1)
            finally:  # it is written down whatever becomes of the judging
                generation = self._exchange.record(reply, error=verdict.error, form=verdict.form)
            if verdict.passes:
                raise Passed("the model passed", label=Label.NO_OP)
            if not verdict.error:
                return self._exchange.proposal(verdict.files, verdict.words, reply, generation, verdict.changes)
            if verdict.final:
                raise PolicyError(verdict.error, label=verdict.label)
            # Secrets go before anything is cut: half of one would not be known any more.
            echo = cut_middle(storable(self._state.redactor.text(reply.text)), MAX_ECHO)
            told = f"Your answer was not used: {verdict.error}\n\nNothing has been changed."
            whole = ", with the whole edit" if self._menu is None else ""
            again = {"role": "user", "content": f"{told} Answer again{whole}."}
            self._turns += [answer_turn(echo), again]
        which = "the answer could not be used" if count == 1 else f"none of {count} answers could be used, the last"
        raise PolicyError(f"{which}: {verdict.error}", label=verdict.label)

    def _build(self, budget: int) -> tuple[Message, ...]:
        if self._ended.is_set():
            raise Interrupted("the model was not asked: a stop was requested")
        count = self._exchange.count_tokens
        if self._menu is not None:
            structured = self._schema is not None
            prompt = brief.messages(self._state, budget=budget, count=count, offered=self._menu, structured=structured)
        else:
            forms = FORMS if self._schema is None else SCHEMA_FORMS
            prompt = sections.messages(self._state, forms=forms, budget=budget, count=count)
        return (*prompt, *self._turns)

    def _read(self, text: str) -> Edit:
        task = self._state.task
        if self._menu is not None:
            return brief.read_answer(text, self._base, task.profile, task, self._menu)
        return brief.read_beside(text, self._base, task) if self._may_pass else read_answer(text, self._base)

    def _judge(self, reply: Reply, *, last: bool) -> _Verdict:
        """The edit in an answer, once it is known to be legal and to change something."""
        form = ""
        try:
            if reply.finish == "content_filter":
                raise PolicyError("the provider's content filter stopped the answer", label=Label.MALFORMED_ANSWER)
            if self._may_pass and brief.passes(reply.text):
                return _Verdict(form=PASSES)
            edit = self._read(reply.text)
            # Beside what it sets, a repair has what the failed edit left.
            form, changes = edit.form, edit.changes if self._state.repair is None else {}
            several = form in ("diff", "search_replace") or (form == "whole" and len(self._base) > 1)
            if reply.finish == "length" and several:
                raise PolicyError("a part of the edit may be missing", label=Label.MALFORMED_ANSWER)
            after = {**self._base, **edit.files}
            files = {path: text for path, text in after.items() if text != self._state.code.get(path)}
            if not files:
                raise PolicyError("the edit changes nothing", label=Label.NO_OP)
            self._check(self._state, files)
        except PolicyError as error:
            return self._unusable(reply, error.label, str(error), form)
        # A constant's value is offered only where it may be tried: again, too, since what it was tried on changed.
        if not last and self._menu is None and (alike := self._exchange.find_near(files, changes)):
            told = (
                f"the edit {alike}\nPropose something that differs, or the same again if you mean it: it is then run."
            )
            return _Verdict(form=form, error=told, label=Label.DUPLICATE)
        return _Verdict(files, edit.words, form, changes=changes)

    def _unusable(self, reply: Reply, label: Label, what: str, form: str) -> _Verdict:
        words = clean(self._state.redactor.text(said(reply.text)), MAX_LINE)
        malformed = label is Label.MALFORMED_ANSWER and not form
        # As the prompt of a repair allows it to; in a JSON answer the list of edits is empty then.
        gives_up = malformed and not means_to_edit(reply.text)
        gives_up = gives_up or (self._schema is not None and label is Label.NO_OP and not form)
        if self._may_pass and self._schema is SCHEMA and label is Label.NO_OP and not form:  # it has no edits
            return _Verdict(form=PASSES)
        final = False
        if reply.finish == "length" and not words:
            what = f"all of max_tokens ({self._settings.max_tokens} tokens) went into thinking: think less"
            what += ", or raise max_tokens in config.yaml"
        elif reply.finish == "length":
            limit = self._settings.max_tokens
            what = f"it was cut off at max_tokens ({limit} tokens): make a smaller edit. As it stands: {what}"
        elif words and self._state.repair is not None and gives_up:
            what, final = f"the model gives its edit up: {words}", True
        return _Verdict(form=form, error=clean_error(self._state, what), label=label, final=final)
