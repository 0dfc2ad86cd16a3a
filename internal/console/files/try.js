// Which rule a request would match, and why; and what the rules would do with the requests of a log.
import { useState } from "preact/hooks";
import { call, live, post, token } from "./api.js";
import { html, Name, Panel, Table, Problem, Ask, useLoad, count, percent, utc, fromQuery, link } from "./parts.js";

const kinds = { MATCH_KIND_EXACT: "exact value", MATCH_KIND_WILDCARD: "pattern", MATCH_KIND_ANY: "any value", MATCH_KIND_VALUES: "list of values", MATCH_KIND_CIDR: "network", MATCH_KIND_REGEX: "expression" };

export function Try({ query }) {
  const asked = fromQuery(query);
  return html`
    <${Panel} title="Which request?" note="Nothing is counted."><${Ask} page="try" asked=${asked} domains=${live.value ? live.value.rules.domains : []} action="Explain" /></${Panel}>
    ${asked.domain && asked.entries.length > 0 && html`<${Explained} key=${JSON.stringify(asked)} asked=${asked} />`}
    <${Replay} />`;
}

function Explained({ asked }) {
  const checksum = live.value ? live.value.rules.checksum : "";
  const state = useLoad((signal) => call("AdminService/Explain", asked, { signal }), JSON.stringify(asked) + checksum + token.value);
  const x = state.data;
  if (!x) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  return html`
    <div class=${"verdict " + (x.rule ? "good" : "warn")} role="status">${x.rule
      ? html`<b>It matches</b> <a href=${"#/rules?find=" + encodeURIComponent(x.rule.path)}><${Name} text=${x.rule.path} /></a>. <a href=${link("customer", asked.domain, asked.entries)}>Its counters</a>`
      : html`<b>${x.domainKnown ? "No rule matches." : "There are no rules for this domain."}</b> <${Name} text=${x.reason || ""} max=${600} />`}</div>
    <${Panel} title="The way through the rules" note="one step for each entry">
      <ol class="steps">${(x.levels || []).map((l, i) => html`<li key=${i}>
        <p><b><${Name} text=${l.entry.key + "=" + (l.entry.value || "")} /></b> ${l.reason && html`<span class="bad"><${Name} text=${l.reason} max=${400} /></span>`}</p>
        ${(l.candidates || []).length > 0 && html`<ul>${l.candidates.map((c, j) => html`<li key=${j} class=${c.matched ? "matched" : ""}>
          <span class="mark" aria-hidden="true">${c.matched ? "✓" : "·"}</span><span>${kinds[c.kind] || c.kind}${c.value && html` <code><${Name} text=${c.value} /></code>`}${c.matched ? " matches" : ""}${c.reason && html`: <${Name} text=${c.reason} max=${300} />`}</span></li>`)}</ul>`}
      </li>`)}</ol>
    </${Panel}>`;
}

const formats = [["nginx", "nginx"], ["apache", "Apache"], ["envoy", "Envoy"], ["json", "JSON lines"], ["csv", "CSV"], ["text", "text with a pattern"], ["", "as a mapping says"]];
const mappingExample = "format: csv\ntime: when\ndomain: shop\ndescriptors:\n  - [{key: tenant, field: tenant}]";

// Replay sends a pasted log through the rules in force.
function Replay() {
  const [asked, setAsked] = useState({ format: "nginx", descriptors: "remote_address=ip", domain: "", pattern: "", time: "", mapping: "", log: "" });
  const [state, set] = useState({});
  const field = (name, label, note, rest) => html`<label class="grow">${label} ${note && html`<span class="note">${note}</span>`}<input name=${"log-" + name} value=${asked[name]} onInput=${(e) => setAsked({ ...asked, [name]: e.target.value })} spellcheck=${false} autocomplete="off" ...${rest} /></label>`;
  const area = (name, label, note, rows, placeholder) => html`<label class="wide">${label} ${note && html`<span class="note">${note}</span>`}<textarea name=${"log-" + name} rows=${rows} value=${asked[name]} placeholder=${placeholder} onInput=${(e) => setAsked({ ...asked, [name]: e.target.value })} spellcheck=${false} /></label>`;
  const mapped = asked.format === "", fields = ["json", "csv", "text"].includes(asked.format);
  const submit = async (e) => {
    e.preventDefault();
    set({ running: true });
    const { format, domain, pattern, time, log, mapping } = asked;
    const lines = asked.descriptors.split("\n").filter((l) => l.trim());
    try {
      set({ report: await post("simulate", mapped ? { log, mapping } : { log, format, domain: domain.trim(), pattern, time: time.trim(), descriptors: lines }) });
    } catch (error) {
      set({ error });
    }
  };
  return html`<${Panel} title="Which requests of a log?" note="A log goes through the rules and overrides in force, from empty counters. Nothing of this process is counted.">
    <form class="form" onSubmit=${submit}>
      <label>Format<select name="log-format" value=${asked.format} onChange=${(e) => setAsked({ ...asked, format: e.target.value })}>${formats.map(([id, label]) => html`<option value=${id}>${label}</option>`)}</select></label>
      ${!mapped && field("domain", "Domain", "if there are several")}
      ${fields && field("time", "Field with the time", "FIELD or FIELD=LAYOUT")}
      ${asked.format !== "json" && asked.format !== "csv" && !mapped && field("pattern", "Pattern of a line", asked.format === "text" ? "" : "if it is not the usual one")}
      ${mapped ? area("mapping", "Mapping", "as of ratelimitd simulate", 6, mappingExample) : area("descriptors", "Descriptors", fields ? "one per line as key=field" : "one per line as key=ip, key=method, key=path or key=header:NAME", 2)}
      ${area("log", "Lines of the log", "4 MiB at most", 8)}
      <span><button class="main" disabled=${state.running}>${state.running ? "Replaying…" : "Replay"}</button></span>
    </form>
    <${Problem} error=${state.error} />
    ${state.report && html`<${Report} r=${state.report} />`}
  </${Panel}>`;
}

function Report({ r }) {
  const side = r.new;
  const by = (c) => (c.refused_by || []).map((x) => x.rule + (x.name ? " (" + x.name + ")" : "") + (x.limit ? ": " + x.limit : "")).join("; ");
  return html`<div class=${"verdict " + (side.refused ? "bad" : "good")} role="status"><b>${count(side.refused)} of ${count(r.requests)} requests are refused</b> (${percent(side.refused, r.requests)}), ${utc(r.from)} to ${utc(r.to)}. ${count(side.no_rule)} match no rule${side.unknown_domain ? ", " + count(side.unknown_domain) + " are for domains without rules" : ""}${side.not_enforced ? ", " + count(side.not_enforced) + " are over a limit that is not enforced" : ""}${side.overridden ? ", " + count(side.overridden) + " are decided with an override" : ""}.</div>
    ${(r.warnings || []).map((w) => html`<p class="warn"><${Name} text=${w} max=${400} /></p>`)}
    ${r.bad_lines > 0 && html`<p class="warn">${count(r.bad_lines)} of ${count(r.lines)} lines cannot be used:</p><ul class="errors">${(r.first_bad_lines || []).map((l) => html`<li>line ${count(l.line)}: <${Name} text=${l.message} max=${300} /></li>`)}</ul>`}
    <h3>Rules</h3>
    <${Table} label="Rules of the log" head=${["Rule", "Limits", "#requests", "#refused", "#share"]} empty="No rule matches a request."
      rows=${(r.by_rule || []).filter((x) => x.new && x.new.requests > 0).map((x) => html`<tr key=${x.rule}><th scope="row"><a href=${"#/rules?find=" + encodeURIComponent(x.rule)}><${Name} text=${x.rule} max=${80} /></a>${x.shadow_mode && html` <span class="tag">shadow</span>`}</th>
        <td class="wrap">${(x.new.limits || []).map((l) => html`<div>${l.limit}</div>`)}</td><td class="n">${count(x.new.requests)}</td><td class=${"n " + (x.new.refused ? "bad" : "")}>${count(x.new.refused)}</td><td class="n">${percent(x.new.refused, x.new.requests)}</td></tr>`)} />
    <h3>Callers</h3>
    <${Table} label="Callers of the log" head=${["Caller", "#requests", "#refused", "Refused by"]} empty="There are none."
      rows=${(r.callers.rows || []).map((c) => html`<tr key=${c.caller}><th scope="row"><${Name} text=${c.caller} max=${100} /></th><td class="n">${count(c.requests)}</td><td class=${"n " + (c.refused ? "bad" : "")}>${count(c.refused)}</td><td class="wrap"><${Name} text=${by(c)} max=${200} /></td></tr>`)} />
    ${r.callers.others && html`<p class="note">and ${count(r.callers.others.requests)} requests of others, ${count(r.callers.others.refused)} of them refused</p>`}`;
}
