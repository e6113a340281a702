"""Skills that an agent cannot load are no skills; and what a user has changed in them is not lost without a word."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from autoresearchd.cli.commands.skill_commands import install, skills
from autoresearchd.cli.main import run
from autoresearchd.domain.errors import UsageError
from autoresearchd.report.log_files import read_log
from autoresearchd.resources import bundled

FOLDERS = sorted(path.parent for path in bundled("skills").glob("*/SKILL.md"))
NAMES = ["autoresearch", "autoresearch-learn", "autoresearch-report", "autoresearch-task"]


def test_all_skills_are_listed_with_what_they_are_for() -> None:
    assert [skill["name"] for skill in skills()] == NAMES
    assert all("Use when" in skill["description"] for skill in skills())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_skill_is_within_the_bounds_of_the_specification(folder: Path) -> None:
    [skill] = [skill for skill in skills() if skill["path"] == str(folder)]
    assert skill["name"] == folder.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill["name"])
    assert 1 <= len(skill["description"]) <= 1024
    assert len((folder / "SKILL.md").read_text("utf-8").splitlines()) < 500
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {"scripts", "references", "assets"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_reference_checker_has_nothing_to_say(folder: Path) -> None:
    checker = pytest.importorskip("skills_ref.validator", reason="skills-ref comes with the extra dev")
    assert checker.validate(folder) == []


# ---------------------------------------------------------------------- installing
def test_skills_are_installed_with_their_scripts_and_a_second_time_nothing_is_written(tmp_path: Path) -> None:
    written, same = install(tmp_path / "skills")
    assert written > len(NAMES) and same == 0
    assert os.access(tmp_path / "skills/autoresearch/scripts/log-experiment.sh", os.X_OK)
    assert sorted(path.name for path in (tmp_path / "skills").iterdir()) == NAMES
    assert install(tmp_path / "skills") == (0, written)


def test_a_file_that_the_user_has_changed_is_kept_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path)
    mine, lost = tmp_path / "autoresearch/SKILL.md", tmp_path / "autoresearch-task/SKILL.md"
    mine.write_text("my own words\n")
    lost.unlink()
    with pytest.raises(UsageError, match=re.escape(str(mine))) as raised:
        install(tmp_path)
    assert "--force" in raised.value.hint
    assert mine.read_text() == "my own words\n"
    assert not lost.exists(), "all or nothing"
    assert install(tmp_path, force=True)[0] == 2
    assert capsys.readouterr().err == f"replaced {mine}\n"
    assert "autoresearchd" in mine.read_text() and lost.exists()


def test_a_link_of_the_user_is_not_written_through(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("mine\n")
    (tmp_path / "skills/autoresearch").mkdir(parents=True)
    (tmp_path / "skills/autoresearch/SKILL.md").symlink_to(notes)
    with pytest.raises(UsageError, match="differ"):
        install(tmp_path / "skills")
    install(tmp_path / "skills", force=True)
    assert notes.read_text() == "mine\n"


def test_the_command_installs_for_each_agent_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["skills", "add"]) == 2
    assert run(["skills", "add", "--claude", "--codex", "--dir", str(tmp_path / "here")]) == 0
    for place in (".claude/skills", ".agents/skills", "here"):
        assert (tmp_path / place / "autoresearch-learn/SKILL.md").is_file()


# ---------------------------------------------------------------------- the scripts, without the daemon
SCRIPTS = bundled("skills") / "autoresearch" / "scripts"
SEED = r"""
bash ${CLAUDE_SKILL_DIR}/scripts/log-experiment.sh \
--run 2 \
--commit "$(git rev-parse --short HEAD)" \
--metric 0.993 \
--status keep \
--description "increase LR to 0.04" \
--metrics '{"peak_memory_mb":44200,"mfu_percent":39.8}' \
--segment 0 \
--asi '{"hypothesis":"higher LR converges faster"}'
"""
"""The lines as skills that log by this script have them."""


def shell(folder: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "CLAUDE_SKILL_DIR": str(SCRIPTS.parent), **more}
    return subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def parsed(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = ["sh", str(SCRIPTS / "parse-metrics.sh"), *arguments]
    return subprocess.run(script, input=text, capture_output=True, text=True, timeout=60)


def test_the_lines_that_other_skills_quote_work_as_they_are(tmp_path: Path) -> None:
    shell(tmp_path, "git init -q . && git -c user.name=U -c user.email=u@localhost commit -q --allow-empty -m x")
    (tmp_path / "autoresearch.sh").write_text('echo "METRIC val_bpb=0.993"; echo "METRIC mfu=39.8" >&2\n')
    done = shell(tmp_path, SEED)
    assert done.returncode == 0, done.stderr
    entry = json.loads((tmp_path / "autoresearch.jsonl").read_text())
    commit = shell(tmp_path, "git rev-parse --short HEAD").stdout.strip()
    assert entry.pop("timestamp") > 1.7e9
    assert entry == {
        "run": 2, "commit": commit, "metric": 0.993, "metrics": {"peak_memory_mb": 44200, "mfu_percent": 39.8},
        "status": "keep", "description": "increase LR to 0.04", "segment": 0, "confidence": None,
        "asi": {"hypothesis": "higher LR converges faster"},
    }  # fmt: skip
    line = "bash autoresearch.sh 2>&1 | bash ${CLAUDE_SKILL_DIR}/scripts/parse-metrics.sh"
    assert json.loads(shell(tmp_path, line).stdout) == {"val_bpb": 0.993, "mfu": 39.8}


def test_metrics_are_read_as_the_format_has_them() -> None:
    text = "x\rMETRIC loss=2\rMETRIC loss=.5\nMETRIC\tt_µs=+007.50 \n"
    text += " METRIC no=1\nMETRIC a=nan\nMETRIC b=1e999\nMETRIC c=1x\n"
    assert json.loads(parsed(text).stdout) == {"loss": 0.5, "t_µs": 7.5}
    assert parsed(text, "loss").stdout == "0.5\n"
    assert (parsed(text, "no").stdout, parsed(text, "no").returncode) == ("", 1)
    assert (parsed("Traceback\n").stdout, parsed("Traceback\n").returncode) == ("", 1)


def test_a_log_written_by_hand_is_imported_with_its_segments_and_confidence(tmp_path: Path) -> None:
    log = "bash ${CLAUDE_SKILL_DIR}/scripts/log-experiment.sh"
    lines = [
        f'{log} --config --name "Optimize loss" --metric-name loss --unit "" --direction higher',
        f"{log} --commit aaaaaaa --metric 1.0 --status keep --description baseline",
        f"{log} --commit bbbbbbb --metric 1.2 --status keep --description 'it'\"'\"'s \"better\"'",
        f"{log} --commit ccccccc --metric 0 --status crash --description 'out of memory'",
        f'{log} --commit ddddddd --metric 0.9 --status discard --description wörse --asi \'{{"result":"worse"}}\'',
        f"{log} --config --name again --metric-name loss --direction higher",
        f"{log} --metric 5 --status keep --description 'another machine'",
    ]
    for line in lines:
        done = shell(tmp_path, line)
        assert done.returncode == 0, done.stderr
    found = read_log(tmp_path / "autoresearch.jsonl")
    assert (found.metric, found.direction, found.warnings) == ("loss", "maximize", [])
    assert [(e.segment, e.status.value, e.metric) for e in found.experiments] == [
        (0, "keep", 1.0), (0, "keep", 1.2), (0, "crash", None), (0, "discard", 0.9), (1, "keep", 5.0),
    ]  # fmt: skip
    assert found.experiments[1].description == 'it\'s "better"'
    assert found.experiments[3].confidence == pytest.approx(abs(1.2 - 1.0) / 0.1), "|best − baseline| / MAD"
    assert found.experiments[3].asi == {"result": "worse"}


@pytest.mark.parametrize(
    "arguments",
    [
        "--status kept --metric 1", "--metric 1", "--status keep --metric nan",
        "--status keep --metric 1 --metrics '[1]'", "--stat keep --metric 1",
    ],
)  # fmt: skip
def test_what_cannot_be_logged_is_refused_and_nothing_is_written(tmp_path: Path, arguments: str) -> None:
    done = shell(tmp_path, f"bash ${{CLAUDE_SKILL_DIR}}/scripts/log-experiment.sh {arguments}")
    assert done.returncode == 2
    assert "log-experiment.sh: error:" in done.stderr
    assert not (tmp_path / "autoresearch.jsonl").exists()
