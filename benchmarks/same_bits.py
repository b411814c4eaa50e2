"""Whether two commits write the same models, byte for byte.

    python benchmarks/same_bits.py OLD [NEW]      NEW left out: the working tree

Every method that OLD has, on the serial and the process engine: digits, nine clients, partial participation, the
personal stage. The global and personal models and the accuracies are compared; the status is 1 if any differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("serial", "processes")
SETTING = [
    *("--dataset", "digits", "--clients", "9", "--alpha", "0.1", "--participation", "0.6"),
    *("--rounds", "3", "--epochs", "2", "--seed", "31"),
]
ACCURACIES = ("general", "general_last5", "personal", "personal_per_client")
PROGRAM = """
import json, sys
from fedetf.cli import main
out, methods, engines, setting = json.loads(sys.argv[1])
for method in methods:
    for engine in engines:
        assert main(["run", "--method", method, "--engine", engine, "--out", f"{out}/{method}-{engine}", *setting]) == 0
"""


def checkout(commit: str | None, stack: ExitStack) -> Path:
    """A folder with the files of a commit; the working tree itself for none."""
    if commit is None:
        return ROOT
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "tree")
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    stack.callback(subprocess.run, [*git, "remove", "--force", str(folder)], check=True)
    return folder


def python(tree: Path, *arguments: str) -> str:
    """Run Python on the package of a tree; returns what it printed."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def content(folder: Path) -> dict[str, bytes | str]:
    """What must be the same: every model's bytes, and the accuracies."""
    models = [folder / "model.safetensors", *folder.glob("personal/*.safetensors")]
    result = json.loads((folder / "result.json").read_text("utf-8"))
    bits: dict[str, bytes | str] = {str(path.relative_to(folder)): path.read_bytes() for path in models}
    return bits | {name: json.dumps(result[name]) for name in ACCURACIES}


def main() -> int:
    """Run both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW", nargs="?")
    options = parser.parse_args()
    different = 0
    with ExitStack() as stack:
        trees = [checkout(commit, stack) for commit in (options.old, options.new)]
        listed = json.loads(python(trees[0], "-m", "fedetf", "list", "methods", "--json"))
        methods = [method["name"] for method in listed]
        outs = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in trees]
        for tree, out in zip(trees, outs, strict=True):
            python(tree, "-c", PROGRAM, json.dumps([str(out), methods, ENGINES, SETTING]))
        for name in (f"{method}-{engine}" for method in methods for engine in ENGINES):
            old, new = (content(out / name) for out in outs)
            unequal = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            print(f"{name}: {'the same' if not unequal else 'DIFFERENT in ' + ', '.join(unequal)}")
            different += bool(unequal)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
