"""Docstrings are written with roles (``:func:`run```), which Markdown does not know: mkdocs leaves them out by this."""

import re
from typing import Any

ROLE = re.compile(r":(?:func|class|meth|mod|attr):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Leave the role out; the name after it is in code type anyway."""
    return ROLE.sub("", html)
