// What this replica knows about the other regions, and what is held and granted of limits that all regions share.
import { call, token } from "./api.js";
import { html, visible, Name, Panel, Table, Since, Problem, useLoad, count, duration, seconds } from "./parts.js";

export function Regions() {
  const state = useLoad((signal) => call("AdminService/ListRegions", {}, { signal }), token.value, 2000);
  const r = state.data;
  if (!r) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  if (!r.region) return html`<p class="empty">This replica is in no region: RATELIMITD_REGION is not set.</p>`;
  const homes = (r.homes || []).map((h) => (h.name ? visible(h.name) : "by hash") + " " + count(h.limits));
  return html`
    <${Problem} error=${state.error} />
    <${Panel} title="This region"><dl class="facts">
      <dt>Region</dt><dd>${visible(r.region)}, epoch ${r.epoch}</dd>
      <dt>Counts for the others</dt><dd>${r.acts ? html`<span class="good">yes</span>; without their consent it stops in ${duration(seconds(r.actsFor))}` : html`<span class="bad">no</span>: ${visible(r.reason || "")}`}</dd>
      <dt>Homes of limits in the rules</dt><dd>${homes.join(", ") || "none"}</dd>
      <dt>Attempts that waited for a home</dt><dd>${count(r.cold)}</dd>
      <dt>Attempts without an answer</dt><dd>${count(r.starved)} <span class="note">on_error decided them</span></dd>
    </dl></${Panel}>
    <${Panel} title="Other regions" note="as this replica sees them: ask one in each region">
      <${Table} label="Other regions" head=${["Region", "State", "#Round trip", "Answered", "Asked", "Consented", "#Epoch"]} empty="None."
        rows=${(r.regions || []).map((p) => html`<${Row} key=${p.name} p=${p} epoch=${r.epoch} />`)} />
    </${Panel}>
    <${Panel} title="Limits that the regions share" note="that this replica has used lately">
      ${(r.keptHomes || []).map((k) => html`<p class="warn">The rule <${Name} text=${k.rule} /> names ${k.named || "a home by hash"}, but ${k.home || "a home by hash"} stays the home until the epoch is raised.</p>`)}
      <${Table} label="Limits that the regions share" head=${["Rule", "Mode", "Home", "#Counters", "#Held here", "#Granted to others"]} empty="None."
        rows=${(r.rules || []).map((x) => html`<${Limit} key=${x.rule + "|" + x.home + "|" + x.mode} x=${x} here=${r.region} />`)} />
    </${Panel}>`;
}

function Row({ p, epoch }) {
  const f = p.refused;
  return html`<tr>
    <th scope="row">${visible(p.name)}</th>
    <td class="wrap">${p.error ? html`<span class="bad">down: <${Name} text=${p.error} max=${300} /></span>` : p.answered ? html`<span class="good">up</span>` : "not asked yet"}
      ${f && html`<div class="warn">It did not answer a question about <${Name} text=${f.domain + " " + (f.keys || []).join(",")} />: ${visible(f.reason)}, <${Since} at=${f.at} /></div>`}</td>
    <td class="n">${p.rtt ? (1000 * seconds(p.rtt)).toFixed(1) + " ms" : "–"}</td>
    <td><${Since} at=${p.answered} /></td><td><${Since} at=${p.asked} /></td><td><${Since} at=${p.consented} /></td>
    <td class="n">${p.epoch ? html`<span class=${p.epoch === epoch ? "" : "bad"}>${p.epoch}</span>` : "–"}</td></tr>`;
}

function Limit({ x, here }) {
  const escrow = x.mode === "escrow", home = x.home === here;
  return html`<tr>
    <th scope="row"><a href=${"#/rules?find=" + encodeURIComponent(x.rule || "")}><${Name} text=${x.rule || ""} /></a>
      ${x.otherLimit && html` <span class="warn">${count(x.otherLimit)} with another number at the home</span>`}</th>
    <td>${x.mode}</td><td>${visible(x.home || "")}${home && html` <span class="tag">here</span>`}</td><td class="n">${count(x.counters)}</td>
    <td class="n">${escrow && !home ? count(x.permits) : "–"}</td><td class="n">${escrow && home ? count(x.permits) : "–"}</td></tr>`;
}
