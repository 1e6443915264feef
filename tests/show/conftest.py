"""Stores of each kind, which all tests of this folder read."""

import pytest
from support import shown


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    return shown.saved(tmp_path_factory.mktemp("shown"))
