"""``fedetf list``: all that can be chosen by name, fedetf's own and that of installed packages."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedetf.cli.flags import add_command, output

if TYPE_CHECKING:
    from fedetf.plugins import Listed

Row = dict[str, Any]


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
    if rows:
        from fedetf.report.tables import plain_table

        shown = [_shown(VIEWS[options.what](row) if options.what in VIEWS else row) for row in rows]
        if all(row.get("package") == "fedetf" for row in shown):
            shown = [{key: value for key, value in row.items() if key != "package"} for row in shown]
        cells = [[_cell(value) for value in row.values()] for row in shown]
        output().print(plain_table(list(shown[0]), cells, right=["parameters", "features"]))


def _shown(row: Row) -> Row:
    """A row as people read it: of a broken plug-in, what is wrong stands in place of the description."""
    if row.get("error"):
        row = {**row, "description": f"broken: {row['error']}"}
    return {key: value for key, value in row.items() if key != "error"}


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _row(listed: "Listed[Any]", description: str, **more: Any) -> Row:
    return {
        "name": listed.name,
        "description": description,
        **more,
        "package": listed.package,
        "error": listed.error,
    }


COSTS = ("extra_bytes_down", "extra_bytes_up", "extra_bytes_end", "client_state_bytes", "client_state")


def _methods() -> list[Row]:
    from fedetf import catalogue
    from fedetf.plugins import Listed, brought

    if brought("fedetf.methods"):  # else all are fedetf's own, and torch can stay where it is
        return _methods_with_plugins()
    return [
        _method_row(Listed(each.name, "fedetf", None), each.summary, each, each.costs) for each in catalogue.methods()
    ]


def _methods_with_plugins() -> list[Row]:
    from fedetf import catalogue
    from fedetf.methods import Method, registry
    from fedetf.plugins import first_line

    rows, known = [], {each.name: each.costs for each in catalogue.methods()}
    for each in registry.listing():
        kind = each.thing or Method  # the other is broken
        costs = known[each.name] if each.package == "fedetf" else _costs(each.thing)
        rows.append(_method_row(each, kind.summary or first_line(each.thing), kind, costs))
    return rows


def _costs(kind: Any) -> dict[str, Any]:
    """What a method costs; nothing of one that cannot be tried, because it needs settings or another net."""
    from dataclasses import asdict

    from fedetf.engines.costs import costs_of
    from fedetf.errors import UserError
    from fedetf.own_code import guarded

    try:
        return asdict(guarded(lambda: costs_of(kind()), "it cannot be tried"))
    except UserError:
        return {}


def _method_row(listed: "Listed[Any]", description: str, said: Any, costs: dict[str, Any]) -> Row:
    return _row(
        listed,
        description,
        citation=said.citation,
        family=said.family,
        extra_passes=said.extra_passes,
        suggested_rate=said.suggested_rate,
        **{name: costs.get(name) for name in COSTS},
    )


def _method_view(row: Row) -> Row:
    """A method as people read it; `--json` has its citation and all numbers."""
    sent = [row[name] for name in ("extra_bytes_down", "extra_bytes_up", "extra_bytes_end")]
    known = sent[0] is not None
    in_the_end = f", {sent[2]:,} in the end" if sent[2] else ""
    return {
        "name": row["name"],
        "description": row["description"],
        "family": row["family"],
        "extra passes": f"{row['extra_passes']:g}",
        "extra bytes": f"{sent[0]:+,} down, {sent[1]:+,} up{in_the_end}" if known else None,
        "client keeps": ", ".join(row["client_state"]) if known else None,
        "rate": f"× {row['suggested_rate']:g}",
        "package": row["package"],
        "error": row["error"],
    }


VIEWS: dict[str, Callable[[Row], Row]] = {"methods": _method_view}  # where a table has other columns than the JSON


def _models() -> list[Row]:
    from dataclasses import asdict

    from fedetf.nn.encoders import describe_models

    return [asdict(info) for info in describe_models()]


def _datasets() -> list[Row]:
    from fedetf.data.load import DATASETS, registry
    from fedetf.plugins import Listed, first_line

    others: dict[str, str] = {
        "FILE": "a CSV or Parquet file; --site-column names the column of its sites",
        "FOLDER": "a CSV file for each site; train and test files; or <class>/, train/<class>/ or <site>/<class>/ of "
        "images, sounds or texts",
        "OWNER/NAME": "a dataset of the Hugging Face hub (needs fedetf[hub])",
    }
    named = [
        _row(each, DATASETS[each.name].description if each.package == "fedetf" else first_line(each.thing))
        for each in registry.listing()
    ]
    return named + [_row(Listed(name, "fedetf", None), text) for name, text in others.items()]


def _partitions() -> list[Row]:
    from fedetf.data.deals import registry
    from fedetf.plugins import first_line

    return [_row(each, first_line(each.thing)) for each in registry.listing()]


def _metrics() -> list[Row]:
    from fedetf.metrics import registry
    from fedetf.plugins import first_line

    rows = []
    for each in registry.listing():
        given = each.thing.quantities() if each.thing else []
        title, better = (given[0].title, given[0].better) if len(given) == 1 else (f"{len(given)} values", None)
        rows.append(_row(each, first_line(each.thing), title=title if given else None, better=better))
    return rows


def _transforms() -> list[Row]:
    from fedetf.plugins import Listed, first_line
    from fedetf.transforms import Quantise, TopK, registry

    own = {"update.top_k": TopK, "update.bits": Quantise}
    rows = [_row(Listed(name, "fedetf", thing), first_line(thing)) for name, thing in own.items()]
    return rows + [_row(each, first_line(each.thing)) for each in registry.listing()]


def _presets() -> list[Row]:
    from fedetf.config import preset_description, preset_names

    return [{"name": name, "description": preset_description(name)} for name in preset_names()]


def _settings_rows() -> list[Row]:
    from fedetf.config import describe_settings
    from fedetf.methods import registry

    rows = [*describe_settings()]
    for name, method in ((each.name, each.thing) for each in registry.listing() if each.thing is not None):
        rows += [(key, default, f"{text} ({name})") for key, default, text in describe_settings(method, "method.")]
    return [{"setting": key, "default": default, "description": text} for key, default, text in rows]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "datasets": _datasets,
    "methods": _methods,
    "metrics": _metrics,
    "models": _models,
    "partitions": _partitions,
    "presets": _presets,
    "settings": _settings_rows,
    "transforms": _transforms,
}
