"""What a task keeps from its jobs, and gives them: each attack works without isolation, and not with it.

Attacks on the machine around a task are in ``test_isolation``.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from autoresearchd.domain.task import Check, Evaluation, Task
from autoresearchd.executor.environment import Devices, inspect
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.visible_files import visible_libraries
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName
from tests.contract.executor_contract import HANG, make_request, make_task
from tests.integration.local_jobs import (
    BEST,
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

ATTACKS = {
    "private data by way of the copy that is scored": "cat {root}/pristine/data/val.txt",
    "private data that was committed": "cat val.txt",
    "a package that the task hides": "python -c 'import pytest; print(pytest.__version__, \"GOT IT\")'",
}


def guarded(command: str) -> Task:
    evaluation = Evaluation("true", private=("data/val.txt", "val.txt"), hide=("{purelib}/pytest", "{purelib}/_pytest"))
    return make_task(f"{command}; true", evaluation=evaluation, data=("data",))


@needs_sandbox
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_works_without_isolation_and_not_with_it(attack: str, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    (request.setup / "data").mkdir()
    (request.setup / "data" / "train.txt").write_text("train\n")
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
    result = run(BEST, tmp_path, make_task(train, checks=[Check(spy)], evaluation=evaluation))
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
