"""The liquid-speedup task: a language that is written down, a clock that the edited engine cannot reach."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_programs, run_together, shortened

FOLDER = bundled("templates") / "liquid-speedup"
reference, workload = load_programs(FOLDER, "reference", "workload")


def copy(folder: Path, more: str = "") -> Path:
    """The task's files, with a shorter evaluation and `more` at the end of the engine."""
    shortened(FOLDER, folder, "BATCHES = 160", "BATCHES = 40")
    (folder / "template.py").write_text((folder / "template.py").read_text() + more)
    return folder


def relative_time(folder: Path) -> float:
    scored, served = run_together(folder, "evaluate.py", "serve.py")
    found = re.search(r"METRIC relative_time=([\d.]+)", scored.stdout)
    assert found is not None and scored.returncode == served.returncode == 0, scored.stderr + served.stderr
    return float(found[1])


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ a.b[1] }}{{ a.none.x }}{{ a.b.last }}", "twothree"),
        ("{{ 'x' | append: 'y' | upcase }} {{ 7 | divided_by: 2 }} {{ 7.0 | divided_by: 2 }}", "XY 3 3.5"),
        ("{% for i in (1..3) reversed %}{{ i }}{% if forloop.last %}.{% endif %}{% endfor %}", "321."),
        ("{% for i in a.b limit: 2 offset: 1 %}{{ forloop.index }}{{ i }} {% endfor %}", "1two 2three "),
        ("{% for i in none %}{% else %}empty{% endfor %}", "empty"),
        ("{% if a.n > 3 and a.b contains 'two' %}yes{% elsif true %}no{% endif %}", "yes"),
        ("{% unless nil or false %}yes{% else %}no{% endunless %}", "yes"),
        ("{% assign t = 0 %}{% for i in (1..4) %}{% assign t = t | plus: i %}{% endfor %}{{ t }}", "10"),
        ("{% capture c %}<{{ a.n }}>{% endcapture %}{{ c | escape }}", "&lt;5&gt;"),
        ("x {%- comment %} {{ nothing | at all }} {% endcomment -%} y", "xy"),
        ("{{ a.rows | where: 'f' | map: 'v' | join: '-' }} {{ a.rows | sum: 'v' }}", "1-3 6"),
        ("{{ a.rows | sort: 'v' | reverse | map: 'v' | first }}", "3"),
    ],
)
def test_the_language_is_as_it_is_written_down(source: str, rendered: str) -> None:
    rows = [{"v": 1, "f": True}, {"v": 3, "f": True}, {"v": 2, "f": False}]
    variables = {"a": {"b": ["one", "two", "three"], "n": 5, "rows": rows}}
    assert reference.Template(source).render(variables) == rendered


@pytest.mark.parametrize(
    "source", ["{% if a %}", "{{ a | nothing }}", "{% endfor %}", "{{ 1 2 }}", "{{ 1 | modulo: 0 }}"]
)
def test_what_is_wrong_is_an_error(source: str) -> None:
    with pytest.raises(reference.TemplateError):
        reference.Template(source).render({})


def batches(count: int) -> list[dict[str, Any]]:
    return [workload.batch(rng, workload.site(rng)) for rng in map(random.Random, range(count))]


@pytest.mark.parametrize(("cache", "state"), [("small", "always"), ("none", "used"), ("large", "used")])
def test_the_engine_as_it_comes_is_the_reference(cache: str, state: str) -> None:
    text = (FOLDER / "template.py").read_text()
    assert text.count('CACHE = "small"') == text.count('LOOP_STATE = "always"') == 1
    for old, new in (('CACHE = "small"', cache), ('LOOP_STATE = "always"', state)):
        text = text.replace(old, f'{old.partition(" ")[0]} = "{new}"')
    engine = ModuleType("engine")
    exec(compile(text.replace("gc.set_threshold", "print"), "template.py", "exec"), engine.__dict__)
    for drawn in batches(30):
        payload = json.dumps(drawn).encode()
        expected = workload.render_all(reference.Template, reference.TemplateError, payload)
        assert workload.render_all(engine.Template, engine.TemplateError, payload) == expected


def test_the_templates_of_the_evaluation_use_the_whole_language_and_fail_seldom() -> None:
    drawn = batches(80)
    sources = [source for one in drawn for source in one["templates"]]
    others = ["elsif", "unless", "capture", "comment", "reversed", "limit", "offset", "contains"]
    for word in [*reference.FILTERS, *others]:
        assert any(re.search(rf"\b{word}\b", source) for source in sources), word
    rendered = b"".join(
        workload.render_all(reference.Template, reference.TemplateError, json.dumps(one).encode()) for one in drawn
    )
    said = rendered.decode().split("\0")[:-1]
    assert 0.01 < said.count(workload.FAILED) / len(said) < 0.15
    assert len(set(sources)) == len(sources)


def test_the_engine_as_it_comes_is_scored(tmp_path: Path) -> None:
    folder = copy(tmp_path / "task")
    [prepared], [rehearsed] = run_together(folder, "prepare.py"), run_together(folder, "rehearse.py")
    assert prepared.returncode == 0, prepared.stderr
    assert rehearsed.returncode == 0 and "examples_ms: " in rehearsed.stdout, rehearsed.stderr
    assert 0.7 < relative_time(folder) < 1.5


@pytest.mark.parametrize(
    "change",
    [
        ('"default": lambda v, other:', '"default": lambda v, other, more=0:'),
        ('"split": lambda v, by=" ":', '"split": lambda v, by:'),
        ("if number(by) == 0:", "if by == 0:"),
    ],
)
def test_a_language_that_was_simplified_gets_no_score(tmp_path: Path, change: tuple[str, str]) -> None:
    folder = copy(tmp_path / "task")
    engine = (folder / "template.py").read_text()
    assert engine.count(change[0]) == 1
    (folder / "template.py").write_text(engine.replace(*change))
    scored, _ = run_together(folder, "evaluate.py", "serve.py")
    assert scored.returncode in (1, 3) and "relative_time" not in scored.stdout


def test_output_that_differs_gets_no_score(tmp_path: Path) -> None:
    late = "\nCOUNT = [0]\ndef late(self, variables, honest=Template.render):\n    COUNT[0] += 1\n"
    late += "    return honest(self, variables) + ' ' * (COUNT[0] > 60)\nTemplate.render = late\n"
    scored, _ = run_together(copy(tmp_path / "task", late), "evaluate.py", "serve.py")
    assert scored.returncode == 3 and "LABEL gate_miss" in scored.stdout and "relative_time" not in scored.stdout


@pytest.mark.parametrize(
    "attempt",
    ["os.fork()", "os.execv('/bin/true', ['true'])", "threading.Thread(target=print).start()",
     "open(f'/proc/{os.getppid()}/mem', 'r+b')", "os.kill(os.getppid(), 9)"],
)  # fmt: skip
def test_no_other_process_or_thread_helps_the_engine(tmp_path: Path, attempt: str) -> None:
    folder = copy(tmp_path / "task", f"\nimport os, threading\n{attempt}\n")
    scored, served = run_together(folder, "evaluate.py", "serve.py")
    assert scored.returncode == 1 and "METRIC" not in scored.stdout
    assert served.returncode != 0


def test_work_between_two_answers_counts(tmp_path: Path) -> None:
    spinning = """
import signal, time
def spin(number, frame):
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass
signal.signal(signal.SIGALRM, spin)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
"""
    assert relative_time(copy(tmp_path / "task", spinning)) > 1.3


REACHES = """
import ctypes, os, signal, socket, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
import meter

victim = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # ends with this process
libc = ctypes.CDLL(None)
folder = sys.argv[3]


def seizes():
    if libc.ptrace(*map(ctypes.c_ulong, (0x4206, victim.pid, 0, 0))) == -1:
        raise OSError("ptrace")


ways = {
    "traces it": seizes,
    "writes its memory": lambda: open(f"/proc/{victim.pid}/mem", "r+b"),
    "signals it": lambda: os.kill(victim.pid, signal.SIGCONT),
    "forks": lambda: os.fork() or os._exit(0),
    "starts a thread": lambda: threading.Thread(target=int).start(),
    "writes a file": lambda: open(folder + "/file", "w"),
    "makes a pipe with a name": lambda: os.mkfifo(folder + "/pipe"),
    "opens a socket": socket.socket,
    "maps memory with a name": lambda: os.memfd_create("name"),
    "slows others down": lambda: os.setpriority(os.PRIO_PROCESS, victim.pid, 19),
    "reads a file": lambda: open(meter.__file__).read(),
}
if sys.argv[2] == "confined":
    meter.confine()
try:
    for name, way in ways.items():
        try:
            way()
        except (OSError, RuntimeError):
            continue
        print(name, flush=True)
finally:
    sys.stdout.flush()
    os._exit(0)
"""


def reached(how: str, folder: Path) -> set[str]:
    folder.mkdir()
    command = [sys.executable, "-c", REACHES, str(FOLDER), how, str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(told.stdout.splitlines())


def test_whoever_is_timed_has_nobody_else_work_for_it(tmp_path: Path) -> None:
    """A process of the same user that no filter binds, as the sandbox's first one, would compute off the clock."""
    assert len(reached("free", tmp_path / "free")) == 11, "else the test would show nothing but broken ways"
    assert reached("confined", tmp_path / "confined") == {"reads a file"}
