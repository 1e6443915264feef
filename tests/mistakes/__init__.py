"""Wrong calls in tables: error, the part of its message with the fix, call.

A table belongs to the feature whose message it is; test ids begin with its name.
Every call fails when something is built or traced, so none compiles. Errors that need
files, other processes or failing points are tested with that feature.
"""

from importlib import import_module

FILES = (
    "axes branch compose data edit notes reduce search sharding spaces sweep testing "
    "views vmap wrap"
).split()


def is_table(value):
    return isinstance(value, dict) and all(isinstance(key, type) for key in value)


TABLES = {
    name.lower(): value
    for file in FILES
    for name, value in vars(import_module(f"{__name__}.{file}")).items()
    if name.isupper() and is_table(value)
}
