"""What a run may use, in every tier, and what outlives it; what a task keeps from its jobs, and gives them."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import StageResult
from autoresearchd.domain.task import Check, Evaluation, Task
from autoresearchd.executor.environment import inspect
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.visible_files import visible_libraries
from autoresearchd.sandbox.isolation.kernel import landlock_version
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import RunLimits, new_token
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, available
from tests.contract.executor_contract import HANG, ended, make_request, make_task
from tests.integration.local_jobs import (
    BEST,
    TIERS,
    carriers,
    local,
    marked,
    needs_sandbox,
    run,
    text_of,
    training_log,
    write_job,
)
from tests.timing import wait_until


def program(body: str) -> str:
    """A program that rests when it has done its worst."""
    start = 'import os, threading, time\nOUT = os.environ["AUTORESEARCHD_OUTPUT_DIR"]\n'
    return f"{start}{body}\ntime.sleep(REST)\nos._exit(0)\n"


MANY_PROCESSES = program("for n in range(60):\n    os.fork() or time.sleep(600)")
MANY_THREADS = program("for n in range(200):\n    threading.Thread(target=time.sleep, args=(600,)).start()")
ONE_LARGE_FILE = program("open(f'{OUT}/large', 'wb').truncate(24 << 20)")
FILE_OF_GOOD_SIZE = "    file = os.open(f'{OUT}/{n}', os.O_CREAT | os.O_RDWR)\n    os.write(file, os.urandom(4 << 20))"
MANY_FILES_OF_GOOD_SIZE = program(f"for n in range(12):\n{FILE_OF_GOOD_SIZE}\n    os.fsync(file)")
FILE_WITHOUT_A_NAME = f"{FILE_OF_GOOD_SIZE}\n    os.unlink(f'{{OUT}}/{{n}}')\n    os.fsync(file)"
MANY_FILES_WITHOUT_NAMES = program(f"for n in range(12):\n{FILE_WITHOUT_A_NAME}")
MANY_FILES_ON_THEIR_WAY = program(
    "import socket\npair = socket.socketpair()\n"
    f"for n in range(12):\n{FILE_WITHOUT_A_NAME}\n    socket.send_fds(pair[0], [b'x'], [file])\n    os.close(file)"
)
MANY_FILES_THAT_ARE_ONLY_MAPPED = program(
    "import mmap\nheld = []\n"
    f"for n in range(12):\n{FILE_WITHOUT_A_NAME}\n    held.append(mmap.mmap(file, 4096))\n    os.close(file)"
)
MANY_FILES = program("for n in range(400):\n    open(f'{OUT}/{n}', 'wb').close()")

KEYRING = """
import ctypes, os, sys
KEYCTL, ADD_KEY = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
SESSION = ctypes.c_long(-3)
call = ctypes.CDLL(None).syscall
JOIN, SEARCH = 1, 10
"""
LEAVES_A_KEY = f'{KEYRING}print("ADDED", call(ADD_KEY, b"user", b"autoresearchd-left", b"state", 5, SESSION) > 0)'
LOOKS_FOR_THE_KEY = f'{KEYRING}print("FOUND", call(KEYCTL, SEARCH, SESSION, b"user", b"autoresearchd-left", 0) > 0)'
WITH_A_LOGIN = f"{KEYRING}call(KEYCTL, JOIN, None)\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
TWO_RUNS = """
import sys
from pathlib import Path
from autoresearchd.sandbox.tiers import choose
from tests.integration.test_isolation_limits import LEAVES_A_KEY, LOOKS_FOR_THE_KEY, RunLimits, run_within
for source in (LEAVES_A_KEY, LOOKS_FOR_THE_KEY):
    print(run_within(choose(sys.argv[1]), Path(sys.argv[2]), source, RunLimits(), "")[1])
"""

NESTED = """
import os
here = os.open(os.environ["AUTORESEARCHD_OUTPUT_DIR"], os.O_RDONLY)
for n in range(3000):
    os.mkdir("d", dir_fd=here)
    inner = os.open("d", os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = inner
print("NESTED", flush=True)
"""


def run_within(tier: Tier, root: Path, source: str, limits: RunLimits, mark: str) -> tuple[StageResult, str]:
    """Run a program under limits; how its training ended, and what it printed."""
    request = make_request(root, make_task("python job.py", execution={"env": {"MARK": mark}}))
    (request.workspace / "job.py").write_text(source)
    result = ended(local(tier, limits=limits), request)
    return result.stages[-1], (request.run_dir / "training.log").read_text()


@pytest.mark.alone  # what a run takes is seen in what the whole machine has left
@pytest.mark.parametrize(
    ("source", "limits", "reason"),
    [
        (MANY_PROCESSES, RunLimits(processes=30), "more than 30 processes"),
        (MANY_THREADS, RunLimits(threads=100), "more than 100 threads"),
        (MANY_FILES_OF_GOOD_SIZE, RunLimits(size=16 << 20), "more than 16 MB"),
        (MANY_FILES_WITHOUT_NAMES, RunLimits(size=16 << 20), "more than 16 MB"),
        (MANY_FILES_ON_THEIR_WAY, RunLimits(size=16 << 20), "more than 16 MB"),
        (MANY_FILES_THAT_ARE_ONLY_MAPPED, RunLimits(size=16 << 20), "more than 16 MB"),
        (MANY_FILES, RunLimits(files=300), "more than 300 files"),
        (MANY_FILES.replace("REST", "0"), RunLimits(files=300), "more than 300 files"),
    ],
    ids=["processes", "threads", "output", "nameless", "sent", "mapped", "files", "files-at-the-end"],
)
@pytest.mark.parametrize("tier", TIERS)
def test_a_run_that_uses_too_much_is_ended(
    tier: Tier, source: str, limits: RunLimits, reason: str, tmp_path: Path, mark: str
) -> None:
    stage, _ = run_within(tier, tmp_path, source.replace("REST", "600"), limits, mark)
    assert (stage.outcome, reason in stage.detail) == ("failed", True), stage
    assert carriers(mark) == []


@pytest.mark.parametrize(
    "source",
    [
        *(MANY_PROCESSES, MANY_THREADS, MANY_FILES_OF_GOOD_SIZE, MANY_FILES_WITHOUT_NAMES, MANY_FILES_ON_THEIR_WAY),
        *(MANY_FILES_THAT_ARE_ONLY_MAPPED, ONE_LARGE_FILE, MANY_FILES),
    ],
)
def test_the_same_programs_run_where_the_limits_are_wide(source: str, tmp_path: Path, mark: str) -> None:
    """Else the test above would show nothing but broken programs."""
    stage, log = run_within(available()[0], tmp_path, source.replace("REST", "0"), RunLimits(size=1 << 30), mark)
    assert stage.outcome == "ok", log


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core here")
@pytest.mark.parametrize("tier", TIERS)
def test_a_job_stays_on_the_cores_of_its_slot(tier: Tier, tmp_path: Path) -> None:
    """Else it trains on those of its neighbours, and looks better for it."""
    choose = "import os\nos.sched_setaffinity(0, range(os.cpu_count()))\nprint(len(os.sched_getaffinity(0)))\n"
    request = make_request(tmp_path, make_task(write_job(tmp_path, choose)))
    assert ended(local(tier, slots=2), request).stages[0].outcome == "ok"
    own = len(os.sched_getaffinity(0)) // 2
    assert (int(training_log(tmp_path)) == own) is tier.isolates


@pytest.mark.parametrize("tier", TIERS)
def test_no_file_grows_beyond_the_limit(tier: Tier, tmp_path: Path, mark: str) -> None:
    stage, log = run_within(tier, tmp_path, ONE_LARGE_FILE.replace("REST", "0"), RunLimits(size=16 << 20), mark)
    assert stage.outcome == "failed"
    assert "File too large" in log
    assert (tmp_path / "runs" / "run" / "output" / "large").stat().st_size <= 16 << 20


@pytest.mark.parametrize("tier", TIERS)
def test_what_one_program_leaves_in_its_temporary_folder_does_not_meet_the_next(tier: Tier, tmp_path: Path) -> None:
    """Else training could leave compiled code there for the evaluation to load."""
    task = make_task(
        'echo x > "$TMPDIR/planted" && cat "$TMPDIR/planted"',
        evaluation=Evaluation('find "$TMPDIR" -name planted; ls -A "$TMPDIR"'),
    )
    request = make_request(tmp_path, task)
    result = ended(local(tier), request)
    assert [stage.outcome for stage in result.stages] == ["ok", "ok"]
    assert (request.run_dir / "training.log").read_text() == "x\n"
    assert "planted" not in (request.run_dir / "evaluation.log").read_text()


@pytest.mark.parametrize("tier", TIERS)
def test_no_key_of_the_login_is_read_and_none_is_left_for_the_next_run(tier: Tier, tmp_path: Path) -> None:
    """Else a run could leave the next one what it learned: nothing of a keyring lies in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_LOGIN, "-c", TWO_RUNS, tier.name.value, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    told = done.stdout.split()
    if told.count("True") == 0 and tier.name is TierName.NONE:
        pytest.skip("this machine has no keyrings")
    isolated = tier.name is not TierName.NONE
    assert told == ["ADDED", str(not isolated), "FOUND", str(not isolated)], done.stdout + done.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_folders_nested_beyond_every_path_end_no_supervisor(tier: Tier, tmp_path: Path, mark: str) -> None:
    try:
        stage, log = run_within(tier, tmp_path, NESTED, RunLimits(), mark)
        assert "NESTED" in log and stage.outcome == "ok", stage
        again, log = run_within(tier, tmp_path, "print('CALM')", RunLimits(), mark)
        assert "CALM" in log and again.outcome == "ok", "what an earlier run has left in its place is no obstacle"
    finally:
        remove_tree(str(tmp_path))  # pytest's own clean-up would fail on it


# ---------------------------------------------------------------------- what a task keeps from its jobs
ATTACKS = {
    "private data by way of the copy that is scored": "cat {root}/pristine/data/val.txt",
    "private data that was committed": "cat val.txt",
    "private data that was committed behind a link": "cat real/val.txt",
    "a package that the task hides": "python -c 'import pytest; print(pytest.__version__, \"GOT IT\")'",
}


def guarded(command: str) -> Task:
    private, hide = ("data/val.txt", "val.txt", "linked/val.txt"), ("{purelib}/pytest", "{purelib}/_pytest")
    evaluation = Evaluation("true", private=private, hide=hide)
    return make_task(f"{command}; true", evaluation=evaluation, data=("data", "linked"))


@needs_sandbox
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_works_without_isolation_and_not_with_it(attack: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    (request.setup / "data").mkdir()
    (request.setup / "data" / "train.txt").write_text("train\n")
    for top in (request.setup, request.workspace):
        (top / "real").mkdir()
        (top / "linked").symlink_to("real")
        (top / "real" / "val.txt").write_text("GOT IT\n")
    for place in (request.setup / "data", request.setup, request.workspace):
        (place / "val.txt").write_text("GOT IT\n")
    command = ATTACKS[attack].format(root=tmp_path)
    run(PLAIN, tmp_path, guarded(command))
    assert "GOT IT" in training_log(tmp_path)
    run(BEST, tmp_path, guarded(f"cat data/train.txt; {command}"))
    assert "GOT IT" not in training_log(tmp_path)
    assert training_log(tmp_path).startswith("train\n")


def test_keys_that_the_task_gives_to_its_job_stay_out_of_files_and_process_lists(mark: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, marked(mark, HANG))
    handle = local(BEST).start(request)
    wait_until(lambda: "begun" in text_of(request.run_dir / "training.log"))
    assert not [p for p in request.run_dir.rglob("*") if p.is_file() and mark.encode() in p.read_bytes()]
    assert not [pid for pid in carriers(mark) if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    handle.kill()
    handle.wait()


@needs_sandbox
def test_a_job_has_no_network_unless_the_task_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        command = write_job(tmp_path, f"import socket\nsocket.create_connection({address!r}, 5)\n")
        assert run(PLAIN, tmp_path, make_task(command)).stages[0].outcome == "ok"
        assert run(BEST, tmp_path, make_task(command)).stages[0].outcome == "failed"
        assert run(BEST, tmp_path, make_task(command, execution={"network": True})).stages[0].outcome == "ok"


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_with_a_network_connects_to_no_abstract_socket_of_the_machine(tier: Tier, tmp_path: Path) -> None:
    if tier.program and landlock_version() < 6:
        pytest.skip("before Linux 6.12 bubblewrap cannot keep it from that")
    name = f"\0autoresearchd-{new_token()}"
    connect = f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})\n"
    own = connect.replace(f"connect({name!r}", f"bind({name + '-own'!r}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        for source, refused in ((connect, tier.isolates), (own, tier.confines)):
            command, outcome = write_job(tmp_path, source), "failed" if refused else "ok"
            assert run(tier, tmp_path, make_task(command, execution={"network": True})).stages[0].outcome == outcome


@pytest.mark.parametrize("tier", TIERS)
def test_a_job_finds_certificates_and_no_private_keys(tier: Tier, tmp_path: Path) -> None:
    if not tier.isolates:
        pytest.skip("it hides nothing")
    found = "import ssl\nprint(ssl.create_default_context().cert_store_stats()['x509_ca'])\n"
    look = "for folder in /etc/ssl/private /etc/pki/tls/private; do ls $folder && echo SEEN; done"
    command = write_job(tmp_path, found).removeprefix("exec ")
    assert run(tier, tmp_path, make_task(f"{command}; ({look}) 2>/dev/null; true")).stages[0].outcome == "ok"
    assert training_log(tmp_path) == f"{ssl.create_default_context().cert_store_stats()['x509_ca']}\n"


@needs_sandbox
def test_only_the_output_folder_keeps_what_a_job_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    name = f"planted-{tmp_path.name}"
    places = f"/ /usr /etc {tmp_path} {tmp_path}/setup {tmp_path}/source {tmp_path}/runs/run ."
    run(BEST, tmp_path, make_task(f"for d in {places}; do echo x > $d/{name}; done; ls -d /*/{name} /{name} ./{name}"))
    assert not [line for line in training_log(tmp_path).splitlines() if line.endswith(f"/{name}")]
    assert not list(tmp_path.rglob(name))
    command = "for d in /tmp ~ /dev/shm $AUTORESEARCHD_OUTPUT_DIR; do echo x > $d/kept && echo WROTE $d; done"
    assert run(BEST, tmp_path, make_task(command)).stages[0].outcome == "ok"
    assert not (home / "kept").exists()
    assert (tmp_path / "runs" / "run" / "output" / "kept").exists()


@needs_sandbox
def test_what_evaluation_uses_is_kept_from_the_model_and_from_checks(tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    (request.setup / "val.txt").write_text("targets\n")
    spy = f"cat {request.setup}/val.txt {request.pristine}/val.txt $AUTORESEARCHD_OUTPUT_DIR/model; true"
    evaluation = Evaluation(
        "cat val.txt; until [ -e $AUTORESEARCHD_EXCHANGE_DIR/done ]; do sleep 0.02; done;"
        " echo x > $AUTORESEARCHD_OUTPUT_DIR/model",
        model_command=f"({spy}); touch $AUTORESEARCHD_EXCHANGE_DIR/done; exec sleep 600",
        private=("val.txt",),
    )
    train = "echo weights > $AUTORESEARCHD_OUTPUT_DIR/model"
    result = run(BEST, tmp_path, make_task(train, checks=(Check(spy),), evaluation=evaluation))
    assert [s.outcome for s in result.stages] == ["ok", "ok", "failed"]  # the scorer may not write the output folder
    assert text_of(request.run_dir / "evaluation.log").startswith("targets\n")
    assert text_of(request.run_dir / "output" / "model") == "weights\n"
    for name in ("check-0", "model"):
        log = text_of(request.run_dir / f"{name}.log")
        assert "weights" in log and "targets" not in log


@needs_sandbox
def test_a_hidden_package_is_hidden_in_the_interpreter_below_an_environment_too(tmp_path: Path) -> None:
    libraries, packages = visible_libraries(inspect(Path(sys.executable)))
    assert len(packages) > 1
    places = [p for p in (*(lib / "unittest" for lib in libraries), *(pkg / "pip" for pkg in packages)) if p.exists()]
    command = "for d in " + " ".join(map(str, places)) + "; do ls $d/*; done; true"
    task = make_task(command, evaluation=Evaluation("true", hide=("{stdlib}/unittest", "{purelib}/pip")))
    for tier, seen in ((PLAIN, True), (BEST, False)):
        run(tier, tmp_path, task)
        assert ("__init__.py" in training_log(tmp_path)) is seen


def test_the_tier_and_its_limits_are_said() -> None:
    assert local(PLAIN).warnings()
    assert len(local(PLAIN).warnings(guarded("true"))) == 2
    assert LocalExecutor(tier=Tier(TierName.BUBBLEWRAP, Path("/usr/bin/bwrap")), devices=Devices()).warnings() == []
