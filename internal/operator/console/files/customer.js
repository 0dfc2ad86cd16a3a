// One customer: what happens to requests with these entries.
import { useState } from "preact/hooks";
import { call, live, token } from "./api.js";
import { html, visible, Name, Panel, Table, Problem, Ask, Meter, Confirm, useLoad, count, duration, seconds, utc, fromQuery, link, writeEntries } from "./parts.js";
import { OverrideOf } from "./overrides.js";

export function Customer({ query }) {
  const asked = fromQuery(query);
  const domains = live.value ? live.value.rules.domains : [];
  return html`
    <${Panel} title="Which customer?"><${Ask} page="customer" asked=${asked} domains=${domains} action="Look up" /></${Panel}>
    ${asked.domain && asked.entries.length > 0 && html`<${Answer} key=${JSON.stringify(asked)} asked=${asked} />`}`;
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

function Answer({ asked }) {
  const [outcome, setOutcome] = useState(null);
  const state = useLoad((signal) => look(asked, signal), JSON.stringify(asked) + token.value, 1000);
  const x = state.data;
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
  const counters = x.counters || [];
  const limits = counters.length ? counters : ((x.rule && x.rule.limits) || []).map((limit) => ({ limit }));
  return html`
    <${Problem} error=${state.error} />
    <${Verdict} x=${x} />
    <div class="two">
    <${Panel} title="Rule" tools=${html`<a href=${link("try", asked.domain, asked.entries)}>why this rule?</a>`}>
      ${x.rule ? html`<dl class="facts">
        <dt>Path</dt><dd><a href=${"#/rules?find=" + encodeURIComponent(x.rule.path)}><${Name} text=${x.rule.path} /></a></dd>
        ${x.rule.name && html`<dt>Name</dt><dd><${Name} text=${x.rule.name} /></dd>`}
        ${x.rule.position && x.rule.position.file && html`<dt>Written in</dt><dd><${Name} text=${x.rule.position.file + ":" + (x.rule.position.line || 0) + ":" + (x.rule.position.column || 0)} /></dd>`}
        ${x.rule.unlimited && html`<dt>Limit</dt><dd>unlimited</dd>`}
        ${x.rule.shadowMode && html`<dt>Shadow mode</dt><dd>measured, not enforced</dd>`}
        ${x.rule.quotaMode && html`<dt>Quota mode</dt><dd>refuses only when all quotas are used</dd>`}
      </dl>` : html`<p>${x.domainKnown ? "No rule matches" : "There are no rules for this domain"}${x.reason ? html`: <${Name} text=${x.reason} max=${400} />` : "."}</p>`}
    </${Panel}>
    <${OverrideOf} asked=${asked} rule=${x.rule} />
    </div>
    ${limits.length > 0 && html`<${Panel} title="Counters" note=${x.peeked ? "as a request to this process finds them, once a second" : ""}
      tools=${x.peeked && counters.length > 0 && html`<${Confirm} label="Reset" sure="Clear what is used?" onYes=${reset} />`}>
      ${outcome && (outcome.good ? html`<p class="good" role="status">${outcome.good}</p>` : html`<${Problem} error=${outcome.bad} />`)}
      ${x.hidden && html`<p class="warn">Counters are not shown: ${x.hidden.message}</p>`}
      <${Table} label="Counters" head=${["Limit", ...cells]} rows=${limits.map((c, i) => html`<tr key=${i}>
        <th scope="row"><${LimitName} of=${c} /></th>
        ${x.peeked ? html`<${Cells} of=${c} />` : html`<td class="n">–</td><td class="n">–</td><td></td><td class="n">–</td><td class="n">–</td><td class="n">–</td>`}</tr>`)} />
    </${Panel}>`}
    <${Usage} asked=${asked} />`;
}

const cells = ["#used", "#of", "(share)", "#left", "#wait", "#reset in"];

const LimitName = ({ of: c }) => html`${c.limit.name && html`<b><${Name} text=${c.limit.name} /></b> `}${c.words || words(c.limit)}`;

// Cells are the numbers of a counter.
const Cells = ({ of: c }) => html`<td class="n">${count(c.used)}</td><td class="n">${count(c.capacity)}</td>
  <td><${Meter} used=${Number(c.used || 0)} of=${Number(c.capacity || 0)} label=${count(c.used) + " of " + count(c.capacity) + " used"} /></td>
  <td class=${"n " + (Number(c.remaining || 0) ? "" : "bad")}>${count(c.remaining)}</td>
  <td class="n">${c.wait === undefined ? "for ever" : duration(seconds(c.wait))}${c.penalty ? html` <span class="tag" title="The limit was exceeded, and its penalty refuses everything">penalty</span>` : ""}</td>
  <td class="n" title=${c.resetAt ? utc(c.resetAt) : ""}>${duration(seconds(c.resetAfter))}${c.fromOverLimitCache ? html` <span class="tag" title="The over-limit cache of this process answered">cached</span>` : ""}</td>`;

const usagePage = 20;

// Usage lists the counters in use that have all these entries and perhaps more, of every rule with usage: true.
function Usage({ asked }) {
  const [pages, setPages] = useState([""]);
  const [open, setOpen] = useState("");
  const [outcome, setOutcome] = useState(null);
  const at = pages[pages.length - 1];
  const state = useLoad((signal) => call("UsageService/List", { domain: asked.domain, where: asked.entries, pageSize: usagePage, pageToken: at }, { signal }), JSON.stringify([asked, at]) + token.value, 5000);
  const reset = async (entries) => {
    try {
      const cleared = await call("CounterService/Reset", { domain: asked.domain, entries });
      setOutcome({ good: (cleared.counters || []).length ? "Cleared: " + writeEntries(entries).replaceAll("\n", ", ") : "There was nothing to clear." });
    } catch (error) {
      setOutcome({ bad: error });
    }
    state.again();
  };
  const usages = (state.data && state.data.usages) || [], next = state.data && state.data.nextPageToken;
  if (state.error && ["permission_denied", "unauthenticated"].includes(state.error.code)) return null; // the counters above say why
  return html`<${Panel} title="Usage" note=${"counters in use with these entries, of rules with usage: true, every 5 seconds"}>
    ${state.error && state.error.code === "unimplemented" ? html`<p class="empty">${visible(state.error.message)}</p>` : html`<${Problem} error=${state.error} />`}
    ${outcome && (outcome.good ? html`<p class="good" role="status">${visible(outcome.good)}</p>` : html`<${Problem} error=${outcome.bad} />`)}
    ${state.data && html`<${Table} label="Usage" head=${["Caller", "Limit", ...cells, "(actions)"]} empty=${next ? "No counter on this page is still in use." : "No counter with these entries is in use."}
      rows=${usages.map((u) => {
        const entries = u.entries.map((e) => ({ key: e.key || "", value: e.value || "" })), id = JSON.stringify(entries), counters = u.counters || [];
        return html`${counters.map((c, i) => html`<tr key=${id + i}>
          ${i === 0 && html`<th scope="rowgroup" rowspan=${counters.length}><a href=${link("customer", asked.domain, entries)}><${Name} text=${writeEntries(entries).replaceAll("\n", ", ")} /></a></th>`}
          <td class="wrap"><${LimitName} of=${c} /></td><${Cells} of=${c} />
          ${i === 0 && html`<td rowspan=${counters.length}><${Confirm} kind="mini" label="Reset" sure="Clear what is used?" onYes=${() => reset(entries)} />
            ${u.rule && u.rule.overridable && html` <button type="button" class="mini" aria-expanded=${open === id} onClick=${() => setOpen(open === id ? "" : id)}>${open === id ? "Close" : "Override"}</button>`}</td>`}</tr>`)}
          ${open === id && html`<tr key=${id + "+"}><td colspan=${3 + cells.length} class="wrap"><${OverrideOf} id="p-override-of-one" title=${"Override of " + visible(writeEntries(entries).replaceAll("\n", ", ")).slice(0, 200)} asked=${{ domain: asked.domain, entries }} rule=${u.rule} /></td></tr>`}`;
      })} />
      ${(pages.length > 1 || next) && html`<nav class="pager" aria-label="Pages of usage">
        <button type="button" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button><span>page ${pages.length}</span>
        <button type="button" disabled=${!next} onClick=${() => setPages([...pages, next])}>Next</button></nav>`}`}
  </${Panel}>`;
}

const words = (l) => count(l.requestsPerUnit) + " per " + (l.unitMultiplier > 1 ? l.unitMultiplier + " " + l.unit + "s" : l.unit) + ", " + (l.algorithm || "").replaceAll("_", " ");

// Verdict says in a sentence what happens to the next request.
function Verdict({ x }) {
  const say = (kind, title, more) => html`<div class=${"verdict " + kind} role="status"><b>${title}</b> ${more}</div>`;
  if (!x.rule && !(x.counters || []).length) return say("", "Nothing limits this.", x.domainKnown ? "No rule matches these entries." : "No rules are loaded for this domain.");
  if (x.rule && x.rule.unlimited) return say("good", "Unlimited.", "The rule lets every request pass, and counts nothing.");
  if (!x.peeked) return say("", "A rule limits this.", "Whether a request passes now is not known without the counters.");
  const out = (x.counters || []).filter((c) => !(Number(c.remaining) > 0));
  if (!out.length) {
    const least = (x.counters || []).reduce((a, c) => (Number(c.remaining) < Number(a.remaining) ? c : a)); // 64-bit numbers are texts
    return say("good", "The next request passes.", count(least.remaining) + " of " + count(least.capacity) + " left.");
  }
  const waits = out.map((c) => seconds(c.wait));
  const wait = waits.includes(null) ? null : Math.max(...waits);
  const until = wait === null ? "It never passes: the limit admits nothing." : "It passes again in " + duration(wait) + ".";
  if (x.rule && x.rule.shadowMode) return say("warn", "Over the limit, but let through.", "The rule is in shadow mode. " + until);
  return say("bad", "Refused.", until);
}
