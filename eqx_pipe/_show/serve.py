"""The page over a store: as one file, in a notebook, or live from a small server."""

import contextlib
import hashlib
import html
import json
import re
import secrets
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Literal

from .._check import check_choice
from .._errors import nearest, value_error
from .source import Shown, Source
from .summary import pair, plain, view

_EMPTY = '<script type="application/json" id="data">null</script>'

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'"
)


class Page:
    """A page over one result, or over two that are compared.

    `html` is the whole page, which needs no network and no other file. Notebooks show
    it inline.
    """

    def __init__(self, *shown: Shown, by: str = "", mode: str = ""):
        pairs = zip(shown, ("result", "after"), strict=False)
        self._sources = [Source(each, name) for each, name in pairs]
        self._first = by, mode
        readings = [source.reading() for source in self._sources]
        if by and not all(reading.metric(by) for reading in readings):
            names = self.data()["metrics"]
            wrong = f"`by` is {by!r}, and the metrics are {', '.join(names)}."
            raise value_error("show", wrong, nearest(by, names))
        self.path: str = " and ".join(source.path for source in self._sources)
        self.every: int = 15_000 if "://" in self.path else 2_000

    @property
    def html(self) -> str:
        """The page as one file, with up to four of the metrics in both directions."""
        first = self.data()
        names = dict.fromkeys([first["metric"], *first["metrics"][:4]])
        modes = "min", "max"
        views = {name: {x: self.data(name, x) for x in modes} for name in names}
        return page_with({"views": views, "first": [first["metric"], first["mode"]]})

    def data(self, metric: str = "", mode: str = "", group: str = "") -> dict[str, Any]:
        """Return what the page shows of one metric, as JSON supports it."""
        if not metric:
            metric, mode = self._first[0], mode or self._first[1]
        if len(self._sources) > 1:
            return plain(pair(self._sources, metric, mode))
        return plain(view(self._sources[0], metric, mode, group))

    def tag(self, query: object) -> str:
        """Return what differs when the data of a query do; no values are read."""
        text = repr(([source.version() for source in self._sources], query))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 900px; border: 0"
        return f'<iframe style="{style}" srcdoc="{html.escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        return f"Page of {self.path}: notebooks show it, and `html` is its text"


def show(
    result: Shown,
    after: Shown | None = None,
    *,
    by: str | None = None,
    mode: Literal["min", "max"] | None = None,
) -> Page:
    """Return a page over a result or a store, which notebooks show.

    It shows progress, curves as bands, the best points or settings, failures, and a
    view of all axes. `eqx-pipe show` serves the same page live.

    **Arguments:**

    - `result`: a `SweepResult`, `TrainResult` or `search.SearchResult`, or what
      `store=` supports: a path, a URL, a store of obstore. It may still be filled.
    - `after`: a second one, to compare the same metric at the same settings.
    - `by`, `mode`: the metric that is shown first, and whether `"min"` or `"max"` is
      best; by default those of the search or scheduler, or else the first metric and
      `"min"`. (Keyword only.)

    **Returns:** an object that notebooks show; its `.html` is the page as one file,
    which needs no network.

    **Raises:** `FileNotFoundError` if there is no store at a path; `ValueError` if `by`
    is not a metric; and as `SweepResult.load`.

    Needs `pip install 'eqx_pipe[sweep]'`.

    !!! example

        >>> import eqx_pipe as ep
        >>> result = ep.sweep(lambda x: {"y": x**2}, ep.Linspace(0, 3, 4))
        >>> "</html>" in ep.show(result).html
        True
    """
    if mode is not None:
        check_choice("show", "mode", mode, ("min", "max"))
    shown = (result,) if after is None else (result, after)
    return Page(*shown, by=by or "", mode=mode or "")


def page_with(data: object) -> str:
    """Return the page with some data in it."""
    text = resources.files("eqx_pipe._show").joinpath("page.html").read_text("utf-8")
    # A text in the data must not end the script element.
    data = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace(_EMPTY, _EMPTY.replace("null", data.replace("<", "\\u003c")))


def server_of(page: Page, port: int) -> tuple[ThreadingHTTPServer, str]:
    """Return a server on this machine, and its address with a secret token."""
    token, lock = secrets.token_urlsafe(16), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            where = urllib.parse.urlsplit(self.path)
            _, secret, *rest = [*where.path.split("/"), ""]
            if not secrets.compare_digest(secret.encode(), token.encode()):
                return self.reply(403, "text/plain", "The address lacks its token.")
            asked = dict(urllib.parse.parse_qsl(where.query))
            query = {k: asked.get(k, "") for k in ("metric", "mode", "group")}
            old, tag = self.headers.get("If-None-Match"), ""
            with lock:
                try:
                    tag = page.tag(query)
                    if rest[0] and old == tag:
                        return self.reply(304, "application/json", "", tag)
                    data = page.data(**query)
                except (OSError, ValueError, RuntimeError) as error:
                    # Without a tag, so that the page asks again until it is mended.
                    tag, text = "", re.sub(r"^`eqx_pipe\.[\w.]+`: ", "", str(error))
                    data = {"error": text}
            if rest[0]:
                return self.reply(200, "application/json", json.dumps(data), tag)
            data = {"live": tag, "every": page.every, "view": data}
            return self.reply(200, "text/html", page_with(data))

        def reply(self, code: int, kind: str, text: str, tag: str = "") -> None:
            body = text.encode()
            self.send_response(code)
            headers = {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Content-Security-Policy": _POLICY,
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "ETag": tag,
            }
            for name, value in headers.items():
                self.send_header(name, value)
            with contextlib.suppress(ConnectionError):  # the browser has gone on
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server, f"http://localhost:{server.server_port}/{token}/"
