"""A local model in this process: transformers, with a LoRA adapter of peft where one is given; nothing is downloaded.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from autoresearchd.domain.proposal import Cost
from autoresearchd.errors import AutoresearchdError, Interrupted, MissingCapability, UsageError
from autoresearchd.policy import abandon, model_files, provider
from autoresearchd.policy.client import Message, ModelError, Question, Reply, Trouble
from autoresearchd.ports import Cancel

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
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
        version: the adapter's, as it is recorded; its folder's name by default.
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
        version: str = "",
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
    ) -> None:
        self._gguf = model_files.gguf_file(place)
        if adapter is not None and not (adapter / "adapter_config.json").is_file():
            raise UsageError(
                f"{adapter} holds no LoRA adapter", mend="it has an adapter_config.json, as peft writes it"
            )
        self._place, self._adapter = place, adapter
        self._version = version or (adapter.name if adapter is not None else "")
        self._device, self._dtype, self._threads = device, dtype, threads
        self._lock = threading.Lock()
        self._model: Any = None
        self._tokenizer: Any = None
        self._hashes: tuple[str | None, str | None, str | None] = (None, None, None)

    @property
    def name(self) -> str:
        """``local:`` and the place."""
        return f"local:{self._place}"

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """As the protocol says; the time that loading takes is none of the question's."""
        given_up = threading.Event()
        abandon.call(self._load, cancel, _LOAD_S)
        return abandon.call(lambda: self._ask(question, given_up), cancel, question.timeout, give_up=given_up.set)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """By the model's own tokenizer, its chat template included."""
        with self._lock:
            tokenizer = self._load_tokenizer()
        return len(self._encoded(tokenizer, messages))

    # -- asking
    def _ask(self, question: Question, given_up: threading.Event) -> Reply:
        began = time.monotonic()
        with self._lock:  # an abandoned question may not have noticed yet
            if given_up.is_set():
                raise Interrupted("the question was given up before its turn came")
            try:
                return self._generate(question, given_up, began)
            except AutoresearchdError:
                raise
            except Exception as error:
                raise _trouble(error) from error

    def _generate(self, question: Question, given_up: threading.Event, began: float) -> Reply:
        torch, transformers = _import("torch"), _import("transformers")
        torch.set_num_threads(self._threads)
        prompt = self._encoded(self._tokenizer, question.messages)
        most = self._room(len(prompt), question.max_tokens)
        temperature = 1.0 if question.temperature is None else question.temperature
        draw = _Draw(torch, temperature, question.seed, self._model.device)
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
        whole = _decoded(self._tokenizer, list(ids))
        text = provider.before_stop(provider.checked_text(whole, "stop", "", cost), question.stop)
        ended = text != whole or (bool(ids) and ids[-1] in self._ends())
        model_hash, tokenizer_hash, template_hash = self._hashes
        return Reply(
            text=text,
            model=str(self._place),
            cost=cost,
            finish="stop" if ended else "length",
            token_ids=ids,
            logprobs=tuple(draw.logprobs[: len(ids)]),
            sampling={
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": 0,
                "seed": question.seed,
                "max_tokens": most,
                "stop": list(question.stop),
                "logprobs_of": "sampling distribution" if temperature > 0 else "temperature 1",
            },
            model_hash=model_hash,
            tokenizer_hash=tokenizer_hash,
            template_hash=template_hash,
            adapter=self._version,
        )

    def _room(self, prompt: int, wanted: int) -> int:
        """How many tokens a reply may have; raises where the context leaves no room for one."""
        context = getattr(self._model.config, "max_position_embeddings", None)
        if not isinstance(context, int):
            return wanted
        room = context - prompt
        if room < min(wanted, _SHORTEST_REPLY):
            raise ModelError(
                Trouble.CONTEXT_TOO_LONG,
                f"the prompt has {prompt} tokens, the context length of the model is {context}",
            )
        return min(wanted, room)

    def _ends(self) -> frozenset[int]:
        ends = self._model.generation_config.eos_token_id
        return frozenset(ends if isinstance(ends, (list, tuple)) else () if ends is None else (ends,))

    @staticmethod
    def _encoded(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
        try:
            text = tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
            return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        except Exception as error:
            raise _trouble(error) from error

    # -- loading
    def _load(self) -> None:
        with self._lock:
            if self._model is not None:
                return
            torch, transformers = _import("torch"), _import("transformers")
            torch.set_num_threads(self._threads)
            transformers.utils.logging.disable_progress_bar()  # a daemon has no screen
            tokenizer = self._load_tokenizer()
            device = self._device
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            with provider.environment(_OFFLINE), _loading(self._place):
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    self._folder(), dtype=self._dtype, trust_remote_code=False, local_files_only=True, **self._file()
                )
                if self._adapter is not None:
                    model = _import("peft").PeftModel.from_pretrained(
                        model, str(self._adapter), is_trainable=False, local_files_only=True
                    )
                model = model.to(device).eval()
            # Of its own settings only the ends: what else they hold (penalties, top-p) would bend the distribution.
            ends = model.generation_config.eos_token_id
            ends = tokenizer.eos_token_id if ends is None else ends
            padding = tokenizer.pad_token_id
            if padding is None:
                padding = ends[0] if isinstance(ends, (list, tuple)) else ends
            config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=padding)
            model.generation_config = config
            if self._adapter is not None:
                model.get_base_model().generation_config = config
            folder = self._folder()
            self._hashes = (
                model_files.model_hash(folder, self._gguf),
                model_files.tokenizer_hash(folder, self._gguf),
                model_files.template_hash(tokenizer.chat_template),
            )
            self._model = model

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            transformers = _import("transformers")
            with provider.environment(_OFFLINE), _loading(self._place):
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                    self._folder(), trust_remote_code=False, local_files_only=True, **self._file()
                )
        return self._tokenizer

    def _folder(self) -> Path:
        return self._place if self._place.is_dir() else self._place.parent

    def _file(self) -> dict[str, str]:
        return {"gguf_file": self._gguf} if self._gguf else {}


class _Draw:
    """A processor of logits that draws the token itself, writes its log-probability down, and leaves it alone."""

    def __init__(self, torch: ModuleType, temperature: float, seed: int | None, device: Any) -> None:
        self._torch, self._temperature = torch, temperature
        self._generator = torch.Generator(device=device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed % 2**63)
        self.logprobs: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch, temperature = self._torch, self._temperature
        logits = scores[0].float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            token = torch.multinomial(logprobs.exp(), 1, generator=self._generator)[0]
        else:
            token = logprobs.argmax()
        self.logprobs.append(float(logprobs[token]))
        chosen = torch.full_like(scores, float("-inf"))
        chosen[0, token] = 0.0
        return chosen


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
        tail = _decoded(self._tokenizer, ids[max(self._prompt, len(ids) - self._back) :].tolist())
        return any(stop in tail for stop in self._stops)


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _trouble(error: Exception) -> ModelError:
    kind = type(error).__name__
    trouble = Trouble.OVERLOADED if "OutOfMemory" in kind or isinstance(error, MemoryError) else Trouble.BAD_REQUEST
    return ModelError(trouble, f"the model in this process failed: {kind}: {provider.words_of(str(error))}")


def _import(name: str) -> ModuleType:
    try:
        with provider.environment(_OFFLINE):
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingCapability(
            f"a model in this process needs the package {name}: {error}", mend="pip install 'autoresearchd[learn]'"
        ) from error


@contextlib.contextmanager
def _loading(place: Path) -> Iterator[None]:
    """What goes wrong with the files of a model is told with its place."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft uses of transformers
            yield
    except AutoresearchdError:
        raise
    except ImportError as error:
        raise MissingCapability(
            f"{place} needs another package: {provider.words_of(str(error))}", mend="install what it names"
        ) from error
    except Exception as error:
        kind = type(error).__name__
        raise ModelError(
            Trouble.NOT_FOUND,
            f"{place} cannot be loaded: {kind}: {provider.words_of(str(error))}",
            mend="give a folder as save_pretrained writes it, or a GGUF file",
        ) from error
