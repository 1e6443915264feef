"""The server of `eqx-pipe show`, as a process of its own: addresses, texts, errors."""

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from support import shown

import eqx_pipe as ep

PROGRAM = "import eqx_pipe._cli as c; raise SystemExit(c.main())"
COMMAND = [sys.executable, "-c", PROGRAM]


def run(*arguments):
    options = {"capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([*COMMAND, *map(str, arguments)], **options)


def get(url, tag=None):
    """Return the status, the tag and the text of an address."""
    headers = {} if tag is None else {"If-None-Match": tag}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@contextlib.contextmanager
def served(store):
    """Serve a store, and yield its address."""
    command = [*COMMAND, "show", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield line.rpartition(": ")[2].strip()
        finally:
            process.terminate()


def test_a_server(tmp_path):
    store = tmp_path / "a<b>.zarr"
    shown.table(store)
    with served(store) as url:
        check_replies(store, url)
        shutil.rmtree(store)
        error = json.loads(get(f"{url}data")[2])["error"]
        assert "is not there any more" in error and str(store) in error


def check_replies(store, url):
    root, token = url.rstrip("/").rsplit("/", 1)
    for wrong in (
        f"{root}/",
        f"{root}/data",
        f"{root}/{token[:-1]}x/data",
        f"{root}//",
    ):
        code, _, text = get(wrong)
        assert (code, text) == (403, "The address lacks its token.")
    code, headers, text = get(url)
    assert code == 200 and "connect-src 'self'" in headers["Content-Security-Policy"]
    # Names are data, which cannot end the script that has them.
    assert "<img" not in text.partition("<script")[2] and "\\u003cimg" in text
    code, headers, text = get(f"{url}data")
    data = json.loads(text)
    assert code == 200 and data["metrics"] == [shown.HOSTILE, "score"]
    assert data == ep.show(store).data() | {"now": data["now"]}
    tag = headers["ETag"]
    code, headers, text = get(f"{url}data", tag)
    assert (code, text, headers["ETag"]) == (304, "", tag)
    code, headers, text = get(f"{url}data?metric=score&mode=max", tag)
    assert (code, json.loads(text)["mode"]) == (200, "max")
    request = urllib.request.Request(url, data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(request, timeout=60)


def test_a_damaged_store(tmp_path):
    """The message of the library is on the page until the store is whole again."""
    store = tmp_path / "store"
    shown.table(store)
    (chunk,) = (store / "score").glob("c*.*")
    before = chunk.read_bytes()
    chunk.write_bytes(b"no values")
    with served(store) as url:
        _, headers, text = get(f"{url}data")
        error = json.loads(text)["error"]
        assert str(chunk) in error and "Delete it" in error
        assert "eqx_pipe." not in error and str(chunk) in get(url)[2]
        chunk.write_bytes(before)
        text = get(f"{url}data", headers["ETag"])[2]
        assert json.loads(text)["metric"] == shown.HOSTILE


def test_the_command(tmp_path, stores):
    page = tmp_path / "page.html"
    done = run("show", stores["train"], stores["train"], "--out", page, "--by", "loss")
    assert done.returncode == 0, done.stderr
    text = page.read_text("utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace(
        "http-equiv", ""
    )
    data = text.partition('id="data">')[2].partition("</script>")[0]
    first, mode = json.loads(data)["first"]
    assert (first, mode) == ("loss", "min")
    done = run("show", tmp_path / "none")
    assert done.returncode == 2 and "is not there" in done.stderr
    done = run("show", stores["train"], "--port", 99999)
    assert done.returncode == 2 and "port must be 0-65535" in done.stderr
    done = run("show", stores["train"], "--by", "lost")
    assert done.returncode == 2 and "Did you mean `loss`" in done.stderr


def test_a_notebook(stores):
    page = ep.show(stores["curves"])
    text = page._repr_html_()
    assert text.startswith("<iframe") and "srcdoc" in text and "<script" not in text
    assert repr(page).startswith("Page of ")
