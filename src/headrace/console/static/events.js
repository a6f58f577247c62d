// Listens to the control plane's events, which say when to look again. Where they do not come
// through, as behind some proxies, the console looks now and then by itself.

const pollMs = 3000;
const retryMs = 1000;
const failuresMax = 2; // in a row, after which a look now and then has to do

/** Call `look(kind)` with "change" or "tick" while somebody is signed in and sees the page. */
export class Events {
  constructor(look) {
    this.look = look;
    this.abort = null;
    this.isOn = false;
    document.addEventListener("visibilitychange", () => this.#match());
  }

  /** Begin or end to listen. */
  listen(isOn) {
    this.isOn = isOn;
    this.#match();
  }

  #match() {
    const wanted = this.isOn && !document.hidden;
    if (wanted && !this.abort) {
      this.abort = new AbortController();
      this.#run(this.abort.signal);
    } else if (!wanted && this.abort) {
      this.abort.abort();
      this.abort = null;
    }
  }

  async #run(signal) {
    for (let failures = 0; !signal.aborted;) {
      try {
        await this.#read(signal);
        failures = 0;
      } catch {
        failures += 1;
      }
      if (signal.aborted) return;
      await new Promise((done) => { setTimeout(done, failures > failuresMax ? pollMs : retryMs); });
      if (!signal.aborted) this.look("tick");
    }
  }

  /** One stream, to its end. */
  async #read(signal) {
    const answer = await fetch("/admin/v1/events", {
      headers: { "x-headrace-console": "1" }, cache: "no-store", signal,
    });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    for await (const { kind } of readEvents(answer.body)) this.look(kind);
  }
}

/** The events of a stream of server-sent events: `{kind, data}`, the kind empty if it has none. */
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = { kind: "", data: "" };
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) event.kind = line.slice(7).trim();
          if (line.startsWith("data:")) event.data += line.slice(5).trim();
        }
        if (event.kind || event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => null);
  }
}
