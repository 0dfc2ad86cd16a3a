// Operators' overrides: numbers for one customer that replace a rule's.
import { useState } from "preact/hooks";
import { call, live, mayChange, token } from "./api.js";
import { html, Name, Panel, Table, Problem, Confirm, Since, useLoad, count, words, utc, readDescriptor, inWords, link } from "./parts.js";

// numbers says in words what an override gives.
export function numbers(o) {
  if (o.blocked) return "blocked";
  if (o.unlimited) return "unlimited";
  if (o.factor) return "rule × " + o.factor;
  return count(o.requestsPerUnit) + " per unit" + (o.burst ? ", burst " + count(o.burst) : "");
}

const state = (o) => (o.expiresAt && Date.parse(o.expiresAt) <= Date.now() ? "expired" : o.notBefore && Date.parse(o.notBefore) > Date.now() ? "not yet" : "");

function When({ o }) {
  const s = state(o);
  return html`${o.notBefore && html`<div>from ${utc(o.notBefore)}</div>`}${o.expiresAt ? html`<div>until ${utc(o.expiresAt)}</div>` : "no end"}${s && html` <span class="tag">${s}</span>`}`;
}

export const same = (a, b) => JSON.stringify((a || []).map((e) => [e.key, e.value || ""])) === JSON.stringify((b || []).map((e) => [e.key, e.value || ""]));

// identity is what names an override.
const identity = (o) => ({ domain: o.domain, rule: o.rule, limit: o.limit || "", entries: o.entries });

const kinds = [["requestsPerUnit", "requests per unit"], ["factor", "factor of the rule"], ["unlimited", "unlimited"], ["blocked", "blocked"]];
const spans = [["", "without an end"], ["3600", "for 1 hour"], ["14400", "for 4 hours"], ["86400", "for 1 day"], ["604800", "for 7 days"], ["2592000", "for 30 days"], ["at", "until…"]];

// local writes a time as an input for local time does.
const local = (t) => { const d = new Date(t); return new Date(d - d.getTimezoneOffset() * 60000).toISOString().slice(0, 16); };

const wholeSecond = (t) => new Date(1000 * Math.ceil(t / 1000)).toISOString();

// Editor writes an override of this identity. current is the override as it was read, if there is one.
function Editor({ of, current, onDone }) {
  const was = current ? (current.blocked ? "blocked" : current.unlimited ? "unlimited" : current.factor ? "factor" : "requestsPerUnit") : "requestsPerUnit";
  const [kind, setKind] = useState(was);
  const [n, setN] = useState(current ? String(current.factor || current.requestsPerUnit || "") : "");
  const [burst, setBurst] = useState(current && current.burst ? String(current.burst) : "");
  const [span, setSpan] = useState(current && current.expiresAt ? "at" : current ? "" : "86400");
  const [at, setAt] = useState(current && current.expiresAt ? local(current.expiresAt) : "");
  const [reason, setReason] = useState((current && current.reason) || "");
  const [clear, setClear] = useState(false);
  const [outcome, setOutcome] = useState(null);
  const number = kind === "requestsPerUnit" || kind === "factor";
  const send = async (dryRun, remove) => {
    try {
      const override = { ...identity(of), reason };
      if (!remove) {
        if (number && (n.trim() === "" || !(Number(n) >= 0))) throw new Error(n.trim() ? n + " is not a number." : "Enter a number.");
        override[kind] = number ? Number(n) : true;
        if (kind === "requestsPerUnit" && burst.trim()) override.burst = Number(burst);
        if (current && current.notBefore) override.notBefore = current.notBefore;
        if (span === "at" && !at) throw new Error("Enter the time at which it ends.");
        if (span === "at") override.expiresAt = current && current.expiresAt && at === local(current.expiresAt) ? current.expiresAt : wholeSecond(new Date(at));
        else if (span) override.expiresAt = wholeSecond(Date.now() + 1000 * span);
      }
      const write = { override };
      if (!dryRun) write.expectVersion = current ? current.version : "0";
      const answer = await call("OverrideService/" + (remove ? "Remove" : "Set"), { writes: [write], dryRun, ...(clear && !remove && { resetCounters: true }) });
      setOutcome({ change: (answer.changes || [])[0] || {}, dryRun, remove, clear });
      if (!dryRun) onDone();
    } catch (error) {
      setOutcome({ error });
    }
  };
  const submit = (e) => { e.preventDefault(); send(false, false); };
  return html`<form class="form" onSubmit=${submit}>
    <label>Numbers<select value=${kind} onChange=${(e) => setKind(e.target.value)}>${kinds.map(([id, label]) => html`<option value=${id}>${label}</option>`)}</select></label>
    ${number && html`<label>${kind === "factor" ? "Factor" : "Requests"}<input name="number" inputmode="decimal" size="8" value=${n} onInput=${(e) => setN(e.target.value)} /></label>`}
    ${kind === "requestsPerUnit" && html`<label>Burst <span class="note">of a bucket</span><input inputmode="numeric" size="8" value=${burst} onInput=${(e) => setBurst(e.target.value)} /></label>`}
    <label>How long<select value=${span} onChange=${(e) => setSpan(e.target.value)}>${spans.map(([id, label]) => html`<option value=${id}>${label}</option>`)}</select></label>
    ${span === "at" && html`<label>Until, local time<input type="datetime-local" value=${at} onInput=${(e) => setAt(e.target.value)} /></label>`}
    <label class="grow">Reason<input name="reason" value=${reason} onInput=${(e) => setReason(e.target.value)} maxlength="200" /></label>
    <label class="tick"><input type="checkbox" name="clear" checked=${clear} onChange=${(e) => setClear(e.target.checked)} />Give back what is used</label>
    <span><button type="button" onClick=${() => send(true, false)}>Dry run</button> <button class="main">${current ? "Change" : "Set"} override</button>
      ${current && html` <${Confirm} label="Remove" sure="Remove this override?" onYes=${() => send(false, true)} />`}</span>
    ${outcome && html`<div class="outcome">${outcome.error ? html`<${Problem} error=${outcome.error} />` : html`<${Outcome} of=${outcome} />`}</div>`}
  </form>`;
}

// Outcome shows what was written, or what a dry run would change.
function Outcome({ of }) {
  if (!of.dryRun) return html`<p class="good" role="status">${of.remove ? "Removed." : "Set: " + numbers(of.change.after || {}) + "."} Every replica has it within a second.</p>`;
  const effects = of.change.effects || [];
  return html`<div role="status"><p class="note">A dry run: nothing was changed.</p>
    <${Table} label="Effects" head=${["Limit", "Next request", "#used", "Before", "After"]} empty="No counter of this customer changes."
      rows=${effects.map((e, i) => html`<tr key=${i}><th scope="row"><${Name} text=${e.limit || "the rule’s"} /></th><td>${verdict(e.deniedBefore)} → <b class=${e.deniedAfter ? "bad" : "good"}>${verdict(e.deniedAfter)}</b></td>
        <td class="n">${count(e.used)}</td><td class="wrap">${words(e.wordsBefore)}</td><td class="wrap">${words(e.wordsAfter)}</td></tr>`)} />
    ${!of.clear && effects.some((e) => e.deniedBefore && e.deniedAfter && Number(e.capacityAfter || 0)) && html`<p class="warn">It still denies, because what is used stays used. “Give back what is used” lets requests pass at once.</p>`}</div>`;
}

const verdict = (denied) => (denied ? "denied" : "passes");

const longestSearch = 30; // answers: of a million overrides that few match there are ten

// find lists overrides. An answer may have few or none although more follow: find asks on until a page is full.
async function find(asked, size, pageToken, signal) {
  const overrides = [];
  for (let i = 0; i < longestSearch && overrides.length < size; i++) {
    const answer = await call("OverrideService/List", { ...asked, pageSize: size - overrides.length, pageToken }, { signal });
    overrides.push(...(answer.overrides || []));
    pageToken = answer.nextPageToken;
    if (!pageToken) break;
  }
  return { overrides, nextPageToken: pageToken };
}

// OverrideOf is the override of one customer.
export function OverrideOf({ asked, rule }) {
  const path = rule ? rule.path : "";
  const [limit, setLimit] = useState("");
  const where = Object.fromEntries(asked.entries.map((e) => [e.key, e.value]));
  const version = overridesVersion();
  const found = useLoad((signal) => (path && known() ? find({ domain: asked.domain, rule: path, where }, 100, "", signal) : Promise.resolve({})), JSON.stringify([asked, path, known()]) + token.value + version);
  if (!rule || rule.unlimited) return null;
  const all = ((found.data && found.data.overrides) || []).filter((o) => same(o.entries, asked.entries));
  const names = (rule.limits || []).map((l) => l.name).filter(Boolean);
  const current = all.find((o) => (o.limit || "") === limit);
  return html`<${Panel} title="Override" note="other numbers for this customer only">
    ${known() === false ? html`<p class="empty">Overrides are off in this replica: RATELIMITD_OVERRIDES turns them on.</p>` : html`
      <${Problem} error=${found.error} />
      ${all.map((o) => html`<p key=${o.limit || ""}><b>${o.limit ? html`<${Name} text=${o.limit} />: ` : ""}${numbers(o)}</b> <${When} o=${o} /> ${o.reason && html`“<${Name} text=${o.reason} />”`} <span class="note">by <${Name} text=${o.author || "?"} max=${60} /></span></p>`)}
      ${rule.overridable && found.data && !all.length && html`<p class="empty">There is none: the rule’s numbers apply.</p>`}
      ${!rule.overridable && html`<p class="empty">The rule allows none: <code>overridable: true</code> in its file allows them.</p>`}
      ${rule.overridable && html`${names.length > 1 && html`<p><label>Limit <select value=${limit} onChange=${(e) => setLimit(e.target.value)}><option value="">all</option>${names.map((l) => html`<option value=${l}>${l}</option>`)}</select></label></p>`}
      ${!mayChange.value ? html`<p class="note">${readOnly}</p>` : found.data && html`<${Editor} key=${limit + (current ? current.version : "")} of=${{ domain: asked.domain, rule: path, limit, entries: asked.entries }} current=${current} onDone=${found.again} />`}`}`}
  </${Panel}>`;
}

const readOnly = "You may look, and change nothing: that needs a token or certificate with the role operate.";

// known reports whether this replica has overrides; undefined: not known yet.
const known = () => (live.value && live.value.replica ? live.value.replica.overrides !== null : undefined);

const overridesVersion = () => (live.value && live.value.replica && live.value.replica.overrides ? live.value.replica.overrides.version : "");

export function Overrides() {
  const [editing, edit] = useState(null);
  if (known() === undefined) return html`<p class="empty" role="status">Waiting for the first event…</p>`;
  if (!known()) return html`<p class="warn">Overrides are off in this replica: RATELIMITD_OVERRIDES turns them on.</p>`;
  return html`<${List} onEdit=${edit} editing=${editing} /><${History} />`;
}

function List({ onEdit, editing }) {
  const [filter, setFilter] = useState({ domain: "", rule: "", where: "" });
  const [asked, ask] = useState({});
  const [pages, setPages] = useState([""]);
  const [error, setError] = useState("");
  const at = pages[pages.length - 1];
  const version = overridesVersion();
  const key = JSON.stringify([asked, at]) + token.value + version;
  const page = useLoad((signal) => find(asked, 100, at, signal), key);
  const status = useLoad((signal) => call("OverrideService/Status", {}, { signal }), token.value + version, 5000);
  const s = status.data;
  const submit = (e) => {
    e.preventDefault();
    try {
      const { entries } = readDescriptor(filter.where);
      ask({ domain: filter.domain.trim(), rule: filter.rule.trim(), where: Object.fromEntries(entries.map((x) => [x.key, x.value])) });
      setPages([""]);
      setError("");
    } catch (e) {
      setError(e.message);
    }
  };
  const field = (name, label) => html`<label>${label}<input name=${name} value=${filter[name]} onInput=${(e) => setFilter({ ...filter, [name]: e.target.value })} spellcheck=${false} /></label>`;
  const all = (page.data && page.data.overrides) || [];
  return html`<${Panel} title="Overrides" note=${s ? count(s.count) + " in this replica, version " + (s.version || 0) + ", from " + s.source : ""}>
    ${s && !s.up && html`<p class="problem">The source does not answer: this replica keeps using what it read last.</p>`}
    <form class="form" role="search" onSubmit=${submit}>${field("domain", "Domain")}${field("rule", "Rule, a path or a name")}${field("where", "Entries, as key=value")}<button class="main">Find</button></form>
    <${Problem} error=${error || page.error} />
    ${page.data && html`<${Table} label="Overrides" head=${["Customer", "Rule", "Numbers", "When", "Reason", "Changed", ...(mayChange.value ? ["(actions)"] : [])]} empty="There is no such override. The page of a customer sets one."
      rows=${all.map((o) => {
        const id = JSON.stringify(identity(o));
        const open = editing === id;
        return html`<tr key=${id}>
          <th scope="row"><a href=${link("customer", o.domain, o.entries || [])}><${Name} text=${inWords(o.entries)} /></a></th>
          <td class="wrap"><${Name} text=${o.rule} max=${80} />${o.limit && html` (<${Name} text=${o.limit} max=${40} />)`}</td>
          <td>${numbers(o)}</td><td><${When} o=${o} /></td>
          <td class="wrap"><${Name} text=${o.reason || ""} /></td>
          <td>${o.changedAt ? html`<${Since} at=${o.changedAt} />` : ""} <${Name} text=${o.author || ""} max=${30} /></td>
          ${mayChange.value && html`<td><button type="button" class="mini" aria-expanded=${open} onClick=${() => onEdit(open ? null : id)}>${open ? "Close" : "Edit"}</button></td>`}</tr>
          ${open && html`<tr key=${id + "+"}><td colspan="7" class="wrap"><${Editor} key=${id + o.version} of=${identity(o)} current=${o} onDone=${page.again} /></td></tr>`}`;
      })} />
      ${(pages.length > 1 || page.data.nextPageToken) && html`<nav class="pager" aria-label="Pages of overrides">
        <button type="button" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button><span>page ${pages.length}</span>
        <button type="button" disabled=${!page.data.nextPageToken} onClick=${() => setPages([...pages, page.data.nextPageToken])}>Next</button></nav>`}`}
  </${Panel}>`;
}

// History shows the last changes. A file keeps its own history, which no replica knows.
function History() {
  const overrides = live.value && live.value.replica && live.value.replica.overrides;
  if (!overrides) return null;
  return overrides.file ? html`<${Panel} title="History"><p class="note">The overrides are in a file: see the history of that file where you keep it.</p></${Panel}>` : html`<${Changes} />`;
}

function Changes() {
  const version = overridesVersion();
  const state = useLoad((signal) => call("OverrideService/History", { pageSize: 50 }, { signal }), token.value + version, 10000);
  if (!state.data) return html`<${Problem} error=${state.error} />`;
  return html`<${Panel} title="History" note="the last 50 changes"><${Table} label="History" head=${["When", "Who", "Customer", "Before", "After", "Reason"]} empty="Nothing was changed yet."
    rows=${(state.data.events || []).map((e) => {
      const o = e.after || e.before || {};
      return html`<tr key=${e.version + JSON.stringify(identity(o))}><td>${e.at ? html`<${Since} at=${e.at} />` : ""}</td><td><${Name} text=${e.author || ""} max=${40} /></td>
        <th scope="row"><${Name} text=${o.rule || ""} max=${60} /> <${Name} text=${inWords(o.entries)} max=${80} /></th>
        <td>${e.before ? numbers(e.before) : "none"}</td><td>${e.after ? numbers(e.after) : html`<span class="tag">removed</span>`}</td><td class="wrap"><${Name} text=${e.reason || ""} /></td></tr>`;
    })} /></${Panel}>`;
}
