"""The policy of the cheats' session, for ``command:``: proposes, for experiment n, the n-th cheat."""

import json
import os
import subprocess
import sys
from pathlib import Path

folder = Path(sys.argv[1])
state_file = Path(os.environ["AUTORESEARCHD_STATE"])
number = int(json.loads(state_file.read_text())["experiment"])
(folder / "seen" / f"{number}.json").write_text(state_file.read_text())
(folder / "seen" / f"{number}.md").write_text(sys.stdin.read())
cheat = json.loads((folder / "cheats" / f"{number}.json").read_text())
Path("train.py").write_text(cheat["text"])
if cheat["script"]:
    subprocess.run(["/bin/sh", "-c", cheat["script"]], check=False)
print(json.dumps({"description": cheat["name"], "hypothesis": "this may be worth trying"}))
