"""The model process of the evaluation: runs the artifact where no file can be opened, answers with logits. Protected.

It takes the artifact, a program and its weights (`model.py` and `weights.bin` in the exchange folder), from the scorer
(`evaluate.py`), which has measured just these bytes. Before a line of that program runs, the modules that it imports
are imported, and a filter of system calls is laid over the process that cannot be taken off: memory, clocks and two
pipes to its parent are all that is left. So the model is what was measured and nothing else: no file beside it, no
training text, no name or time of a file. `serving.py` says how batches are answered.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from serving import Answer, answer_with, confine, on_cuda, run

LIBRARIES = frozenset({"torch", "numpy"})  # that an artifact may import beside the standard library
UNWANTED = frozenset({"sympy", "networkx"})  # their sources are training text
NEVER = frozenset({"antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle", "test", "pydoc_data"})


def import_for(code: bytes) -> None:
    """Import what a program imports, of the standard library and LIBRARIES: later no module can be loaded."""
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for name in sorted(wanted):
        root = name.split(".", 1)[0]
        if root in LIBRARIES or (root in sys.stdlib_module_names and root not in NEVER):
            try:
                importlib.import_module(name)
            except ImportError:  # not a module but a name in one, or not there: the program will see
                continue
    found = sorted(UNWANTED & {name.split(".", 1)[0] for name in sys.modules})
    if found:
        raise ImportError(f"what model.py imports brings {', '.join(found)}, whose sources are training text")


def warm_up(torch: Any, device: Any) -> None:
    """Let torch open what it opens at its first steps."""
    functional = torch.nn.functional
    x = torch.randn(2, 2, 8, 16, device=device)
    y = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    y = functional.rms_norm(torch.nn.Linear(16, 16, device=device)(y), (16,))
    functional.softmax(y @ y.mT, -1).cpu().numpy()


def load(code: bytes, weights: bytes, device: Any) -> Any:
    """The model that the artifact describes."""
    module = types.ModuleType("model")
    sys.modules["model"] = module  # dataclasses look their module up
    exec(compile(code, "model.py", "exec"), module.__dict__)
    return module.load_model(weights, device)


def prepare(folder: Path) -> tuple[Callable[[], Answer], bool]:
    """What a child does first, and whether it runs on a GPU."""
    code, weights = (folder / "model.py").read_bytes(), (folder / "weights.bin").read_bytes()
    import torch

    cuda = on_cuda(torch)
    try:
        import_for(code)
    except (ImportError, SyntaxError) as error:
        raise ValueError(str(error)) from error

    def make() -> Answer:
        device = torch.device("cuda" if cuda else "cpu")
        if cuda:  # cuDNN opens its libraries when an operation first wants them, which is too late here
            torch.backends.cudnn.enabled = False
            torch.backends.cuda.enable_cudnn_sdp(False)
        with torch.inference_mode():
            warm_up(torch, device)
        confine(files=False, cuda=cuda)
        return answer_with(torch, load(code, weights, device), device, torch.uint8)

    return make, cuda


if __name__ == "__main__":
    sys.exit(run(prepare, symbol=1))
