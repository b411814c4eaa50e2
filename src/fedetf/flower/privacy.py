"""Differential privacy on real sites: where the noise comes from, and the ledger of what all noised means cost."""

import json
import secrets
from pathlib import Path

from pydantic import BaseModel

from fedetf.core.server import Noise
from fedetf.core.server.privacy import epsilon
from fedetf.errors import UserError
from fedetf.files import is_file, read_bytes, read_json, write_whole
from fedetf.runs.records import Count, fitting
from fedetf.settings import UpdateSettings

KEY = 32  # bytes


class Spent(BaseModel):
    """What privacy.json says that is read again."""

    releases: Count


class PrivacyLedger:
    """Numbers the noised means and writes privacy.json: what all of them cost so far, each before anybody sees it.

    A server that died between the two and makes a round anew has drawn twice: both count, and the noise is another. The
    key of the noise comes from the system's randomness and stays in the run folder, noise.key, for the owner's eyes.
    """

    def __init__(self, folder: Path, settings: UpdateSettings):
        self._folder, self._settings = folder, settings

    @property
    def noise(self) -> Noise:
        """From this run's own key."""
        path = self._folder / "noise.key"
        if not is_file(path):
            write_whole(path, secrets.token_bytes(KEY), private=True)
        key = read_bytes(path, KEY)
        if len(key) != KEY:
            raise UserError(f"{path} is damaged; without it the run cannot go on with differential privacy")
        return Noise(key)

    def release(self, round: int) -> int:
        """One more."""
        asked, releases = self._settings, 1 + self.releases(0)
        spent = epsilon(asked.noise, asked.delta, releases)
        content = {"epsilon": spent, "releases": releases, **asked.model_dump(include={"noise", "clip", "delta"})}
        write_whole(self._path, (json.dumps(content, indent=2) + "\n").encode())
        return releases

    def releases(self, rounds: int) -> int:
        """As many as were counted; a round may have been made twice."""
        return fitting(Spent, read_json(self._path), str(self._path)).releases if is_file(self._path) else 0

    @property
    def _path(self) -> Path:
        return self._folder / "privacy.json"
