"""Follows a guide of docs/ to the letter in a copy of the repository, and runs the project's gates on the result.

A guide names the file of each block of code: ```python title="path"``` is a new file, ```diff title="path"``` changes
one. A changed file has lines that begin with a blank, - or +, and the first two kinds occur there exactly once.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
COPIED = ("*.py", "*.toml", "*.md", "inference/bundled")
BLOCK = re.compile(r'^```(python|diff) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def followed_guide(guide: Path, tree: Path) -> list[str]:
    """Copies the repository's files into `tree` and makes the guide's changes there; returns the files' paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *COPIED]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    for path in filter(None, listed.stdout.splitlines()):
        if (REPOSITORY / path).is_file():  # a file that was deleted and not committed yet is listed as well
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / path, tree / path)
    changed = []
    for kind, path, code in BLOCK.findall(guide.read_text(encoding="utf-8")):
        if kind == "python":
            assert not (tree / path).exists(), f"{path} exists already"
            (tree / path).write_text(code, encoding="utf-8")
        else:
            (tree / path).write_text(_changed((tree / path).read_text(encoding="utf-8"), code), encoding="utf-8")
        changed.append(path)
    return changed


def _changed(text: str, diff: str) -> str:
    """The text after a diff, whose blocks of lines are separated by lines of dots."""
    for block in re.split(r"^\.\.\.\n", diff, flags=re.MULTILINE):
        lines = block.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(before) == 1, f"found {text.count(before)} times:\n{before}"
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


def pass_the_gates(tree: Path, changed: list[str], *pytest: str) -> None:
    """Runs ruff and mypy on the changed files, import-linter, and these tests; fails with what they print."""
    if (REPOSITORY / ".mypy_cache").exists():  # so that mypy does not read torch and the whole repository again
        shutil.copytree(REPOSITORY / ".mypy_cache", tree / ".mypy_cache")
    run_gate(tree, "ruff", "check", *changed)
    run_gate(tree, "ruff", "format", "--check", *changed)
    run_gate(tree, sys.executable, "-m", "mypy", *changed)
    run_gate(tree, "lint-imports", "--no-cache")
    run_gate(tree, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *pytest)


def run_gate(tree: Path, program: str, *arguments: str) -> None:
    """Runs a program of this environment in the tree; fails with its output."""
    found = program if os.sep in program else str(Path(sys.executable).parent / program)
    # one thread: two that wait for each other on a busy machine take a hundred times as long
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    ended = subprocess.run([found, *arguments], cwd=tree, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{program} {' '.join(arguments)}\n{ended.stdout}{ended.stderr}"
