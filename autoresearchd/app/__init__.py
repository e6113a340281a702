"""The composition root: what the commands call. The one place that knows which adapter stands behind which port."""

from autoresearchd.app.check import check_run
from autoresearchd.app.commands import note, pause, stop, unpause
from autoresearchd.app.importing import import_log
from autoresearchd.app.repair import repair
from autoresearchd.app.start import StartOptions, resume, start

__all__ = ["StartOptions", "check_run", "import_log", "note", "pause", "repair", "resume", "start", "stop", "unpause"]
