// What the daemon is asked. The token comes in the address's fragment, which is sent to no server, and is kept for this
// tab alone. Where the daemon wants a password instead, the browser sends that in its own way, and no token.

let wanted = true;

export class Refusal extends Error {
  constructor({ reason, message }, status) {
    super(message);
    this.reason = reason;
    this.status = status;
  }
}

// Takes the token out of the address, so that it is in no bookmark and no picture of the screen.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  sessionStorage.setItem("token", token);
  history.replaceState(history.state, "", location.pathname + location.search);
  return true;
}

// The answer of `/api/v1/PATH`, whose body is still to be read; raises Refusal for an error.
export async function fetchApi(path, options = {}) {
  const token = wanted ? sessionStorage.getItem("token") : null;
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  // Not relative: the page's own address may hold a password, and none such can be fetched.
  // With a token nothing of the browser's own is sent: it would forget a good password over the token's refusal, and ask
  // for it. Nor is then a certificate, without which there may be no answer at all.
  const credentials = token ? "omit" : "same-origin";
  const asked = fetch(`${location.origin}/api/v1/${path}`, { ...options, headers, credentials });
  const answer = await (token ? asked.catch((problem) => withoutToken(problem, path, options)) : asked);
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({ error: { reason: "error", message: answer.statusText } }));
  if (token && answer.status === 401 && error.reason !== "token") {
    wanted = false;
    return fetchApi(path, options);
  }
  throw new Refusal(error, answer.status);
}

// The answer to the browser's own credentials where a token had none; else *problem* is raised.
async function withoutToken(problem, path, options) {
  if (!(problem instanceof TypeError)) throw problem;
  const answer = await fetch(`${location.origin}/api/v1/${path}`, options).catch(() => undefined);
  if (!answer?.ok) throw problem;
  wanted = false;
  return answer;
}

export async function ask(path, options) {
  return (await fetchApi(path, options)).json();
}

export function post(path, said) {
  return ask(path, { method: "POST", body: JSON.stringify(said), headers: { "Content-Type": "application/json" } });
}

export function remove(path) {
  return ask(path, { method: "DELETE" });
}

// A query from pairs, of which a value that is a list stands several times; without those that are undefined or empty.
export function query(pairs) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(pairs)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") found.append(name, one);
    }
  }
  return found.toString();
}

// Hears `/api/v1/stream` until `signal` is aborted, and tells each event as `heard(event, data)`. Whenever it breaks off,
// `broken(problem)` is told, and it begins again. EventSource cannot send a token.
export async function hear(run, heard, broken, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 8000)) {
    try {
      const answer = await fetchApi(`stream?${query({ run })}`, { signal });
      for await (const [event, data] of events(answer.body)) {
        wait = 500;
        heard(event, data);
      }
      broken(new Error("the daemon has ended the stream"));
    } catch (problem) {
      if (signal.aborted) return;
      broken(problem);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).trim()]));
      if (fields.event) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
