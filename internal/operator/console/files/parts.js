// Parts that several pages have.
import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);

// visible writes characters that have no form of their own, or that turn the direction of text.
export function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g, (c) => {
    const n = c.codePointAt(0);
    return n < 32 ? String.fromCodePoint(0x2400 + n) : n === 127 ? "\u2421" : "\u2039U+" + n.toString(16).toUpperCase().padStart(4, "0") + "\u203a";
  });
}

const longest = 140, titled = 4000;

// Name shows a text of a client or a rule. Of a long one it shows the beginning; the whole is in the title, and can be copied.
export function Name({ text, max = longest }) {
  const shown = visible(text);
  if (shown.length <= max) return html`<bdi class="name">${breaks(shown)}</bdi>`;
  const whole = shown.length > titled ? shown.slice(0, titled) + "…" : shown;
  return html`<bdi class="name" title=${whole}>${breaks(shown.slice(0, max))}…</bdi> <${Copy} text=${text} label=${"Copy all " + count(shown.length) + " characters"} />`;
}

// breaks lets lines end after a dot, a slash and the like, and within a word only if it is long.
const breaks = (text) => (text.match(/.{1,24}?(?:[^\w]|$)|.{1,24}/gsu) || []).map((part) => html`${part}<wbr />`);

function Copy({ text, label = "Copy" }) {
  const [done, set] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => { set(true); setTimeout(() => set(false), 1500); });
  return html`<button type="button" class="mini" onClick=${copy}>${done ? "copied" : label}</button>`;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
export const count = (n) => whole.format(Number(n || 0));
// words writes the numbers in the words of a limit as count does; a year in them is no number.
export const words = (text) => (text || "").replace(/\b\d{4,}\b(?!-)/g, (n) => whole.format(BigInt(n)));
export const rate = (n) => (n >= 10000 ? short.format(n) : n >= 100 || n === 0 ? whole.format(n) : n.toFixed(1));
export const range = ([least, most]) => (Number(least) === Number(most) ? count(least) : count(least) + "–" + count(most));
export const percent = (part, all) => (all > 0 ? (part >= all ? "100" : (100 * part / all).toFixed(1)) + " %" : "–");

// seconds reads a duration of the API, such as "12.5s".
export const seconds = (text) => (text === undefined ? null : parseFloat(text));

export function duration(s) {
  if (s === null || Number.isNaN(s)) return "–";
  if (s < 1) return s <= 0 ? "0 s" : s.toFixed(2) + " s";
  if (s < 10) return s.toFixed(1) + " s";
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]], out = [];
  let rest = Math.round(s);
  for (const [size, unit] of parts) {
    if (rest >= size && out.length < 2) {
      out.push(Math.floor(rest / size) + " " + unit);
      rest %= size;
    } else if (out.length) break;
  }
  return out.join(" ");
}

export const utc = (t) => new Date(t).toISOString().replace("T", " ").slice(0, 19) + " UTC";

// Since shows a time, and how long ago it was.
export function Since({ at }) {
  const t = typeof at === "number" ? at : Date.parse(at);
  if (!t || t < 0) return "–";
  return html`<time datetime=${new Date(t).toISOString()} title=${utc(t)}>${duration(Math.max(0, (Date.now() - t) / 1000))} ago</time>`;
}

// Panel is a part of a page with a title. One whose title is not a text needs an id.
export function Panel({ title, note, tools, children, kind = "", id = "p-" + title.toLowerCase().replace(/[^a-z]+/g, "-") }) {
  return html`<section class=${"panel " + kind} aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2>${note && html`<span class="note">${note}</span>`}<span class="tools">${tools}</span></header>
    ${children}
  </section>`;
}

// Table is a table that scrolls where it is wider than the window.
export function Table({ label, head, rows, empty }) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${"Table: " + label}><table>
    <thead><tr>${head.map((c) => html`<th scope="col" class=${c.startsWith("#") ? "n" : ""}>${c.startsWith("(") ? html`<span class="unseen">${c.slice(1, -1)}</span>` : c.replace(/^#/, "")}</th>`)}</tr></thead>
    <tbody>${rows}</tbody>
  </table></div>`;
}

export function Problem({ error }) {
  if (!error) return null;
  const lines = String(error.message || error).split("\n");
  return html`<p class="problem" role="alert">${lines.map(visible).join("\n")}</p>`;
}

// Meter shows how much of a limit is used.
export function Meter({ used, of, label }) {
  const part = of > 0 ? Math.min(1, used / of) : 1;
  return html`<span class=${"meter " + (part >= 1 ? "full" : part >= 0.8 ? "near" : "")} role="img" aria-label=${label}><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${100 * part} height="8"/></svg></span>`;
}

// LimitWords says in words what a limit is, with its name if the rule has several.
export const LimitWords = ({ name, text }) => html`${name && html`<b><${Name} text=${name} max=${60} /></b> `}${words(text)}`;

// useLoad calls load when a key changes, and returns what it gave. An answer that is overtaken is dropped.
export function useLoad(load, key, every = 0) {
  const [state, set] = useState({ data: null, error: null, loading: true });
  const again = useRef(() => {});
  useEffect(() => {
    let control = null, timer = 0, ended = false;
    const run = async () => {
      clearTimeout(timer);
      if (control) control.abort();
      const own = control = new AbortController();
      try {
        const data = await load(own.signal);
        if (!own.signal.aborted) set({ data, error: null, loading: false });
      } catch (error) {
        if (!own.signal.aborted) set((s) => ({ data: every ? s.data : null, error, loading: false }));
      }
      if (every && !ended && !own.signal.aborted) timer = setTimeout(() => (document.hidden ? later() : run()), every);
    };
    const later = () => { timer = setTimeout(() => (document.hidden ? later() : run()), every); };
    again.current = run;
    run();
    return () => { ended = true; clearTimeout(timer); control.abort(); };
  }, [key]);
  return { ...state, again: () => again.current() };
}

// Descriptors.

// readDescriptor reads entries as people have them: lines or a list of key=value, the key of a counter, or JSON of a request.
// It returns { domain, entries }, with a domain only if the text has one.
export function readDescriptor(text) {
  text = text.trim();
  if (!text) return { entries: [] };
  if (/^[[{]/.test(text)) return fromJSON(JSON.parse(text));
  if (text.includes("\n")) return { entries: text.split("\n").filter((l) => l.trim()).map(entry) };
  if (/^[^=]*\|/.test(text)) return fromKey(text) || { entries: [entry(text)] };
  return { entries: text.replace(/^\(|\)$/g, "").split(/\s*[,)]\s*\(?(?=[^,=]+=)/).map(entry) };
}

function entry(line) {
  const at = line.indexOf("=");
  return at < 0 ? { key: line.trim(), value: "" } : { key: line.slice(0, at).trim(), value: line.slice(at + 1).replace(/\r$/, "") };
}

function fromJSON(data) {
  if (Array.isArray(data)) return { entries: (data[0] && data[0].entries ? data[0].entries : data).map(pair) };
  if (data.descriptors) return { domain: data.domain, ...fromJSON(data.descriptors) };
  if (data.entries) return { domain: data.domain, ...(Array.isArray(data.entries) ? { entries: data.entries.map(pair) } : fromJSON(data.entries)) };
  return { entries: Object.entries(data).map(([key, value]) => ({ key, value: String(value) })) };
}

const pair = (e) => ({ key: String(e.key ?? ""), value: String(e.value ?? "") });

// fromKey reads the key of a counter, "domain|key=value|f60"; null: it does not name its entries. A pattern may stand before the value.
export function fromKey(key) {
  const plain = (text) => text.replace(/\\(.)/gs, (_, c) => (c === "[" ? "{" : c));
  const [domain, ...parts] = (key.match(/(?:\\.|[^|\\])+/gs) || []).slice(0, -1);
  const names = parts.map((part) => part.match(/^(?:\\.|[^=~\\])*/s)[0]);
  if (!parts.length || parts.some((part, i) => part === names[i]) || key.replaceAll("\\\\", "").includes("\\#")) return null;
  const value = (part, name) => part.slice(name.length).match(/(?:\\.|[^=\\])*$/s)[0].replace(/^~+/, "");
  return { domain: plain(domain), entries: parts.map((part, i) => ({ key: plain(names[i]), value: plain(value(part, names[i])) })) };
}

export const writeEntries = (entries) => entries.map((e) => (e.key || "") + (e.value ? "=" + e.value : "")).join("\n");
export const inWords = (entries) => writeEntries(entries || []).replaceAll("\n", ", ");

// link is the address of a page about a descriptor.
export function link(page, domain, entries) {
  const query = new URLSearchParams({ domain });
  for (const e of entries) {
    query.append("k", e.key);
    query.append("v", e.value || "");
  }
  return "#/" + page + "?" + query;
}

export function fromQuery(query) {
  const keys = query.getAll("k"), values = query.getAll("v");
  return { domain: query.get("domain") || "", entries: keys.map((key, i) => ({ key, value: values[i] || "" })) };
}

// Confirm is a button that asks once more before it acts.
export function Confirm({ label, sure, onYes, kind = "" }) {
  const [asking, set] = useState(false);
  const no = useRef(null);
  useEffect(() => { if (asking && no.current) no.current.focus(); }, [asking]);
  if (!asking) return html`<button type="button" class=${kind} onClick=${() => set(true)}>${label}</button>`;
  return html`<span class="confirm" role="group" aria-label=${sure}>${sure} <button type="button" class="danger" onClick=${() => { set(false); onYes(); }}>Yes</button><button type="button" ref=${no} onClick=${() => set(false)}>No</button></span>`;
}
