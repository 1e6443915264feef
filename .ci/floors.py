"""Prints the oldest version that pyproject.toml allows of each core dependency.

The lines are constraints for pip: `>=` in `dependencies` becomes `==`.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
for requirement in project["dependencies"]:
    name, floor = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups()
    print(f"{name}=={floor}")
