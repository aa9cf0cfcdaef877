// Search runs in a worker. Browsers refuse workers to pages that are opened from a folder, so there a hidden frame takes its place.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.receive(data);
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each);
      };
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
        this.inside.document.head.append(script);
      });
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
