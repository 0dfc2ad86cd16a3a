// What is denied now.
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { live, history, rates, stale } from "./api.js";
import { html, Name, Panel, Table, count, rate, range, percent, fromKey, link } from "./parts.js";

export function Now() {
  const event = live.value, now = rates.value;
  const hot = event && event.hot;
  const rules = hot ? hot.rules.filter((r) => r.refused > 0) : [];
  return html`
    <${Cards} event=${event} now=${now} />
    <${Panel} title="Decisions" note="per second, of this replica, since this page is open"><${Chart} /></${Panel}>
    ${hot && html`<div class="two">
      <${Panel} title="Rules that deny" note=${"last " + Math.round(hot.seconds) + " s"}>
        <${Table} label="Rules that deny" head=${["Rule", "#denied", "#of", "#share"]} empty="No rule denied anything."
          rows=${rules.map((r) => html`<tr key=${r.domain + "|" + r.rule}>
            <th scope="row"><a href=${"#/rules?find=" + encodeURIComponent(r.rule)}><${Name} text=${r.rule} max=${80} /></a>${r.shadow && html` <span class="tag">shadow</span>`}</th>
            <td class="n bad">${count(r.refused)}</td><td class="n">${count(r.used)}</td><td class="n">${percent(r.refused, r.used)}</td></tr>`)} />
      </${Panel}>
      <${Callers} />
    </div>`}`;
}

// Callers are the busiest of the last minute.
export function Callers() {
  const [by, setBy] = useState("refused");
  const hot = live.value && live.value.hot;
  if (!hot) return null;
  return html`<${Panel} title=${by === "refused" ? "Callers that are denied" : "Callers that ask most"} note=${"last " + Math.round(hot.seconds) + " s"}
    tools=${html`<span role="group" aria-label="Sort callers">${["refused", "used"].map((b) => html`<button type="button" aria-pressed=${by === b} onClick=${() => setBy(b)}>most ${b === "refused" ? "denied" : b}</button>`)}</span>`}>
    <${Table} label="Callers" head=${["Counter", "#denied", "#used"]} empty=${by === "refused" ? "Nobody was denied." : "Nobody asked."}
      rows=${hot[by].map((k) => html`<tr key=${k.key}>
        <th scope="row"><${Key} of=${k} />${k.shadow && html` <span class="tag">shadow</span>`}</th>
        <td class=${"n " + (k.refused[1] > 0 ? "bad" : "")}>${range(k.refused)}</td><td class="n">${range(k.used)}</td></tr>`)} />
  </${Panel}>`;
}

// Key is the key of a counter. It leads to the customer if it names the entries.
function Key({ of }) {
  const at = of.key.indexOf(of.domain + "|");
  const found = at >= 0 && !of.cut ? fromKey(of.key.slice(at)) : null;
  const name = html`<${Name} text=${of.key} max=${90} />`;
  return found ? html`<a href=${link("customer", found.domain, found.entries)}>${name}</a>` : name;
}

function Cards({ event, now }) {
  const all = now ? now.passed + now.refused : 0;
  const card = (label, value, kind, note) => html`<div class=${"card " + (kind || "")}><dt>${label}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`;
  return html`<dl class="cards" aria-label="Now">
    ${card("denied per second", now ? rate(now.refused) : "–", now && now.refused > 0 ? "bad" : "", now && all > 0 ? percent(now.refused, all) : "")}
    ${card("passed per second", now ? rate(now.passed) : "–")}
    ${card("failed per second", now ? rate(now.failed) : "–", now && now.failed > 0 ? "bad" : "")}
    ${card("without the store", now ? rate(now.onError) : "–", now && now.onError > 0 ? "warn" : "", "on_error")}
    ${card("unknown domain", now ? rate(now.unknown) : "–", now && now.unknown > 0 ? "warn" : "")}
    ${card("rules", event ? count(event.rules.rules) : "–", event && (!event.rules.loaded || event.rules.rejected || event.rules.stale) ? "warn" : "")}
  </dl>`;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// lastMinute is the range of the time axis: all of the history, and a minute at least, also before there is any.
function lastMinute(u) {
  const times = u.data[0], end = times.length ? times[times.length - 1] : Date.now() / 1000;
  return [Math.min(times.length ? times[0] : end, end - 60), end];
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
        scales: { x: { range: lastMinute }, y: { range: (u, min, max) => [0, Math.max(max || 0, 1) * 1.1] } },
        axes: [Object.assign(axis(), { values: (u, ticks) => ticks.map((t) => new Date(t * 1000).toISOString().slice(11, 19)), space: 90, size: 26 }), Object.assign(axis(), { size: 54, values: (u, ticks) => ticks.map((v) => (v % 1 ? "" : rate(v))) })],
        series: [{}, { stroke: color("allowed"), width: 1.5, points: { show: false } }, { stroke: color("refused"), fill: color("refusedfill"), width: 1.5, points: { show: false } }],
      }, data(), box);
    };
    make();
    const sizes = new ResizeObserver(() => { if (box.clientWidth) plot.current.setSize({ width: box.clientWidth, height: 150 }); });
    sizes.observe(box);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => { sizes.disconnect(); dark.removeEventListener("change", make); plot.current.destroy(); };
  }, [ready]);
  const data = () => [points.map((p) => p.t), points.map((p) => p.passed), points.map((p) => p.refused)];
  useEffect(() => { if (plot.current) plot.current.setData(data()); }, [points]);
  const last = points[points.length - 1];
  return html`<div class="chart">
    <p class="legend" aria-hidden="true"><span class="key allowed"></span> passed <span class="key refused"></span> denied <span class="note">time in UTC</span></p>
    <div ref=${at} role="img" aria-label=${last ? "Chart of decisions per second. Last: " + rate(last.passed) + " passed, " + rate(last.refused) + " denied" + (stale.value ? " (stale)" : "") : "Chart of decisions per second, without data yet"}></div>
  </div>`;
}
