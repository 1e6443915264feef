"""The page in a browser: what it draws of each kind, and what a reader does."""

import collections
import contextlib
import subprocess
import sys
import time

import pytest
from support import browser as browsers
from support import shown

import eqx_pipe as ep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browsers.PROGRAM is None, reason="install Chromium"),
]
SHOWN = {
    "part": "grid best failures all",
    "curves": "curves best all",
    "line": "curves best all",
    "table": "best slices all",
    "kinds": "grid best all",
    "reduced": "",
    "search": "history best slices all",
    "train": "curves best all",
    "pbt": "curves best population all",
    "halving": "curves best states failures all",
    "grid_of_trainings": "curves best grid all",
    "part+after": "grid grid matched best failures",
    "curves+curves": "curves matched best",
    "line+line": "curves matched best",
    "search+search": "curves matched best",
    "train+pbt": "curves matched",
}
FOUND = """(() => {
  const all = name => [...document.querySelectorAll(name)];
  const marks = all("path, circle, line, rect, text, image, stop");
  const texts = all("svg text").map(node => node.textContent);
  return {
    error: document.body.dataset.error ?? null,
    cards: all("[data-card]").map(node => node.dataset.card).join(" "),
    bad: marks.filter(node => /NaN|undefined/.test(node.outerHTML)).length,
    texts: texts.filter(t => !t || /NaN|undefined|object/.test(t)).length,
    unlabelled: all("svg").filter(node => !node.getAttribute("aria-label")).length,
    sideways: document.documentElement.scrollWidth - innerWidth,
    pictures: document.images.length,
  };
})()"""
RIGHT = {"error": None, "bad": 0, "texts": 0, "unlabelled": 0, "sideways": 0}


@pytest.fixture(scope="module")
def browser():
    with browsers.browser() as made:
        yield made


@pytest.fixture(scope="module")
def pages(stores, tmp_path_factory):
    """Return the addresses of pages as files."""
    folder = tmp_path_factory.mktemp("pages")
    shown.sweep(folder / "after", shown.later)
    found = {}
    for name in SHOWN:
        paths = [stores.get(part, folder / part) for part in name.split("+")]
        page = folder / f"{name}.html"
        page.write_text(ep.show(*paths).html, "utf-8")
        found[name] = page.as_uri()
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_every_kind_at_two_widths_in_two_schemes(name, browser, pages):
    for width in (1280, 390):
        for dark in (False, True):
            browser.open(pages[name], width, dark)
            found = browser.js(FOUND)
            assert found == RIGHT | {"cards": SHOWN[name], "pictures": 0}
            assert browser.requests == [pages[name]]
            colors = "getComputedStyle(document.body).backgroundColor"
            assert (browser.js(colors) == "rgb(18, 22, 27)") == dark
    assert browser.js("document.title").endswith("· eqx-pipe")


def center(browser, selector, x=0.5, y=0.5):
    """Return a position in an element, which is scrolled into sight."""
    box = browser.js(
        f"""(() => {{ const node = document.querySelector({selector!r});
        node.scrollIntoView({{block: "center"}});
        const b = node.getBoundingClientRect();
        return [b.x, b.y, b.width, b.height]; }})()"""
    )
    return box[0] + x * box[2], box[1] + y * box[3]


def count(browser, selector):
    return browser.js(f"document.querySelectorAll({selector!r}).length")


def test_filters_hovering_and_scales(browser, pages):
    browser.open(pages["part"])
    every = count(browser, ".par")
    x, y = center(browser, "[data-axis=rate]", y=0.01)
    bottom = center(browser, "[data-axis=rate]", y=0.5)[1]
    browser.mouse("Pressed", x, y)
    browser.mouse("Moved", x, bottom)
    browser.mouse("Released", x, bottom)
    rates = "view.sample.columns.rate.filter(x => x >= cuts.rate[1]).length"
    left = every - count(browser, ".par.off")
    assert 0 < left < every and left == browser.js(rates)
    browser.mouse("Pressed", x, bottom)
    browser.mouse("Released", x, bottom)
    assert count(browser, ".par.off") == 0
    # A row marks its point in all cards, and a line its row.
    browser.mouse("Moved", *center(browser, "tbody tr"))
    hot = "[...document.querySelectorAll('.hot')].map(n => n.tagName).sort().join()"
    assert browser.js(hot) == "TR,circle,circle,path"
    browser.mouse("Moved", *center(browser, "[data-card=grid] [data-own]", 0.1, 0.9))
    tip = browser.js("document.getElementById('tip').textContent").split("\n")
    assert tip[0].startswith("rate ") and tip[2].startswith("accuracy ")
    pressed = "document.querySelector('[data-card=grid] button').ariaPressed"
    before = browser.js(pressed)
    browser.mouse("Pressed", *center(browser, "[data-card=grid] button"))
    browser.mouse("Released", *center(browser, "[data-card=grid] button"))
    assert browser.js(pressed) != before
    assert browser.js(FOUND)["error"] is None


def test_the_best_cell_of_any_axes(browser, tmp_path):
    """Axes may be uneven or descend, and have the names of JavaScript's objects."""
    space = {
        "constructor": ep.Values([100.0, 2.0, 1.0]),
        "toString": ep.Values([1.0, 2.0, 50.0, 51.0]),
    }
    found = ep.sweep(
        lambda p: abs(p["constructor"] - 2) + abs(p["toString"] - 2), space
    )
    (tmp_path / "page.html").write_text(ep.show(found).html, "utf-8")
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.js(FOUND)["error"] is None
    tip = "document.getElementById('tip').textContent"
    browser.mouse("Moved", *center(browser, "[data-card=grid] [data-own]", 0.5, 0.625))
    assert browser.js(tip) == "constructor 2\ntoString 2\nvalue 0"
    cell = center(browser, "[data-card=grid] [data-own]", 0.5, 0.625)
    mark = center(browser, "[data-card=grid] circle")
    assert abs(mark[0] - cell[0]) < 2 and abs(mark[1] - cell[1]) < 2
    ticks = "[data-card=grid] [text-anchor=middle]"
    ticks = f"[...document.querySelectorAll({ticks!r})].map(node => node.textContent)"
    assert browser.js(ticks)[:3] == ["100", "2", "1"]


def choose(browser, name, value):
    browser.js(
        f"""(() => {{ const node = document.querySelector("select[name={name}]");
        node.value = {value!r}; node.dispatchEvent(new Event("change")); }})()"""
    )


def test_a_saved_page_has_metrics_in_both_directions(browser, pages):
    browser.open(pages["part"])
    for metric, mode in (("loss", "min"), ("loss", "max"), ("accuracy", "max")):
        choose(browser, "metric", metric)
        choose(browser, "mode", mode)
        note = browser.js(
            "document.querySelector('[data-card=best] small').textContent"
        )
        assert note == f"{mode} of {metric}"
    browser.open(pages["table"])
    choose(browser, "metric", shown.HOSTILE)
    assert browser.js(FOUND)["pictures"] == 0
    assert browser.js("document.querySelector('h2').textContent") == "Best"
    assert shown.HOSTILE in browser.js("document.body.innerText")


@contextlib.contextmanager
def served(store):
    program = "import eqx_pipe._cli as c; c.main()"
    command = [sys.executable, "-c", program, "show", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().rpartition(": ")[2].strip()
        finally:
            process.terminate()


def test_a_running_sweep_is_followed(browser, tmp_path):
    """Counts grow, a filter stays, nothing is asked of others, and the end is said."""
    store = tmp_path / "running"
    shown.sweep(store, shard=(0, 4), batch_size=1)
    with served(store) as (server, url):
        browser.open(url, 390)
        done = "view.counts.done + view.counts.failed"
        seen = [browser.js(done)]
        assert browser.js("document.querySelector('.left b').textContent")
        browser.js("cuts.decay = [0.5, 1]; show()")
        off = count(browser, ".par.off")
        for part in (1, 2, 3):
            shown.sweep(store, shard=(part, 4), batch_size=1)
            browser.js("load()")
            browser.wait(f"{done} > {seen[-1]}")
            seen.append(browser.js(done))
        assert seen[-1] == 96 and count(browser, ".par.off") > off > 0
        assert browser.js(FOUND)["sideways"] == 0
        choose(browser, "metric", "loss")
        browser.wait("view.metric === 'loss'")
        choose(browser, "mode", "max")
        browser.wait("view.mode === 'max'")
        assert all(request.startswith(url) for request in browser.requests)
        server.terminate()
        server.wait()
        browser.js("load()")
        browser.wait("document.body.innerText.includes('the server has ended')")
    assert browser.js(FOUND)["error"] is None


def test_a_running_training_is_followed(browser, tmp_path):
    store, steps = tmp_path / "training", collections.deque([20, 40, 60])
    shown.train(store, steps.popleft())
    with served(store) as (_, url):
        browser.open(url.removesuffix("/"))  # as some programs copy it
        assert browser.js("view.step") == 20
        while steps:
            goal = steps.popleft()
            time.sleep(0.01)
            shown.train(store, goal)
            browser.js("load()")
            browser.wait(f"view.step === {goal}")
        assert browser.js("view.curves.steps.at(-1)") == 60
        choose(browser, "group", "all")
        browser.wait("view.curves.bands.length === 1")
        browser.mouse("Moved", *center(browser, "[data-card=curves] [data-own]"))
        tip = browser.js("document.getElementById('tip').textContent")
        assert tip.startswith("step ") and "\nall: " in tip
    assert browser.js(FOUND)["error"] is None
