"""Commands over a session: start, resume, stop, pause, unpause, note, sessions list and sessions remove."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from autoresearchd.app.project import NoSession
from autoresearchd.cli.command_options import LARGEST, JsonOption, SandboxOption, SessionOption, read_duration
from autoresearchd.cli.repository_here import find_place, here, way_to
from autoresearchd.cli.terminal_text import clean, json_text, print_table, read_time, say
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Limits

MOST_SLOTS = 256

ForegroundOption = Annotated[
    bool, typer.Option("--foreground", help="Stay in this terminal and show what happens; else a daemon is left.")
]
ExperimentsOption = Annotated[
    int | None,
    typer.Option("--max-experiments", metavar="N", min=0, max=2**31 - 1, help="End after N beside the baseline."),
]
TimeOption = Annotated[str | None, typer.Option("--max-time", metavar="DUR", help="End after this time, e.g. 8h.")]
CostOption = Annotated[
    float | None, typer.Option("--max-cost", metavar="USD", help="End when proposals have cost this much.")
]


def start(
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME|DIR", help="A bundled task or a folder with a task.yaml (default: here)."),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to work (default: here).")] = Path(),
    tag: Annotated[
        str | None, typer.Option("--tag", help="Name of the session and its branch (default: the date).")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="SPEC",
            help="Who proposes edits: auto, search, random, outside (an agent, by `autoresearchd mcp`), litellm:MODEL, "
            "local[:MODEL], agent:MODEL, command:CMD, or hybrid:ONE, search with one of the last four to override it. "
            "CMD runs in a copy of the task's folder as committed: commit a script of your own, or give its absolute "
            "path.",
        ),
    ] = "auto",
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="SPEC",
            help="Where runs run: local; ssh: fleet.slots of task.yaml; cloud: fleet.cloud; "
            "ray[:ADDRESS][?gpu=TYPE&gpus=N&cpus=N&dir=DIR], see docs/scale.md.",
        ),
    ] = "local",
    sandbox: SandboxOption = None,
    slots: Annotated[
        str,
        typer.Option("--slots", metavar="N|auto", help="How many runs at once (default: one for each GPU, else one)."),
    ] = "auto",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="DUR", help="Training time of a run, e.g. 90s or 5m (default: the task's)."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", metavar="G", min=1, max=64, help="Proposals from one state; all are run (default: 1)."),
    ] = None,
    parents: Annotated[
        Literal["incumbent", "puct"] | None,
        typer.Option("--parents", metavar="incumbent|puct", help="Edit the tip, or any by PUCT (experimental)."),
    ] = None,
    roles: Annotated[
        bool | None, typer.Option("--roles/--no-roles", help="Specialists take turns (experimental).")
    ] = None,
    turns: Annotated[
        Literal["round_robin", "bandit"] | None,
        typer.Option("--turns", metavar="round_robin|bandit", help="How the specialists take turns."),
    ] = None,
    confirm_every: Annotated[
        float | None,
        typer.Option(
            "--confirm-every",
            metavar="SIGMA",
            min=0.0,
            max=1e6,
            help="Confirm keeps once they are believed to have gained so many σ (default: the task's; 0: each one).",
        ),
    ] = None,
    max_experiments: ExperimentsOption = None,
    max_time: TimeOption = None,
    max_cost: CostOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, max=LARGEST, help="Make the session's random choices again (default: chance)."
        ),
    ] = None,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not ask the policy's models a word before the baseline.")
    ] = False,
    foreground: ForegroundOption = False,
) -> None:
    """Begin a session and research until stopped.

    First the baseline is measured, with its noise. In an empty folder --task NAME sets a bundled task up. The files
    that you have checked out are never touched: what is confirmed goes to the branch autoresearch/TAG. Without
    --foreground a daemon is left behind.
    """
    limits = _limits(max_experiments, max_time, max_cost)
    seconds = read_duration("--budget", budget)
    if slots != "auto" and not (slots.isascii() and slots.isdigit() and 1 <= int(slots) <= MOST_SLOTS):
        raise UsageError(f"--slots {slots}: not a number of slots", hint=f"auto, or 1 to {MOST_SLOTS}")
    from autoresearchd.app.start import StartOptions, start
    from autoresearchd.cli.foreground import foreground_sink
    from autoresearchd.config import Overrides

    overrides, asks = Overrides(seconds, group, parents, turns, confirm_every), not no_preflight
    options = StartOptions(
        task, directory, tag, policy, executor, sandbox, overrides, limits, foreground, seed, roles, preflight=asks,
        slots=None if slots == "auto" else int(slots),
    )  # fmt: skip
    with foreground_sink(live=foreground) as sink:
        code = start(options, [sink])
    if foreground and code == 0 and (way := way_to(directory)):
        sys.stderr.write(f"  → {way}   there `autoresearchd status`, `experiments`, `show N` and `plot` tell more\n")
    raise typer.Exit(code)


def resume(
    tag: Annotated[
        str | None,
        typer.Argument(metavar="[TAG]", help="The session (default: one that runs, else the newest)."),
    ] = None,
    session: SessionOption = None,
    max_experiments: ExperimentsOption = None,
    max_time: TimeOption = None,
    max_cost: CostOption = None,
    sandbox: SandboxOption = None,
    foreground: ForegroundOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="With --foreground: show nothing, as a daemon does.")] = False,
) -> None:
    """Go on with a session where it was.

    After a stop, a crash or a reboot: nothing that was measured is lost, nothing is counted twice. Limits are totals of
    the whole session, and a new one takes the place of the old one.
    """
    if None not in (tag, session) and tag != session:
        raise UsageError(f"resume {tag} --session {session}: two sessions are named", hint="name one of them")
    limits = _limits(max_experiments, max_time, max_cost)
    from autoresearchd.app.start import resume
    from autoresearchd.cli.foreground import foreground_sink

    with foreground_sink(live=foreground and not quiet) as sink:
        code = resume(here(), tag or session, foreground, [] if quiet else [sink], sandbox=sandbox, limits=limits)
    raise typer.Exit(code)


def stop(
    now: Annotated[
        bool, typer.Option("--now", help="At once: the running experiment is ended and recorded as interrupted.")
    ] = False,
    session: SessionOption = None,
) -> None:
    """End a session after its running experiment.

    What was kept and is not confirmed is tested first; --now leaves that to `autoresearchd resume`, which goes on with
    the session later.
    """
    from autoresearchd.app import session_requests

    say(session_requests.stop(here(), session, now))


def pause(session: SessionOption = None) -> None:
    """Hold a session; its daemon stays."""
    from autoresearchd.app import session_requests

    say(session_requests.request(here(), session, "pause"))


def unpause(session: SessionOption = None) -> None:
    """Let a paused session go on."""
    from autoresearchd.app import session_requests

    say(session_requests.request(here(), session, "unpause"))


def confirm(
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", help="The experiment (default: the tip).", show_default=False)
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="K", min=1, max=100, help="Runs of each program (default: until it is clear)."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="DUR", help="Training time of these runs: does the gain last for longer?"),
    ] = None,
    session: SessionOption = None,
) -> None:
    """Confirm the tip now: on fresh seeds, beside the confirmed program.

    What proves better is where the branch goes: also a keep N below the tip, whose later keeps stay open. An experiment
    that was not kept, or is confirmed already (beside the baseline), and runs of another --budget, are compared only.
    While a daemon runs it confirms its tip after the running experiment.
    """
    seconds = read_duration("--budget", budget)
    from autoresearchd.app.start import confirm
    from autoresearchd.cli.foreground import foreground_sink
    from autoresearchd.loop.confirming import Asked

    with foreground_sink(live=True) as sink:
        done = confirm(here(), session, Asked(number, runs, seconds), [sink])
    if isinstance(done, str):
        say(done)
        return
    raise typer.Exit(done)


def _limits(experiments: int | None, time: str | None, usd: float | None) -> Limits:
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise UsageError(f"--max-cost: {usd} is not an amount of money", hint="US dollars, e.g. --max-cost 2.50")
    return Limits(experiments, read_duration("--max-time", time), usd)


def note(text: Annotated[str, typer.Argument(help="What to say; in quotes.")], session: SessionOption = None) -> None:
    """Leave a message for the agent.

    It is in the next prompt of a policy that reads prompts (command:, models); the loop does not stop for it.
    """
    if not text.strip():
        raise UsageError("the note is empty", hint='autoresearchd note "try a larger batch"')
    from autoresearchd.app import session_requests

    say(session_requests.note(here(), session, text.strip()))


def list_sessions(as_json: JsonOption = False) -> None:
    """List the sessions of the repository here, oldest first."""
    sessions: list[dict[str, Any]] = []
    try:
        place = find_place(here())
        for row in place.reader.sessions():
            status = place.status(row.tag)
            session, metric = status["session"], status["metric"]
            facts = {"tag": row.tag, "task": row.task, "metric": metric["name"], "best": metric["best"]}
            facts |= {key: session[key] for key in ("state", "experiments", "keeps", "confirmed", "started_at")}
            sessions.append(facts)
        if not sessions:
            raise place.project.no_session()
    except NoSession as none:
        say(str(none))
    if as_json:
        print(json_text(sessions, indent=2))
        return
    rows = []
    for one in sessions:
        started = read_time(one["started_at"])
        best = "—" if one["best"] is None else f"{one['best']:.6g} {clean(one['metric'], 40)}"
        cells = [clean(one["tag"], 40), clean(one["task"], 40), str(one["state"]), str(one["experiments"])]
        began = "" if started is None else f"{started.astimezone():%Y-%m-%d %H:%M}"
        rows.append([*cells, str(one["keeps"]), str(one["confirmed"]), best, began])
    print_table(("session", "task", "state", "experiments", "kept", "confirmed", "best", "started"), rows)


def remove(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The session, as `sessions list` names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a session for good.

    Its experiments, the refs and the branch that hold their commits, and its runs' logs go; your own branches and files
    stay, and so does what you wrote into its autoresearch.md. A session whose daemon runs, or whose branch is checked
    out, is not removed.
    """
    from autoresearchd.app import session_requests

    words = session_requests.removal(here(), tag)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("it is not removed without a yes, and nobody can be asked", hint="add --yes")
        if not typer.confirm(f"Remove for good {words}?", default=False, err=True):
            say("nothing was removed")
            return
    session_requests.remove(here(), tag)
    say(f"removed {words}")
