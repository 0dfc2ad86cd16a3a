// What is denied now.
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { call, live, history, rates, stale, token } from "./api.js";
import { html, Name, Panel, Table, useLoad, count, rate, range, percent, inWords, link } from "./parts.js";

export function Now() {
  const event = live.value, now = rates.value;
  const hot = event && event.hot;
  const rules = hot ? hot.rules.filter((r) => r.denied > 0) : [];
  return html`
    <${Fleet} event=${event} />
    <${Cards} event=${event} now=${now} />
    <${Panel} title="Decisions" note="per second, since this page is open"><${Chart} /></${Panel}>
    ${hot && html`<div class="two">
      <${Panel} title="Rules that deny" note=${"last " + Math.round(hot.seconds) + " s"}>
        <${Table} label="Rules that deny" head=${["Rule", "#denied", "#of", "#share"]} empty="No rule denied anything."
          rows=${rules.map((r) => html`<tr key=${r.domain + "|" + r.rule}>
            <th scope="row"><a href=${"#/rules?find=" + encodeURIComponent(r.rule)}><${Name} text=${r.rule} max=${80} /></a>${r.shadow && html` <span class="tag">shadow</span>`}</th>
            <td class="n bad">${count(r.denied)}</td><td class="n">${count(r.used)}</td><td class="n">${percent(r.denied, r.used)}</td></tr>`)} />
      </${Panel}>
      <${Customers} />
    </div>`}`;
}

// Fleet says whose numbers the page shows, and what all replicas do together.
function Fleet({ event }) {
  const known = !!event && event.fleet;
  const state = useLoad((signal) => (known ? call("FleetService/List", {}, { signal }) : Promise.resolve(null)), token.value + known, 5000);
  const up = ((state.data && state.data.replicas) || []).filter((p) => p.state === "REPLICA_STATE_LIVE" && p.perSecond);
  const sum = (name) => rate(up.reduce((all, p) => all + (p.perSecond[name] || 0), 0));
  return html`<p class="whose">This replica: <b><${Name} text=${event && event.replica ? event.replica.host : location.host} max=${60} /></b>${state.data && (!state.data.shared ? ", which counts in its own memory"
    : up.length > 1 ? html`, 1 of <a href="#/fleet">${count(up.length)}</a>. Together they pass ${sum("passed")} and deny ${sum("denied")} a second` : ", the only one that counts in this Redis")}.</p>`;
}

// Customers are the busiest of the last minute.
export function Customers() {
  const [by, setBy] = useState("denied");
  const hot = live.value && live.value.hot;
  if (!hot) return null;
  return html`<${Panel} title=${by === "denied" ? "Customers that are denied" : "Customers that ask most"} note=${"last " + Math.round(hot.seconds) + " s"}
    tools=${html`<span role="group" aria-label="Sort customers">${["denied", "used"].map((b) => html`<button type="button" aria-pressed=${by === b} onClick=${() => setBy(b)}>most ${b === "denied" ? "denied" : b}</button>`)}</span>`}>
    <${Table} label="Customers" head=${["Customer", "#denied", "#of"]} empty=${by === "denied" ? "Nobody was denied." : "Nobody asked."}
      rows=${hot[by].map((k) => html`<tr key=${k.key + k.rule}>
        <th scope="row"><${Counter} of=${k} />${k.shadow && html` <span class="tag">shadow</span>`}</th>
        <td class=${"n " + (k.denied[1] > 0 ? "bad" : "")}>${range(k.denied)}</td><td class="n">${range(k.used)}</td></tr>`)} />
  </${Panel}>`;
}

// Counter is what a counter counts. It leads to the customer if its key says who that is; a very long key does not.
function Counter({ of }) {
  const name = html`<${Name} text=${of.entries ? inWords(of.entries) : of.key} max=${90} />`;
  const many = live.value && live.value.rules.domains.length !== 1;
  return html`${of.leads ? html`<a href=${link("customer", of.domain, of.entries)}>${name}</a>` : name}${many && html` <span class="note">in <${Name} text=${of.domain} max=${40} /></span>`}`;
}

function Cards({ event, now }) {
  const all = now ? now.passed + now.denied : 0;
  const card = (label, value, kind, note) => html`<div class=${"card " + (kind || "")}><dt>${label}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`;
  return html`<dl class="cards" aria-label="Now">
    ${card("denied per second", now ? rate(now.denied) : "–", now && now.denied > 0 ? "bad" : "", now && all > 0 ? percent(now.denied, all) : "")}
    ${card("passed per second", now ? rate(now.passed) : "–")}
    ${card("failed per second", now ? rate(now.failed) : "–", now && now.failed > 0 ? "bad" : "")}
    ${card("without the store", now ? rate(now.onError) : "–", now && now.onError > 0 ? "warn" : "", "on_error")}
    ${card("unknown domain", now ? rate(now.unknown) : "–", now && now.unknown > 0 ? "warn" : "")}
    ${card("rules", event ? count(event.rules.rules) : "–", event && (!event.rules.loaded || event.rules.rejected || event.rules.stale) ? "warn" : "")}
  </dl>`;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// covered is the range of the time axis. It begins with the first number, so that the first minute fills the chart; it has ten seconds at least.
function covered(u) {
  const times = u.data[0], begin = times.length ? times[0] : Date.now() / 1000;
  return [begin, Math.max(begin + 10, times[times.length - 1] || 0)];
}

// plotting is true once uPlot is there: the page does not wait for it.
const plotting = signal(!!window.uPlot);
document.getElementById("uplot").addEventListener("load", () => { plotting.value = true; });

// Chart draws the history. uPlot draws on a canvas, which screen readers cannot read: the label has the last numbers.
function Chart() {
  const at = useRef(null), plot = useRef(null);
  const points = history.value;
  const ready = plotting.value;
  useEffect(() => {
    if (!ready) return undefined;
    const box = at.current;
    const make = () => {
      if (plot.current) plot.current.destroy();
      const axis = () => ({ stroke: color("soft"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid") }, font: "12px system-ui, sans-serif" });
      plot.current = new window.uPlot({
        width: box.clientWidth, height: 150, legend: { show: false }, cursor: { show: false },
        scales: { x: { range: covered }, y: { range: (u, min, max) => [0, Math.max(max || 0, 1) * 1.1] } },
        axes: [Object.assign(axis(), { values: (u, ticks) => ticks.map((t) => new Date(t * 1000).toISOString().slice(11, 19)), space: 90, size: 26 }), Object.assign(axis(), { size: 54, values: (u, ticks) => ticks.map((v) => (v % 1 ? "" : rate(v))) })],
        series: [{}, { stroke: color("allowed"), width: 1.5, points: { show: false } }, { stroke: color("denied"), fill: color("deniedfill"), width: 1.5, points: { show: false } }],
      }, data(), box);
    };
    make();
    const sizes = new ResizeObserver(() => { if (box.clientWidth) plot.current.setSize({ width: box.clientWidth, height: 150 }); });
    sizes.observe(box);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => { sizes.disconnect(); dark.removeEventListener("change", make); plot.current.destroy(); };
  }, [ready]);
  const data = () => [points.map((p) => p.t), points.map((p) => p.passed), points.map((p) => p.denied)];
  useEffect(() => { if (plot.current) plot.current.setData(data()); }, [points]);
  const last = points[points.length - 1];
  return html`<div class="chart">
    <p class="legend" aria-hidden="true"><span class="key allowed"></span> passed <span class="key denied"></span> denied <span class="note">time in UTC</span></p>
    <div ref=${at} role="img" aria-label=${last ? "Chart of decisions per second. Last: " + rate(last.passed) + " passed, " + rate(last.denied) + " denied" + (stale.value ? " (stale)" : "") : "Chart of decisions per second, without data yet"}></div>
  </div>`;
}
