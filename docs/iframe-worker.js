// The search runs in a Worker, which browsers refuse to pages that are opened from a disk. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.document.open()
      inside.document.write("<body></body>")
      inside.document.close()
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...urls) => {
        for (const each of urls) await load(inside, each)
      }
      this.inside = inside
      this.ready = load(inside, url)
    }

    postMessage(data) {
      this.ready = this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }

  const load = (inside, url) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script")
      script.src = new URL(url, location)
      script.onload = resolve
      script.onerror = reject
      inside.document.body.appendChild(script)
    })
}
