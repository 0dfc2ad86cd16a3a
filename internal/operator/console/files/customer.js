// One customer: which counters have a value, or those of the entries of a request, and what they do to the next request.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, mayChange, token } from "./api.js";
import { html, visible, Name, Panel, Table, Problem, LimitWords, Meter, Confirm, useLoad, count, range, rate, words, duration, seconds, utc, fromQuery, link, inWords } from "./parts.js";
import { Ask } from "./ask.js";
import { Customers } from "./now.js";
import { OverrideOf } from "./overrides.js";

export function Customer({ query }) {
  const asked = fromQuery(query), value = query.get("value") || "", key = JSON.stringify([asked, value]);
  const [rule, setRule] = useState(""); // the path of the one that matches
  return html`
    <${Panel} title="Which customer?"><${Ask} page="customer" asked=${asked} action="Look up" find value=${value} matched=${rule} /></${Panel}>
    ${(asked.domain && asked.entries.length) || value ? html`<${Found} key=${key} asked=${asked} value=${value} onRule=${setRule} />` : html`<${Customers} />`}`;
}

// find loads what has a value, or belongs to the customer of a descriptor. Each descriptor gets rows: one for each of its limits.
async function find(asked, value, signal) {
  const query = new URLSearchParams({ domain: asked.domain });
  if (value) query.set("value", value);
  else for (const e of asked.entries) { query.append("k", e.key); query.append("v", e.value); }
  const x = await get("find", { signal, method: "POST", body: query });
  for (const f of x.found) {
    f.rule = f.peek.rule;
    const counters = f.peek.counters || [], limits = (f.rule && f.rule.limits) || [];
    f.rows = counters.length ? counters.map((c, i) => ({ f, c, denies: f.denies[i], hot: f.hot[i] })) : limits.map((limit) => ({ f, c: { limit }, hidden: true }));
    f.inUse = counters.some((c, i) => Number(c.used || 0) || f.denies[i] || f.hot[i]);
  }
  return x;
}

function Found({ asked, value, onRule }) {
  const [outcome, setOutcome] = useState(null);
  const [all, setAll] = useState(false);
  const growing = useGrowth();
  const state = useLoad((signal) => find(asked, value, signal).then(growing.note), JSON.stringify([asked, value]) + token.value, 1000);
  const x = state.data, self = x && x.found.find((f) => f.self), path = (self && self.rule && self.rule.path) || "";
  useEffect(() => { onRule(path); return () => onRule(""); }, [path]);
  if (!x) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  const reset = async (f) => {
    try {
      const cleared = await call("CounterService/Reset", { domain: f.domain, entries: f.entries });
      setOutcome((cleared.counters || []).length ? { good: "Cleared: " + inWords(f.entries) + ".", lasts: lasting(f, x, growing) } : { good: "There was nothing to clear." });
    } catch (error) {
      setOutcome({ error });
    }
    state.again();
  };
  const used = x.found.filter((f) => f.inUse), listed = all || x.hidden || x.found.some((f) => f.error) ? x.found : x.found.filter((f) => f.inUse || f.self), more = x.found.length - listed.length;
  const unknown = value && !x.hidden && !used.length && listed !== x.found;
  return html`
    <${Problem} error=${state.error} />
    <${Verdict} x=${x} self=${self} used=${used} asked=${asked} value=${value} />
    ${self && self.rule && html`<div class="two"><${RuleOf} asked=${asked} rule=${self.rule} override=${self.peek.override} /><${OverrideOf} asked=${asked} rule=${self.rule} /></div>`}
    ${unknown ? x.found.length > 0 && html`<${Panel} title="Rules that would count it"><${Would} all=${x.found} /></${Panel}>`
    : listed.length > 0 && html`<${Panel} title="Counters" note=${x.hidden ? "" : "as a request to this replica finds them, once a second; denied: in the last " + Math.round(x.seconds) + " s"}>
      ${outcome && (outcome.error ? html`<${Problem} error=${outcome.error} />` : html`<p class=${outcome.lasts ? "warn" : "good"} role="status">${visible(outcome.good)} ${outcome.lasts || ""}</p>`)}
      <${Table} label="Counters" head=${["Counter", ...cells, ...(mayChange.value ? ["(actions)"] : [])]} rows=${listed.flatMap((f) => (f.rows.length ? f.rows : [null]).map((r, i) => html`<${Row} key=${JSON.stringify([f.domain, f.entries, i])} f=${f} r=${r} domain=${value} onReset=${mayChange.value && (i === 0 ? reset : null)} />`))} />
      ${more > 0 && html`<p><button type="button" onClick=${() => setAll(true)}>Show ${count(more)} more that have used nothing</button></p>`}
    </${Panel}>`}
    ${x.more && html`<p class="note">There may be more counters than are listed: choose a domain.</p>`}`;
}

const RuleOf = ({ asked, rule, override }) => html`<${Panel} title="Rule" tools=${html`<a href=${link("try", asked.domain, asked.entries)}>why this rule?</a>`}>
  <dl class="facts">
    <dt>Path</dt><dd><a href=${"#/rules?find=" + encodeURIComponent(rule.path)}><${Name} text=${rule.path} /></a></dd>
    ${rule.name && html`<dt>Name</dt><dd><${Name} text=${rule.name} /></dd>`}
    ${rule.position && rule.position.file && html`<dt>Written in</dt><dd><${Name} text=${rule.position.file + ":" + (rule.position.line || 0) + ":" + (rule.position.column || 0)} /></dd>`}
    ${rule.unlimited && html`<dt>Limit</dt><dd>unlimited</dd>`}
    ${override && html`<dt>Override</dt><dd>${words(visible(override))}</dd>`}
    ${rule.shadowMode && html`<dt>Shadow mode</dt><dd>measured, not enforced</dd>`}
    ${rule.quotaMode && html`<dt>Quota mode</dt><dd>denies only when all quotas are used</dd>`}
  </dl>
</${Panel}>`;

// Would lists the rules that would count a value, with the entries that a request needs.
const Would = ({ all }) => html`<${Table} label="Rules that would count it" head=${["Entries", "Limit", "Rule"]} rows=${all.map((f) => html`<tr key=${JSON.stringify([f.domain, f.entries])}>
  <th scope="row"><a href=${link("customer", f.domain, f.entries)}><${Name} text=${inWords(f.entries)} /></a> <span class="note">in <${Name} text=${f.domain} max=${60} /></span></th>
  <td class="wrap">${f.rows.length ? f.rows.map((r) => html`<div><${LimitName} of=${r.c} /></div>`) : "unlimited"}</td>
  <td class="wrap"><a href=${"#/rules?find=" + encodeURIComponent(f.rule.path)}><${Name} text=${f.rule.path} /></a></td></tr>`)} />`;

// Those that decide come first: a telephone shows no more.
const cells = ["#left", "#wait", "#denied", "#used", "#of", "(share)", "#reset in"];

function Row({ f, r, domain, onReset }) {
  const c = r && r.c, dash = html`<td class="n">–</td>`;
  return html`<tr>
    <th scope="row">${f.self ? html`<${Name} text=${inWords(f.entries)} />` : html`<a href=${link("customer", f.domain, f.entries)}><${Name} text=${inWords(f.entries)} /></a>`}
      ${domain && html` <span class="note">in <${Name} text=${f.domain} max=${60} /></span>`}<div class="note">${r ? html`<${LimitName} of=${c} />` : f.rule ? "unlimited" : "no limit"}${f.shadow && html` <span class="tag">shadow</span>`}</div></th>
    ${!r || r.hidden ? cells.map((name) => (name === "(share)" ? html`<td></td>` : dash)) : html`
    <td class=${"n " + (Number(c.remaining || 0) ? "" : "bad")}>${count(c.remaining)}</td>
    <td class="n">${c.wait === undefined ? "never" : duration(seconds(c.wait))}${c.penalty ? html` <span class="tag" title="The limit was exceeded, and its penalty denies everything">penalty</span>` : ""}</td>
    ${r.hot ? html`<td class=${"n " + (r.hot.denied[1] > 0 ? "bad" : "")}>${range(r.hot.denied)}</td>` : dash}
    <td class="n">${count(c.used)}</td><td class="n">${count(c.capacity)}</td>
    <td><${Meter} used=${Number(c.used || 0)} of=${Number(c.capacity || 0)} label=${count(c.used) + " of " + count(c.capacity) + " used"} /></td>
    <td class="n" title=${c.resetAt ? utc(c.resetAt) : ""}>${duration(seconds(c.resetAfter))}${c.fromOverLimitCache ? html` <span class="tag" title="The denial cache of this replica answered">cached</span>` : ""}</td>`}
    ${onReset !== false && html`<td>${onReset && r && !r.hidden && html`<${Confirm} kind="mini" label="Reset" sure="Clear what is used?" onYes=${() => onReset(f)} />`}</td>`}</tr>`;
}

const limitText = ({ limit: l, words }) => words || (l.requestsPerUnit || 0) + " per " + (l.unitMultiplier > 1 ? l.unitMultiplier + " " + l.unit + "s" : l.unit) + ", " + (l.algorithm || "").replaceAll("_", " ");

const LimitName = ({ of: c }) => html`<${LimitWords} name=${c.limit.name} text=${limitText(c)} />`;

// useGrowth remembers how much each counter was used, to know which of them is still used.
function useGrowth() {
  const seen = useRef({ before: new Map(), now: new Map() });
  const note = (x) => {
    const now = new Map();
    for (const f of x.found) for (const r of f.rows) if (r.hot) now.set(r.c.limit.counterKey, r.hot.used[1]);
    seen.current = { before: seen.current.now, now };
    return x;
  };
  const grows = (r) => (seen.current.now.get(r.c.limit.counterKey) || 0) > (seen.current.before.get(r.c.limit.counterKey) ?? Infinity);
  return { note, grows };
}

// lasting says how long a reset lasts, if the customer continues as in the last minute; "": that is not known, or does not use up the limit.
function lasting(f, x, growing) {
  let least = Infinity, most = 0;
  for (const r of f.rows) {
    if (!r.hot || !growing.grows(r) || !(x.seconds > 0) || !r.c.limit.window) continue;
    const perSecond = r.hot.used[0] / x.seconds, allowed = (r.c.limit.requestsPerUnit || 0) / seconds(r.c.limit.window);
    if (perSecond <= allowed) continue;
    least = Math.min(least, Number(r.c.capacity || 0) / (perSecond - (/bucket/.test(r.c.limit.algorithm) ? allowed : 0)));
    most = Math.max(most, perSecond);
  }
  return most ? "They keep sending " + rate(most) + " a second: a reset lasts " + duration(least) + "." : "";
}

const recent = (hot, x) => range(hot.denied) + " of " + range(hot.used) + " were denied in the last " + (x.seconds > 45 ? "minute" : Math.round(x.seconds) + " s");

// Phrase says of a counter until when it denies.
function Phrase({ r, x }) {
  const { f, c } = r, wait = c.wait === undefined ? null : seconds(c.wait);
  return html`<${f.self ? "span" : "a"} href=${f.self ? undefined : link("customer", f.domain, f.entries)}><${Name} text=${inWords(f.entries)} /></${f.self ? "span" : "a"}>${" "}
    (${f.rows.length > 1 && c.limit.name ? html`<${Name} text=${c.limit.name} max=${60} />: ` : ""}${words(limitText(c)).split(", ")[0]}) ${f.blocked ? "is blocked by an override"
    : wait === null ? "never passes: a request costs more than the limit admits" : "passes again in " + duration(wait)}${r.hot && r.hot.denied[1] > 0 ? "; " + recent(r.hot, x) : ""}`;
}

const phrases = 4; // that a sentence has

// answers says what on_error does.
const answers = {
  error: ["bad", "Requests fail", "on_error is error, so that this rule answers with an error"],
  allow: ["warn", "Requests pass", "on_error: allow lets everything pass"],
  deny: ["bad", "Requests are denied", "on_error: deny denies everything"],
  local: ["warn", "Each replica counts for itself", "on_error: local counts in its memory, against its share of the limit"],
};

// Verdict says in a sentence what happens to the next request.
function Verdict({ x, self, used, asked, value }) {
  const say = (kind, title, more) => html`<div class=${"verdict " + kind} role="status"><b>${title}</b> ${more}</div>`;
  const whose = value || x.values.join(", ");
  const unread = self ? self.error && self : x.found.find((f) => f.error);
  if (unread && unread.rule) {
    const [kind, title, why] = answers[unread.on_error] || answers.error;
    return say(kind, title + ":", html`the counters cannot be read (${visible(unread.error)}), and ${why}.`);
  }
  if (unread) return say("bad", "Not known:", visible(unread.error));
  if (x.hidden) return say("", self && !self.rule ? "Nothing limits this." : "Counters are not shown:", visible(x.hidden));
  const rows = used.flatMap((f) => f.rows), denied = rows.filter((r) => r.denies);
  if (denied.length) {
    const some = denied.slice(0, phrases).map((r, i) => html`${i > 0 && " · "}<${Phrase} r=${r} x=${x} />`);
    const of = rows.length > 1 ? " by " + count(denied.length) + " of " + count(rows.length) + " limits" : "";
    const title = self && !self.denies.includes(true) ? "These entries pass, but " + (visible(whose) || "their customer") + " is denied" + of + ":" : "Denied" + of + ".";
    return say("bad", title, html`${some}${denied.length > phrases && html` · and ${count(denied.length - phrases)} more`}.`);
  }
  if (value && !used.length) return say("", html`No counter contains <${Name} text=${value} />.`, x.found.length ? "Nobody has used one, or it is another value: is it misspelt?" : "No rule would count it either.");
  if (self && self.rule && self.rule.unlimited) return say("good", "Unlimited.", "The rule lets every request pass, and counts nothing.");
  if (self && !self.rows.length) return say("", "Nothing limits this:", html`<${Name} text=${self.peek.reason || "no rule matches"} max=${400} /> <a href=${link("try", asked.domain, asked.entries)}>why?</a>`);
  const own = self ? self.rows : rows, over = own.filter((r) => r.f.shadow && r.c.wait !== "0s");
  if (over.length) return say("warn", "Over the limit, but let through.", html`It is in shadow mode. ${over.slice(0, phrases).map((r, i) => html`${i > 0 && " · "}<${Phrase} r=${r} x=${x} />`)}.`);
  const least = own.reduce((a, r) => (Number(r.c.remaining || 0) < Number(a.c.remaining || 0) ? r : a)); // 64-bit numbers are texts
  const left = count(least.c.remaining) + " of " + count(least.c.capacity) + " left" + (self ? "." : "");
  const before = rows.filter((r) => r.hot && r.hot.denied[1] > 0 && !r.f.shadow).sort((a, b) => b.hot.denied[1] - a.hot.denied[1])[0];
  return say(before ? "warn" : "good", self ? "The next request passes." : "Nothing denies the next request.", html`${left}${!self && html` in <${Name} text=${inWords(least.f.entries)} />.`}
    ${before && html` But ${recent(before.hot, x)}${before.f.self ? "" : html` by <${Name} text=${inWords(before.f.entries)} />`}.`}`);
}
