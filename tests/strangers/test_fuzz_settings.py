"""Any settings, any command line: a result, or one line that says what is wrong."""

import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tomllib
from fuzz import call, examples, mutated, scalars, texts, untouched, values
from hypothesis import given
from hypothesis import strategies as st

from fedetf.cli import build_parser
from fedetf.config import describe_settings, parse_assignment, resolve
from fedetf.errors import UserError
from fedetf.report.live import LivePage
from fedetf.settings import Settings

KEYS = [key for key, _, _ in describe_settings()]
DEFAULTS = Settings().model_dump()
# What bounds the work of a run; it wins over what was drawn.
SMALL = ["data.limit=30", "data.test_limit=20", "data.clients=2", "train.rounds=1", "train.epochs=1", "train.lr=0.01"]
SMALL += ["personal.enabled=false", "engine.name=serial", "engine.device=cpu", "engine.compile=false"]
SMALL += ["measure.tensorboard=false", "data.size=8", "model.name=mlp", "method.name=fedavg", "data.name=digits"]


def resolved(*arguments: Any) -> Settings | None:
    """The settings, or None if they were refused, in one line."""
    try:
        return resolve(*arguments)
    except UserError as error:
        said = str(error)
    assert said
    assert "\n" not in said
    return None


@examples(300)
@given(st.data())
def test_any_tree_is_settings_or_one_line(data: st.DataObject) -> None:
    tree = mutated(data.draw, DEFAULTS)
    if not isinstance(tree, dict):
        return
    settings = resolved(None, flat_overrides(tree))
    if settings is not None:
        again = resolve(None, flat_overrides(tomllib.loads(settings.to_toml())))
        assert again.to_toml() == settings.to_toml()


def flat_overrides(tree: dict) -> dict:
    """By dotted key, sections left whole where they are no sections."""
    found = {}
    for section, content in tree.items():
        if isinstance(content, dict) and isinstance(DEFAULTS.get(section), dict):
            found |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            found[section] = content
    return found


@examples(300)
@given(st.sampled_from([*KEYS, "method.mu", "nonsense", "", ".", "data.", "a.b.c"]), st.one_of(texts, values))
def test_any_assignment_is_a_setting_or_one_line(key: str, value: object) -> None:
    with contextlib.suppress(UserError):
        name, parsed = parse_assignment(f"{key}={value}")
        resolved(None, {name: parsed})


@examples(100)
@given(st.text(max_size=300), st.integers(0, 3))
def test_any_file_is_settings_or_one_line(text: str, kind: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.toml")
        path.write_bytes(
            [text.encode(errors="surrogateescape"), ("a=" + "[" * 5000).encode(), b"\xff" * 9, text.encode("utf-16")][
                kind
            ]
        )
        resolved(str(path))


def word(draw: st.DrawFn) -> str:
    return draw(st.one_of(texts, scalars.map(str))).replace("\x00", "").encode(errors="replace").decode()


KNOWN = {
    "run": ["--method", "--dataset", "--model", "--clients", "--alpha", "--participation", "--seed", "--out"],
    "partition": ["--dataset", "--clients", "--alpha", "--seed", "--out", "--site-column"],
    "diagnose": ["--dataset", "--clients", "--alpha", "--model", "--out", "--site-column"],
    "compare": ["--methods", "--seeds", "--alpha", "--out", "--equal-budget"],
    "report": ["--out"],
    "resume": ["--engine", "--workers"],
    "predict": ["--client", "--top", "--format"],
    "export": ["--client", "--to"],
    "reproduce": ["--scale", "--columns", "--methods", "--seeds", "--dataset"],
    "list": ["--json"],
    "bench": ["--repeats"],
    "flower new": ["--sites"],
    "flower check": ["--app"],
    "tune": ["--methods", "--trials", "--trial-rounds", "--space", "--then-compare", "--seeds", "--out"],
    "watch": ["--port"],
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with flags that it has or has not, each with a value of any kind."""
    command = draw(st.sampled_from([*KNOWN, "nonsense", "--help", "--version"]))
    flags = KNOWN.get(command, [])
    line = command.split()
    for _ in range(draw(st.integers(0, 3))):
        line += [draw(st.sampled_from(flags))] if flags and draw(st.booleans()) else []
        line += [word(draw)] if draw(st.booleans()) else []
    if command in ("run", "partition", "compare", "diagnose", "tune"):
        for _ in range(draw(st.integers(0, 2))):
            line += ["--set", f"{draw(st.sampled_from(KEYS))}={word(draw)}"]
        line += [each for setting in SMALL for each in ("--set", setting) if keeps(command, setting)]
    if command == "diagnose":
        line += ["--seeds", "7"]
    if command == "tune":
        line += ["--methods", "fedavg", "--trials", "1", "--set", "data.limit=120"]
    if command == "bench":
        line += ["--scale", "-1"]  # the measurements themselves are no matter of words
    if command == "reproduce":
        line += ["--set", "data.alpha=3"]  # which every experiment refuses: nothing is run
    return line


def interrupted(live: LivePage) -> NoReturn:
    """One look at the folders, and Ctrl-C."""
    live.look()
    raise KeyboardInterrupt


def keeps(command: str, setting: str) -> bool:
    return not (command in ("compare", "diagnose", "tune") and setting.startswith(("method.name", "personal.enabled")))


@examples(150)
@given(command_lines())
def test_any_command_line_keeps_the_contract(line: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        victim, work = Path(folder, "victim"), Path(folder, "work")
        victim.mkdir()
        (victim / "keep").write_text("mine")
        work.mkdir()
        patch.chdir(work)
        patch.delenv("FEDETF_DATA", raising=False)
        patch.setattr("fedetf.report.serve.keep_current", interrupted)
        with untouched(victim):
            status, _, _ = call(*line)
        if status == 2:  # bad input leaves nothing behind
            assert not list(work.iterdir()), line


def test_every_command_is_tried() -> None:
    text = build_parser().format_help()
    commands = set(re.findall(r"^    (\w+)  ", text, flags=re.MULTILINE))
    assert commands - {command.split()[0] for command in KNOWN} == {"demo"}  # which has no flag of its own to try


def test_the_parser_knows_every_command_that_is_tried() -> None:
    for command in KNOWN:
        with pytest.raises(SystemExit):
            build_parser().parse_args([*command.split(), "--help"])


@pytest.mark.parametrize("text", ["a=" + "[" * 5000, "seed=" + "9" * 5000])
def test_values_without_end(text: str) -> None:
    with pytest.raises(UserError):
        resolve(None, dict([parse_assignment(text)]))
