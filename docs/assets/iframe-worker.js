// Browsers start no worker for a page that is opened from a folder, and the search is
// one. There its script runs in an empty frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(message(data))
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, location)
      this.loaded = new Promise((done) => (script.onload = done))
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(message(data)))
    }
  }

  const message = (data) => new MessageEvent("message", { data })
}
