"""How a federation of real sites works: ``[tool.flwr.app.config]`` of the app's pyproject.toml, and the settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fedetf.config import resolve, validated
from fedetf.errors import UserError
from fedetf.settings import Count, DataSettings, NonNegative, Positive, Section, Settings, SystemSettings


def _words(value: Any) -> Any:
    """Flower's settings have no lists: names are separated by commas."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _sizes(value: Any) -> Any:
    return (value.lower().split("x") if value.strip() else None) if isinstance(value, str) else value


def underscored(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's settings, whose names have hyphens, by the names that they have here."""
    return {key.replace("-", "_"): value for key, value in config.items()}


Names = Annotated[list[str], BeforeValidator(_words)]


class Federate(Section):
    """Who takes part, what they agree on, and what the server does."""

    sites: Names = Field(min_length=1)  # as `flwr supernode register --name` calls them; the order gives the numbers
    classes: Names = Field(min_length=2)  # the order gives the labels
    # Of an image: channels x height x width; "" for other kinds of data, whose sites tell what they hold.
    shape: Annotated[tuple[Count, Count, Count] | None, BeforeValidator(_sizes)] = None
    out: str = Field(min_length=1)  # the run folder, seen from where the SuperLink was started
    test: str = ""  # the server's own test set: a folder, or the name of the dataset in the settings; "": none
    min_sites: Count = 1  # fewer sound updates in a round end the run
    max_samples: Annotated[int, Field(ge=0)] = 0  # who reports more is left out; 0: ten times the first round's median
    deadline: Positive = 3600.0  # seconds that a round waits for answers
    join: Positive = 120.0  # seconds that the run waits for sites to connect
    noise: NonNegative = 0.0  # update.noise of the settings; 0: what those say
    clip: Positive = 1.0  # with noise: update.clip
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # with noise: update.delta
    trust_code: bool = False  # the server runs code that the settings file names; each site decides for itself

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Federate":
        """From Flower's run config, whose names have hyphens."""
        checked = validated(cls, underscored(config))
        for name in ("sites", "classes"):
            given = getattr(checked, name)
            if len(set(given)) < len(given):
                raise UserError(f"{name} names one twice: {', '.join(given)}")
        if checked.min_sites > len(checked.sites):
            raise UserError(f"min-sites = {checked.min_sites}, but there are {len(checked.sites)} sites")
        return checked

    def settings(self, source: Path, trust_code: bool) -> Settings:
        """The settings file of the app, for as many clients as there are sites; ``trust_code`` is the reader's own."""
        private = {"update.noise": self.noise, "update.clip": self.clip, "update.delta": self.delta}
        given = {"data.clients": len(self.sites), **(private if self.noise else {})}
        settings = resolve(str(source), given, trust_code)
        if settings.engine.checkpoint != 1:
            raise UserError("engine.checkpoint must be 1: a site keeps what belongs to the last two rounds, no more")
        for key in ("shift", "label_noise", "imbalance"):
            if getattr(settings.data, key) != DataSettings.model_fields[key].default:
                raise UserError(f"data.{key} is for simulations; real sites have their own data: leave it out")
        if settings.system != SystemSettings():
            raise UserError("system.* is for simulations; real sites fail and lag by themselves: leave it out")
        return settings
