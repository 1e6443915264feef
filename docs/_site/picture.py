"""Draw the pictures of the README and the tour by the examples that they illustrate.

From the root of a clone: `python docs/_site/picture.py [README.md ...]`.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
ROOT = Path(__file__).parents[2]

PICTURES = {
    "README.md": {"ax": "rates"},
    "docs/train.md": {"population": "population"},
    "docs/tour.md": {"curves": "tour-curves", "line": "tour-rates"},
}
"""For each page, the variables that hold plots, and their files in `docs/assets`."""


def variables_of(text: str) -> dict[str, object]:
    """Run the code blocks of a page, and return their variables."""
    variables = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "#> Traceback" not in block:
            exec(block, variables)
    return variables


def main(*pages: str) -> None:
    """Draw the pictures of some pages, or of all."""
    for page, plots in PICTURES.items():
        if pages and page not in pages:
            continue
        variables = variables_of((ROOT / page).read_text())
        for name, file in plots.items():
            figure = variables[name].figure
            figure.set_size_inches((7.5, 2.6) if page == "README.md" else (6, 3))
            path = ROOT / "docs/assets" / f"{file}.png"
            figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
