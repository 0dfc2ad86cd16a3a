// What this replica knows about the other regions.
import { call, token } from "./api.js";
import { html, visible, Name, Panel, Table, Since, Problem, useLoad, count, seconds } from "./parts.js";

export function Regions() {
  const state = useLoad((signal) => call("AdminService/ListRegions", {}, { signal }), token.value, 2000);
  const r = state.data;
  if (!r) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  if (!r.region) return html`<p class="empty">This replica is in no region: RATELIMITD_REGION is not set.</p>`;
  const homes = (r.homes || []).map((h) => (h.name ? visible(h.name) : "by hash") + " " + count(h.limits));
  return html`
    <${Problem} error=${state.error} />
    <${Panel} title="This region"><dl class="facts">
      <dt>Region</dt><dd>${visible(r.region)}</dd>
      <dt>Homes of limits in the rules</dt><dd>${homes.join(", ") || "none"}</dd>
      <dt>Attempts that waited for a home</dt><dd>${count(r.waited)}</dd>
      <dt>Attempts without an answer</dt><dd>${count(r.unanswered)} <span class="note">on_error decided them</span></dd>
    </dl></${Panel}>
    <${Panel} title="Other regions" note="as this replica sees them: ask one in each region">
      <${Table} label="Other regions" head=${["Region", "State", "#Round trip", "Rules", "Answered", "Asked"]} empty="None."
        rows=${(r.regions || []).map((p) => html`<${Row} key=${p.name} p=${p} />`)} />
    </${Panel}>`;
}

function Row({ p }) {
  const f = p.rejected;
  return html`<tr>
    <th scope="row">${visible(p.name)}</th>
    <td class="wrap">${p.error ? html`<span class="bad">down: <${Name} text=${p.error} max=${300} /></span>` : p.answered ? html`<span class="good">up</span>` : "not asked yet"}
      ${f && html`<div class="warn">It did not count a query about <${Name} text=${f.domain + " " + (f.keys || []).join(",")} />: ${visible(f.reason)}, <${Since} at=${f.at} /></div>`}</td>
    <td class="n">${p.rtt ? (1000 * seconds(p.rtt)).toFixed(1) + " ms" : "–"}</td>
    <td>${p.rules ? html`<span class=${p.rules === "differ" ? "warn" : ""}>${visible(p.rules)}</span>` : "–"}</td>
    <td><${Since} at=${p.answered} /></td><td><${Since} at=${p.asked} /></td></tr>`;
}
