"""Which tier is chosen, what the sandbox is told, and what environments hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, choose, probe
from autoresearchd.sandbox.view import View, in_bubblewrap, job_environment, setup_environment, way_to


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


def test_a_bubblewrap_that_is_forbidden_here_is_not_used_and_its_words_are_shown(tmp_path: Path) -> None:
    tier = probe(tiers_of(program(tmp_path, "echo 'No permissions to create a new namespace' >&2; exit 1")))
    assert tier.name is TierName.NONE
    assert "No permissions to create a new namespace" in tier.warnings()[0]


def test_a_container_that_forbids_proc_still_gets_a_sandbox(tmp_path: Path) -> None:
    refuses = 'case "$*" in *\'--proc /proc\'*) echo "Can\'t mount proc on /newroot/proc" >&2; exit 1;; esac'
    tier = probe(tiers_of(program(tmp_path, refuses)))
    assert tier.name is TierName.BUBBLEWRAP_NOPROC
    assert tier.isolates
    assert "/proc" in tier.warnings()[0]


def test_a_second_bubblewrap_is_tried_where_the_first_is_too_old(tmp_path: Path) -> None:
    good = program(tmp_path, "exit 0")
    assert probe([*tiers_of(tmp_path / "gone"), *tiers_of(good)]).program == good


def test_a_bubblewrap_that_hides_nothing_is_not_used(tmp_path: Path) -> None:
    naked = program(tmp_path, 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    tier = probe(tiers_of(naked))
    assert tier.name is TierName.NONE
    assert "hides nothing" in tier.reason


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


def test_an_interpreter_behind_symbolic_links_can_be_reached_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "python").touch()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "real")
    assert way_to(tmp_path / "first" / "python").links == (
        (tmp_path / "first", "second"),
        (tmp_path / "second", str(tmp_path / "real")),
    )
    assert way_to(tmp_path / "first" / "python").real == tmp_path / "real" / "python"
    view = View(cwd=tmp_path / "first", home=tmp_path / "home")
    words = " ".join(in_bubblewrap(Path("/usr/bin/bwrap"), view, ["true"], proc=True))
    assert f"--ro-bind {tmp_path}/real {tmp_path}/real" in words
    assert f"--symlink second {tmp_path}/first" in words


def test_links_that_go_in_a_circle_do_not_hang_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert way_to(tmp_path / "a").links


def test_hidden_places_that_are_not_visible_anyway_are_not_made_visible(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").touch()
    (tmp_path / "work" / "inner").touch()
    view = View(
        cwd=tmp_path / "work", home=Path("/nonexistent"), hidden=(tmp_path / "secret", tmp_path / "work" / "inner")
    )
    words = " ".join(in_bubblewrap(Path("/usr/bin/bwrap"), view, ["true"], proc=True))
    assert str(tmp_path / "secret") not in words
    assert f"--ro-bind /dev/null {tmp_path}/work/inner" in words


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


@given(
    st.dictionaries(
        st.sampled_from(SECRETS),
        st.just("secret"),
    )
)
def test_setup_commands_get_no_keys(secrets: dict[str, str]) -> None:
    env = setup_environment(
        {"PATH": "/bin", "HOME": "/h", "https_proxy": "p", "PIP_INDEX_URL": "i", **secrets},
        first=[Path("/v/bin")], profile="cpu", extra={},
    )  # fmt: skip
    assert "secret" not in env.values()
    assert (env["PATH"], env["HOME"], env["https_proxy"], env["PIP_INDEX_URL"]) == ("/v/bin:/bin", "/h", "p", "i")


@pytest.mark.parametrize("home", ["/", "/usr/home"])
def test_a_home_that_is_no_folder_of_its_own_does_not_hide_the_system(home: str) -> None:
    view = View(cwd=Path("/usr"), home=Path(home))
    words = in_bubblewrap(Path("/usr/bin/bwrap"), view, ["true"], proc=True)
    assert ("--tmpfs", home) not in set(pairwise(words))
