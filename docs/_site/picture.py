"""Draw the picture of the README by the README's own example.

From the root of a clone: `python docs/_site/picture.py`.
"""

import doctest
import re
from pathlib import Path

import matplotlib

matplotlib.use("agg")
ROOT = Path(__file__).parents[2]


def main():
    pattern = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = pattern.findall((ROOT / "README.md").read_text())
    variables = {}
    for example in doctest.DocTestParser().get_examples(blocks[0]):
        exec(compile(example.source, "README.md", "single"), variables)
    figure = variables["ax"].figure
    figure.set_size_inches(6, 3)
    figure.savefig(ROOT / "docs/assets/rates.png", dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
