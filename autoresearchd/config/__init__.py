"""What a task.yaml says, checked: from its text to the task that everything else works with."""

from autoresearchd.config.draft_task import detect
from autoresearchd.config.load_task import FILE_NAME, Overrides, dump_task, load_task, parse_task, read_task_text
from autoresearchd.config.task_paths import check_files

__all__ = ["FILE_NAME", "Overrides", "check_files", "detect", "dump_task", "load_task", "parse_task", "read_task_text"]
