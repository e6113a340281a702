"""The policy ``command:CMD`` with real shells: what it gives the tool, what it takes back, and what it ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.policy.command_policy import CommandPolicy
from tests.fakes.policies import make_state, make_task
from tests.fakes.repositories import write_files
from tests.integration.local_jobs import alive
from tests.timing import wait_until

CODE = "DEPTH = 4\n"


def materialise(state: ResearchState, folder: Path) -> None:
    own = {"prepare.py": "# protected\n", "guarded/data.txt": "1\n", "notes.txt": "not protected\n"}
    write_files(folder, {**state.code, **own})


def run(command: str, scratch: Path, *, timeout: float = 20.0, cancel: threading.Event | None = None) -> Proposal:
    task = make_task(protected=("prepare.py", "guarded"))
    policy = CommandPolicy(command, materialise, timeout=timeout, scratch=scratch)
    return policy.propose(make_state(CODE, task=task), cancel or threading.Event())


def refused(command: str, scratch: Path, **options: float) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        run(command, scratch, **options)
    assert not list(scratch.iterdir()), "the private copy was left behind"
    return caught.value


def test_its_edit_and_its_words_are_the_proposal(tmp_path: Path) -> None:
    words = {"hypothesis": "deeper is better", "description": "DEPTH 6", "expected_delta": 0.02}
    words |= {"cost_usd": 0.1, "x": [1]}
    proposal = run(f"sed -i s/4/6/ train.py; echo thinking; echo '{json.dumps(words)}'", tmp_path)
    assert proposal.files == {"train.py": "DEPTH = 6\n"}
    assert (proposal.hypothesis, proposal.description, proposal.expected_delta) == ("deeper is better", "DEPTH 6", 0.02)
    assert proposal.cost.usd == 0.1
    assert proposal.asi.extra == {"x": [1]}
    assert not list(tmp_path.iterdir())


def test_it_gets_the_prompt_on_its_input_and_the_state_as_json_outside_the_copy(tmp_path: Path) -> None:
    command = (
        "cat > train.py; printf '# ' >> train.py; cat \"$AUTORESEARCHD_STATE\" | tr -d '\\n' >> train.py;"
        ' case "$AUTORESEARCHD_STATE" in "$PWD"/*) exit 9;; esac'
    )
    text = run(command, tmp_path).files["train.py"]
    assert "make val_loss lower" in text
    assert json.loads(text.rpartition("# {")[2].join(["{", ""]))["task"]["metric"] == "val_loss"


@pytest.mark.parametrize(
    ("command", "label", "words"),
    [
        ("true", Label.NO_OP, "changed nothing"),
        ("touch train.py", Label.NO_OP, "changed nothing"),
        ("echo >> prepare.py; echo 'A = 1' > train.py", Label.ILLEGAL_EDIT, "prepare.py"),
        ("rm prepare.py", Label.ILLEGAL_EDIT, "prepare.py"),
        ("echo 2 > guarded/data.txt", Label.ILLEGAL_EDIT, "guarded/data.txt"),
        ("rm train.py", Label.ILLEGAL_EDIT, "deleted"),
        ("rm train.py; ln -s /etc/passwd train.py", Label.ILLEGAL_EDIT, "symbolic link"),
        ("rm train.py; mkfifo train.py", Label.ILLEGAL_EDIT, "regular file"),
        ("rm train.py; mkdir train.py", Label.ILLEGAL_EDIT, "train.py"),
        ("head -c 2000000 /dev/zero | tr '\\0' x > train.py", Label.ILLEGAL_EDIT, "larger"),
        ("printf '\\377\\376' > train.py", Label.MALFORMED_ANSWER, "UTF-8"),
        ("printf 'a\\0b' > train.py", Label.MALFORMED_ANSWER, "zero byte"),
        ("echo 'A = 1' > train.py; echo no key >&2; exit 3", Label.ERROR, "exit code 3"),
        ("kill -9 $$", Label.ERROR, "exit code -9"),
        ("/no/such/tool", Label.ERROR, "exit code 127"),
    ],
)
def test_what_is_no_proposal_is_refused(tmp_path: Path, command: str, label: Label, words: str) -> None:
    error = refused(command, tmp_path)
    assert error.label is label
    assert words in str(error)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize("said", ['"subtype": "error_max_turns"', '"result": ""'])
def test_the_recipe_for_claude_code_books_what_a_failure_has_cost(tmp_path: Path, said: str) -> None:
    page = (Path(__file__).parents[2] / "docs/policies.md").read_text(encoding="utf-8")
    [script] = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "claude -p" in block]
    claude = f"claude() {{ echo '{{{said}, \"total_cost_usd\": 0.5}}'; return 1; }}\n"
    (scratch := tmp_path / "scratch").mkdir()
    error = refused(f"{claude}{script}", scratch)
    assert "exit code 1" in str(error) and error.cost is not None and error.cost.usd == 0.5


def test_a_tool_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path.parent / "child.pid"
    error = refused(f"trap '' TERM; sleep 600 & echo $! > {pid_file}; wait; sleep 600", tmp_path, timeout=0.5)
    assert "did not end within" in str(error)
    wait_until(lambda: not alive(int(pid_file.read_text())))


def test_cancel_ends_a_running_tool_and_all_it_started(tmp_path: Path) -> None:
    pid_file, cancel = tmp_path.parent / "cancelled.pid", threading.Event()
    thread = threading.Thread(target=lambda: wait_until(lambda: written(pid_file)) and cancel.set())
    thread.start()
    with pytest.raises(Interrupted):
        run(f"sleep 600 & echo $! > {pid_file}; wait", tmp_path, timeout=500.0, cancel=cancel)
    thread.join()
    wait_until(lambda: not alive(int(pid_file.read_text())))


def written(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


def test_the_tool_dies_when_the_daemon_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "tool.pid"
    script = f"""
import threading
from pathlib import Path
from autoresearchd.policy.command_policy import run_tool
stdin = Path({str(tmp_path)!r}) / "in"
stdin.write_text("")
run_tool("echo $$ > {pid_file}; exec sleep 600", cwd=Path({str(tmp_path)!r}), stdin=stdin,
         env={{"PATH": "/usr/bin:/bin"}}, timeout=600, cancel=threading.Event())
"""
    daemon = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: written(pid_file))
    tool = int(pid_file.read_text())
    assert alive(tool)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    wait_until(lambda: not alive(tool))
