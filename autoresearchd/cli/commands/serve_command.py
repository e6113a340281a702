"""The command serve: a model of one's own behind an endpoint that the policy ``local`` asks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import say


def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A folder, or a name at the hub (default: local.model of config.yaml)."),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", metavar="DIR", help="Serve this LoRA adapter too, under its folder's name (vLLM)."),
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="P", min=1, max=65535, help="On 127.0.0.1.")] = 8000,
    engine: Annotated[
        Literal["auto", "vllm", "transformers"],
        typer.Option("--engine", help="What serves: auto takes vLLM where it is installed, else transformers."),
    ] = "auto",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Interpreter of the server's environment (default: this one)."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Where it prints to (default: .autoresearchd/serve.log where a session is, else "
            "~/.local/state/autoresearchd/serve-P.log).",
        ),
    ] = None,
) -> None:
    """Serve a model for the policy local, and keep it up.

    It is watched, and started again when it ends or falls silent. Ctrl-C or TERM ends it. Its endpoint is
    http://127.0.0.1:P/v1: where P is not 8000, local.base_url in config.yaml has to say so.
    """
    from autoresearchd.app.models.serve_model import keep_up, prepare, usual_log
    from autoresearchd.loop.context import StopSwitch
    from autoresearchd.loop.daemon import signals

    command = prepare(model, here(), adapter=adapter, port=port, engine=engine, python=python)
    log = log or usual_log(here(), port)
    say(f"starting {Path(command.arguments[0]).name} on 127.0.0.1:{port}; log: {log}; Ctrl-C ends it")
    stop = StopSwitch()
    with signals(stop):
        keep_up(command, log, stop, say)
    raise typer.Exit(128 + stop.signal if stop.signal is not None else 0)
