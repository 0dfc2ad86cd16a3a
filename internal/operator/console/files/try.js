// Which rule a request would match, and why.
import { useEffect, useState } from "preact/hooks";
import { call, live, token } from "./api.js";
import { html, Name, Panel, Problem, useLoad, fromQuery, link } from "./parts.js";
import { Ask } from "./ask.js";

const kinds = { MATCH_KIND_EXACT: "exact value", MATCH_KIND_WILDCARD: "pattern", MATCH_KIND_ANY: "any value", MATCH_KIND_VALUES: "list of values", MATCH_KIND_CIDR: "network", MATCH_KIND_REGEX: "expression" };

export function Try({ query }) {
  const asked = fromQuery(query);
  const [rule, setRule] = useState(""); // the path of the one that matches
  return html`
    <${Panel} title="Which request?" note="Nothing is counted."><${Ask} page="try" asked=${asked} action="Explain" matched=${rule} /></${Panel}>
    ${asked.domain && asked.entries.length > 0 && html`<${Explained} key=${JSON.stringify(asked)} asked=${asked} onRule=${setRule} />`}`;
}

function Explained({ asked, onRule }) {
  const checksum = live.value ? live.value.rules.checksum : "";
  const state = useLoad((signal) => call("AdminService/Explain", asked, { signal }), JSON.stringify(asked) + checksum + token.value);
  const x = state.data, path = (x && x.rule && x.rule.path) || "";
  useEffect(() => { onRule(path); return () => onRule(""); }, [path]);
  if (!x) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  return html`
    <div class=${"verdict " + (x.rule ? "good" : "warn")} role="status">${x.rule
      ? html`<b>It matches</b> <a href=${"#/rules?find=" + encodeURIComponent(path)}><${Name} text=${path} /></a>. <a href=${link("customer", asked.domain, asked.entries)}>Its counters</a>`
      : html`<b>No rule matches:</b> <${Name} text=${x.reason || ""} max=${600} />`}</div>
    <${Panel} title="The way through the rules" note="one step for each entry">
      <ol class="steps">${(x.levels || []).map((l, i) => html`<li key=${i}>
        <p><b><${Name} text=${l.entry.key + "=" + (l.entry.value || "")} /></b> ${l.reason && html`<span class="bad"><${Name} text=${l.reason} max=${400} /></span>`}</p>
        ${(l.candidates || []).length > 0 && html`<ul>${l.candidates.map((c, j) => html`<li key=${j} class=${c.matched ? "matched" : ""}>
          <span class="mark" aria-hidden="true">${c.matched ? "✓" : "·"}</span><span>${kinds[c.kind] || c.kind}${c.value && html` <code><${Name} text=${c.value} /></code>`}${c.matched ? " matches" : ""}${c.reason && html`: <${Name} text=${c.reason} max=${300} />`}</span></li>`)}</ul>`}
      </li>`)}</ol>
    </${Panel}>`;
}
