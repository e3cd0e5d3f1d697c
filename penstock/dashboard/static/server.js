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
  const found = await response.json();
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

// Calls `take` with each document that the server sends, until the signal ends it. Connects again when it is cut off.
export async function follow(job, signal, take, lost) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await fetch(`/api/events?job=${encodeURIComponent(job)}`, { headers: headers(), signal });
      if (!response.ok) await answer(response);
      pause = 500;
      await read(response.body.getReader(), take);
      lost("the server has ended this page; trying again");
    } catch (error) {
      if (signal.aborted) return;
      lost(error.status ? error.message : "no connection to the dashboard; trying again", error.status);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, 5000);
  }
}

async function read(reader, take) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    const last = events.filter((event) => event.startsWith("data: ")).pop();
    if (last !== undefined) take(JSON.parse(last.slice(6)));
  }
}
