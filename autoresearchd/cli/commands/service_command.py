"""The commands service install, uninstall and status: a session that comes back after a reboot."""

from __future__ import annotations

from autoresearchd.cli.command_options import JsonOption, SessionOption
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import clean, json_text


def install(session: SessionOption = None) -> None:
    """Have the system go on with a session after each boot and crash.

    A systemd user unit that runs `autoresearchd resume` in the foreground, with a watchdog. It is
    written and enabled; nothing is started or stopped now.
    """
    from autoresearchd.app import service

    print("\n".join(service.install(service.find(here(), session))))


def uninstall(session: SessionOption = None) -> None:
    """Stop and remove the service of a session; the session stays as it is."""
    from autoresearchd.app import service

    print("\n".join(service.uninstall(service.find(here(), session, removed=True))))


def status(as_json: JsonOption = False, session: SessionOption = None) -> None:
    """Show whether a session has a service, and what the system says of it."""
    from autoresearchd.app import service

    found = service.status(service.find(here(), session, removed=True))
    if as_json:
        print(json_text(found, indent=2))
        return
    if not found["file"]:
        print(f"session {found['session']} has no service: `autoresearchd service install` writes one")
        return
    words = (f"{name} {clean(found[name], 200)}" for name in ("active", "enabled", "says") if found.get(name))
    print(f"{found['file']}: {', '.join(words) or 'no service manager answers'}")
