"""`result.report`: a page that opens anywhere."""

import html.parser

import equinox as eqx
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import pytest
from support.browser import seen

import eqx_pipe as ep

matplotlib.use("agg")

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Whether all that is opened is closed, and what is loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loaded, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [
            v for k, v in attrs if k == "src" or (tag, k) == ("link", "href")
        ]
        assert tag != "script"

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(result, path):
    result.report(path)
    assert plt.get_fignums() == []
    page = Page(path.read_text(encoding="utf-8"))
    assert all(source.startswith("data:") for source in page.loaded)
    return page.text


def fn(p):
    y = eqx.error_if(p["<a>"] * p["b"], p["<a>"] > 0.9, "too large")
    return {
        "y": y,
        "curve": y * jnp.arange(3.0),
        "flag": y > 1,
        "deep": jnp.ones((2, 2, 2)),
    }


@pytest.fixture(scope="module")
def result():
    space = {"<a>": ep.Linspace(0, 1, 3), "b": ep.Values([1.0, 4.0])}
    return ep.sweep(fn, space, on_error="isolate")


def test_what_is_on_the_page(result, tmp_path):
    text = page_of(result, tmp_path / "new" / "page.html")
    for part in ("fn", "SweepResult: 6 points", "<a>", "min of y", "max of flag"):
        assert part in text
    assert text.index("Failed points") < text.index("ep.sweep(fn, space, batch_size=")
    best = text[text.index("max of y") :]
    assert best.startswith("max of y230.54")  # the value, the point, and where it is
    assert text.count("EquinoxRuntimeError: too large") == 2
    assert "deep: " in text and "`deep` has 5 dims" in text


def test_many_numbers_are_pixels(tmp_path):
    many = ep.sweep(jnp.sin, ep.Linspace(0, 1, 20_000))
    many.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 300_000
    page_of(many, tmp_path / "again.html")


def test_a_reduction_has_no_points(tmp_path):
    reduced = ep.sweep(jnp.sin, ep.Linspace(0, 1, 5), reduce=ep.Mean())
    text = page_of(reduced, tmp_path / "page.html")
    assert "reduced over 5 points" in text and "Pictures" not in text


def test_nothing_is_overwritten_unasked(result, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="Choose another path, or give"):
        result.report(path)
    assert path.read_text() == "mine"
    result.report(path, overwrite=True)
    assert [*tmp_path.iterdir()] == [path] and "<svg" in path.read_text()
    with pytest.raises(ValueError, match="a path that ends in `.html`"):
        result.report(tmp_path / "page.pdf")


@pytest.mark.slow
def test_of_many_axes_some_have_one_value_and_a_small_screen_shows_all(
    result, tmp_path
):
    space = {name: ep.Linspace(0, 1, 2) for name in "abcde"}
    ep.sweep(lambda p: p["a"] + p["e"], space).report(tmp_path / "many.html")
    result.report(tmp_path / "page.html")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("many", "page")]
    assert "d = 0, e = 0" in pages[0] or "e = 0, d = 0" in pages[0]
    for width in (390, 1280):
        found = seen(pages, tmp_path, width)
        assert [page["wide"] for page in found] == [0, 0], width
