// What the page knows: the events of the port, and answers of the admin API.
import { signal, computed } from "@preact/signals";

// The token stays in this tab, and is gone when the tab is.
export const token = signal(sessionStorage.getItem("ratelimitd-token") || "");
export const tokenWanted = signal(""); // why the page asks for one; empty: it does not
export const mayChange = signal(false); // the role of the token or certificate is enough to change something

const eventsPath = "/console/events";
const noToken = "This replica shows its numbers to operators who have a token.";

// The first answer says whether a token is needed. Without one, nothing else is asked before.
let needed = false, opened;
const opening = new Promise((done) => { opened = done; });

export function useToken(text) {
  token.value = text;
  tokenWanted.value = "";
  if (text) sessionStorage.setItem("ratelimitd-token", text);
  else sessionStorage.removeItem("ratelimitd-token");
  reconnect();
}

// Failure is an answer that is an error.
class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const codes = { 400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "unimplemented", 409: "aborted", 501: "unimplemented", 503: "unavailable" };

async function ask(path, init = {}) {
  if (!token.value && path !== eventsPath) {
    await opening;
    if (needed) throw new Failure("unauthenticated", noToken);
  }
  const headers = { ...init.headers };
  if (token.value) headers.Authorization = "Bearer " + token.value;
  let answer;
  try {
    answer = await fetch(path, { ...init, headers, cache: "no-store", redirect: "error" });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Failure("unavailable", "This replica does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let code = codes[answer.status] || "unknown", message = text.trim() || "HTTP status " + answer.status;
  try {
    const error = JSON.parse(text);
    code = error.code || code;
    message = error.message || message;
  } catch { /* it is text */ }
  if (code === "unauthenticated") {
    needed = !message.includes("certificate");
    tokenWanted.value = token.value || !needed ? message : noToken;
  }
  throw new Failure(code, message);
}

// call calls a method of the admin API, such as AdminService/Explain.
export async function call(method, message, options = {}) {
  const answer = await ask("/ratelimitd.admin.v1." + method, {
    method: "POST", body: JSON.stringify(message), signal: options.signal,
    headers: { "Content-Type": "application/json", "Connect-Protocol-Version": "1" },
  });
  return answer.json();
}

// get reads a resource of the console.
export async function get(path, options = {}) {
  return (await ask("/console/" + path, options)).json();
}

// Events.
export const live = signal(null); // the last event
export const trouble = signal(""); // why there are no events
export const stale = signal(true);
export const age = signal(0); // of the last event, in seconds
export const history = signal([]); // a point per event: time in seconds, passed and denied per second
export const rates = computed(() => history.value[history.value.length - 1] || null);

const staleAfter = 5000, kept = 300;
let last = 0, before = null, connection = null;

function take(event) {
  last = performance.now();
  const now = event.decisions && { at: event.at, started: event.replica && event.replica.started, ...event.decisions };
  if (now && before && now.at > before.at && now.started === before.started) {
    const per = (name) => Math.max(0, now[name] - before[name]) * 1000 / (now.at - before.at);
    const point = { t: now.at / 1000, passed: per("passed"), denied: per("denied"), failed: per("failed"), onError: per("on_error"), unknown: per("unknown_domain"), shadowed: per("shadowed") };
    history.value = [...history.value.slice(-kept + 1), point];
  }
  before = now;
  trouble.value = "";
  stale.value = false;
  live.value = event;
}

async function listen(control) {
  const answer = await ask(eventsPath, { signal: control.signal });
  opened();
  mayChange.value = answer.headers.get("Ratelimitd-Role") === "operate";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).replace(/^data: /, "");
      if (data) take(JSON.parse(data));
    }
  }
}

async function stay() {
  for (let wait = 0; ; wait = Math.min(wait * 2 || 500, 5000)) {
    await shown;
    const control = connection = new AbortController();
    const began = performance.now();
    try {
      await listen(control);
    } catch (e) {
      if (control.signal.aborted) wait = 0;
      else trouble.value = e.message;
      if (e.code === "unauthenticated") wait = 30000; // a token ends the wait
    } finally {
      opened();
    }
    if (wait < 30000 && performance.now() - began > 2000) wait = 0;
    await new Promise((next) => {
      const timer = setTimeout(next, wait);
      wake = () => { clearTimeout(timer); next(); };
    });
  }
}

let wake = () => {};

function reconnect() {
  if (connection) connection.abort();
  wake();
}

// A browser may keep a page that was left, with its connections, and has only six for one server.
let shown = Promise.resolve(), show = () => {};

export function start() {
  addEventListener("pagehide", () => {
    shown = new Promise((resolve) => { show = resolve; });
    reconnect();
  });
  addEventListener("pageshow", () => show());
  stay();
  setInterval(() => {
    age.value = last ? Math.round((performance.now() - last) / 1000) : 0;
    if (!last || performance.now() - last > staleAfter) stale.value = true;
  }, 1000);
}
