"""HTML in which everything is escaped unless it was made here, so that no name can become markup."""

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is markup already."""


def text(value: str) -> Html:
    """Markup as it is, anything else escaped.

    >>> text("<b>"), text(Html("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(html.escape(value))


def tag(name: str, *children: str, **attributes: str) -> Html:
    """An element. ``class_`` is its class, and ``data_key`` its attribute data-key.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    keys = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    shown = "".join(f' {keys[key]}="{html.escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{shown}>{''.join(map(text, children))}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """One after the other."""
    return Html("\n".join(map(text, parts)))


def table(head: Sequence[Html], rows: Iterable[Sequence[str]], **attributes: str) -> Html:
    """A table that scrolls in itself; ``head`` are its rows of headings, and each row begins with its name."""
    body = (tag("tr", tag("th", first, scope="row"), *map(_cell, rest)) for first, *rest in rows)
    inner = tag("table", tag("thead", *head), tag("tbody", *body), **attributes)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label="table")


def heading(names: Iterable[str]) -> Html:
    """A row of column headings."""
    return tag("tr", *(name if isinstance(name, Html) else tag("th", name, scope="col") for name in names))


def _cell(value: str) -> Html:
    return value if isinstance(value, Html) and value.startswith("<td") else tag("td", value)


def safe_json(value: Any) -> str:
    """JSON that can stand inside a script element: no ``</script>`` and no ``<!--`` can occur in it.

    >>> safe_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    dumped = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
