// The active rules, and the files that they come from.
import { useState, useEffect } from "preact/hooks";
import { call, get, live, token } from "./api.js";
import { html, Name, Panel, Table, Problem, Since, LimitWords, useLoad, count, percent } from "./parts.js";

const size = 100;
const states = { RULE_FILE_STATE_LOADED: ["good", "loaded"], RULE_FILE_STATE_STALE: ["bad", "stale: its last good version is in use"], RULE_FILE_STATE_REJECTED: ["bad", "rejected: nothing of it is in use"] };

export function Rules({ query }) {
  const event = live.value;
  const changed = event ? event.rules.checksum + "/" + event.rules.since : "";
  return html`<${Files} changed=${changed} /><${List} query=${query} changed=${changed} />`;
}

function Files({ changed }) {
  const state = useLoad((signal) => call("AdminService/ListRuleFiles", {}, { signal }), changed + token.value);
  const [more, setMore] = useState(50);
  const files = ((state.data && state.data.files) || []).slice().sort((a, b) => bad(b) - bad(a));
  return html`<${Panel} title="Files" note=${files.length ? count(files.length) : ""}>
    <${Problem} error=${state.error} />
    ${state.data && html`<${Table} label="Files" head=${["File", "State", "#rules", "Domains", "Since"]} empty="There are no rule files."
      rows=${files.slice(0, more).map((f) => html`<tr key=${f.name}>
        <th scope="row"><${Name} text=${f.name || ""} /></th>
        <td class="wrap"><span class=${(states[f.state] || ["", ""])[0]}>${(states[f.state] || ["", f.state])[1]}</span>
          ${(f.errors || []).length > 0 && html`<ul class="errors">${f.errors.map((e) => html`<li><${Name} text=${e} max=${600} /></li>`)}</ul>`}</td>
        <td class="n">${count(f.rules)}</td>
        <td class="wrap"><${Name} text=${(f.domains || []).slice(0, 20).join(", ")} /></td>
        <td>${f.since ? html`<${Since} at=${f.since} />` : "–"}</td></tr>`)} />
      ${files.length > more && html`<p><button type="button" onClick=${() => setMore(more + 200)}>Show more of ${count(files.length)}</button></p>`}`}
  </${Panel}>`;
}

const bad = (f) => (f.state === "RULE_FILE_STATE_LOADED" ? 0 : 1);

function List({ query, changed }) {
  const wanted = query.get("find") || "";
  const [find, setFind] = useState(wanted), [typed, setTyped] = useState(wanted);
  const [denied, setDenied] = useState(false);
  const [pages, setPages] = useState([0]); // where each page up to this one begins
  useEffect(() => { setTyped(wanted); setFind(wanted); setPages([0]); }, [wanted]);
  useEffect(() => {
    const timer = setTimeout(() => { if (typed !== find) { setFind(typed); setPages([0]); } }, 200);
    return () => clearTimeout(timer);
  }, [typed]);
  const from = pages[pages.length - 1];
  const path = "rules?" + new URLSearchParams({ from, limit: size, find, ...(denied ? { denied: 1 } : {}) });
  const state = useLoad((signal) => get(path, { signal }), path + changed + token.value, 5000);
  const page = state.data;
  let before = null;
  return html`<${Panel} title="Active rules" note=${page ? (page.matched === page.total ? count(page.total) : count(page.matched) + " of " + count(page.total)) + ", hits of this replica since it started" : ""}
    tools=${html`<label>Find <input type="search" value=${typed} onInput=${(e) => setTyped(e.target.value)} spellcheck=${false} /></label>
      <label><input type="checkbox" checked=${denied} onChange=${(e) => { setDenied(e.target.checked); setPages([0]); }} /> only rules that denied requests</label>`}>
    <${Problem} error=${state.error} />
    ${page && html`<${Table} label="Active rules" head=${["Rule", "Limits", "#hits", "#denied", "Written in"]}
      empty=${page.total ? "No matching rules." : "There are no rules: requests are answered as if nothing were limited, or with an error if rules were never loaded."}
      rows=${page.rules.map((r) => {
        const same = before ? shared(before, r) : 0;
        before = r;
        return html`<tr key=${r.domain + "|" + r.path}>
          <th scope="row" class="tree"><${Level} key_=${r.domain} value="" dim=${same > 0} />${r.levels.map((l, i) => html`<span class="sep" aria-hidden="true">›</span><${Level} key_=${l.key} value=${l.value} dim=${same > i + 1} />`)}
            ${r.name && html` <span class="note">(<${Name} text=${r.name} max=${60} />)</span>`}${r.flags.map((f) => html` <span class="tag"><${Name} text=${f} max=${60} /></span>`)}</th>
          <td class="wrap">${r.limits.map(([name, text]) => html`<div><${LimitWords} name=${name} text=${text} /></div>`)}</td>
          <${Did} rule=${r} />
          <td>${r.file && html`<${Name} text=${r.file + ":" + r.line} max=${60} />`}</td></tr>`;
      })} />
      ${(pages.length > 1 || page.next > 0) && html`<nav class="pager" aria-label="Pages of rules">
        <button type="button" disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous</button>
        <span>page ${pages.length} of ${count(Math.max(pages.length, Math.ceil(page.matched / size)))}</span>
        <button type="button" disabled=${!page.next} onClick=${() => setPages([...pages, page.next])}>Next</button></nav>`}`}
  </${Panel}>`;
}

const unknown = "Not known: the names of its metrics depend on the request, or there are more rules than series of metrics";

// Did is what a rule did since the replica started. Hits that passed because of shadow mode are over the limit, but were not denied.
function Did({ rule: { totals } }) {
  if (!totals) return html`<td class="n" title=${unknown}>–</td><td class="n">–</td>`;
  const denies = totals.denied - totals.shadowed;
  return html`<td class="n">${totals.hits ? count(totals.hits) : html`<span class="note">never hit</span>`}</td>
    <td class=${"n " + (totals.denied ? "bad" : "")}>${count(totals.denied)}${denies > 0 && html` <span class="note">denies ${percent(denies, totals.hits)}</span>`}</td>`;
}

// shared is how many levels from the left, with the domain, two rules have in common.
function shared(a, b) {
  if (a.domain !== b.domain) return 0;
  let n = 1;
  for (let i = 0; i < a.levels.length && i < b.levels.length - 1 && a.levels[i].key === b.levels[i].key && a.levels[i].value === b.levels[i].value; i++) n++;
  return n;
}

const Level = ({ key_, value, dim }) => html`<span class=${dim ? "level dim" : "level"}><${Name} text=${value === "" ? key_ : key_ + "=" + value} max=${80} /></span>`;
