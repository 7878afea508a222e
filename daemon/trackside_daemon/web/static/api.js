// What the daemon is asked. The token comes in the address's fragment, which is sent to no server, and is kept for this
// tab alone. Where the daemon wants a password instead, the browser sends that in its own way, and no token.

const SILENT_MS = 5000; // The overview comes each second; so long without one, and nobody is there any more.
const READING = new Set([undefined, "GET", "HEAD"]);

let wanted = true;

export class Refusal extends Error {
  constructor({ reason, message }, status) {
    super(message);
    this.reason = reason;
    this.status = status;
  }
}

// There is no answer, or no end of one.
export class Unreachable extends Error {
  constructor() {
    super("The daemon does not answer.");
  }
}

// What a promise of the browser's network comes to.
export function reached(promise) {
  return promise.catch((problem) => {
    throw problem instanceof TypeError ? new Unreachable() : problem;
  });
}

// Takes the token out of the address, so that it is in no bookmark and no picture of the screen.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  sessionStorage.setItem("token", token);
  wanted = true;
  history.replaceState(history.state, "", location.pathname + location.search);
  return true;
}

// The answer of `/api/v1/PATH`, whose body is still to be read; raises Refusal for an error.
export async function fetchApi(path, options = {}) {
  const token = wanted ? sessionStorage.getItem("token") : null;
  if (!token) return send(path, options);
  try {
    return await send(path, options, token);
  } catch (problem) {
    const reading = READING.has(options.method);
    const barred = problem.status === 401 ? problem.reason !== "token" : reading && problem instanceof Unreachable;
    if (!barred) throw problem;
    const answer = await send(path, options).catch((other) => {
      throw problem.status ? other : problem;
    });
    if (reading) wanted = problem instanceof Unreachable && (await isOpen());
    return answer;
  }
}

async function send(path, options, token) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  // Not relative: the page's own address may hold a password, and none such can be fetched.
  // With a token nothing of the browser's own is sent: it would forget a good password over the token's refusal, and ask
  // for it. Nor is then a certificate, without which there may be no answer at all.
  const credentials = token ? "omit" : "same-origin";
  const answer = await reached(fetch(`${location.origin}/api/v1/${path}`, { ...options, headers, credentials }));
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({ error: { reason: "error", message: answer.statusText } }));
  throw new Refusal(error, answer.status);
}

// Whether the daemon answers who has no certificate: then there was no answer by chance, and the token is good.
function isOpen() {
  return fetch(`${location.origin}/-/ready`, { credentials: "omit" }).then(() => true, () => false);
}

export async function ask(path, options) {
  const answer = await fetchApi(path, options);
  return reached(answer.json());
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
// or falls silent, `broken(problem)` is told, and it begins again. EventSource cannot send a token.
export async function hear(run, heard, broken, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 8000)) {
    const silent = new AbortController();
    let timer;
    const patience = () => {
      clearTimeout(timer);
      // Longer each time: a daemon with much to do may need it for the first.
      timer = setTimeout(() => silent.abort(), Math.max(SILENT_MS, 5 * wait));
    };
    patience();
    try {
      const answer = await fetchApi(`stream?${query({ run })}`, { signal: AbortSignal.any([signal, silent.signal]) });
      for await (const [event, data] of events(answer.body)) {
        if (signal.aborted) return;
        wait = 500;
        if (event === "overview") patience();
        told(heard, event, data);
      }
      throw new Error("The daemon has ended the stream.");
    } catch (problem) {
      if (signal.aborted) return;
      broken(silent.signal.aborted ? new Error("The daemon says nothing.") : problem);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// A page that fails is no broken stream.
function told(heard, event, data) {
  try {
    heard(event, data);
  } catch (problem) {
    console.error(problem);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reached(reader.read());
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).trim()]));
        if (fields.event) yield [fields.event, JSON.parse(fields.data)];
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // What has broken off already cannot be.
  }
}
