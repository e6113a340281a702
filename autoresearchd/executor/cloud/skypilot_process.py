"""Does one thing with SkyPilot: ``python skypilot_process.py VERB``, JSON in, JSON out. The one user of SkyPilot.

A process of its own, since SkyPilot prints, changes the environment, cannot be interrupted, and asks for versions of
packages that others of ours do not go with: it runs in whatever Python has it, and needs nothing of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

_CONFIG = "~/.sky/generated/ssh/{}"
"""Where SkyPilot keeps the ssh configuration of a machine."""
_TAKEN = ("HostName", "User", "Port", "IdentityFile", "ProxyCommand")
_FINAL = {
    "ApiServerAuthenticationError", "ClusterOwnerIdentityMismatchError", "ImportError", "InvalidCloudConfigs",
    "InvalidCloudCredentials", "InvalidClusterNameError", "InvalidSkyPilotConfigError", "ModuleNotFoundError",
    "NoCloudAccessError", "NotSupportedError", "PermissionDeniedError", "ResourcesMismatchError", "TypeError",
    "UserRequestRejectedByPolicy", "ValueError",
}  # fmt: skip
_HAVE_PYTHON = """\
( export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  for p in python3 python3.14 python3.13 python3.12 python3.11; do
    "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exit 0
  done
  "$HOME/.local/bin/uv" python install 3.12 &&
    $(command -v sudo) ln -sf "$("$HOME/.local/bin/uv" python find 3.12)" /usr/local/bin/python3.12
) || echo "there is no Python 3.11 or later" >&2
"""
"""What a machine needs for runs over ssh, where its image lacks it; SkyPilot itself brings uv, and needs rsync."""


def _task(want: dict[str, Any]) -> Any:
    import sky

    named = {
        "infra": want["infra"], "accelerators": want["accelerators"], "instance_type": want["instance_type"],
        "cpus": want["cpus"], "memory": want["memory"], "image_id": want["image"], "disk_size": want["disk_gb"],
        "max_hourly_cost": want["max_hourly_cost"], "use_spot": want["use_spot"],
    }  # fmt: skip
    task = sky.Task(name="autoresearchd", setup="\n".join([_HAVE_PYTHON, *want["setup"]]))
    task.set_resources(sky.Resources(**{key: value for key, value in named.items() if value is not None}))
    return task


def check(want: dict[str, Any]) -> str:
    """Plan a launch. The version of SkyPilot."""
    import sky

    sky.get(sky.launch(_task(want), cluster_name="autoresearchd-check", dryrun=True))
    return str(sky.__version__)


def launch(name: str, want: dict[str, Any]) -> Any:
    """The machine, once it is up."""
    import sky
    from sky.client.cli import command

    idle = want["idle_minutes"]
    request = sky.launch(_task(want), cluster_name=name, idle_minutes_to_autostop=idle, down=True)
    try:
        sky.stream_and_get(request)
    except BaseException:
        sky.get(sky.api_cancel([request]))  # it goes on without us
        raise
    command.cli(["status", name], standalone_mode=False)  # writes its ssh configuration, wherever the API server is
    return next(iter(look(name, None)), None)


def look(prefix: str, keep: int | None) -> list[dict[str, Any]]:
    """What is there, asked of the clouds."""
    import sky

    records = sky.get(sky.status([f"{prefix}*"], refresh=sky.StatusRefreshMode.FORCE))
    found = [_seen(record) for record in records if record["name"].startswith(prefix)]
    if keep is not None:  # autostop starts the time anew
        for request in [sky.autostop(machine["name"], keep, down=True) for machine in found if machine["up"]]:
            sky.get(request)
    return found


def _seen(record: Any) -> dict[str, Any]:
    name, state, handle = record["name"], record["status"].value, record["handle"]
    try:
        usd = float(handle.get_hourly_price())
    except Exception:  # noqa: BLE001 - it has no price in SkyPilot's catalogue
        usd = None
    words = (record.get("cloud"), record.get("region"), record.get("resources_str"))
    try:
        lines = Path(_CONFIG.format(name)).expanduser().read_text().splitlines()
    except OSError:
        lines = []
    options = dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)
    ssh = {key: options[key] for key in _TAKEN if key in options}
    if "IdentityFile" in ssh:
        ssh["IdentityFile"] = str(Path(ssh["IdentityFile"]).expanduser())
    return {
        "name": name, "id": str(record.get("cluster_hash") or ""), "up": state == "UP", "state": state, "usd": usd,
        "what": " ".join(str(word) for word in words if word), "since": float(record["launched_at"]), "ssh": ssh,
    }  # fmt: skip


def down(names: list[str]) -> None:
    """End them, each whatever becomes of the others."""
    import sky

    failed, requests = list[str](), {name: sky.down(name) for name in names}  # at once: each takes minutes
    for name, request in requests.items():
        try:
            sky.get(request)
        except sky.exceptions.ClusterDoesNotExist:
            continue
        except Exception as error:  # noqa: BLE001 - told together
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RuntimeError("; ".join(failed))


def _is_final(error: Exception) -> bool:
    """Whether the same will be said again however long one waits: nothing was even tried."""
    name = type(error).__name__
    return name in _FINAL or (name == "ResourcesUnavailableError" and not getattr(error, "failover_history", None))


def main() -> None:
    """Answer on what was standard output; what SkyPilot prints goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            verbs: dict[str, Any] = {"check": check, "launch": launch, "look": look, "down": down}
            said: dict[str, Any] = {"value": verbs[sys.argv[1]](**json.load(sys.stdin))}
        except Exception as error:  # noqa: BLE001 - whoever asked tells it
            said = {"final": _is_final(error), "error": f"{type(error).__name__}: {error}"}
        json.dump(said, answer)


if __name__ == "__main__":
    main()
