// One customer: what happens to requests with these entries.
import { useEffect, useState } from "preact/hooks";
import { call, token } from "./api.js";
import { html, visible, Name, Panel, Table, Problem, LimitWords, Meter, Confirm, useLoad, count, words, duration, seconds, utc, fromQuery, link, writeEntries } from "./parts.js";
import { Ask, search } from "./ask.js";
import { Callers } from "./now.js";
import { OverrideOf, same } from "./overrides.js";

export function Customer({ query }) {
  const asked = fromQuery(query), value = query.get("value") || "", key = JSON.stringify([asked, value]);
  const [rule, setRule] = useState(""); // the path of the one that matches
  return html`
    <${Panel} title="Which customer?"><${Ask} page="customer" asked=${asked} action="Look up" find value=${value} matched=${rule} /></${Panel}>
    ${asked.domain && asked.entries.length ? html`<${Answer} key=${key} asked=${asked} onRule=${setRule} />`
      : value ? html`<${Found} key=${key} domain=${asked.domain} value=${value} />` : html`<${Callers} />`}`;
}

// Found lists the callers with a value.
function Found({ domain, value }) {
  const state = useLoad((signal) => search(value, domain, look, signal), token.value), x = state.data;
  const [all, setAll] = useState(false);
  const used = x && x.callers.filter((u) => (u.counters || []).some((c) => Number(c.used || 0))), some = x && (all || !used.length ? x.callers : used);
  return html`<${Panel} title="Found" note="requests with this value that a rule matches, the fullest counters first">
    <${Problem} error=${state.error} />
    ${x && x.callers.length > 0 && x.callers[0].hidden && html`<p class="warn">Counters are not shown: ${x.callers[0].hidden.message}</p>`}
    ${x ? html`<${Descriptors} all=${some} empty="No rule matches a request with this value." />
      ${some.length < x.callers.length && html`<p><button type="button" onClick=${() => setAll(true)}>Show ${count(x.callers.length - some.length)} more that have used nothing</button></p>`}
      ${!x.all && html`<p class="note">Not all rules were searched, there are too many: choose a domain.</p>`}` : state.loading && html`<p class="empty" role="status">Asking…</p>`}
  </${Panel}>`;
}

// look asks for the counters, or, where those are not shown, for the rule alone.
async function look(asked, signal) {
  try {
    return { ...await call("CounterService/Peek", asked, { signal }), peeked: true };
  } catch (error) {
    if (!["permission_denied", "unimplemented", "unavailable", "unauthenticated", "deadline_exceeded", "unknown", "internal"].includes(error.code)) throw error;
    return { ...await call("AdminService/Explain", asked, { signal }), hidden: error };
  }
}

function Answer({ asked, onRule }) {
  const [outcome, setOutcome] = useState(null);
  const state = useLoad((signal) => look(asked, signal), JSON.stringify(asked) + token.value, 1000);
  const x = state.data, path = (x && x.rule && x.rule.path) || "";
  useEffect(() => { onRule(path); return () => onRule(""); }, [path]);
  if (!x) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  const reset = async () => {
    try {
      const cleared = await call("CounterService/Reset", asked);
      setOutcome({ good: (cleared.counters || []).length ? "Cleared: the next request finds nothing used." : "There was nothing to clear." });
    } catch (error) {
      setOutcome({ bad: error.message });
    }
    state.again();
  };
  const counters = x.counters || [], limits = limitsOf(x);
  return html`
    <${Problem} error=${state.error} />
    <${Verdict} x=${x} asked=${asked} />
    ${x.rule && html`<div class="two">
    <${Panel} title="Rule" tools=${html`<a href=${link("try", asked.domain, asked.entries)}>why this rule?</a>`}>
      <dl class="facts">
        <dt>Path</dt><dd><a href=${"#/rules?find=" + encodeURIComponent(path)}><${Name} text=${path} /></a></dd>
        ${x.rule.name && html`<dt>Name</dt><dd><${Name} text=${x.rule.name} /></dd>`}
        ${x.rule.position && x.rule.position.file && html`<dt>Written in</dt><dd><${Name} text=${x.rule.position.file + ":" + (x.rule.position.line || 0) + ":" + (x.rule.position.column || 0)} /></dd>`}
        ${x.rule.unlimited && html`<dt>Limit</dt><dd>unlimited</dd>`}
        ${x.rule.shadowMode && html`<dt>Shadow mode</dt><dd>measured, not enforced</dd>`}
        ${x.rule.quotaMode && html`<dt>Quota mode</dt><dd>denies only when all quotas are used</dd>`}
      </dl>
    </${Panel}>
    <${OverrideOf} asked=${asked} rule=${x.rule} />
    </div>`}
    ${limits.length > 0 && html`<${Panel} title="Counters" note=${x.peeked ? "as a request to this replica finds them, once a second" : ""}
      tools=${x.peeked && counters.length > 0 && html`<${Confirm} label="Reset" sure="Clear what is used?" onYes=${reset} />`}>
      ${outcome && (outcome.good ? html`<p class="good" role="status">${outcome.good}</p>` : html`<${Problem} error=${outcome.bad} />`)}
      ${x.hidden && html`<p class="warn">Counters are not shown: ${x.hidden.message}</p>`}
      <${Table} label="Counters" head=${["Limit", ...cells]} rows=${limits.map((c, i) => html`<tr key=${i}>
        <th scope="row"><${LimitName} of=${c} /></th><${Cells} of=${c} /></tr>`)} />
    </${Panel}>`}
    <${Usage} asked=${asked} />`;
}

const cells = ["#used", "#of", "(share)", "#left", "#wait", "#reset in"];

// limitsOf are the counters, or the limits of the rule where the counters are not shown.
const limitsOf = (x) => ((x.counters || []).length ? x.counters : ((x.rule && x.rule.limits) || []).map((limit) => ({ limit, hidden: true })));

const limitText = ({ limit: l, words }) => words || (l.requestsPerUnit || 0) + " per " + (l.unitMultiplier > 1 ? l.unitMultiplier + " " + l.unit + "s" : l.unit) + ", " + (l.algorithm || "").replaceAll("_", " ");

const LimitName = ({ of: c }) => html`<${LimitWords} name=${c.limit.name} text=${limitText(c)} />`;

// Cells are the numbers of a counter.
const Cells = ({ of: c }) => (c.hidden ? cells.map((name) => html`<td class="n">${name === "(share)" ? "" : "–"}</td>`) : html`<td class="n">${count(c.used)}</td><td class="n">${count(c.capacity)}</td>
  <td><${Meter} used=${Number(c.used || 0)} of=${Number(c.capacity || 0)} label=${count(c.used) + " of " + count(c.capacity) + " used"} /></td>
  <td class=${"n " + (Number(c.remaining || 0) ? "" : "bad")}>${count(c.remaining)}</td>
  <td class="n">${c.wait === undefined ? "never" : duration(seconds(c.wait))}${c.penalty ? html` <span class="tag" title="The limit was exceeded, and its penalty denies everything">penalty</span>` : ""}</td>
  <td class="n" title=${c.resetAt ? utc(c.resetAt) : ""}>${duration(seconds(c.resetAfter))}${c.fromOverLimitCache ? html` <span class="tag" title="The denial cache of this replica answered">cached</span>` : ""}</td>`);

// Descriptors lists descriptors with their counters.
const Descriptors = ({ all, empty, onReset }) => html`<${Table} label="Callers" head=${["Caller", "Limit", ...cells, ...(onReset ? ["(actions)"] : [])]} empty=${empty}
  rows=${all.map((u) => {
    const id = JSON.stringify([u.domain, u.entries]), limits = limitsOf(u);
    return (limits.length ? limits : [null]).map((c, i) => html`<tr key=${id + i}>
      ${i === 0 && html`<th scope="rowgroup" rowspan=${limits.length || 1}><a href=${link("customer", u.domain, u.entries)}><${Name} text=${list(u.entries)} /></a>${!onReset && html` <span class="note">in <${Name} text=${u.domain} max=${60} /></span>`}</th>`}
      ${c ? html`<td class="wrap"><${LimitName} of=${c} /></td><${Cells} of=${c} />` : html`<td colspan=${1 + cells.length}>unlimited</td>`}
      ${i === 0 && onReset && html`<td rowspan=${limits.length || 1}><${Confirm} kind="mini" label="Reset" sure="Clear what is used?" onYes=${() => onReset(u.entries)} /></td>`}</tr>`);
  })} />`;

const list = (entries) => writeEntries(entries).replaceAll("\n", ", ");

const usagePage = 20;

// Usage lists the counters in use that have all these entries and more, of every rule with usage: true.
function Usage({ asked }) {
  const [pages, setPages] = useState([""]);
  const [outcome, setOutcome] = useState(null);
  const at = pages[pages.length - 1];
  const state = useLoad((signal) => call("UsageService/List", { domain: asked.domain, where: asked.entries, pageSize: usagePage, pageToken: at }, { signal }), JSON.stringify([asked, at]) + token.value, 5000);
  const reset = async (entries) => {
    try {
      const cleared = await call("CounterService/Reset", { domain: asked.domain, entries });
      setOutcome({ good: (cleared.counters || []).length ? "Cleared: " + list(entries) : "There was nothing to clear." });
    } catch (error) {
      setOutcome({ bad: error });
    }
    state.again();
  };
  const next = state.data && state.data.nextPageToken;
  if (state.error && ["permission_denied", "unauthenticated", "unimplemented"].includes(state.error.code)) return null; // the counters above say why, or the replica keeps no index
  const all = ((state.data && state.data.usages) || []).map((u) => ({ ...u, domain: asked.domain, entries: u.entries.map((e) => ({ key: e.key || "", value: e.value || "" })) })).filter((u) => !same(u.entries, asked.entries));
  if (!all.length && !next && pages.length === 1 && !state.error && !outcome) return null;
  return html`<${Panel} title="Usage" note="counters in use with these entries and others, of rules with usage: true, every 5 seconds">
    <${Problem} error=${state.error} />
    ${outcome && (outcome.good ? html`<p class="good" role="status">${visible(outcome.good)}</p>` : html`<${Problem} error=${outcome.bad} />`)}
    ${state.data && html`<${Descriptors} all=${all} onReset=${reset} empty="No other counter on this page is in use." />
      ${(pages.length > 1 || next) && html`<nav class="pager" aria-label="Pages of usage">
        <button type="button" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button><span>page ${pages.length}</span>
        <button type="button" disabled=${!next} onClick=${() => setPages([...pages, next])}>Next</button></nav>`}`}
  </${Panel}>`;
}

// Verdict says in a sentence what happens to the next request.
function Verdict({ x, asked }) {
  const say = (kind, title, more) => html`<div class=${"verdict " + kind} role="status"><b>${title}</b> ${more}</div>`;
  if (!x.rule && !(x.counters || []).length) return say("", "Nothing limits this:", html`<${Name} text=${x.reason || "no rule matches"} max=${400} /> <a href=${link("try", asked.domain, asked.entries)}>why?</a>`);
  if (x.rule && x.rule.unlimited) return say("good", "Unlimited.", "The rule lets every request pass, and counts nothing.");
  if (!x.peeked) return say("", "A rule limits this.", "Whether a request passes now is not known without the counters.");
  const out = (x.counters || []).filter((c) => !(Number(c.remaining) > 0));
  if (!out.length) {
    const least = (x.counters || []).reduce((a, c) => (Number(c.remaining) < Number(a.remaining) ? c : a)); // 64-bit numbers are texts
    return say("good", "The next request passes.", count(least.remaining) + " of " + count(least.capacity) + " left.");
  }
  const waits = out.map((c) => seconds(c.wait));
  const wait = waits.includes(null) ? null : Math.max(...waits);
  const until = "Used up: " + out.map((c) => words(limitText(c))).join("; ") + ". " + (wait === null ? "It never passes: the limit admits nothing." : "It passes again in " + duration(wait) + ".");
  if (x.rule && x.rule.shadowMode) return say("warn", "Over the limit, but let through.", "The rule is in shadow mode. " + until);
  return say("bad", "Denied.", until);
}
