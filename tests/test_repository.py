"""Files that no other test reads: workflow, templates, pre-commit, and the container of a site's node."""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TARGETS = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_workflow_runs_what_make_knows() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == ["make test", "make dist"]
    assert {"test", "dist"} <= set(TARGETS)


def test_pre_commit_runs_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^lint:.*?\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    tools = {line.strip().removeprefix("$(BIN)/").split()[0] for line in lint.splitlines()}
    assert {Path(hook["entry"].split()[0]).name for hook in hooks} == tools


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_issue_forms(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    for part in content.get("body", []):
        assert part["type"] == "markdown" or part["id"]
        assert part["attributes"].get("label" if "id" in part else "value")


def test_the_dockerfile_copies_what_is_there() -> None:
    """No Docker is at hand: at least its files are there, and not ignored."""
    text = (ROOT / "deploy/Dockerfile").read_text()
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for words in (line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")):
        for name in (word for word in words if not word.startswith("--")):
            assert (ROOT / name).exists(), name
            assert any(fnmatch.fnmatch(name, pattern) for pattern in let_in), name
    settings = dict(re.findall(r"(FLWR_\w+)=(\d)", text))
    env = dict(re.findall(r"(FLWR_\w+)=(\d)", (ROOT / "src/fedetf/flower/template/flower.env.in").read_text()))
    assert settings == {name: value for name, value in env.items() if name in settings}
    assert len(settings) == 3


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_a_node_that_ends_is_started_again_and_stopped_by_sigterm(tmp_path: Path) -> None:
    node = tmp_path / "flower-supernode"
    node.write_text('#!/bin/sh\necho "$@" >> calls\nexec sleep 60\n')
    sleep = tmp_path / "sleep"  # the pause before the next attempt, and the node itself, end at once
    sleep.write_text("#!/bin/sh\nexit 1\n")
    for script in (node, sleep):
        script.chmod(0o755)
    given = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SUPERLINK": "server:8000"}
    command = ["sh", str(ROOT / "deploy/site.sh"), "--max-retries", "3"]
    site = subprocess.Popen(command, cwd=tmp_path, env=given, stderr=subprocess.DEVNULL)
    calls, deadline = tmp_path / "calls", time.monotonic() + 60
    while not calls.exists() or calls.read_text().count("\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    site.send_signal(signal.SIGTERM)
    assert site.wait(60) == 0
    wanted = "--superlink server:8000 --root-certificates /keys/ca.crt --auth-supernode-private-key /keys/site"
    assert calls.read_text().splitlines()[0] == f'{wanted} --node-config data="/data" keep="/keep" --max-retries 3'


def test_a_node_without_a_server_says_so() -> None:
    given = {name: value for name, value in os.environ.items() if name != "SUPERLINK"}
    done = subprocess.run(["sh", str(ROOT / "deploy/site.sh")], env=given, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "set SUPERLINK" in done.stderr
