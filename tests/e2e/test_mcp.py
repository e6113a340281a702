"""A coding agent's view: a client of the official SDK starts, watches, proposes to and stops a session."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.e2e.conftest import TASK, Project

mcp = pytest.importorskip("mcp.client.client")
stdio = pytest.importorskip("mcp.client.stdio")


class Agent:
    """Calls tools; what they give, or the words of their error."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.progress: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> Any:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            self.progress += [message] if message else []

        result = await self._client.call_tool(tool, arguments, progress_callback=progress)
        text = "".join(part.text for part in result.content)
        if result.is_error:
            return f"refused: {text}"
        structured = result.structured_content
        return structured["result"] if structured and set(structured) == {"result"} else structured or json.loads(text)


def with_agent(project: Project, walk: Callable[[Agent], Awaitable[None]]) -> None:
    server = stdio.StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "autoresearchd", "mcp"], env=project.environment, cwd=project.root
    )

    async def main() -> None:
        async with mcp.Client(stdio.stdio_client(server)) as client:
            await walk(Agent(client))

    asyncio.run(main())


def test_an_agent_starts_watches_proposes_and_stops_a_session(project: Project) -> None:
    given = TASK.replace("execution: {", "execution: {env: {WEIGHTS_PASSWORD: correct-horse-battery-staple}, ")
    project.put({"task.yaml": given})

    async def walk(agent: Agent) -> None:
        assert "there is no session" in await agent.call("status")
        assert "process" in await agent.call("start", tag="t", policy="outside", max_experiments=3)
        program = await agent.call("program")
        assert "SCALE = 1.0" in program["files"]["train.py"]
        edit = {"file": "train.py", "search": "SCALE = 1.0", "replace": "SCALE = 1.9"}
        found = await agent.call("propose", edits=[edit], hypothesis="nearer", parent=program["commit"])
        assert (found["state"], found["status"], found["experiment"]) == ("decided", "keep", 1)
        assert found["metric"] < 0.4 and found["reason"]
        assert agent.progress[0] == "proposal 1 waits for its experiment"

        # Refused before it costs an experiment: the message says what to do.
        assert "is not in train.py" in await agent.call("propose", edits=[edit], hypothesis="again")
        assert "train.py" in await agent.call("propose", files={"../task.yaml": "x"}, hypothesis="x")
        assert "'(' was never closed" in await agent.call("propose", files={"train.py": "x = ("}, hypothesis="x")
        leak = {**edit, "search": "SCALE = 1.9", "replace": "SCALE = 1.8  # correct-horse-battery-staple"}
        assert "holds a secret" in await agent.call("propose", edits=[leak], hypothesis="x", wait_s=0)
        unknown = await agent.call("propose", edits=[edit], hypothesis="x", parent="0" * 40)
        assert "is no commit here" in unknown and "`program`" in unknown
        assert "noted" in await agent.call("note", text="the shift, too")
        seen = await agent.call("program")
        assert seen["notes"] == ["the shift, too"], "nobody else would read it"
        assert (await agent.call("program"))["notes"] == seen["notes"], "the first answer may have been lost"
        whole = seen["files"]["train.py"].replace("SHIFT = 0.5", "SHIFT = 1.0")
        queued = await agent.call("propose", files={"train.py": whole}, hypothesis="the other one", wait_s=0)
        assert (await agent.call("program"))["notes"] == []
        found = await agent.call("verdict", proposal=queued["proposal"], wait_s=200)
        assert (found["state"], found["experiment"]) == ("decided", 2)

        listed = await agent.call("experiments")
        assert [e["policy"] for e in listed[1:]] == ["outside", "outside"]
        shown = await agent.call("show", experiment=1, log=True)
        assert "+SCALE = 1.9" in shown["diff"] and "score:" in shown["log"]
        assert "stops" in await agent.call("stop", now=True)
        while (await agent.call("status"))["session"]["state"] != "stopped":
            await asyncio.sleep(0.1)
        broken = await agent.call("propose", files={"train.py": "x = ("}, hypothesis="x")
        assert "'(' was never closed" in broken, "what is wrong with it, not only that nobody is there"
        fits = {"train.py": whole + "STEPS = 2\n"}
        assert "no daemon works" in await agent.call("propose", files=fits, hypothesis="x")

    with_agent(project, walk)


def test_a_call_that_could_run_something_else_or_is_a_slip_is_refused(project: Project) -> None:
    async def walk(agent: Agent) -> None:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("start", {"policy": "command:touch pwned"}, "unsandboxed"),
            ("start", {"policy": "hybrid:command:touch pwned"}, "unsandboxed"),
            ("start", {"task": "/etc"}, "no part of the project"),
            ("start", {"task": "--sandbox=none"}, "neither a folder"),
            ("start", {"executor": "cloud"}, "executor"),
            ("start", {"budget": "5m; rm -rf /"}, "budget"),
            ("resume", {"session": "--sandbox=none"}, "session"),
            ("stop", {"noww": True}, "noww"),
            ("show", {"experiment": "../1"}, "experiment"),
            ("propose", {"hypothesis": "x"}, "session"),
            ("propose", {"hypothesis": "x", "edits": [{"file": "train.py", "search": "a"}]}, "replace"),
            ("propose", {"hypothesis": "x", "parent": "HEAD"}, "parent"),
            ("verdict", {"proposal": 7}, "session"),
        ]
        for tool, arguments, word in wrong:
            said = await agent.call(tool, **arguments)
            assert said.startswith("refused: ") and word in said, (tool, arguments, said)
            for library in ("pydantic", "validation error", "Error executing", "input_value"):
                assert library not in said, (tool, arguments, said)

    before = project.snapshot()
    with_agent(project, walk)
    assert project.snapshot() == before
