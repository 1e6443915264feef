"""Every wrong call of the tables raises an error with the fix in its message."""

import re

import pytest
from hypothesis.strategies import SearchStrategy

from . import TABLES
from .messages import check_message, example

pytestmark = pytest.mark.usefixtures("unchecked")

CASES = [
    pytest.param(table, error, cure, call, id=f"{table}: {cure}")
    for table, errors in TABLES.items()
    for error, calls in errors.items()
    for cure, call in calls.items()
]


@pytest.mark.parametrize("table, error, cure, call", CASES)
def test_the_message_has_the_fix(table, error, cure, call):
    with pytest.raises(error) as caught:
        result = call()
        if isinstance(result, SearchStrategy):
            example(result)
    given = caught.value
    message = str(given.args[0] if isinstance(given, KeyError) else given)
    text = "\n".join([message, *getattr(given, "__notes__", [])])
    assert re.search(f"(?s){cure}", text), text
    if table != "notes":
        check_message(message)
