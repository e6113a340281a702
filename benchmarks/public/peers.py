"""Other people's programs on our problems: openevolve and ShinkaEvolve, as the package index has them.

    python benchmarks/public/peers.py install --dir DIR
    python benchmarks/public/peers.py run openevolve circle_packing --dir DIR --folder FOLDER \
        --base-url http://127.0.0.1:8802/v1 --model MODEL --evaluations 40 --seed 0 --max-tokens 1024

Each lives in a virtual environment of its own, and runs as a process with a clean environment, whose HTTP proxy leads
nowhere: its clients reach loopback alone. Between it and the model's server stands a counter of ours. It puts in the
model's name, and a seed where a request has none; a prompt that the model has no room for gets an empty answer. The
counter also scores the programs, by ``scoring.py``, one at a time: so every arm's evaluations are counted in one place.
The first program is one of them. A run ends with its last evaluation, after as many answers, or after hours: an answer
that leads to no program is a turn that is spent, as it is in a session of ours.

Defaults that are changed, for each: model and endpoint, seed, tokens of an answer (`max_tokens`; those of the model),
and the task's words, which are put after the default system message. The whole program stands between EVOLVE-BLOCK
marks, as our arms may edit all of it. A program that fails has the lowest score so far, at most 0, and its error goes
where the peer takes it. Beside that:

openevolve: llm.timeout is an hour, not a minute: on a CPU a long prompt takes longer. Its five islands begin with one
iteration each, as by default.
ShinkaEvolve: one evaluation and one proposal at a time, not four and six, as all arms have it; embedding_model is off,
which is another, paid model: without a judge of novelty, which is off by default, no program is refused by it.

A program that is the same as another one is an evaluation where the peer takes it for one. The seed does not make a run
repeatable: two runs with the same seed and answers went apart with both peers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import yaml

from autoresearchd.config import load_task
from autoresearchd.domain.errors import AutoresearchdError, MissingCapability, UsageError
from autoresearchd.domain.task import Direction

PROBLEMS = Path(__file__).parent / "problems"
NO_PROXY = "http://127.0.0.1:9"
"""Nothing listens there: what asks for anything but loopback gets no answer."""
LOG = "peer.log"
DONE = "installed"
"""A file in a peer's environment: what is in it."""
MODEL = "model"

EVALUATOR = """
import json, sys, urllib.request
from pathlib import Path


def ask(path):
    with urllib.request.urlopen(urllib.request.Request(URL, Path(path).read_bytes())) as answer:
        return json.load(answer)


def evaluate(program_path):  # openevolve
    from openevolve.evaluation_result import EvaluationResult

    found = ask(program_path)
    artifacts = {"stderr": found["error"]} if found["error"] else {}
    return EvaluationResult(metrics={"combined_score": found["fitness"]}, artifacts=artifacts)


if __name__ == "__main__":  # ShinkaEvolve: --program_path PATH --results_dir FOLDER
    found, folder = ask(sys.argv[2]), Path(sys.argv[4])
    metrics = {"combined_score": found["fitness"], "public": {}, "private": {}, "text_feedback": found["error"]}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    correct = {"correct": not found["error"], "error": found["error"]}
    (folder / "correct.json").write_text(json.dumps(correct))
    print(found["error"], file=sys.stderr)
"""


class Scored(Protocol):
    """As ``scoring.Scored``."""

    @property
    def score(self) -> float | None: ...

    @property
    def error(self) -> str: ...


@dataclass(frozen=True)
class Evaluation:
    """score: None where the program has none, and error says why. seconds: since the run began."""

    score: float | None
    seconds: float
    program: str
    error: str


@dataclass
class Course:
    """What a run did. model_seconds: of its answers. ended: why before its last evaluation, else empty."""

    evaluations: list[Evaluation] = field(default_factory=list)
    answers: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    no_room: int = 0
    model_seconds: float = 0.0
    seconds: float = 0.0
    ended: str = ""


@dataclass(frozen=True)
class Order:
    """What a peer is to do. folder: its own, with program.py and evaluator.py; home: of its environment."""

    folder: Path
    home: Path
    url: str
    seed: int
    words: str
    max_tokens: int
    iterations: int


@dataclass(frozen=True)
class Peer:
    """packages: as pip takes them; command: what starts it, after it has written what that needs."""

    packages: tuple[str, ...]
    command: Callable[[Order], list[str]]


# ---------------------------------------------------------------------- the peers
def openevolve(order: Order) -> list[str]:
    """By its command, with a file of settings."""
    default = next(order.home.glob("lib/*/site-packages/openevolve/prompts/defaults/system_message.txt")).read_text()
    llm = {"primary_model": MODEL, "api_base": order.url, "api_key": MODEL, "timeout": 3600}
    settings = {
        "random_seed": order.seed,
        "llm": {**llm, "max_tokens": order.max_tokens},
        "prompt": {"system_message": f"{default}\n\n{order.words}"},
        "database": {"random_seed": order.seed},
    }
    (order.folder / "config.yaml").write_text(yaml.safe_dump(settings))
    options = ["--config", "config.yaml", "--output", "out", "--iterations", str(order.iterations)]
    return [str(order.home / "bin" / "openevolve-run"), "program.py", "evaluator.py", *options]


SHINKA = """
import random, sys
import numpy
from shinka.cli.run import main
from shinka.defaults import DEFAULT_TASK_SYS_MSG
seed, words, *options = sys.argv[1:]
random.seed(int(seed))
numpy.random.seed(int(seed))
sys.argv[1:] = [*options, "--set", f"evo.task_sys_msg={DEFAULT_TASK_SYS_MSG}\\n\\n{words}"]
sys.exit(main())
"""


def shinka(order: Order) -> list[str]:
    """By its command, which has no option for the seed."""
    task = order.folder / "task"
    task.mkdir()
    (order.folder / "program.py").rename(task / "initial.py")
    (order.folder / "evaluator.py").rename(task / "evaluate.py")
    sets = {
        "evo.llm_models": json.dumps([f"local/{MODEL}@{order.url}"]),
        "evo.llm_kwargs": json.dumps({"temperatures": [0.0, 0.5, 1.0], "max_tokens": order.max_tokens}),
        "evo.embedding_model": "none",
    }
    options = ["--task-dir", "task", "--results_dir", "out", "--num_generations", str(order.iterations)]
    options += ["--max-evaluation-jobs", "1", "--max-proposal-jobs", "1"]
    options += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    return [str(order.home / "bin" / "python"), "-c", SHINKA, str(order.seed), order.words, *options]


PEERS: Mapping[str, Peer] = {
    "openevolve": Peer(("openevolve==0.4.1", "openai==3.57.0", "numpy==2.4.6"), openevolve),
    "shinka": Peer(("shinka-evolve==0.0.7", "openai==3.3.0", "numpy==2.4.6"), shinka),
}


def install(folder: Path, peers: Mapping[str, Peer] = PEERS) -> None:
    """Make the environment of each peer that has none.

    Raises MissingCapability: pip could not install it; what there is of it is left, and the next try goes on.
    """
    for name, peer in peers.items():
        home = folder / name
        if (home / DONE).is_file() and (home / DONE).read_text() == "\n".join(peer.packages):
            continue
        venv.create(home, with_pip=True)
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*command, *peer.packages]).returncode:
            raise MissingCapability(f"pip could not install {name} in {home}", hint="its reasons stand above")
        (home / DONE).write_text("\n".join(peer.packages))


# ---------------------------------------------------------------------- the counter
class Counter(ThreadingHTTPServer):
    """Hands questions to the model's server and programs to the scorer, one at a time, and counts both.

    upstream: the base URL of the model's server. sign: -1 where lower scores are better. most: evaluations and answers.
    over: set when there is nothing more to do.
    """

    daemon_threads = True

    def __init__(
        self, upstream: str, model: str, score: Callable[[str], Scored], *, sign: int, seed: int, most: tuple[int, int]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.model, self.score, self.sign, self.seed = upstream.rstrip("/"), model, score, sign, seed
        self.most_evaluations, self.most_answers = most
        self.course, self.over = Course(), threading.Event()
        self.scoring, self.asking = threading.Lock(), threading.Lock()
        self.began, self.worst = time.monotonic(), 0.0
        self.key = secrets.token_hex(8)  # a program that is evaluated cannot have itself evaluated again
        self.url = f"http://127.0.0.1:{self.server_address[1]}/{self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a peer that was ended reads no answer
            super().handle_error(request, client_address)

    def evaluate(self, program: str) -> dict[str, Any] | None:
        """What the peer is told of a program; None: there are no evaluations left."""
        with self.scoring:
            course = self.course
            if self.over.is_set():
                return None
            try:
                found = self.score(program)
            except (AutoresearchdError, OSError) as failure:
                self._stop(f"a program could not be scored: {failure}")
                return None
            error = found.error if found.score is None else ""
            passed = time.monotonic() - self.began
            course.evaluations.append(Evaluation(found.score, passed, program, error))
            fitness = self.worst if found.score is None else self.sign * found.score
            self.worst = min(self.worst, fitness)
            if len(course.evaluations) >= self.most_evaluations:
                self.over.set()
            return {"fitness": fitness, "error": error[-2000:]}

    def ask(self, question: dict[str, Any]) -> bytes | None:
        """The answer of the model's server; None: there is none, and none will come."""
        with self.asking:
            course = self.course
            if self.over.is_set():
                return None
            if course.answers >= self.most_answers:
                self._stop(f"{course.answers} answers")
                return None
            question["model"] = self.model
            question.setdefault("seed", (self.seed * 1_000_003 + course.answers) % 2**31)
            began = time.monotonic()
            try:
                body = self._post(question)
                used, no_room = json.loads(body).get("usage") or {}, False
            except urllib.error.HTTPError as error:
                words = error.read(2000).decode("utf-8", "replace")
                if error.code != 400 or "context" not in words:
                    self._stop(f"the model's server answered {error.code}: {words[:300]}")
                    return None
                body, used, no_room = _empty(self.model), {}, True
            except (OSError, ValueError) as error:
                self._stop(f"the model's server at {self.upstream} gave no answer: {error}")
                return None
            if self.over.is_set():  # nobody has waited for it
                return None
            course.answers += 1
            course.no_room += no_room
            course.model_seconds += time.monotonic() - began
            course.tokens_in += int(used.get("prompt_tokens", 0))
            course.tokens_out += int(used.get("completion_tokens", 0))
            return body

    def _post(self, question: Mapping[str, Any]) -> bytes:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}",
        }
        request = urllib.request.Request(f"{self.upstream}/chat/completions", json.dumps(question).encode(), headers)
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return bytes(answer.read())

    def _stop(self, why: str) -> None:
        if not self.over.is_set():
            self.course.ended = why
            self.over.set()


def _empty(model: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    answer = {"id": "none", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
    return json.dumps({**answer, "usage": usage}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Counter

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: bytes | None = None
        if self.path == f"/{self.server.key}/score":
            found = self.server.evaluate(given.decode("utf-8", "replace"))
            body = None if found is None else json.dumps(found).encode()
        elif self.path == f"/{self.server.key}/v1/chat/completions":
            body = self.server.ask(json.loads(given))
        self.send_response(410 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


# ---------------------------------------------------------------------- a run
def run(
    peer: str,
    problem: Path,
    evaluations: int,
    seed: int,
    base_url: str,
    model: str,
    folder: Path,
    max_tokens: int,
    *,
    venvs: Path,
    hours: float = 12.0,
    peers: Mapping[str, Peer] = PEERS,
    score: Callable[[str, Path, int], Scored] | None = None,
) -> Course:
    """Let a peer work on a problem; what it did is left in ``folder``/course.json, too.

    evaluations: the first program's among them. folder: new or empty. venvs: where ``install`` has put the peers.
    score: instead of ``scoring.score``. Raises UsageError; MissingCapability: the peer is not installed.
    """
    if peer not in peers:
        raise UsageError(f"there is no peer {peer}", hint=f"take one of {', '.join(peers)}")
    if evaluations < 1:
        raise UsageError(f"{evaluations} evaluations are none", hint="the first program's is one")
    home = (venvs / peer).resolve()
    if not (home / DONE).is_file():
        hint = f"python benchmarks/public/peers.py install --dir {venvs}"
        raise MissingCapability(f"{peer} is not installed in {venvs}", hint=hint)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} has something in it", hint="give a folder that is new or empty")
    if score is None:
        import scoring

        score = scoring.score
    judge, task = score, load_task(problem)
    work = (folder / "peer").resolve()
    work.mkdir(parents=True)
    sign = 1 if task.metric.direction is Direction.MAXIMIZE else -1
    most = evaluations, evaluations
    counter = Counter(base_url, model, lambda text: judge(text, problem, seed), sign=sign, seed=seed, most=most)
    with counter:
        first = (problem / task.editable[0]).read_text()
        (work / "program.py").write_text(f"# EVOLVE-BLOCK-START\n{first}# EVOLVE-BLOCK-END\n")
        (work / "evaluator.py").write_text(f'URL = "{counter.url}/score"\n{EVALUATOR}')
        order = Order(work, home, f"{counter.url}/v1", seed, task.prompt.system, max_tokens, counter.most_answers + 1)
        environment = {
            "PATH": f"{home / 'bin'}:/usr/bin:/bin", "HOME": str(work), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
            "OPENAI_API_KEY": MODEL, "http_proxy": NO_PROXY, "https_proxy": NO_PROXY, "no_proxy": "127.0.0.1",
        }  # fmt: skip
        _let_work(counter, peers[peer].command(order), environment, work, hours)
    course = counter.course
    (folder / "course.json").write_text(json.dumps(asdict(course), indent=1))
    return course


def _let_work(counter: Counter, command: list[str], environment: dict[str, str], work: Path, hours: float) -> None:
    """Start a peer; end it and what it has started when nothing is left to do."""
    threading.Thread(target=counter.serve_forever, args=(0.05,), daemon=True).start()
    counter.began = time.monotonic()
    try:
        with (work / LOG).open("wb") as log:
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

        def watch() -> None:
            process.wait()
            counter.over.set()

        threading.Thread(target=watch, daemon=True).start()
        try:
            in_time = counter.over.wait(hours * 3600)
            code = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        counter.over.set()
        counter.shutdown()
    course = counter.course
    with counter.scoring:  # what is being scored comes to its end; an answer is not waited for
        course.seconds = time.monotonic() - counter.began
    if len(course.evaluations) < counter.most_evaluations and not course.ended:
        course.ended = f"{hours:g} hours" if not in_time else f"it ended with exit code {code}: see {work / LOG}"


def _say(peer: str, problem: Path, course: Course) -> None:
    scores = [e.score for e in course.evaluations if e.score is not None]
    best = (max if load_task(problem).metric.direction is Direction.MAXIMIZE else min)(scores, default=math.nan)
    print(f"{peer} on {problem.name}: best {best:.6g}")
    print(f"  {len(course.evaluations)} evaluations, {len(scores)} of them with a score, in {course.seconds:.0f} s")
    tokens = f"{course.tokens_in} tokens in, {course.tokens_out} out"
    print(
        f"  {course.answers} answers in {course.model_seconds:.0f} s: {tokens}; {course.no_room} prompts were too long"
    )
    if course.ended:
        print(f"  ended early: {course.ended}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install").add_argument("--dir", type=Path, required=True)
    one = commands.add_parser("run")
    one.add_argument("peer", choices=PEERS)
    one.add_argument("problem", choices=sorted(path.parent.name for path in PROBLEMS.glob("*/task.yaml")))
    for name, kind in (("dir", Path), ("folder", Path), ("base-url", str), ("model", str)):
        one.add_argument(f"--{name}", type=kind, required=True)
    for name, usual in (("evaluations", 40), ("seed", 0), ("max-tokens", 1024)):
        one.add_argument(f"--{name}", type=int, default=usual)
    one.add_argument("--hours", type=float, default=12.0)
    a = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a peer does not outlive this process
    try:
        if a.command == "install":
            install(a.dir)
            return 0
        problem, most = PROBLEMS / a.problem, a.max_tokens
        asked = a.peer, problem, a.evaluations, a.seed, a.base_url, a.model, a.folder, most
        course = run(*asked, venvs=a.dir, hours=a.hours)
    except AutoresearchdError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    _say(a.peer, problem, course)
    return 1 if course.ended else 0


if __name__ == "__main__":
    sys.exit(main())
