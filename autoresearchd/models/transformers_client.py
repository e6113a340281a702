"""A local model in this process: transformers, with a LoRA adapter of peft where one is given; nothing is downloaded.

Tokens are drawn here and not by ``generate``'s own sampling: from the plain softmax at the temperature, without top-p,
top-k or penalties, by a random generator of the question's own. So the log-probabilities that are recorded are exactly
those of the distribution that was drawn from, which is what importance weights of the learner divide by.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, Interrupted, MissingCapability, UsageError
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.ports import Adapters, Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import abandonable_call, provider_errors
from autoresearchd.models.client import Message, ModelError, Question, Reply, Trouble
from autoresearchd.models.transformers_library import (
    OFFLINE,
    Draw,
    Hashes,
    Source,
    context_of,
    decoded,
    device_of,
    encoded,
    ends_of,
    library,
    load_base,
    load_tokenizer,
    told,
    trouble,
)

_SHORTEST_REPLY = 256
_LOAD_S = 1800.0


class TransformersClient:
    """Asks a model that is loaded into this process at the first question, and stays.

    A temperature of None is 1; of 0, the likeliest token is taken and its log-probability is the one at temperature 1.
    ``token_ids`` and ``logprobs`` are of all that was generated: the token that ended the turn is among them, and so is
    a stop text, which ``text`` is cut before. The same seed draws the same reply on the same machine.

    Args:
        place: a folder as ``save_pretrained`` writes it, a folder with one GGUF file, or that file.
        adapter: folder of a LoRA adapter, as peft writes it.
        adapters: says which version of the local policy answers, in the place of ``adapter``; asked at the first
            question, and after each ``renew``. Where it cannot be loaded, the plain model answers.
        warn: is told of a version that cannot be loaded.
        device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1`` …
        dtype: ``auto`` (that of the checkpoint), ``float32``, ``bfloat16`` …
        threads: of torch, on a CPU. Jobs run beside this process, and several threads that wait for each other on busy
            cores are slower than one.
    """

    def __init__(
        self,
        place: Path,
        *,
        adapter: Path | None = None,
        adapters: Adapters | None = None,
        warn: Callable[[str], None] = lambda text: None,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
    ) -> None:
        self._source = Source.at(place)
        if adapter is not None and not (adapter / "adapter_config.json").is_file():
            raise UsageError(
                f"{adapter} holds no LoRA adapter", hint="it has an adapter_config.json, as peft writes it"
            )
        self._place = place
        self._fixed = None if adapter is None else ServedAdapter(adapter.name, adapter)
        self._adapters, self._warn = adapters, warn
        self._settled = False
        self._chosen: ServedAdapter | None = None
        self._served: ServedAdapter | None = None
        self._unusable: set[str] = set()
        self._device, self._dtype, self._threads = device, dtype, threads
        self._lock = threading.Lock()
        self._model: Any = None
        self._tokenizer: Any = None
        self._hashes: Hashes | None = None

    @property
    def name(self) -> str:
        """``local:`` and the place."""
        return f"local:{self._place}"

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """As the protocol says; the time that loading takes is none of the question's."""
        given_up = threading.Event()
        abandonable_call.call(self._load, cancel, _LOAD_S)
        return abandonable_call.call(
            lambda: self._ask(question, given_up), cancel, question.timeout, give_up=given_up.set
        )

    def renew(self) -> None:
        """Look before the next question which version is in use."""
        self._settled = False

    def unload(self) -> None:
        """Give back what the model takes in memory, after the answer under way; it is loaded again when it is asked."""
        with self._lock:
            if self._model is None:
                return
            self._model = self._served = None
            if self._device.startswith("cuda") or self._device == "auto":
                library("torch").cuda.empty_cache()  # nothing where there is no GPU

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """By the model's own tokenizer, its chat template included."""
        with self._lock:
            tokenizer = self._load_tokenizer()
        return len(encoded(tokenizer, messages))

    # -- asking
    def _ask(self, question: Question, given_up: threading.Event) -> Reply:
        began = time.monotonic()
        with self._lock:  # an abandoned question may not have noticed yet
            if given_up.is_set():
                raise Interrupted("the question was given up before its turn came")
            if self._model is None:  # unloaded since
                self._make_ready()
            try:
                return self._generate(question, given_up, began)
            except AutoresearchdError:
                raise
            except Exception as error:
                raise trouble(error) from error

    def _generate(self, question: Question, given_up: threading.Event, began: float) -> Reply:
        torch, transformers = library("torch"), library("transformers")
        torch.set_num_threads(self._threads)
        prompt = encoded(self._tokenizer, question.messages)
        most = self._room(len(prompt), question.max_tokens)
        temperature = 1.0 if question.temperature is None else question.temperature
        draw = Draw(torch, temperature, [question.seed], self._model.device)
        end = _End(torch, self._tokenizer, len(prompt), question.stop, given_up)
        inputs = torch.tensor([prompt], device=self._model.device)
        with torch.inference_mode():
            output = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=most,
                do_sample=False,  # ``draw`` leaves one token to choose from
                logits_processor=transformers.LogitsProcessorList([draw]),
                stopping_criteria=transformers.StoppingCriteriaList([end]),
            )
        if given_up.is_set():
            raise Interrupted("the question was given up")
        ids = tuple(int(token) for token in output[0, len(prompt) :])
        cost = Cost(usd=0.0, tokens_in=len(prompt), tokens_out=len(ids), seconds=time.monotonic() - began)
        whole = decoded(self._tokenizer, ids)
        text = provider_errors.before_stop(provider_errors.checked_text(whole, "stop", "", cost), question.stop)
        hashes = self._hashes
        ended = text != whole or (bool(ids) and ids[-1] in ends_of(self._model))
        return Reply(
            text=text,
            model=str(self._place),
            cost=cost,
            finish="stop" if ended else "length",
            token_ids=ids,
            logprobs=tuple(draw.logprobs[0][: len(ids)]),
            sampling={
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": 0,
                "seed": question.seed,
                "max_tokens": most,
                "stop": list(question.stop),
                "logprobs_of": "sampling distribution" if temperature > 0 else "temperature 1",
            },
            model_hash=None if hashes is None else hashes.model,
            tokenizer_hash=None if hashes is None else hashes.tokenizer,
            template_hash=None if hashes is None else hashes.template,
            adapter="" if self._served is None else self._served.version,
        )

    def _room(self, prompt: int, wanted: int) -> int:
        """How many tokens a reply may have; raises where the context leaves no room for one."""
        context = context_of(self._model)
        if context is None:
            return wanted
        room = context - prompt
        if room < min(wanted, _SHORTEST_REPLY):
            raise ModelError(
                Trouble.CONTEXT_TOO_LONG,
                f"the prompt has {prompt} tokens, the context length of the model is {context}",
            )
        return min(wanted, room)

    # -- loading
    def _load(self) -> None:
        with self._lock:
            self._make_ready()

    def _make_ready(self) -> None:
        library("torch").set_num_threads(self._threads)
        tokenizer = self._load_tokenizer()
        if self._hashes is None:
            self._hashes = self._source.hashes(tokenizer.chat_template)
        wanted = self._wanted(self._hashes)
        if self._model is None or wanted != self._served:
            self._model = None  # two may not fit beside each other
            self._served = None
            self._model, self._served = self._assembled(tokenizer, wanted)

    def _wanted(self, hashes: Hashes) -> ServedAdapter | None:
        """The adapter to answer with."""
        if self._adapters is None:
            return self._fixed
        if not self._settled:
            base = BaseModel(str(self._source.place.absolute()), hashes.model, hashes.tokenizer, hashes.template)
            self._chosen = self._adapters.in_use(base)
            self._settled = True
        return None if self._chosen is None or self._chosen.version in self._unusable else self._chosen

    def _assembled(self, tokenizer: Any, wanted: ServedAdapter | None) -> tuple[Any, ServedAdapter | None]:
        """The model on its device, and the adapter that it has."""
        model = load_base(self._source, tokenizer, self._dtype)
        if wanted is not None:
            try:
                with provider_errors.environment(OFFLINE), told(wanted.folder):
                    model = library("peft").PeftModel.from_pretrained(
                        model, str(wanted.folder), is_trainable=False, local_files_only=True
                    )
            except (ModelError, MissingCapability) as error:
                if self._adapters is None:  # the user asked for this one
                    raise
                self._unusable.add(wanted.version)
                self._warn(f"version {wanted.version} cannot be used, the plain model answers: {error.what}")
                # Half of the adapter may be in the model by now.
                wanted, model = None, load_base(self._source, tokenizer, self._dtype)
        with told(self._source.place):
            return model.to(device_of(self._device)).eval(), wanted

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._source)
        return self._tokenizer


class _End:
    """Ends the generation where nobody waits for it any more, and where a stop text is complete."""

    def __init__(
        self, torch: ModuleType, tokenizer: Any, prompt: int, stops: tuple[str, ...], given_up: threading.Event
    ) -> None:
        self._torch, self._tokenizer, self._prompt = torch, tokenizer, prompt
        self._stops, self._given_up = tuple(stop for stop in stops if stop), given_up
        # A token has at least one byte: so many of the last ones hold a stop text that has just become complete.
        self._back = max((len(stop.encode()) for stop in self._stops), default=0) + 4

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        ended = self._given_up.is_set() or self._stopped(input_ids[0])
        return self._torch.full((input_ids.shape[0],), ended, device=input_ids.device, dtype=self._torch.bool)

    def _stopped(self, ids: Any) -> bool:
        if not self._stops:
            return False
        tail = decoded(self._tokenizer, ids[max(self._prompt, len(ids) - self._back) :].tolist())
        return any(stop in tail for stop in self._stops)
