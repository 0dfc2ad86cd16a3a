// The frame of the console: pages, state of the connection, and the token.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { html, visible, utc } from "./parts.js";
import { start, live, stale, trouble, age, token, tokenWanted, useToken } from "./api.js";
import { Now } from "./now.js";
import { Customer } from "./customer.js";
import { Rules } from "./rules.js";
import { Overrides } from "./overrides.js";
import { Shares } from "./shares.js";
import { Fleet } from "./fleet.js";
import { Regions } from "./regions.js";
import { Try } from "./try.js";

// The last part says whether the page is of use here.
const pages = [
  ["now", "Now", Now],
  ["customer", "Customer", Customer],
  ["rules", "Rules", Rules],
  ["overrides", "Overrides", Overrides],
  ["shares", "Shares", Shares, (event) => event.buckets],
  ["fleet", "Fleet", Fleet],
  ["regions", "Regions", Regions, (event) => event.regions],
  ["try", "Try it", Try],
];

const address = signal(location.hash);
addEventListener("hashchange", () => { address.value = location.hash; });

function App() {
  const [path, query] = address.value.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [id, title, Page] = pages.find((p) => p[0] === path) || pages[0];
  const heading = useRef(null), first = useRef(true);
  useEffect(() => {
    document.title = title + " – ratelimitd";
    if (!first.current && heading.current) heading.current.focus(); // a screen reader reads the new page from here
    first.current = false;
  }, [id]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); heading.current.focus(); }}>Skip to the page</a>
    <header class="top">
      <span class="brand">ratelimitd</span>
      <nav aria-label="Pages"><ul>${pages.filter(([p, , , use]) => !use || id === p || (live.value && use(live.value))).map(([p, label]) => html`<li><a href=${"#/" + p} aria-current=${p === id ? "page" : undefined}>${label}</a></li>`)}</ul></nav>
      <${State} />
    </header>
    <main id="main">
      <${Alarms} />
      <${Token} />
      <h1 ref=${heading} tabindex="-1">${title}</h1>
      ${(live.value || !locked()) && html`<${Page} query=${new URLSearchParams(query || "")} />`}
    </main>`;
}

// locked reports whether the page shows nothing before there is a token.
const locked = () => tokenWanted.value && !token.value;

// State says whether what the page shows is up to date.
function State() {
  const event = live.value;
  const host = event && event.replica ? event.replica.host : location.host;
  const [asking, ask] = useState(false);
  return html`<div class="state">
    <span class="host" title="this replica">${visible(host)}</span>
    <span class=${"dot " + (stale.value ? "stale" : "fresh")} role="status">${stale.value ? (event ? "stale: " + age.value + " s old" : locked() ? "no token" : "connecting") : "live"}</span>
    ${token.value ? html`<button type="button" class="mini" onClick=${() => useToken("")}>forget token</button>` : (live.value || !locked()) && html`<button type="button" class="mini" aria-expanded=${asking} onClick=${() => { tokenWanted.value = "Enter a token to see counters and to change something."; ask(true); }}>token</button>`}
  </div>`;
}

// Alarms are what an operator must know on every page.
function Alarms() {
  const event = live.value, list = [];
  if (stale.value && event) list.push(html`The numbers are from ${utc(event.at)}. ${trouble.value ? visible(trouble.value) : "No event arrives."}`);
  else if (stale.value && trouble.value && !tokenWanted.value) list.push(visible(trouble.value));
  if (event && !event.rules.loaded) list.push(html`No rules are active. <a href="#/rules">Why?</a>`);
  else if (event && event.rules.rejected + event.rules.stale > 0) list.push(html`${event.rules.rejected + event.rules.stale} of ${event.rules.files} rule files are not in use as they are written. <a href="#/rules">Why?</a>`);
  for (const r of (event && event.replica && event.replica.redis) || []) {
    if (r.error) list.push(html`Redis (${visible(r.name)}) does not answer this replica. <a href="#/fleet">More</a>`);
  }
  if (event && event.replica && event.replica.overrides && event.replica.overrides.error) list.push(html`Overrides are from the last good copy: ${visible(event.replica.overrides.error)}`);
  return html`<div class="alarms" role="alert">${list.map((text) => html`<p>${text}</p>`)}</div>`;
}

function Token() {
  const [text, set] = useState("");
  const box = useRef(null), wanted = tokenWanted.value;
  useEffect(() => { if (box.current) box.current.focus(); }, [wanted]);
  if (!wanted) return null;
  const submit = (e) => { e.preventDefault(); const t = text.trim(); set(""); if (t) useToken(t); };
  return html`<form class="token" onSubmit=${submit} aria-label="Token">
    <p>${visible(wanted)} <span class="note">This tab keeps the token until you close it.</span></p>
    <label>Token <input ref=${box} type="password" name="token" autocomplete="off" value=${text} onInput=${(e) => set(e.target.value)} /></label>
    <button class="main">Use it</button> ${live.value && html`<button type="button" onClick=${() => { tokenWanted.value = ""; }}>Not now</button>`}
  </form>`;
}

start();
render(html`<${App} />`, document.getElementById("app"));
