"""Chromium without a window, driven by its DevTools protocol over two pipes."""

import base64
import collections
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --remote-debugging-pipe"
)


class Browser:
    """A page of a browser; `requests` are the addresses that it has asked for."""

    def __init__(self, folder):
        (out, self._commands), (self._events, back) = os.pipe(), os.pipe()
        # The protocol uses the descriptors 3 and 4, which Python cannot choose.
        shell = f'exec "$@" 3<&{out} 4>&{back}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", PROGRAM, *FLAGS.split()]
            + [f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(out, back),
            stderr=subprocess.DEVNULL,
        )
        os.close(out)
        os.close(back)
        self._count, self._session, self._rest = 0, None, b""
        self.requests, self._seen = [], collections.deque()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self):
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        os.close(self._events)

    def call(self, method, **params):
        """Return the result of a command; events before it are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._count:
                assert "error" not in reply, reply["error"]
                return reply["result"]

    def _next(self):
        while b"\0" not in self._rest:
            data = os.read(self._events, 2**20)
            assert data, "the browser has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            self.requests += [] if url.startswith("data:") else [url]
        if "method" in message:
            self._seen.append(message["method"])
        return message

    def open(self, url, width=1280, dark=False):
        """Load a page, at a width in pixels."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 500)
        self.requests.clear()
        self._seen.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._seen:
            self._next()

    def js(self, expression):
        """Return the value of an expression, which JSON supports."""
        options = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression, seconds=20):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.05)

    def mouse(self, kind, x, y):
        """Move, press or release the mouse."""
        button = {} if kind == "Moved" else {"button": "left", "clickCount": 1}
        buttons = 0 if kind == "Released" else 1 if button else self._held
        self._held = 1 if kind == "Pressed" else 0 if kind == "Released" else buttons
        self.call(
            "Input.dispatchMouseEvent",
            type=f"mouse{kind}",
            x=x,
            y=y,
            buttons=buttons,
            **button,
        )

    _held = 0

    def picture(self, path):
        """Save a picture of the whole page."""
        tall = self.js("document.documentElement.scrollHeight")
        width = self.js("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": tall, "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        data = self.call("Page.captureScreenshot", **options)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser():
    """Yield a browser with a new profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Browser(folder)
        try:
            yield made
        finally:
            made.close()
