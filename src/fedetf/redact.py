"""What others may see: addresses without user, password and tokens, and files without the folders of this machine."""

import re
from pathlib import Path

HIDDEN = "***"

# user:password@ after a scheme, up to the last @ of the word, for a password may hold one; or where no scheme is.
# Lengths are bounded, so that no text, whoever wrote it, takes more than linear time.
_LOGIN = re.compile(r"""(://(?!/))[^\s'"]{0,999}@|(?<![\w/.-])[^\s'"/@:]{1,99}:[^\s'"/]{0,99}@(?=[\w\[])""")
_SECRETS = "token|key|secret|user|passw|pwd|sig|auth|credential"
_TOKEN = re.compile(rf"""([?&;][\w.-]{{0,40}}(?:{_SECRETS})[\w.-]{{0,40}}=)[^&;\s'"]+""", re.IGNORECASE)
_FOLDERS = re.compile(r"""(?<![^\s'"=,(])/(?:[^\s'"/,]+/)+""")


def redacted(text: str) -> str:
    """A text without the logins and tokens of the addresses in it.

    >>> redacted("no Ray cluster at 'ray://me:pass@head:10001', see https://example.org/?token=abc&page=2")
    "no Ray cluster at 'ray://***@head:10001', see https://example.org/?token=***&page=2"
    """
    return _TOKEN.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text))


def public_address(address: str) -> str:
    """The same of a text that is one address: its password may hold any sign.

    >>> public_address("http://me:o'h@ no/@mlflow:5000"), public_address("sqlite:////data/me@lab/mlflow.db")
    ('http://***@mlflow:5000', 'sqlite:////data/me@lab/mlflow.db')
    """
    scheme, mark, rest = address.partition("://")
    place = rest.rpartition("@")[2]
    return redacted(f"{scheme}{mark}{HIDDEN}@{place}" if "@" in rest and not rest.startswith("/") else address)


def bare(path: str) -> str:
    """The last part of an absolute path; a name or a relative path as it is.

    >>> bare("/data/me/images"), bare("/data/me/m.py:Mine"), bare("owner/images"), bare("digits")
    ('images', 'm.py:Mine', 'owner/images', 'digits')
    """
    return Path(path).name if Path(path).is_absolute() else path


def without_folders(text: str) -> str:
    """A text whose absolute paths are bare.

    >>> without_folders("no file '/data/me/images/a.png'; see https://example.org/a/b")
    "no file 'a.png'; see https://example.org/a/b"
    """
    return _FOLDERS.sub("", text)
