"""What the fuzz tests share: how many examples, odd values, and the contract that every command keeps.

``make test`` tries a few hundred examples of each, the same ones every time; ``make fuzz`` 10,000 new ones.
"""

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fedetf.cli import main

MANY = int(os.environ.get("FEDETF_FUZZ", "0"))
STATUSES = {0, 1, 2, 130}


def examples(ordinary: int) -> settings:
    """So many examples in an ordinary run of the tests."""
    return settings(
        max_examples=MANY or ordinary,
        derandomize=not MANY,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate] if MANY else list(Phase),  # of many, the first as it is will do
        suppress_health_check=list(HealthCheck),
    )


# Values of every type, and those that break things: extremes, other scripts, control characters, paths, code.
numbers = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.sampled_from([1e-320, 1e308, -0.0]),
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "a" * 300, "../../x", "/", "é∂", "\x1b[31m", "digits", "cnn", "fedavg", "mlp", "serial", "cpu", "nan"]
    ),
    st.sampled_from(["os:abort", "no/such.py:M", "http.server:test", ":", "a:b:c"]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=5
)


def call(*arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command, which must keep the contract."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("FEDETF_DEBUG", "1")  # what is not foreseen comes out as the error that it is
        warnings.simplefilter("always")  # pytest makes errors of them
        try:
            status = main(list(arguments))
        except SystemExit as end:  # of --help and --version
            status = int(end.code or 0)
    said = err.getvalue()
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert status in STATUSES
    assert len(errors) == (status in (1, 2)), said
    assert "Traceback" not in said
    assert not any(ord(c) < 32 and c not in "\n\t\r" for c in said), repr(said)
    return status, out.getvalue(), said


def fingerprint(folder: Path) -> dict[str, str]:
    """Every path below a folder, with the content of its files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing below a folder changes meanwhile."""
    before = fingerprint(folder)
    yield
    assert fingerprint(folder) == before


def mutated(draw: Any, tree: Any) -> Any:
    """A tree of dicts and lists with one value, anywhere in it, replaced, removed or added."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(tree)))
        if draw(st.integers(0, 6)) == 0:
            return {name: value for name, value in tree.items() if name != key}
        return {**tree, key: mutated(draw, tree[key])}
    if isinstance(tree, list) and tree and draw(st.integers(0, 5)):
        place = draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], mutated(draw, tree[place]), *tree[place + 1 :]]
    return draw(values)
