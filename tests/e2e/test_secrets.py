"""Keys of the user, of a policy, of a job: whatever happens, none is written down or shown."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project, make_project
from tests.fakes.repositories import write_files
from tests.unit.domain.canaries import IN_CONTEXT, TOKENS, letters

OF_ENVIRONMENT = {
    "OPENAI_API_KEY": "plain-" + letters(30, seed=1),
    "MY_SERVICE_PASSWORD": 'with "quotes" / und Ümläut ' + letters(12, seed=2),
    "HF_TOKEN": letters(34, seed=3),
}
OF_JOB = {name: TOKENS[name] for name in ("github-classic", "aws-access-key", "private-key")}
OF_POLICY = {name: TOKENS[name] for name in ("anthropic", "jwt", "slack-bot", "stripe")}
IN_FILE = letters(40, seed=4)

CANARIES = {
    **OF_ENVIRONMENT,
    **OF_JOB,
    **OF_POLICY,
    "netrc": IN_FILE,
    "bearer": IN_CONTEXT["bearer"][1],
    "code": TOKENS["npm"],
}

# The job reads its keys as data: that the program itself holds none is what the test looks at.
JOB = f"""{PROGRAM}
import sys
with open("names.txt") as names, open("data.txt") as data:
    github, bearer = names.read().split()
    for line in data.read().split("\\n"):
        print(line, flush=True)
sys.stdout.write("\\rstep 1 " + github[:9] + "\\r" + github[9:] + "\\n")
sys.stderr.write("Authorization: Bearer " + bearer + "\\n")
if SCALE == 3.0:
    raise RuntimeError("cannot log in with " + github)
"""

POLICY = r"""
import json, os, sys
from pathlib import Path

state = json.loads(Path(os.environ["AUTORESEARCHD_STATE"]).read_text())
prompt = sys.stdin.read()
Path(os.environ["KEEP"], f"{state['experiment']}.txt").write_text(json.dumps(state) + prompt)
canaries = json.loads(Path(os.environ["CANARIES"]).read_text())
n = state["experiment"]
print("using", os.environ["OPENAI_API_KEY"], file=sys.stderr)
code = Path("train.py").read_text()
if n == 1:
    code = code.replace("SCALE = 1.0", "SCALE = 2.0")
elif n == 2:
    code = code.replace("SCALE = ", "NPM = '" + canaries["code"] + "'\nSCALE = ")
elif n == 3:
    sys.exit("the key " + canaries["anthropic"] + " and " + os.environ["MY_SERVICE_PASSWORD"] + " were refused")
elif n == 4:
    code = code.replace("SCALE = 2.0", "SCALE = 3.0")
elif n == 5:
    code = code.replace("SCALE = 2.0", "KEY = '" + os.environ["HF_TOKEN"] + "'\nSCALE = 4.0")
else:
    code = code.replace("SCALE = 2.0", f"SCALE = 2.0{n}1")
Path("train.py").write_text(code)
print(json.dumps({
    "hypothesis": "as " + canaries["jwt"] + " said",
    "description": "edit " + str(n) + " by " + os.environ["OPENAI_API_KEY"],
    "next_action_hint": "ask with " + canaries["stripe"],
    "arch_change": os.environ["MY_SERVICE_PASSWORD"],
    "header": {"Authorization": "Bearer " + canaries["bearer"], canaries["slack-bot"]: [canaries["netrc"]]},
    "encoded": __import__("base64").b64encode(("x:" + os.environ["HF_TOKEN"]).encode()).decode(),
    "url": __import__("urllib.parse").parse.quote(os.environ["MY_SERVICE_PASSWORD"]),
}))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path, str]:
    """A session in which everything that could give a key away did; with all that commands printed."""
    tmp_path = tmp_path_factory.mktemp("secrets")
    project, keep, secrets = make_project(tmp_path), tmp_path / "seen-by-policy", tmp_path / "outside"
    keep.mkdir()
    texts = {"data.txt": "\n".join(["first line", *OF_JOB.values(), "last line"])}
    texts |= {"names.txt": f"{OF_JOB['github-classic']} {CANARIES['bearer']}"}
    write_files(secrets, {"canaries.json": json.dumps(CANARIES), "policy.py": POLICY, **texts})
    Path(project.environment["HOME"], ".netrc").write_text(f"machine api.example\n  login user\n  password {IN_FILE}\n")
    project.environment.update(OF_ENVIRONMENT, CANARIES=str(secrets / "canaries.json"), KEEP=str(keep))
    task = TASK.replace("target_file: train.py", "target_file: train.py, data: [data.txt, names.txt]")
    project.begin({"train.py": JOB, "task.yaml": task, ".gitignore": "*.txt\n"})
    for name in texts:
        (project.root / name).symlink_to(secrets / name)
    told = [project.session(f"command:python3 {secrets}/policy.py", 7)]
    told += [project.cli("note", f"log in with {CANARIES['stripe']}"), project.cli("resume", "--foreground")]
    commands = (
        ("status",), ("status", "--json"), ("experiments",), ("experiments", "--json"),
        *(("show", str(n), *more) for n in range(6) for more in (("--json",), ("--diff", "--log"))),
        ("logs", "-n", "5000"), ("export", "--format", "jsonl"), ("export", "--format", "tsv"),
        ("export", "-o", "out.jsonl"), ("plot", "-o", "out.svg"), ("doctor", "--json"),
        ("start", "--tag", CANARIES["jwt"]), ("show", "1", "--session", CANARIES["stripe"]),
        ("start", "--policy", f"command:curl -H 'Authorization: Bearer {CANARIES['bearer']}' x"),
        ("start", "--policy", f"command:tool {OF_ENVIRONMENT['HF_TOKEN']}"),
    )  # fmt: skip
    told += [project.cli(*words) for words in commands]
    printed = "".join(done.stdout + done.stderr for done in told)
    return project, keep, printed


def forms(secret: str) -> set[bytes]:
    """How a secret may have been written; the whole of it or a good half."""
    raw = secret.encode()
    whole = {raw, json.dumps(secret)[1:-1].encode(), base64.b64encode(raw).rstrip(b"=")[:-1]}
    return whole | {raw[len(raw) // 2 :], raw[: len(raw) // 2 + 1]} if "\n" not in secret else {*raw.split(b"\n")[2:5]}


def everything_written(project: Project) -> Iterator[tuple[str, bytes]]:
    """Each file below the repository, each git object, and what the database holds compressed."""
    for path in sorted(project.root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(project.root)), path.read_bytes()
    for git in {project.root / ".git", *(p.parent for p in (project.root / ".git").rglob("HEAD"))}:
        if (git / "objects").is_dir():
            done = subprocess.run(
                ["git", f"--git-dir={git}", "cat-file", "--batch-all-objects", "--batch"],
                capture_output=True, env=project.environment, check=True,
            )  # fmt: skip
            assert done.stdout
            yield f"objects of {git}", done.stdout
    for path in project.root.rglob("state.db*"):
        if path.suffix == ".db" or "backup" in path.name:
            with sqlite3.connect(path) as db:
                for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    for row in db.execute(f"SELECT * FROM {table}"):
                        for value in row:
                            data = value if isinstance(value, bytes) else str(value).encode()
                            with contextlib.suppress(zlib.error):
                                data = zlib.decompress(data)
                            yield f"{path.name}: {table}", data


def test_no_secret_is_written_or_shown_anywhere(finished: tuple[Project, Path, str]) -> None:
    project, keep, printed = finished
    found = [(e["status"], e["label"]) for e in project.experiments()[1:6]]
    failed = [("crash", label) for label in ("illegal_edit", "error", "error", "illegal_edit")]
    assert found == [("keep", ""), *failed]
    written = [*everything_written(project), ("printed", printed.encode())]
    written += [(path.name, path.read_bytes()) for path in keep.iterdir()]
    assert len(list(keep.iterdir())) >= 6
    assert sum("objects of" in where for where, _ in written) >= 1
    for name, secret in CANARIES.items():
        for form in forms(secret):
            assert len(form) >= 8
            leaks = sorted({where for where, data in written if form in data})
            assert not leaks, f"{name} as {form!r} in {leaks}"


def test_what_was_hidden_leaves_a_mark_and_a_reason(finished: tuple[Project, Path, str]) -> None:
    project, keep, printed = finished
    first = project.json("show", "1", "--json")
    assert first["description"] == "edit 1 by «redacted:environment»"
    assert first["asi"]["hypothesis"] == "as «redacted:jwt» said"
    assert "the edit holds a secret (npm)" in project.json("show", "2", "--json")["reason"]
    assert "train.py, line" in project.json("show", "5", "--json")["reason"]
    log = (project.root / ".autoresearchd/runs/t/0/0/training.log").read_text()
    assert "first line\n«redacted:github»\n«redacted:aws»\n«redacted:private-key»\nlast line\n" in log
    assert "score:" in log, "the metric is where it was"
    assert "--policy holds a secret (environment)" in printed
    assert "«redacted:stripe»" in (keep / "7.txt").read_text() + printed


def test_a_key_that_the_users_own_program_holds_already_is_no_new_leak(project: Project) -> None:
    project.put({"train.py": PROGRAM.replace("SCALE = 1.0", f"KEY = '{TOKENS['npm']}'\nSCALE = 1.0")})
    command = "command:cat >seen.txt; cp seen.txt \"$KEEP\"; sed -i 's/^SCALE = .*/SCALE = 2.0/' train.py"
    keep = project.root.parent / "prompt.txt"
    project.session(command, env={"KEEP": str(keep)})
    assert project.experiments()[1]["status"] == "keep"
    assert TOKENS["npm"] in project.git("show", "autoresearch/t:train.py"), "code is not changed silently"
    assert "KEY = '«redacted:npm»'" in keep.read_text(), "but no prompt holds it"
    assert TOKENS["npm"] not in project.cli("show", "1", "--diff").stdout


def test_a_policy_that_copies_the_mark_into_the_program_is_told_so(project: Project) -> None:
    command = "command:sed -i 's/^SCALE = .*/SCALE = 2.0; KEY = \"«redacted:npm»\"/' train.py"
    done = project.cli("start", "--foreground", "--tag", "t", "--policy", command, "--max-experiments", "1")
    assert done.returncode == 1, done.stderr
    shown = project.json("show", "1", "--json")
    assert shown["label"] == "illegal_edit"
    assert "stands for a secret" in shown["reason"]


def test_a_set_up_that_prints_a_key_and_fails_gives_nothing_away(project: Project) -> None:
    secret, given = TOKENS["huggingface"], "correct-horse-battery-staple"
    setup = f"import os, sys\nprint('no access with', '{secret[:9]}' + '{secret[9:]}', "
    setup += "os.environ['WEIGHTS_PASSWORD'])\nsys.exit(1)\n"
    more = f"setup_commands: [python setup.py], env: {{WEIGHTS_PASSWORD: {given}}}, "
    task = TASK.replace("execution: {", f"execution: {{{more}")
    project.put({"setup.py": setup, "task.yaml": task})
    done = project.cli("start", "--foreground", "--tag", "t", "--policy", "random", "--max-experiments", "1")
    assert done.returncode == 3, done.stderr
    assert secret not in done.stdout + done.stderr
    assert "«redacted:huggingface» «redacted:environment»" in done.stderr
    logs = [p.read_text() for p in (project.root / ".autoresearchd").rglob("*") if p.is_file()]
    assert logs
    assert not any(secret in log or given in log for log in logs)
    told = project.cli("status").stdout + project.cli("status", "--json").stdout
    assert "«redacted:huggingface» «redacted:environment»" in told and secret not in told and given not in told
    failed = (project.root / ".git/autoresearchd/failed-start.json").read_text()
    assert secret not in failed and given not in failed
