// The replicas that share a Redis, and what the one that answers here depends on.
import { useState } from "preact/hooks";
import { call, live, token } from "./api.js";
import { html, Name, Panel, Table, Since, Problem, useLoad, count, rate, utc, visible } from "./parts.js";

const every = 5000; // as often as a replica says something of itself

export function Fleet() {
  return html`<${Replicas} /><${This} />`;
}

const states = { REPLICA_STATE_LIVE: ["good", "live"], REPLICA_STATE_STOPPED: ["", "stopped"], REPLICA_STATE_GONE: ["bad", "gone"] };

function Replicas() {
  const state = useLoad((signal) => call("FleetService/List", {}, { signal }), token.value, every);
  const [more, setMore] = useState(100);
  const fleet = state.data;
  if (!fleet) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  const all = fleet.replicas || [];
  const many = (name) => all.filter((p) => p.state === name).length;
  const differ = all.filter((p) => p.rulesDiffer).length, older = all.filter((p) => p.overridesDiffer).length;
  return html`<${Panel} title="Replicas" note=${count(many("REPLICA_STATE_LIVE")) + " live, " + count(many("REPLICA_STATE_GONE")) + " gone, " + count(many("REPLICA_STATE_STOPPED")) + " stopped"}>
    <${Problem} error=${state.error} />
    ${!fleet.shared && html`<p class="note">This replica counts in its own memory, and knows no others.</p>`}
    ${fleet.error && html`<p class="problem" role="alert">${fleet.readAt ? "The others are as they were at " + utc(fleet.readAt) : "The others are not known"}: ${visible(fleet.error)}</p>`}
    ${differ > 0 && html`<p class="bad">${count(differ)} ${differ === 1 ? "has" : "have"} other rules than most.</p>`}
    ${older > 0 && html`<p class="bad">${count(older)} ${older === 1 ? "has" : "have"} other or older overrides than most.</p>`}
    ${fleet.more > 0 && html`<p class="warn">${count(fleet.more)} more are not listed.</p>`}
    ${fleet.unreadable > 0 && html`<p class="warn">${count(fleet.unreadable)} entries in Redis are not understood: they are of another version, or of another program.</p>`}
    <${Table} label="Replicas" head=${["Replica", "State", "Version", "Started", "Rules", "Overrides", "Redis", "#passed/s", "#denied/s", "#failed/s", "In memory"]} empty="None."
      rows=${all.slice(0, more).map((p) => html`<${Row} key=${p.id} p=${p} self=${p.id === fleet.thisReplica} />`)} />
    ${all.length > more && html`<p><button type="button" onClick=${() => setMore(more + 200)}>Show more of ${count(all.length)}</button></p>`}
  </${Panel}>`;
}

function Row({ p, self }) {
  const rules = p.rules || {}, o = p.overrides, per = p.perSecond || {};
  const [kind, name] = states[p.state] || ["", p.state];
  const broken = (rules.stale || 0) + (rules.rejected || 0);
  const open = (p.redis || []).flatMap((r) => r.openBreakers || []);
  return html`<tr>
    <th scope="row"><${Name} text=${p.host || ""} max=${60} /> <span class="note" title=${p.id}>${p.id.slice(0, 6)}</span>${self && html` <span class="tag">this one</span>`}</th>
    <td><span class=${kind}>${name}</span>${p.state !== "REPLICA_STATE_LIVE" && html`, seen <${Since} at=${p.seen} />`}</td>
    <td><${Name} text=${p.version || ""} max=${30} /></td>
    <td><${Since} at=${p.started} /></td>
    <td class="wrap">${!Number(rules.checksum) ? html`<span class="bad">none</span>` : html`${count(rules.count)}, <code>${rules.checksum}</code>`}${rules.since && html`<br /><span class="note">since <${Since} at=${rules.since} /></span>`}
      ${p.rulesDiffer && html` <span class="bad">other than most</span>`}${broken > 0 && html` <span class="bad">${count(broken)} ${broken === 1 ? "file" : "files"} not in use</span>`}</td>
    <td class="wrap">${o ? html`${count(o.count)}, version <code>${o.version || 0}</code>${o.error && html` <span class="bad"><${Name} text=${o.error} /></span>`}` : "off"}${p.overridesDiffer && html` <span class="bad">other or older than most</span>`}</td>
    <td class="wrap">${!(p.redis || []).length ? "–" : open.length ? html`<span class="bad">no answer: <${Name} text=${open.join(", ")} /></span>` : html`<span class="good">answers</span>`}</td>
    <td class="n">${rate(per.passed || 0)}</td><td class=${"n " + (per.denied ? "bad" : "")}>${rate(per.denied || 0)}</td><td class=${"n " + (per.failed ? "bad" : "")}>${rate(per.failed || 0)}</td>
    <td class="wrap">${(p.caches || []).map((c) => html`<div>${count(c.entries)} <span class="note"><${Name} text=${c.name} max=${40} /></span></div>`)}</td></tr>`;
}

// This is the replica that answers, and what it depends on.
function This() {
  const event = live.value;
  if (!event) return html`<p class="empty" role="status">Waiting for the first event…</p>`;
  const p = event.replica, r = event.rules;
  return html`<div class="two">
    <${Panel} title="This replica"><dl class="facts">
      ${p && html`<dt>Host</dt><dd><${Name} text=${p.host} /></dd><dt>Version</dt><dd><${Name} text=${p.version} /></dd><dt>Started</dt><dd><${Since} at=${p.started} /></dd><dt>Counters</dt><dd>in ${p.backend === "memory" ? "the memory of this replica: other replicas count on their own" : p.backend}</dd>`}
      <dt>Rules</dt><dd>${r.loaded ? count(r.rules) + " in " + count(r.files) + (r.files === 1 ? " file" : " files") : html`<span class="bad">none were ever loaded</span>`}
        ${r.rejected > 0 && html` <a class="bad" href="#/rules">${count(r.rejected)} rejected</a>`}${r.stale > 0 && html` <a class="bad" href="#/rules">${count(r.stale)} stale</a>`}</dd>
      <dt>Rules’ checksum</dt><dd><code>${r.checksum || "–"}</code></dd>
      <dt>Overrides</dt><dd>${p && p.overrides ? html`${count(p.overrides.count)}, version <code>${p.overrides.version}</code>${p.overrides.error && html` <span class="bad">${p.overrides.error}</span>`}` : "off"}</dd>
    </dl></${Panel}>
    <${Panel} title="Redis">
      <${Table} label="Redis" head=${["Redis", "State", "#ping", "#connections"]} empty="This replica counts in its own memory."
        rows=${(p ? p.redis : []).map((s) => html`<tr key=${s.name}><th scope="row">${s.name}</th>
          <td class="wrap">${s.error ? html`<span class="bad">does not answer: <${Name} text=${s.error} max=${300} /></span>` : html`<span class="good">answers</span>`}</td>
          <td class="n">${s.error ? "–" : s.ms.toFixed(1) + " ms"}</td><td class="n">${count(s.connections)}</td></tr>`)} />
      <p class="note">Calls to a node that does not answer fail at once, by its breaker, and on_error of each rule says what happens to requests.</p>
    </${Panel}>
    <${Panel} title="Decisions" note="since this replica started"><dl class="facts">${event.decisions && [["Passed", "passed"], ["Denied", "denied"], ["Let through by the global shadow mode", "shadowed"], ["Failed", "failed"], ["Decided without the store (on_error)", "on_error"], ["For domains without rules", "unknown_domain"]].map(([label, name]) => html`<dt>${label}</dt><dd>${count(event.decisions[name])}</dd>`)}</dl></${Panel}>
    <${Panel} title="In memory"><${Table} label="In memory" head=${["What", "#entries"]} empty="This replica remembers nothing." rows=${(p ? p.caches : []).map((c) => html`<tr key=${c.name}><th scope="row">${c.name}</th><td class="n">${count(c.entries)}</td></tr>`)} /></${Panel}>
  </div>`;
}
