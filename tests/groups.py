"""Tests of one ``xdist_group`` go to one worker: pytest-xdist 3.8 writes it where pytest since 9.2 no longer looks.

https://github.com/pytest-dev/pytest-xdist/issues/1386
"""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write the group after the name of the test, where the scheduler reads it."""
    if not config.getoption("loadgroup", default=False):  # set in workers, with --dist loadgroup
        return
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None:
            item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")
