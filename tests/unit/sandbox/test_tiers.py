"""Which tier is chosen, what the sandbox is told, and what environments hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, choose, probe
from autoresearchd.sandbox.view import View, _gpu_nodes, in_bubblewrap, job_environment, setup_environment, way_to


def program(folder: Path, text: str) -> Path:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def tiers_of(program: Path) -> list[Tier]:
    return [Tier(TierName.BUBBLEWRAP, program), Tier(TierName.BUBBLEWRAP_NOPROC, program)]


def test_without_any_sandbox_the_user_is_warned_and_told_what_to_install() -> None:
    tier = probe([])
    assert tier.name is TierName.NONE
    assert not tier.isolates
    assert "install bubblewrap" in tier.warnings()[0]


@pytest.mark.parametrize(
    ("script", "name", "words"),
    [
        ("echo 'No permissions to create a new namespace' >&2; exit 1", TierName.NONE, "No permissions to create"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', TierName.NONE, "it hides nothing"),
        ("case \"$*\" in *'--proc /proc'*) exit 1;; esac", TierName.BUBBLEWRAP_NOPROC, "/proc cannot be mounted"),
    ],
    ids=["forbidden", "hides nothing", "in a container"],
)
def test_a_bubblewrap_is_used_as_far_as_it_works(tmp_path: Path, script: str, name: TierName, words: str) -> None:
    tier = probe(tiers_of(program(tmp_path, script)))
    assert (tier.name, tier.isolates) == (name, name is not TierName.NONE)
    assert words in tier.warnings()[0]


def test_a_second_bubblewrap_is_tried_where_the_first_is_too_old(tmp_path: Path) -> None:
    good = program(tmp_path, "exit 0")
    assert probe([*tiers_of(tmp_path / "gone"), *tiers_of(good)]).program == good


def test_without_any_sandbox_edited_code_does_not_run_unless_the_user_says_so(tmp_path: Path) -> None:
    broken = tiers_of(program(tmp_path, "echo 'setting up uid map: Permission denied' >&2; exit 1"))
    with pytest.raises(MissingCapability, match="setting up uid map: Permission denied") as refused:
        choose(tiers=broken)
    assert refused.value.exit_code == 5
    assert "apt install bubblewrap" in refused.value.hint
    assert "--sandbox none" in refused.value.hint
    assert choose("none", tiers=broken) is PLAIN


def test_a_sandbox_that_was_named_is_that_one_or_the_reason_why_not(tmp_path: Path) -> None:
    tiers = [*tiers_of(program(tmp_path, "exit 0")), Tier(TierName.BUBBLEWRAP_NOPROC, tmp_path / "gone")]
    assert choose("bubblewrap-noproc", tiers=tiers).name is TierName.BUBBLEWRAP_NOPROC
    with pytest.raises(MissingCapability, match=r"'bubblewrap-noproc' does not work.*gone"):
        choose("bubblewrap-noproc", tiers=tiers[-1:])
    with pytest.raises(UsageError, match="'bubblewarp' is not a tier"):
        choose("bubblewarp")


def test_a_sandbox_without_proc_is_the_last_choice_for_jobs_on_a_gpu(tmp_path: Path) -> None:
    """CUDA does not start in it; but where it is the only one, jobs that need no GPU still run."""
    tiers = [*reversed(tiers_of(program(tmp_path, "exit 0")))]
    assert [choose(tiers=tiers, gpu=gpu).name for gpu in (False, True)] == [tiers[0].name, tiers[1].name]
    assert choose(tiers=tiers[:1], gpu=True).name is TierName.BUBBLEWRAP_NOPROC


def test_an_interpreter_behind_symbolic_links_can_be_reached_in_the_sandbox(tmp_path: Path) -> None:
    real, first, second = tmp_path / "real", tmp_path / "first", tmp_path / "second"
    real.mkdir()
    (real / "python").touch()
    first.symlink_to("second")
    second.symlink_to(real)
    way = way_to(first / "python")
    assert (way.real, way.links) == (real / "python", ((first, "second"), (second, str(real))))
    view = View(cwd=first, home=tmp_path / "home")
    words = " ".join(in_bubblewrap(Path("/usr/bin/bwrap"), view, ["true"], proc=True))
    assert f"--ro-bind {real} {real}" in words and f"--symlink second {first}" in words


def test_the_nodes_of_gpus_are_those_that_there_are_now(tmp_path: Path) -> None:
    """Else no job has a GPU under WSL 2, or where the driver makes its nodes after the daemon has begun."""
    assert _gpu_nodes(tmp_path) == ()
    for name in ("null", "dxg", "nvidia-uvm", "nvidia0"):
        (tmp_path / name).touch()
    assert _gpu_nodes(tmp_path) == tuple(tmp_path / name for name in ("nvidia-uvm", "nvidia0", "dxg"))


def test_links_that_go_in_a_circle_do_not_hang_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert way_to(tmp_path / "a").links


def test_the_words_of_a_job_come_after_the_end_of_options() -> None:
    view = View(cwd=Path("/usr"), home=Path("/nonexistent"))
    words = in_bubblewrap(Path("/usr/bin/bwrap"), view, ["/bin/sh", "-c", "--bind / /"], proc=True)
    assert words[words.index("--") + 1 :] == ("/bin/sh", "-c", "--bind / /")


def test_the_task_cannot_change_what_the_daemon_tells_the_job() -> None:
    env = job_environment(
        path="/bin", home=Path("/h"), scratch=Path("/tmp"), output=Path("/o"), budget=300, seed=5, profile="cuda",
        devices="1", extra={"AUTORESEARCHD_SEED": "1", "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert env["AUTORESEARCHD_SEED"] == "5"
    assert env["AUTORESEARCHD_TIME_BUDGET"] == "300"
    assert (env["OMP_NUM_THREADS"], env["CUDA_VISIBLE_DEVICES"]) == ("2", "1")


SECRETS = (
    *("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PIP_TOKEN", "UV_PUBLISH_PASSWORD", "GITHUB_TOKEN"),
    *("SSH_AUTH_SOCK", "DATABASE_URL", "XDG_SESSION_TOKEN", "PYTHONPATH"),
)


def test_setup_commands_get_no_keys() -> None:
    needed = {"PATH": "/bin", "HOME": "/h", "https_proxy": "p", "PIP_INDEX_URL": "i"}
    source = needed | dict.fromkeys(SECRETS, "secret")
    env = setup_environment(source, first=[Path("/v/bin")], profile="cpu", extra={})
    assert "secret" not in env.values()
    assert {name: env[name] for name in needed} == {**needed, "PATH": "/v/bin:/bin"}


@pytest.mark.parametrize("home", ["/", "/usr/home"])
def test_a_home_that_is_no_folder_of_its_own_does_not_hide_the_system(home: str) -> None:
    view = View(cwd=Path("/usr"), home=Path(home))
    words = in_bubblewrap(Path("/usr/bin/bwrap"), view, ["true"], proc=True)
    assert ("--tmpfs", home) not in set(pairwise(words))


def test_a_hidden_file_is_an_empty_file_to_a_job(tmp_path: Path) -> None:
    """Else programs that open all files of a folder stumble over it, as torch.compile does over what is no file."""
    (tmp_path / "answers.py").write_text("ANSWER = 1\n")
    view = View(cwd=tmp_path, home=Path("/nonexistent"), hidden=(tmp_path / "answers.py",))
    pairs = list(pairwise(in_bubblewrap(Path("/usr/bin/bwrap"), view, ("true",), proc=True)))
    [source] = [Path(a) for a, b in pairs if b == str(tmp_path / "answers.py")]
    assert source.is_file() and source.read_bytes() == b""
