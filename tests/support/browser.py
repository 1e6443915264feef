"""Pages looked at by a headless Chromium, where there is one."""

import html
import json
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# A window is never as narrow as a telephone, but a frame in it is.
LOOK = """<script>
const errors = [];
window.onerror = (message) => { errors.push(message); };
function look(frame) {
  const root = frame.contentDocument.documentElement;
  return {wide: root.scrollWidth - root.clientWidth};
}
window.onload = () => {
  const found = Array.from(document.querySelectorAll("iframe"), look);
  document.title = "SEEN " + JSON.stringify({found, errors});
};
</script>"""


def seen(pages, folder, width):
    """Of each page how many pixels it is wider than that."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    frames = "".join(
        f'<iframe width="{width}" height="600" srcdoc="{html.escape(page)}"></iframe>'
        for page in pages
    )
    place = folder / "seen.html"
    place.write_text(f"<!doctype html>{LOOK}{frames}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"]
    run = subprocess.run(
        [browser, *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
        + [place.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    title = re.search(r"<title>SEEN (.*?)</title>", run.stdout, re.DOTALL)
    assert title is not None, run.stderr[-2000:]
    told = json.loads(html.unescape(title[1]))
    assert told["errors"] == []
    return told["found"]
