"""Language models that transformers loads, for whoever asks or trains one: from disk, offline, without their code.

Tokens are drawn here and not by ``generate``'s own sampling: from the plain softmax at the temperature, without top-p,
top-k or penalties, by a random generator of the question's own. So the log-probabilities that are recorded are exactly
those of the distribution that was drawn from, which is what importance weights of the learner divide by.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, Interrupted, MissingCapability
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.ports import Adapters, Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import client
from autoresearchd.models.client import Message, ModelClient, ModelError, Question, Reply, Trouble, perform
from autoresearchd.models.model_files import Source

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables under which libraries are imported and models are loaded."""

_LOAD_S = 1800.0


class TransformersClient(ModelClient):
    """Asks a model that is loaded into this process at the first question, and stays: on a GPU where there is one.

    A temperature of None is 1; of 0, the likeliest token is taken and its log-probability is the one at temperature 1.
    ``token_ids`` and ``logprobs`` are of all that was generated, the token that ended the turn included. The same seed
    draws the same reply on the same machine.

    adapters: says which version of the local policy answers, asked at the first question and after each ``renew``.
    warn: is told of a version that cannot be loaded, where the plain model answers.
    """

    name, in_process = "", True

    def __init__(
        self, place: Path, *, adapters: Adapters | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._source, self._place, self.name = Source.at(place), place, f"local:{place}"
        self._adapters, self._warn = adapters, warn
        self._settled = False
        self._chosen: ServedAdapter | None = None
        self._served: ServedAdapter | None = None
        self._unusable: set[str] = set()
        self._lock, self._tokenizer_lock = threading.Lock(), threading.Lock()
        self._model: Any = None
        self._tokenizer: Any = None
        self._base: BaseModel | None = None

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        given_up = threading.Event()
        perform(self._load, cancel, _LOAD_S)
        return perform(lambda: self._ask(question, given_up), cancel, question.timeout, give_up=given_up.set)

    def renew(self) -> None:
        self._settled = False

    def unload(self) -> None:
        with self._lock:
            if self._model is not None:
                self._model = self._served = None
                library("torch").cuda.empty_cache()  # nothing where there is no GPU

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(encoded(self._load_tokenizer(), messages))

    def price(self, cost: Cost) -> float | None:
        return 0.0

    # -- asking
    def _ask(self, question: Question, given_up: threading.Event) -> Reply:
        began = time.monotonic()
        with self._lock:  # an abandoned question may not have noticed yet
            if given_up.is_set():
                raise Interrupted("the question was given up before its turn came")
            if self._model is None:  # unloaded since
                self._make_ready()
            with _explained():
                return self._generate(question, given_up, began)

    def _generate(self, question: Question, given_up: threading.Event, began: float) -> Reply:
        torch, transformers = library("torch"), library("transformers")
        torch.set_num_threads(1)
        prompt = encoded(self._tokenizer, question.messages)
        most = self._room(len(prompt), question.max_tokens)
        temperature = 1.0 if question.temperature is None else question.temperature
        draw = Draw(torch, temperature, [question.seed], self._model.device)
        inputs = torch.tensor([prompt], device=self._model.device)

        def ended(input_ids: Any, scores: Any, **_: Any) -> Any:
            return torch.full((len(input_ids),), given_up.is_set(), device=input_ids.device, dtype=torch.bool)

        with torch.inference_mode():
            output = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=most,
                do_sample=False,  # ``draw`` leaves one token to choose from
                logits_processor=transformers.LogitsProcessorList([draw]),
                stopping_criteria=transformers.StoppingCriteriaList([ended]),
            )
        if given_up.is_set():
            raise Interrupted("the question was given up")
        ids = tuple(int(token) for token in output[0, len(prompt) :])
        cost = Cost(usd=0.0, tokens_in=len(prompt), tokens_out=len(ids), seconds=time.monotonic() - began)
        base = self._base or BaseModel(self.name)
        return Reply(
            text=client.checked_text(decoded(self._tokenizer, ids), "stop", "", cost),
            model=str(self._place),
            cost=cost,
            finish="stop" if ids and ids[-1] in ends_of(self._model) else "length",
            token_ids=ids,
            logprobs=tuple(draw.logprobs[0][: len(ids)]),
            sampling={
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": 0,
                "seed": question.seed,
                "max_tokens": most,
                "logprobs_of": "sampling distribution" if temperature > 0 else "temperature 1",
            },
            model_hash=base.model_hash,
            tokenizer_hash=base.tokenizer_hash,
            template_hash=base.template_hash,
            adapter="" if self._served is None else self._served.version,
        )

    def _room(self, prompt: int, wanted: int) -> int:
        """How many tokens a reply may have; ModelError where the context leaves no room for one."""
        context = context_of(self._model) or prompt + wanted
        if context - prompt < min(wanted, client.SHORTEST_REPLY):
            what = f"the prompt has {prompt} tokens, the context length of the model is {context}"
            raise ModelError(Trouble.CONTEXT_TOO_LONG, what)
        return min(wanted, context - prompt)

    # -- loading
    def _load(self) -> None:
        with self._lock:
            self._make_ready()

    def _make_ready(self) -> None:
        # Jobs run beside this process, and threads that wait for each other on busy cores are slower than one.
        library("torch").set_num_threads(1)
        tokenizer = self._load_tokenizer()
        if self._base is None:
            self._base = self._source.base_model(tokenizer.chat_template)
        if self._adapters is not None and not self._settled:
            self._chosen = self._adapters.in_use(self._base)
            self._settled = True
        wanted = None if self._chosen is None or self._chosen.version in self._unusable else self._chosen
        if self._model is None or wanted != self._served:
            self._model = self._served = None  # two may not fit beside each other
            self._model, self._served = self._assemble(tokenizer, wanted)

    def _assemble(self, tokenizer: Any, wanted: ServedAdapter | None) -> tuple[Any, ServedAdapter | None]:
        model = load_base(self._source, tokenizer, "auto")
        if wanted is not None:
            try:
                with told(wanted.folder):
                    model = library("peft").PeftModel.from_pretrained(
                        model, str(wanted.folder), is_trainable=False, local_files_only=True
                    )
            except (ModelError, MissingCapability) as error:
                self._unusable.add(wanted.version)
                self._warn(f"version {wanted.version} cannot be used, the plain model answers: {error.what}")
                # Half of the adapter may be in the model by now.
                wanted, model = None, load_base(self._source, tokenizer, "auto")
        with told(self._source.place):
            return model.to(device_of("auto")).eval(), wanted

    def _load_tokenizer(self) -> Any:
        with self._tokenizer_lock:  # its own: nobody who stops waits for the weights to count tokens
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self._source)
            return self._tokenizer


def load_tokenizer(source: Source) -> Any:
    """The tokenizer, with its chat template; raises ModelError where it cannot be loaded."""
    transformers = library("transformers")
    with told(source.place):
        return transformers.AutoTokenizer.from_pretrained(source.folder, **source.options)


def load_base(source: Source, tokenizer: Any, dtype: str) -> Any:
    """The causal language model, on the CPU and ready to be asked; raises ModelError where it cannot be loaded.

    Of its own generation settings only the ends of a turn are kept: what else they hold would bend the distribution
    that is drawn from. dtype: ``auto`` (that of the checkpoint), ``float32`` …
    """
    transformers = library("transformers")
    transformers.utils.logging.disable_progress_bar()  # a daemon has no screen
    with told(source.place):
        model = transformers.AutoModelForCausalLM.from_pretrained(source.folder, dtype=dtype, **source.options)
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = ends[0] if isinstance(ends, (list, tuple)) else ends
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=padding)
    return model.eval()


def device_of(name: str) -> str:
    """The device of a setting: ``auto`` is a GPU where there is one."""
    if name != "auto":
        return name
    return "cuda" if library("torch").cuda.is_available() else "cpu"


def context_of(model: Any) -> int | None:
    """How many tokens a model can look at; None where it does not say."""
    context = getattr(model.config, "max_position_embeddings", None)
    return context if isinstance(context, int) else None


def ends_of(model: Any) -> frozenset[int]:
    """Tokens that end a turn."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, (list, tuple)) else () if ends is None else (ends,))


def encoded(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """A conversation as the model is shown it, up to where its answer begins."""
    with _explained():
        text = rendered(tokenizer, messages, answer=True)
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, answer: bool) -> str:
    """A conversation in the words of the chat template; with ``answer`` up to where the next one begins."""
    given = [dict(message) for message in messages]
    with _explained():
        return str(tokenizer.apply_chat_template(given, add_generation_prompt=answer, tokenize=False))


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say as a ModelError what goes wrong in a library while a model is asked."""
    try:
        yield
    except AutoresearchdError:
        raise
    except Exception as error:
        kind = type(error).__name__
        trouble = Trouble.OVERLOADED if "OutOfMemory" in kind or isinstance(error, MemoryError) else Trouble.BAD_REQUEST
        what = f"the model in this process failed: {kind}: {client.words_of(str(error))}"
        raise ModelError(trouble, what) from error


def library(name: str) -> ModuleType:
    """A library that is imported at its first use; raises MissingCapability with the extra that brings it."""
    try:
        with client.environment(OFFLINE):
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingCapability(
            f"a model in this process needs the package {name}: {error}", hint="pip install 'autoresearchd[learn]'"
        ) from error


@contextlib.contextmanager
def told(place: Path) -> Iterator[None]:
    """Load something of a model: offline, and what goes wrong with its files is told with their place."""
    try:
        with client.environment(OFFLINE), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft uses of transformers
            yield
    except AutoresearchdError:
        raise
    except ImportError as error:
        raise MissingCapability(
            f"{place} needs another package: {client.words_of(str(error))}", hint="install what it names"
        ) from error
    except Exception as error:
        kind = type(error).__name__
        raise ModelError(
            Trouble.NOT_FOUND,
            f"{place} cannot be loaded: {kind}: {client.words_of(str(error))}",
            hint="give a folder as save_pretrained writes it, or a GGUF file",
        ) from error


class Draw:
    """A processor of logits that draws the tokens itself, writes their log-probabilities down, and leaves them alone.

    Neither top-p nor top-k nor penalties: what is written down is of the very distribution that was drawn from. What a
    row draws depends on its own seed (None: another at each time) and logits, not on the rows beside it.
    """

    def __init__(self, torch: ModuleType, temperature: float, seeds: Sequence[int | None], device: Any) -> None:
        self._torch, self._temperature = torch, temperature
        self._generators = [torch.Generator(device=device) for _ in seeds]
        for generator, seed in zip(self._generators, seeds, strict=True):
            generator.manual_seed(seed % 2**63) if seed is not None else generator.seed()
        self.logprobs: list[list[float]] = [[] for _ in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch, temperature = self._torch, self._temperature
        logits = scores.float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            rows = zip(logprobs.exp(), self._generators, strict=True)
            tokens = torch.stack([torch.multinomial(row, 1, generator=generator) for row, generator in rows])
        else:
            tokens = logprobs.argmax(dim=-1, keepdim=True)
        for written, value in zip(self.logprobs, logprobs.gather(-1, tokens)[:, 0].tolist(), strict=True):
            written.append(value)
        return torch.full_like(scores, float("-inf")).scatter_(-1, tokens, 0.0)
