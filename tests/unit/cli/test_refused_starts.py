"""What cannot work is refused before a session is opened: nobody is to find that out after the baseline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.app import compose, start
from autoresearchd.app.project import Project
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.loop.upkeep.session_lock import SessionLock, announce
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.e2e.conftest import TASK
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.repositories import git, make_repository, write_files
from tests.unit.cli.conftest import Answer, Command, add_session

FILES = {"train.py": "SCALE = 1.0\nprint(f'score: {SCALE}')\n", "task.yaml": TASK}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository with a task and no session."""
    root = tmp_path / "toy"
    make_repository(root, FILES)
    monkeypatch.chdir(root)
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", "/dev/null")
    return root


def refused(command: Command, *options: str, policy: str = "random") -> Answer:
    """A start that is refused as a mistake in what was asked, and leaves no session and no branch."""
    answer = command("start", "--foreground", "--max-experiments", "1", "--policy", policy, *options)
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    assert "no session" in command("status").err or "autoresearch/" not in git(Path.cwd(), "branch", "--all")
    return answer


def test_a_mistake_in_a_task_file_is_told_before_it_is_to_be_committed(toy: Path, command: Command) -> None:
    write_files(toy, {"task.yaml": TASK.replace("scoring:", "scorng:")})
    answer = refused(command)
    assert "did you mean 'scoring'?" in answer.err and "commit" not in answer.err


@pytest.mark.parametrize("policy", ["litellm:anthropic/claude-x", "agent:anthropic/claude-x"])
def test_a_provider_that_wants_a_key_is_not_waited_for_without_one(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    pytest.importorskip("litellm")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    answer = command("start", "--foreground", "--policy", policy)
    assert (answer.code, "export ANTHROPIC_API_KEY=" in answer.err) == (5, True), answer.err
    assert "autoresearch/" not in git(toy, "branch", "--all")


# ---------------------------------------------------------------------- task.yaml
def test_a_task_yaml_that_is_not_committed_is_refused_as_a_modified_one_is(toy: Path, command: Command) -> None:
    git(toy, "rm", "--quiet", "--cached", "task.yaml")
    git(toy, "commit", "--quiet", "-m", "without it")
    answer = refused(command)
    assert "task.yaml is not committed" in answer.err and "git add task.yaml && git commit" in answer.err
    write_files(toy, {".gitignore": "task.yaml\n"})
    git(toy, "add", ".gitignore")
    git(toy, "commit", "--quiet", "-m", "ignored")
    assert "git add --force task.yaml && git commit" in refused(command).err


# ---------------------------------------------------------------------- command:
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("./nope.sh", "there is no ./nope.sh, neither in the task's folder nor in its commit"),
        ("./new.sh", "git add -- new.sh && git commit"),
        ("new.sh", "a script of the task's folder is written ./new.sh"),
        ("../outside.sh", "outside.sh"),
    ],
)
def test_a_command_that_is_nowhere_is_refused_before_the_baseline(
    toy: Path, command: Command, tool: str, words: str
) -> None:
    write_files(toy, {"new.sh": "true\n", "../outside.sh": "true\n"})
    assert words in refused(command, policy=f"command:{tool}").err


# ---------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--group", "0"), "--group: 0 is less than 1"),
        (("--seed", "-1"), "--seed: -1 is less than 0"),
        (("--seed", "lucky"), "--seed: 'lucky' is not a whole number"),
        (("--turns", "x"), "--turns: 'x' is none of round_robin, bandit"),
        (("--tag", "a b"), "cannot be a session tag"),
        (("--tag", "two", "--max-experiments", "-1"), "--max-experiments: -1 is less than 0"),
        (("--tag", "two", "--max-cost", "nan"), "--max-cost: nan is not an amount of money"),
    ],
)
def test_a_mistake_in_an_option_is_told_and_not_that_another_session_runs(
    toy: Path, command: Command, options: tuple[str, ...], words: str
) -> None:
    add_session(toy, "one")
    with SessionLock(layout.lock_path(toy, "one"), "one"):
        answer = refused(command, *options)
    assert words in answer.err and "is running here" not in answer.err
    assert "→" in answer.err


# ---------------------------------------------------------------------- folders
@pytest.mark.parametrize("there", [True, False])
def test_a_start_that_is_refused_leaves_an_empty_folder_empty(
    toy: Path, command: Command, tmp_path: Path, there: bool
) -> None:
    folder = tmp_path / "new" / "empty"
    if there:
        folder.mkdir(parents=True)
    answer = command("start", "--task", "liquid-speedup", "--dir", str(folder), "--policy", "command:/nope/x")
    assert answer.code == 2 and "there is no /nope/x" in answer.err
    assert list(folder.iterdir()) == [] if there else not folder.parent.exists()


# ---------------------------------------------------------------------- two at once
def test_a_start_beside_a_daemon_that_only_comes_up_is_refused_as_beside_any(toy: Path, command: Command) -> None:
    add_session(toy, "one")
    announce(layout.lock_path(toy, "one"), os.getpid())
    answer = command("start", "--foreground", "--policy", "random")
    assert answer.code == 75, answer.err
    assert f"session one is held by process {os.getpid()}" in answer.err


def test_the_later_of_two_starts_at_once_hears_of_the_other(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(project: Project, store: SqlStore, tag: str | None) -> str:
        add_session(toy, "one")  # by the other one, just after this one has looked
        return "one"

    monkeypatch.setattr(start, "choose_tag", chosen)
    answer = command("start", "--foreground", "--policy", "random")
    assert answer.code == 75, answer.err
    assert "another `start` began session one" in answer.err


# ---------------------------------------------------------------------- tags
def test_a_tag_that_is_taken_is_refused_with_a_way_out_that_works(toy: Path, command: Command) -> None:
    git(toy, "branch", "autoresearch/mine")
    answer = refused(command, "--tag", "mine")
    assert "git branch -D autoresearch/mine" in answer.err and "resume" not in answer.err
    git(toy, "branch", "autoresearch/deep/er")
    assert "git branch -D autoresearch/deep/er" in refused(command, "--tag", "deep").err
    results = toy / "results.tsv"
    results.write_text("commit\tscore\tmemory_gb\tstatus\tdescription\nbaseline\t1.0\t0.0\tkeep\tbaseline\n")
    assert command("import", str(results)).code == 0
    answer = command("start", "--tag", "imported-results", "--policy", "random")
    assert answer.code == 2
    assert "resume" not in answer.err, "there is nothing to go on with"


def test_a_branch_that_leaves_no_room_for_sessions_is_told_with_and_without_a_tag(toy: Path, command: Command) -> None:
    """Without a tag each day's next one was tried, for ever."""
    git(toy, "branch", "autoresearch")
    for options in ((), ("--tag", "mine")):
        assert "git branch -m autoresearch <another name>" in refused(command, *options).err
    assert "would refuse this folder: a branch named 'autoresearch'" in command("task", "check", ".").err


# ---------------------------------------------------------------------- models
@pytest.fixture
def scripted(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server that refuses every key, as the one of local:m."""
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    with ScriptedServer(probe=turns.unauthorised()) as server:
        config = toy.parent / "config.yaml"
        config.write_text(f"local: {{base_url: '{server.url}'}}\n")
        monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(config))
        monkeypatch.setenv("XDG_STATE_HOME", str(toy.parent / "state"))
        yield server


@pytest.mark.parametrize("policy", ["local:m", "agent:local:m"])
def test_a_wrong_key_ends_the_start(toy: Path, command: Command, scripted: ScriptedServer, policy: str) -> None:
    answer = command("start", "--foreground", "--policy", policy, "--sandbox", "none")
    assert (answer.code, len(scripted.probes), scripted.questions) == (2, 1, [])
    assert "Incorrect API key" in answer.err and "asking local:m" in answer.err and "--no-preflight" in answer.err
    assert "autoresearch/" not in git(toy, "branch", "--all")


@pytest.mark.parametrize("options", [("--no-preflight",), ("--max-experiments", "0")])
def test_who_wants_no_look_or_only_the_baseline_is_asked_nothing(
    command: Command, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    started: list[object] = []
    monkeypatch.setattr("autoresearchd.app.start.run", lambda *arguments: started.append(arguments) or 0)
    answer = command("start", "--foreground", "--policy", "local:m", "--sandbox", "none", *options)
    assert (answer.code, len(started), scripted.probes) == (0, 1, []), answer.err


@pytest.mark.parametrize(
    ("config", "policy", "setting"),
    [
        ("key_files: {anthropic: gone.key}", "litellm:anthropic/claude-x", "key_files.anthropic"),
        ("local: {key_file: gone.key}", "local:m", "local.key_file"),
    ],
)
def test_a_key_file_that_is_gone_is_told_by_its_setting_before_a_session(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch, config: str, policy: str, setting: str
) -> None:
    pytest.importorskip("litellm")
    (toy.parent / "config.yaml").write_text(f"{config}\n")
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(toy.parent / "config.yaml"))
    answer = refused(command, "--no-preflight", policy=policy)
    assert f"see to {setting} in config.yaml" in answer.err and not layout.database_path(toy).exists()


def test_a_start_that_fails_leaves_no_session_that_the_next_commands_would_mean(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_session(toy, "night1")

    def laboratory(*_: object) -> None:
        raise UsageError("a setting of this moment is wrong")

    monkeypatch.setattr("autoresearchd.app.compose.laboratory", laboratory)
    answer = command("start", "--foreground", "--policy", "random", "--sandbox", "none")
    assert (answer.code, "of this moment" in answer.err) == (2, True), answer.err
    assert len(json.loads(command("experiments", "--json").out)) == 5, "of the session that was there before"
    with Project.at(toy).open_store() as store:
        assert [session.tag for session in store.sessions()] == ["night1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("serch", "did you mean search?"), ("litellm", "write it after the colon: litellm:"), ("hybrid", "name a model")],
)
def test_a_policy_of_the_settings_that_is_none_is_told_with_its_file_and_line(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    config = toy.parent / "config.yaml"
    config.write_text(f"retries: 3\npolicy: {text}\n")
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(config))
    answer = refused(command, policy="auto")
    assert f"{config}:2: policy: " in answer.err and words in answer.err and "--policy" not in answer.err
    [found] = [one for one in json.loads(command("doctor", "--json").out) if one["name"] == "config"]
    assert (found["status"], f"{config}:2" in found["value"]) == ("missing", True)
    config.write_text("policy: auto\n")
    assert str(compose.usual_policy(load_settings(os.environ), os.environ)) == "search"


HUGE = "99999999999999999999"


@pytest.mark.parametrize("words", [["show", HUGE], ["start", "--max-experiments", HUGE]])
@pytest.mark.usefixtures("repository")
def test_a_number_that_is_too_large_is_named_and_nothing_else_is_blamed(command: Command, words: list[str]) -> None:
    answer = command(*words)
    assert answer.code == 2
    assert words[1] in answer.err and f"{HUGE} is more than" in answer.err
    assert "database" not in answer.err


@pytest.mark.parametrize(("executor", "words"), [("cloud", "accelerators"), ("ssh", "gpu_id")])
def test_machines_are_not_taken_for_a_task_that_names_none(
    toy: Path, command: Command, executor: str, words: str
) -> None:
    answer = refused(command, "--executor", executor)
    assert f"fleet.{'cloud' if executor == 'cloud' else 'slots'}: --executor {executor} needs this key" in answer.err
    assert words in answer.err


def test_without_skypilot_no_session_is_opened_that_could_rent_nothing(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise MissingCapability("--executor cloud needs SkyPilot", hint="pip install")

    pytest.importorskip("asyncssh")
    write_files(toy, {"task.yaml": TASK + "fleet: {cloud: {machines: 2}}\n"})
    monkeypatch.setattr("autoresearchd.executor.cloud.skypilot.find_python", absent)
    monkeypatch.setattr("autoresearchd.executor.ssh.executor.require_programs", lambda: None)
    answer = command("start", "--foreground", "--policy", "random", "--executor", "cloud")
    assert (answer.code, "needs SkyPilot" in answer.err) == (5, True), answer.err
    assert "autoresearch/" not in git(toy, "branch", "--all")


def test_a_tier_in_the_executor_is_not_called_by_another_option(toy: Path, command: Command) -> None:
    pytest.importorskip("asyncssh")
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    write_files(toy, {"task.yaml": TASK + "fleet: {slots: [{host: a, name: a, remote_dir: /a}]}\n"})
    git(toy, "commit", "-qam", "a fleet")
    answer = refused(command, "--executor", "ssh:bubblewarp")
    assert "'bubblewarp' is not a tier of the sandbox" in answer.err and "--sandbox" not in answer.err


def test_a_task_in_a_folder_of_a_repository_is_told_to_be_one_of_its_own(
    toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("litellm")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    (toy / "inner").mkdir()
    policy = ("--policy", "litellm:anthropic/claude-x")
    answer = command("start", "--foreground", "--task", "terrain", "--dir", "inner", *policy)
    assert answer.code == 5 and f"{toy / 'inner'} is a repository of its own inside of {toy}" in answer.err, answer.err
    assert not list((toy / "inner").iterdir())
    assert "repository of its own" not in command("start", "--foreground", *policy).err
