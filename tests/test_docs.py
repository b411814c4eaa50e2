"""Every code block of README and docs runs, page by page and in order, and what the method pages say is true.

A Python block is executed, all of a page in one namespace; one that begins with the name of a file, `# mine.py`, is
also written to that file. Of a shell block every line is a `fedetf` command and is
run. A block that cannot run here, or not quickly, has a comment before it: `<!-- not run: the reason -->`; the `fedetf`
commands in it are still parsed and their settings resolved. After `<!-- output -->` a text block is what the Python
block before it prints.
"""

import contextlib
import io
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedetf
from fedetf.api import prepare
from fedetf.cli import build_parser, main
from fedetf.cli.flags import chosen_settings, given_settings
from fedetf.cli.lists import _method_view, _methods
from fedetf.comparison.plan import plan
from fedetf.config import describe_settings, resolve
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, method_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\S*)[^\n]*\n(?P<code>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?P<mark>not run: \S.*|output) -->\s*\Z")
SHELL = ("sh", "bash", "console")


@dataclass
class Block:
    """A fenced block, where it stands, and what the comment before it says."""

    where: str
    kind: str
    code: str
    mark: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in FENCE.finditer(text):
        mark = MARK.search(text, 0, match.start())
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        yield Block(where, match["kind"], match["code"], mark["mark"] if mark else "")


def shell_lines(block: Block) -> list[str]:
    """The commands of a shell block, without the prompt of a console and variables that are set for one command."""
    lines = block.code.replace("\\\n", " ").splitlines() if block.kind in SHELL else []
    if block.kind == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    lines = [re.sub(r"^([A-Z_]+=\S+ )+", "", line) for line in lines]
    return [line for line in lines if line and not line.startswith("#")]


def fedetf_lines(block: Block) -> list[list[str]]:
    """The words of the commands that are fedetf's."""
    return [shlex.split(line, comments=True) for line in shell_lines(block) if line.startswith("fedetf ")]


def check_command(words: list[str]) -> None:
    """Parse a command that is not run, and put its settings together."""
    options = build_parser().parse_args(words)
    if words[0] == "compare":
        seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
        plan(options.methods, seeds, options.source, given_settings(options), options.equal_budget, options.out)
    elif words[0] == "run":
        settings = chosen_settings(options)
        method_of(settings)


def run_block(block: Block, names: dict[str, Any]) -> str:
    """Run a block; what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.kind == "python":
            if file := re.match(r"# (\w+\.py)\n", block.code):
                Path(file[1]).write_text(block.code)
            exec(compile(block.code, block.where, "exec"), names)
        commands = fedetf_lines(block)
        assert len(commands) == len(shell_lines(block)), f"{block.where} has other commands: mark it 'not run'"
        for words in commands:
            assert main(words[1:]) == 0, f"{block.where}: {shlex.join(words)} failed"
        if block.kind == "toml":
            Path("block.toml").write_text(block.code)
            resolve("block.toml")
    return printed.getvalue()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a partition may need a repair
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    printed = ""
    for block in blocks(page):
        if block.mark == "output":
            assert block.code == printed, f"{block.where} is not what the block before it prints"
        elif block.mark:
            for words in fedetf_lines(block):
                check_command(words[1:])
        else:
            printed = run_block(block, names)


def test_every_block_is_of_a_known_kind_or_says_why_it_does_not_run() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    unknown = [b.where for b in found if b.kind not in (*SHELL, "python", "toml", "text") and not b.mark]
    assert not unknown, "give these a language, or <!-- not run: the reason -->"
    fences = sum(page.read_text("utf-8").count("\n```") for page in PAGES)
    assert fences == 2 * len(found)  # none was overlooked
    not_run = [f"{b.where}: {b.mark}" for b in found if b.mark.startswith("not run")]
    sys.stdout.write(
        "\n".join([f"{len(found)} blocks, {len(not_run)} of them not run:", *not_run])
    )  # pytest -rP shows it
    code = [b for b in found if b.kind == "python" or b.kind in SHELL]
    assert len(not_run) < len(code) / 2, "most of the documentation has to run"


def test_the_architecture_page_and_its_picture_show_every_room() -> None:
    house = [path for path in (ROOT / "src/fedetf").iterdir() if not path.name.startswith(("_", "py."))]
    page, picture = (
        set(re.findall(r"\w+", (ROOT / "docs" / name).read_text("utf-8")))
        for name in ("architecture.md", "images/architecture.svg")
    )
    assert {path.stem for path in house} - page == set()
    rooms = {path.name for path in house if (path / "__init__.py").is_file()}
    assert len(rooms) > 15
    assert rooms - picture == set()


# --- the method pages -------------------------------------------------------------------------------------------------


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    part = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_a_method_page(name: str) -> None:
    text = (ROOT / f"docs/methods/{name}.md").read_text("utf-8")
    fields = describe_settings(METHODS[name], "method.")
    if not fields:
        assert "None of its own" in text
        return
    truth = [[f"`{key}`", f"`{default}`" if default else "–", what] for key, default, what in fields]
    assert table(text, "Settings") == truth


@pytest.mark.parametrize("name", METHODS)
def test_traffic_of_a_method_page(name: str) -> None:
    job = prepare(resolve(None, {"method.name": name, "data.clients": 2, "data.limit": 60, "train.epochs": 1}))
    federation = Federation(job, [])
    server, received = federation.server, federation._received()
    worker = Worker(job, torch.device("cpu"))
    sent = worker.train(0, 1, received, {})
    truth = {
        "down, each round": received,
        "up, each round": sent.upload.state,
        "up, once after the last round": worker.summarise(0, received, sent.private) if job.method.finishes else {},
        "stays with the client": sent.private,
        "stays with the server": server.own,
    }
    if job.method.pools:  # the data is where the model is
        truth |= {"down, each round": {}, "up, each round": {}}
    text = (ROOT / f"docs/methods/{name}.md").read_text("utf-8")
    written = {row[0]: re.findall(r"`([^`]+)`", row[1]) for row in table(text, "What it sends")}
    assert set(written) == set(truth)
    for what, state in truth.items():
        assert written[what] == grouped(state), what


@pytest.mark.parametrize("row", [_method_view(row) for row in _methods()], ids=list(METHODS))
def test_costs_of_a_method_page(row: dict[str, Any]) -> None:
    text = (ROOT / f"docs/methods/{row['name']}.md").read_text("utf-8")
    truth = [row["extra passes"], row["extra bytes"], row["client keeps"] or "–", row["rate"]]
    assert table(text, "What it costs") == [truth]


def grouped(names: Any) -> list[str]:
    """Tensor names, with those of the encoder as one, and those that are like the net's tensors (v_k, g_k)."""
    likeness = re.compile(r"^(encoder|\w+(?=\.(?:encoder|head)\.))\..*")
    return list(dict.fromkeys(likeness.sub(r"\1.*", name) for name in names))


def test_named_tests_exist() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {name for path in files for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text("utf-8")))}
    for page in PAGES:
        named = set(re.findall(r"\b(test_[a-z]\w+?)(?:\.py)?`", page.read_text("utf-8")))
        assert named <= there | {"test_limit", "test_fraction"}, page


def test_public_names_are_in_the_api_reference() -> None:
    text = (ROOT / "docs/api.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: fedetf\.(\w+)$", text, re.MULTILINE)) == sorted(fedetf.__all__)


def test_every_command_and_flag_is_in_the_reference() -> None:
    sys.path.insert(0, str(ROOT))
    import mkdocs_hooks

    text = mkdocs_hooks.on_page_markdown((ROOT / "docs/commands.md").read_text("utf-8"))
    parts = dict(re.findall(r"^## (fedetf .+?)\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    listed = re.findall(r"^    (\w+)(?: |$)", build_parser().format_help(), re.MULTILINE)
    assert {name.split()[1] for name in parts} == set(listed)
    for name, part in parts.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
            main([*name.split()[1:], "--help"])
        flags = set(re.findall(r"(?<=[ \[])--[a-z][\w-]+", printed.getvalue().split("example: ")[0])) - {
            "--help",
            "--set",
        }
        assert flags
        assert {flag for flag in flags if flag not in part} == set(), name


def test_the_changelog_has_the_usual_form_and_begins_with_this_version() -> None:
    """That of https://keepachangelog.com: versions with dates, newest first, and under each what kind of change."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert versions[0] == fedetf.__version__
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(versions)
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert part.split("\n")[2].startswith("### ")  # no line stands outside of them


def test_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == fedetf.__version__
    assert citation["preferred-citation"]["year"] == 2023
