"""The command line as a whole: help, exit codes, completion."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from autoresearchd import __version__
from autoresearchd.cli.terminal_text import guarded
from autoresearchd.domain.errors import MissingCapability, SessionLocked, UsageError
from tests.unit.cli.conftest import Command

COMMANDS = [
    "start", "resume", "stop", "pause", "unpause", "status", "note", "experiments", "show", "logs", "task list",
    "task init", "task check", "task space", "plot", "export", "import", "serve", "learn", "doctor", "adapters list",
    "adapters promote", "adapters rollback", "skills list", "skills add", "sessions list", "sessions remove",
]  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: Command, name: str) -> None:
    answer = command(*name.split(), "--help")
    assert answer.code == 0
    assert "Examples:" in answer.out and f"autoresearchd {name}" in answer.out


def test_the_version_is_told(command: Command) -> None:
    assert command("--version").out == f"autoresearchd {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense", "export --format xml", "export --format parquet", "status --json --watch", "start --budget soon",
        "start --max-time -1", "start --max-cost nan", "start --slots many", "start --max-experiments -1",
        "task check --all somewhere", "task check no-such-task", "task check --all --thorough",
        "task check terrain --run --thorough", "task check --all --run --short --thorough",
        "task init no-such-task folder", "task init new folder --file train.py", "import no-such-file.jsonl",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("repository")
def test_what_cannot_be_meant_is_refused_with_exit_code_2(command: Command, arguments: str) -> None:
    answer = command(*arguments.split())
    assert (answer.code, answer.out) == (2, "")
    assert "rror: " in answer.err and "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        ("show one", "N: 'one' is not a whole number", "in digits"),
        ("experiments --last 0", "--last: 0 is less than 1", "write 1 or more"),
        ("experiments --status crached", "'crached' is none of keep, discard, crash", "did you mean crash?"),
        ("learn --dry-run", "--algo is missing", "one of grpo, ppo, sdpo"),
        ("show", "N is missing", "autoresearchd show --help"),
        ("status --sesion t", "no such option: --sesion", "--session"),
        ("stat", "no such command 'stat'", "'status'"),
        ("start --budget=-5s", "--budget: a duration must be more than zero: '-5s'", "90s"),
        ("start --slots 0", "--slots 0: not a number of slots", "auto, or 1 to 256"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_a_slip_on_the_command_line_is_told_in_two_lines_that_name_it_and_its_remedy(
    command: Command, arguments: str, what: str, hint: str
) -> None:
    answer = command(*arguments.split())
    assert answer.code == 2
    error, remedy = answer.err.splitlines()
    assert error.startswith("error: ") and what in error
    assert remedy.startswith("  → ") and hint in remedy
    assert "nput should" not in answer.err, "the words of a library do not say where"


@pytest.mark.parametrize("arguments", [["status"], ["experiments", "--json"], ["stop"]], ids=" ".join)
@pytest.mark.parametrize("inside", [True, False], ids=["repository", "no repository"])
def test_without_a_session_it_is_said_how_to_begin_one(
    command: Command, empty_repository: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], inside: bool
) -> None:
    if not inside:
        monkeypatch.chdir(empty_repository.parent)
    answer = command(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "autoresearch" in answer.err
    assert "git init" not in answer.err, "whoever asks for a session wants no new repository"


@pytest.mark.parametrize(
    ("error", "code"),
    [(MissingCapability("m"), 5), (SessionLocked("s"), 75), (KeyboardInterrupt(), 130), (ValueError("v"), 1)],
)
def test_each_kind_of_failure_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    assert guarded(partial(fail, error)) == code
    assert capsys.readouterr().out == ""


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize("arguments", [("task", "check", "x" * 300), ("task", "init", "a", "loop", "--file", "a")])
def test_a_path_that_cannot_be_is_a_mistake_and_no_defect(
    arguments: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    answer = command(*arguments, *(("--command", "true", "--metric", "m") if "init" in arguments else ()))
    assert (answer.code, "Traceback" in answer.err, "defect" in answer.err) == (2, False, False), answer.err


def test_a_folder_that_may_not_be_read_is_a_mistake_and_leaves_the_other_findings(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.chdir(tmp_path)
    assert guarded(partial(fail, PermissionError(errno.EPERM, "not permitted", "a.jsonl"))) == 2
    monkeypatch.setattr("autoresearchd.app.compose.examine_cloud", refused)
    answer = command("doctor", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)[-1]["name"] == "fleet" and "Permission denied" in answer.out


@pytest.mark.parametrize("arguments", ["start", "status", "task init a b --file c --command d --metric e"])
def test_whoever_stands_in_a_folder_that_is_gone_is_told_so(
    arguments: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    answer = command(*arguments.split())
    assert (answer.code, "the current folder does not exist any more" in answer.err) == (2, True), answer.err


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_whoever_wants_no_output_closes_it(closed: str, tmp_path: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m autoresearchd task list {closed}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_says_what_and_how_to_hint_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(partial(fail, UsageError("it is \x1b[31mbroken", hint="glue it"))) == 2
    assert capsys.readouterr().err == "error: it is broken\n  → glue it\n"


def test_status_of_a_repository_elsewhere_is_that_of_standing_in_it(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = json.loads(command("status", "--json").out)
    monkeypatch.chdir(repository.parent)
    for place in (str(repository), str(repository / ".git" / "..")):
        assert json.loads(command("status", "--json", "--dir", place).out) == here


@pytest.mark.parametrize("name", ["status", "experiments"])
def test_what_scripts_poll_is_answered_without_the_heavy_libraries(repository: Path, name: str) -> None:
    code = (
        f"import sys; sys.argv = ['autoresearchd', '{name}', '--json']\n"
        "from autoresearchd.__main__ import main\nmain()\n"
        "heavy = ('rich', 'sqlalchemy.orm', 'alembic', 'yaml', 'git', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)


@pytest.mark.parametrize("arguments", [["status"], ["--help"], ["task", "list"]])
def test_a_reader_that_goes_away_is_no_error(repository: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "autoresearchd", *arguments]
    done = subprocess.run(command, cwd=repository, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_task_init_with_a_mistake_writes_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("print('loss: 3.5')\n")
    new = ("task", "init", "mine", str(tmp_path), "--file", "fit.py", "--metric", "loss", "--command")
    for more, code, words in (
        (("pyton fit.py",), 5, "--command begins with 'pyton'"),
        (("python fit.py", "--budget", "2sec"), 2, "--budget: not a duration: '2sec'"),
    ):
        answer = command(*new, *more)
        assert (answer.code, words in answer.err, "task.yaml:" in answer.err) == (code, True, False), answer.err
        assert not (tmp_path / "task.yaml").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["experiments", "--json"], ["export"]])
def test_output_that_finds_no_room_is_an_error_in_words(repository: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autoresearchd", *arguments], cwd=repository, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1
    assert b"the output cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


HANGS = """
import os, signal, sys, threading, time
import autoresearchd.cli.main as commands
from autoresearchd.__main__ import main

def run():
    threading.Thread(target=time.sleep, args=(60,)).start()  # a database that does not answer, say
    return 0

commands.run = run
code = main()
threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
sys.exit(code)
"""


def test_control_c_leaves_what_hangs_at_the_end_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
