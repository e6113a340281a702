"""`sky status NAME`, which writes the ssh configuration of a machine."""

import os
from pathlib import Path


def cli(words: list[str], standalone_mode: bool = True) -> None:
    verb, name = words
    assert verb == "status"
    known = Path(os.environ["FAKE_SKY"]) / "ssh"
    text = known.read_text() if known.exists() else "  HostName 127.0.0.1\n  User nobody\n  Port 9\n"
    target = Path(f"~/.sky/generated/ssh/{name}").expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        f"# Added by sky\nHost {name}\n{text}  StrictHostKeyChecking no\n  UserKnownHostsFile=/dev/null\n"
    )
