// Requests to the server. The token comes behind the `#` of the address, and stays in this tab.

const KEY = "penstock-token";
const given = new URLSearchParams(location.hash.slice(1));
if (given.has("token")) {
  sessionStorage.setItem(KEY, given.get("token"));
  given.delete("token");
  history.replaceState(null, "", location.pathname + (given.size ? `#${given}` : ""));
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const setToken = (token) => sessionStorage.setItem(KEY, token);

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

async function answer(response) {
  if (response.status === 401) sessionStorage.removeItem(KEY);
  const found = await response.json().catch(() => ({ error: `the dashboard answered with status ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(found.error), { status: response.status });
  return found;
}

export async function get(path) {
  return answer(await fetch(path, { headers: headers() }));
}

export async function post(path, body) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return answer(await fetch(path, options));
}

const SILENCE_MS = 20000;

// Calls `take` with each document that the server sends, until the signal ends it. Connects again when it is cut off,
// and when the server is silent, which otherwise says every few seconds when it has looked last.
export async function follow(job, signal, take, lost) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const own = new AbortController();
      const options = { headers: headers(), signal: AbortSignal.any([signal, own.signal]) };
      const response = await fetch(`/api/events?job=${encodeURIComponent(job)}`, options);
      if (!response.ok) await answer(response);
      pause = 500;
      await read(response.body.getReader(), take, () => own.abort());
      lost("the server has ended this page; trying again");
    } catch (error) {
      if (signal.aborted) return;
      lost(error.status ? error.message : "no connection to the dashboard; trying again", error.status);
      if (error.status === 401) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, 5000);
  }
}

async function read(reader, take, silent) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const timer = setTimeout(silent, SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    const found = events.filter((event) => event.startsWith("data: ")).map((event) => JSON.parse(event.slice(6)));
    const pages = found.filter((each) => Object.keys(each).length > 1);
    if (pages.length) take(pages.pop());
    else if (found.length) take(found.pop());
  }
}
