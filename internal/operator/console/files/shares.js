// Who holds what of the limits of quota buckets: the clients of this replica that decide themselves.
import { useEffect, useState } from "preact/hooks";
import { call, token } from "./api.js";
import { Domain, domains } from "./ask.js";
import { html, visible, Name, Panel, Table, Since, Problem, useLoad, count, words, duration, utc, readDescriptor, link, fromQuery } from "./parts.js";

const shown = 20; // buckets on the page

export function Shares({ query }) {
  const asked = fromQuery(query);
  const domain = asked.domain || (domains().length === 1 ? domains()[0] : "");
  return html`
    <${Panel} title="Which buckets?"><${Choose} domain=${domain} entries=${asked.entries} /></${Panel}>
    ${domain && html`<${Buckets} key=${JSON.stringify([domain, asked.entries])} domain=${domain} entries=${asked.entries} />`}`;
}

const list = (entries) => entries.map((e) => e.key + "=" + (e.value || "")).join(", ");

function Choose({ domain, entries }) {
  const [of, setOf] = useState(domain);
  const [text, setText] = useState(list(entries));
  const [error, setError] = useState("");
  useEffect(() => { setOf(domain); setText(list(entries)); setError(""); }, [JSON.stringify([domain, entries])]);
  const submit = (e) => {
    e.preventDefault();
    try {
      const read = readDescriptor(text);
      const name = read.domain || of;
      if (!name) throw new Error("Enter a domain.");
      setError("");
      location.hash = link("shares", name, read.entries);
    } catch (e) {
      setError(e.message);
    }
  };
  return html`<form class="form" onSubmit=${submit}>
    <${Domain} value=${of} set=${setOf} />
    <label class="grow">Entries of a bucket’s id <span class="note">as key=value, with commas between them; empty: all buckets</span>
      <input name="entries" value=${text} onInput=${(e) => setText(e.target.value)} spellcheck=${false} /></label>
    <button class="main">Show</button>
    <div class="outcome"><${Problem} error=${error} /></div>
  </form>`;
}

function Buckets({ domain, entries }) {
  const state = useLoad((signal) => call("AdminService/ListShares", { domain, entries, limit: shown }, { signal }), token.value, 5000);
  const x = state.data;
  if (!x) return state.loading ? html`<p class="empty" role="status">Asking…</p>` : html`<${Problem} error=${state.error} />`;
  const buckets = x.buckets || [];
  return html`
    <${Problem} error=${state.error} />
    ${buckets.length === 0 && html`<p class="empty">${x.domainKnown ? "No client of this replica uses a quota bucket of this domain" + (entries.length ? " with these entries." : ".") : "There are no rules for this domain."}</p>`}
    ${buckets.length > 0 && html`<p class="note">${count(buckets.length)} of ${count(x.total)} ${x.total === 1 ? "bucket" : "buckets"}, those with most demand first, with the clients of ${visible(x.host || "this replica")} only.</p>`}
    ${buckets.map((b, i) => html`<${Bucket} key=${list(b.entries || [])} b=${b} id=${"bucket-" + i} />`)}`;
}

function Bucket({ b, id }) {
  const [more, setMore] = useState(10);
  const all = b.held || [], whole = b.limitRate, held = b.heldRate || {};
  return html`<${Panel} id=${id} title=${html`<${Name} text=${list(b.entries || []) || "the bucket without entries"} />`}
      note=${b.rule ? html`<a href=${"#/rules?find=" + encodeURIComponent(b.rule)}><${Name} text=${b.rule} /></a>${b.limit && html`: ${words(visible(b.limit))}`}` : "no rule matches"}>
    ${whole && html`<p>The clients hold ${perTime(held.perSecond)}, burst ${count(held.burst)}, of ${perTime(whole.perSecond)}, burst ${count(whole.burst)}.
      ${b.replicas > 1 && html` ${count(b.replicas)} replicas share the limit; this one has ${perTime((b.replicaRate || {}).perSecond)}, burst ${count((b.replicaRate || {}).burst)}.`}</p>`}
    <${Table} label=${"Clients of bucket " + id.replace("bucket-", "")} head=${["Client", "May pass", "(share)", "#Burst", "#Demand", "Since", "Expires"]} empty="Nobody uses it."
      rows=${all.slice(0, more).map((h, i) => html`<tr key=${h.client + " " + i}>
        <th scope="row"><${Name} text=${h.client || ""} max=${60} /></th>
        <td>${passes(h)}</td>
        <td>${whole && h.rate && html`<${Part} rate=${h.rate.perSecond || 0} of=${whole.perSecond || 0} />`}</td>
        <td class="n">${h.rate ? count(h.rate.burst) : "–"}</td>
        <td class="n">${perTime(h.demand)}</td>
        <td><${Since} at=${h.since} /></td>
        <td>${h.expires ? html`<time datetime=${h.expires} title=${utc(h.expires)}>${left(h.expires)}</time>` : "–"}</td></tr>`)} />
    <p class="note">Demand of ${count(b.clients)} ${b.clients === 1 ? "client" : "clients"}: ${perTime(b.demand)}, including denied requests.</p>
    ${all.length > more && html`<p><button type="button" onClick=${() => setMore(more + 100)}>Show more of ${count(all.length)}</button></p>`}
  </${Panel}>`;
}

// Part draws which part of the limit a client holds.
function Part({ rate, of }) {
  const part = of > 0 ? Math.min(1, rate / of) : 0;
  return html`<span class="meter" role="img" aria-label=${(100 * part).toFixed(1) + " % of the limit"}><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${100 * part} height="8"/></svg></span>`;
}

function passes(h) {
  switch (h.kind) {
    case "ASSIGNMENT_KIND_ALLOW_ALL": return "everything";
    case "ASSIGNMENT_KIND_DENY_ALL": return html`<span class="bad">nothing</span>`;
    case "ASSIGNMENT_KIND_TOKENS": return perTime((h.rate || {}).perSecond);
    default: return "not assigned yet";
  }
}

function left(at) {
  const rest = (Date.parse(at) - Date.now()) / 1000;
  return rest > 0 ? "in " + duration(Math.ceil(rest)) : "expired";
}

// perTime writes requests per second, or per minute, hour or day if they are few.
function perTime(perSecond = 0) {
  for (const [size, unit] of [[1, "s"], [60, "min"], [3600, "h"]]) {
    const n = perSecond * size;
    if (n >= 100 || perSecond === 0) return count(n) + "/" + unit;
    if (n >= 1) return n.toFixed(1) + "/" + unit;
  }
  return (perSecond * 86400).toFixed(3).replace(/\.?0+$/, "") + "/day";
}
