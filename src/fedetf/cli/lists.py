"""``fedetf list``."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from fedetf.cli.flags import add_command, output


def add_to(commands: Any) -> None:
    """Its flags."""
    listing = add_command(commands, "list", list_command, "what there is to choose from", "fedetf list models --json")
    listing.add_argument("what", choices=sorted(LISTS))
    listing.add_argument("--json", action="store_true", help="as JSON")


def list_command(options: argparse.Namespace) -> None:
    """``fedetf list``."""
    rows = LISTS[options.what]()
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return

    from fedetf.report.tables import plain_table

    shown = [[f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows]
    output().print(plain_table(list(rows[0]), shown, right=["parameters", "features"]))


def _methods() -> list[dict[str, Any]]:
    from fedetf.methods import METHODS

    return [
        {"name": name, "description": method.summary, "citation": method.citation} for name, method in METHODS.items()
    ]


def _models() -> list[dict[str, Any]]:
    from dataclasses import asdict

    from fedetf.models import describe_models

    return [asdict(info) for info in describe_models()]


def _datasets() -> list[dict[str, Any]]:
    from fedetf.data import DATASETS

    named = [{"name": name, "description": known.description} for name, known in DATASETS.items()]
    others = [
        {
            "name": "FOLDER",
            "description": "Parquet files (train*.parquet, test*.parquet) or train/<class>/ images",
        },
        {"name": "OWNER/NAME", "description": "any image dataset of the Hugging Face hub"},
    ]
    return named + others


def _presets() -> list[dict[str, Any]]:
    from fedetf.config import preset_description, preset_names

    return [{"name": name, "description": preset_description(name)} for name in preset_names()]


def _settings_rows() -> list[dict[str, Any]]:
    from fedetf.config import describe_settings
    from fedetf.methods import METHODS

    rows = [*describe_settings()]
    for method in METHODS.values():
        rows += [
            (key, default, f"{text} ({method.name})") for key, default, text in describe_settings(method, "method.")
        ]
    return [{"setting": key, "default": default, "description": text} for key, default, text in rows]


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "datasets": _datasets,
    "methods": _methods,
    "models": _models,
    "presets": _presets,
    "settings": _settings_rows,
}
