// A page that is opened from a folder may not start a worker, in which the search runs. A hidden frame takes its place.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const scope = this.frame.contentWindow;
    scope.postMessage = (data) => setTimeout(() => this.receive(new MessageEvent("message", { data })));
    this.loaded = new Promise((resolve, reject) => {
      const script = scope.document.createElement("script");
      script.src = url;
      script.onload = () => resolve(scope);
      script.onerror = reject;
      scope.document.body.append(script);
    });
  }

  receive(message) {
    this.dispatchEvent(message);
    this.onmessage?.(message);
  }

  postMessage(data) {
    this.loaded.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
