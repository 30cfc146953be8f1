// Search in pages that are opened as files: browsers refuse workers there, so a hidden frame stands in.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const scope = frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          script.src = new URL(source, document.baseURI);
          script.onload = resolve;
          script.onerror = reject;
          scope.document.body.appendChild(script);
        });
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      scope.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.scope = scope;
      this.ready = load(url);
    }

    postMessage(data) {
      const { scope } = this;
      this.ready.then(() => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
