// Requests to the daemon's API. The token comes in the address's fragment, which browsers do not send, and is stored
// for this tab only. If the daemon requires a password instead, the browser sends that itself, without a token.

const SILENCE_MS = 5000; // The overview comes every second; after this long without one the connection counts as lost.
const READ_METHODS = new Set([undefined, "GET", "HEAD"]);

let tokenAccepted = true;

export class ApiError extends Error {
  constructor({ reason, message }, status) {
    super(message);
    this.reason = reason;
    this.status = status;
  }
}

// There is no response, or it broke off.
export class UnreachableError extends Error {
  constructor() {
    super("The daemon does not answer.");
  }
}

// Turns the browser's network errors into UnreachableError.
export function withNetworkErrors(promise) {
  return promise.catch((problem) => {
    throw problem instanceof TypeError ? new UnreachableError() : problem;
  });
}

// Moves the token from the address to the session storage, so that it appears in no bookmark or screenshot.
export function storeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  keepToken(token);
  history.replaceState(history.state, "", location.pathname + location.search);
  return true;
}

// Stores a token for this tab. A link with `#token=TOKEN` is accepted too.
export function keepToken(text) {
  sessionStorage.setItem("token", text.trim().split("token=").pop());
  tokenAccepted = true;
}

// Returns the response of `/api/v1/PATH`, whose body is unread; throws ApiError for an error status.
export async function fetchApi(path, options = {}) {
  const token = tokenAccepted ? sessionStorage.getItem("token") : null;
  if (!token) return send(path, options);
  try {
    return await send(path, options, token);
  } catch (problem) {
    const reading = READ_METHODS.has(options.method);
    const passwordNeeded = problem.status === 401
      ? problem.reason !== "token" : reading && problem instanceof UnreachableError;
    if (!passwordNeeded) throw problem;
    const answer = await send(path, options).catch((secondProblem) => {
      throw problem.status ? secondProblem : problem;
    });
    if (reading) tokenAccepted = problem instanceof UnreachableError && (await isReachable());
    return answer;
  }
}

async function send(path, options, token) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  // Absolute, because the page's own address may contain a password, and such an address cannot be fetched.
  // A request with a token sends no credentials: the browser would discard a valid password when the token is refused,
  // and prompt for it. It then sends no client certificate either, without which there may be no response.
  const credentials = token ? "omit" : "same-origin";
  const answer = await withNetworkErrors(fetch(`${location.origin}/api/v1/${path}`,
    { ...options, headers, credentials }));
  document.documentElement.dataset.role = answer.headers.get("x-trackside-role") ?? "";
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({ error: { reason: "error", message: answer.statusText } }));
  throw new ApiError(error, answer.status);
}

// Resolves to whether the daemon answers without a certificate; then the failure was temporary and the token is usable.
function isReachable() {
  return fetch(`${location.origin}/-/ready`, { credentials: "omit" }).then(() => true, () => false);
}

// Returns the path of a run's document; what belongs to a run is below it.
export function runPath(id) {
  return `runs/${encodeURIComponent(id)}`;
}

export function getJson(path, signal = undefined) {
  return request(path, { signal });
}

async function request(path, options) {
  const answer = await fetchApi(path, options);
  return withNetworkErrors(answer.json());
}

export function post(path, body) {
  return request(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

export function remove(path) {
  return request(path, { method: "DELETE", keepalive: true }); // Also while the tab closes.
}

// Returns a query string. A list repeats its parameter; undefined and empty values are left out.
export function query(pairs) {
  const result = new URLSearchParams();
  for (const [name, value] of Object.entries(pairs)) {
    for (const part of Array.isArray(value) ? value : [value]) {
      if (part !== undefined && part !== null && part !== "") result.append(name, part);
    }
  }
  return result.toString();
}

// Returns the series that `pairs` select; a key that no run has yet is none.
export async function getSeries(pairs, signal) {
  return (await getJson(`series?${query({ missing: "ignore", ...pairs })}`, signal)).series;
}

// Reads `/api/v1/stream` until `signal` is aborted, and calls `onEvent(event, data)`. When the stream breaks off or
// falls silent, it calls `onBroken(problem)` and reconnects. EventSource cannot be used, since it cannot send a token.
export async function subscribe(run, onEvent, onBroken, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 8000)) {
    const timeout = new AbortController();
    let timer;
    const restartTimer = () => {
      clearTimeout(timer);
      // The limit grows with each retry: a busy daemon may be slow to send the first event.
      timer = setTimeout(() => timeout.abort(), Math.max(SILENCE_MS, 5 * wait));
    };
    restartTimer();
    try {
      const answer = await fetchApi(`stream?${query({ run })}`, { signal: AbortSignal.any([signal, timeout.signal]) });
      for await (const [event, data] of events(answer.body)) {
        if (signal.aborted) return;
        wait = 500;
        if (event === "overview") restartTimer();
        deliver(onEvent, event, data);
      }
      throw new Error("The daemon closed the stream.");
    } catch (problem) {
      if (signal.aborted) return;
      onBroken(timeout.signal.aborted ? new Error("The daemon sends no updates.") : problem);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// Keeps an error in the page from counting as a broken stream.
function deliver(onEvent, event, data) {
  try {
    onEvent(event, data);
  } catch (problem) {
    console.error(problem);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await withNetworkErrors(reader.read());
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n")
          .map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).trim()]));
        if (fields.event) yield [fields.event, JSON.parse(fields.data)];
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // Fails if the stream has broken off.
  }
}
