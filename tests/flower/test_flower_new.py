"""A new app folder, its keys, and the folders of images that sites have."""

import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import images
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from PIL import Image

from fedetf.cli import main
from fedetf.data import load_share
from fedetf.errors import UserError
from fedetf.flower.keys import main as make_keys_main
from fedetf.flower.keys import make_keys
from fedetf.settings import DataSettings


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_new_makes_an_app_that_flower_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "my-app"
    assert main(["flower", "new", str(app), "--sites", "berlin,paris"]) == 0
    assert f"what to do next: {app}/README.md" in capsys.readouterr().out
    config, _ = load_and_validate(app / "pyproject.toml")
    assert config["tool"]["flwr"]["app"]["config"]["sites"] == "berlin, paris"
    assert build_fab_from_disk(app)
    assert not any("@" in path.read_text().replace("@app", "") for path in app.iterdir())
    assert main(["flower", "new", str(app)]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_app"], "cannot be the name of an app"),
        (["app", "--sites", "a,a"], "--sites takes different names"),
        (["app", "--sites", "a b,c"], "--sites takes different names"),
        (["app", "--sites", ","], "--sites: no value given"),
    ],
)
def test_names_that_cannot_be(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["flower", "new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def handshake(keys: Path, host: str) -> None:
    """TLS in memory: the client knows the CA only."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.crt", keys / "server.key")
    client = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert ends[0].version() == "TLSv1.3"


def test_keys_make_a_connection_to_the_named_host_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_keys_main([str(tmp_path / "keys"), "--host", "server.example.org", "berlin"])
    keys = tmp_path / "keys"
    for host in ("server.example.org", "127.0.0.1", "localhost"):
        handshake(keys, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(keys, "other.example.org")
    make_keys(tmp_path / "others", ["berlin"])
    (tmp_path / "others" / "ca.crt").replace(keys / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "localhost")
    private = load_ssh_private_key((keys / "berlin").read_bytes(), None)
    assert private.public_key() == load_ssh_public_key((keys / "berlin.pub").read_bytes())
    for name in ("ca.key", "server.key", "berlin"):
        assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600
    with pytest.raises(SystemExit):
        make_keys_main([str(keys), "berlin"])
    assert "exists already" in capsys.readouterr().err
    for names in (["../escaped"], ["server"], ["berlin", "berlin"]):
        with pytest.raises(UserError, match="sites are different names of letters"):
            make_keys(tmp_path / "new", names)
    assert not (tmp_path / "new").exists()


def test_a_folder_of_images_or_of_parquet_files(tmp_path: Path, write_parquet: Callable[..., Path]) -> None:
    pictures = images(4)
    for name, picture in zip(("dog/b", "cat/a", "dog/a", "cat/c"), pictures, strict=True):
        path = tmp_path / "folder" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    share, _ = load_share(tmp_path / "folder", ["ant", "cat", "dog"], (1, 8, 8), DataSettings())
    assert share.y.tolist() == [1, 1, 2, 2]
    assert torch.equal(share.x[:, 0], torch.from_numpy(np.stack([pictures[k] for k in (1, 3, 2, 0)])))

    write_parquet("tables/one.parquet", pictures[:2], ["dog", "cat"])
    write_parquet("tables/two.parquet", pictures[2:], ["dog", "dog"])
    table, _ = load_share(tmp_path / "tables", ["ant", "cat", "dog"], (3, 8, 8), DataSettings())
    assert table.y.tolist() == [2, 1, 2, 2]
    assert torch.equal(table.x[:, 2], torch.from_numpy(np.stack(pictures)))  # grey, in three channels
    write_parquet("numbers/one.parquet", pictures, [7, 0, 0, 7])
    assert load_share(tmp_path / "numbers", ["7", "0"], (1, 8, 8), DataSettings())[0].y.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("classes", "shape", "message"),
    [
        (["ant", "bee"], (1, 8, 8), "has the label 'cat', which is none of: ant, bee"),
        (["cat", "dog"], (1, 9, 9), "are 1x8x8, the federation takes 1x9x9; see data.size"),
    ],
)
def test_images_that_do_not_fit(
    classes: list[str], shape: tuple[int, ...], message: str, tmp_path: Path, write_parquet: Callable[..., Path]
) -> None:
    write_parquet("tables/one.parquet", images(2), ["cat", "dog"])
    with pytest.raises(UserError, match=message):
        load_share(tmp_path / "tables", classes, shape, DataSettings())


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no images"):
        load_share(tmp_path, ["a", "b"], (1, 8, 8), DataSettings())
    with pytest.raises(UserError, match="is not a folder"):
        load_share(tmp_path / "none", ["a", "b"], (1, 8, 8), DataSettings())
