"use strict";
// Draws the charts of the page from the data in it, and lets readers sort and search its tables.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const times = data.requests.map((_, i) => data.start + i * data.width);
  const count = new Intl.NumberFormat("en-US");
  const compact = new Intl.NumberFormat("en-US", { notation: "compact" });
  const utc = (t) => new Date(t * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const printing = matchMedia("print");

  // make makes an element with attributes and children.
  function make(tag, attributes, ...children) {
    const svg = tag === "svg" || tag === "rect";
    const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const name in attributes) e.setAttribute(name, attributes[name]);
    e.append(...children);
    return e;
  }

  // A time at the end, so that the last step is as wide as the others.
  const xs = times.concat([data.start + times.length * data.width]);
  const bars = uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: 0 });

  // width writes the width of a time step.
  function width(s) {
    for (const [unit, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
      if (s % unit === 0) return s === unit ? name : s / unit + " " + name + "s";
    }
    return s === 1 ? "second" : s + " seconds";
  }

  // clock writes the ticks of the time axis: times, and the date where it changes.
  function clock(u, ticks, axis, space, apart) {
    let last = "";
    return ticks.map((t) => {
      const text = new Date(t * 1000).toISOString();
      const date = text.slice(0, 10), time = text.slice(11, apart < 60 ? 19 : 16);
      const changed = date !== last;
      last = date;
      if (apart >= 86400) return date;
      return changed ? time + "\n" + date : time;
    });
  }

  // chart draws series. shown are the numbers of each; drawn makes of them, and of which are visible, what is drawn: one bar may
  // stand behind another.
  function chart(id, series, shown, drawn) {
    const at = document.getElementById(id);
    const visible = series.map(() => true);
    let plot = null, here = null;

    const buttons = series.map((s, i) => {
      const value = make("b", {});
      const mark = make("svg", { width: 22, height: 12, "aria-hidden": "true" });
      mark.append(make("rect", { width: 22, height: 12, rx: 2 }));
      const button = make("button", { type: "button", "aria-pressed": "true" }, mark, make("span", { class: "label" }, s.label), value);
      button.addEventListener("click", () => {
        visible[i] = !visible[i];
        button.setAttribute("aria-pressed", visible[i]);
        plot.setSeries(i + 1, { show: visible[i] });
        plot.setData(values());
      });
      return { button, value, mark: mark.firstChild };
    });
    const time = make("span", { "aria-live": "polite" });
    const legend = make("div", { class: "legend" }, ...buttons.map((b) => b.button), time);
    const values = () => [xs].concat(drawn(visible).map((v) => v.concat([null])));

    // point shows the numbers of one time step in the legend; null shows those of all.
    function point(i) {
      here = i;
      buttons.forEach((b, j) => { b.value.textContent = count.format(i === null ? shown[j].reduce((a, n) => a + n, 0) : shown[j][i]); });
      time.textContent = i === null ? "in the whole log" : utc(times[i]);
    }

    function draw() {
      if (plot) plot.destroy();
      const axis = () => ({
        stroke: color("soft"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 20,
        grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 },
      });
      buttons.forEach((b, i) => b.mark.setAttribute("fill", color(series[i].color)));
      plot = new uPlot({
        width: printing.matches ? 680 : at.clientWidth, height: printing.matches ? 200 : 270,
        tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "UTC"),
        legend: { show: false },
        cursor: { y: false, points: { show: false } },
        hooks: {
          setCursor: [(u) => {
            const left = u.cursor.left;
            if (left == null || left < 0) return point(null);
            const i = Math.floor((u.posToVal(left, "x") - data.start) / data.width);
            point(Math.max(0, Math.min(times.length - 1, i)));
          }],
        },
        scales: { y: { range: (u, min, max) => [Math.min(min, 0) * 1.05, Math.max(max, 1) * 1.05] } },
        axes: [
          Object.assign(axis(), { label: "time (UTC)", values: clock, size: 44 }),
          Object.assign(axis(), { label: "requests per " + width(data.width), size: 52, values: (u, ticks) => ticks.map((v) => (v % 1 ? "" : compact.format(Math.abs(v)))) }),
        ],
        series: [{}].concat(series.map((s, i) => ({
          label: s.label, stroke: () => color(s.color), fill: () => color(s.color),
          width: 0, paths: bars, points: { show: false }, show: visible[i],
        }))),
      }, values(), at);
      at.append(legend);
    }
    at.tabIndex = 0;
    at.setAttribute("role", "group");
    at.setAttribute("aria-label", "Chart: " + series.map((s, i) => s.label + " " + count.format(shown[i].reduce((a, n) => a + n, 0))).join(", "));
    at.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (!step || e.target !== at) return;
      e.preventDefault();
      const i = here === null ? (step > 0 ? 0 : times.length - 1) : Math.max(0, Math.min(times.length - 1, here + step));
      plot.setCursor({ left: plot.valToPos(times[i] + data.width / 2, "x"), top: 10 });
    });
    draw();
    point(null);
    let wide = at.clientWidth;
    new ResizeObserver(() => {
      if (at.clientWidth !== wide && !printing.matches) {
        wide = at.clientWidth;
        plot.setSize({ width: wide, height: 270 });
      }
    }).observe(at);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    printing.addEventListener("change", draw);
  }

  // table lets readers sort and search a table. Its cells stand as blocks in narrow windows, so its roles are named.
  function table(of) {
    const heads = [...of.tHead.rows[0].cells], body = of.tBodies[0], rows = [...body.rows];
    of.setAttribute("role", "table");
    for (const part of [of.tHead, body]) part.setAttribute("role", "rowgroup");
    heads.forEach((h) => h.setAttribute("role", "columnheader"));
    rows.forEach((r) => { r.setAttribute("role", "row"); [...r.cells].forEach((c) => c.setAttribute("role", c.tagName === "TH" ? "rowheader" : "cell")); });
    if (rows.length < 2) return;

    const text = (row, i) => row.cells[i].textContent.trim();
    // number reads 1,234 and 12.3 % and <0.01 %; the first number of several.
    const number = (s) => { const m = /-?[\d,]*\.?\d+/.exec(s); return m ? parseFloat(m[0].replaceAll(",", "")) - (s[0] === "<") * 1e-3 + (s[0] === ">") * 1e-3 : -1; };
    let sorted = -1, down = false;
    function sort(i, descending) {
      sorted = i;
      down = descending;
      const numbers = heads[i].classList.contains("n"), order = new Intl.Collator("en", { numeric: true });
      const first = (row) => { const many = row.cells[i].querySelector("div div"); return (many || row.cells[i]).textContent.trim(); };
      const compare = (a, b) => (numbers ? number(first(a)) - number(first(b)) : order.compare(text(a, i), text(b, i)));
      body.append(...rows.map((r, place) => [r, place]).sort((a, b) => (descending ? -1 : 1) * compare(a[0], b[0]) || a[1] - b[1]).map((r) => r[0]));
      heads.forEach((h, j) => (j === i ? h.setAttribute("aria-sort", descending ? "descending" : "ascending") : h.removeAttribute("aria-sort")));
    }
    const by = make("select", {}, make("option", { value: -1 }, "as written"));
    heads.forEach((h, i) => {
      const label = h.textContent, button = make("button", { type: "button" }, label);
      h.replaceChildren(button);
      by.append(make("option", { value: i }, label));
      // Numbers begin with the largest.
      button.addEventListener("click", () => { sort(i, sorted === i ? !down : h.classList.contains("n")); by.value = i; });
    });
    by.addEventListener("change", () => {
      if (by.value >= 0) return sort(+by.value, heads[by.value].classList.contains("n"));
      sorted = -1;
      body.append(...rows);
      heads.forEach((h) => h.removeAttribute("aria-sort"));
    });

    const search = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const found = make("span", { role: "status" });
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let n = 0;
      for (const r of rows) {
        const all = r.textContent.toLowerCase();
        r.hidden = !words.every((w) => all.includes(w));
        n += !r.hidden;
      }
      found.textContent = words.length ? n + " of " + rows.length + " rows" : "";
    });
    const tools = make("div", { class: "tools" }, make("label", { class: "sorting" }, "Sort by", by));
    if (rows.length >= 5) tools.prepend(make("label", {}, "Search", search), found); // a few rows need no search
    of.closest(".scroll").before(tools);
  }

  document.querySelectorAll("table").forEach(table);
  const allowed = data.requests.map((n, i) => n - data.refused[i]);
  chart("chart-requests",
    [{ label: "allowed", color: "allowed" }, { label: "refused", color: "refused" }],
    [allowed, data.refused], (visible) => [visible[1] ? data.requests : allowed, data.refused]);
  if (data.newlyRefused) {
    const drawn = [data.newlyRefused, data.newlyPassed.map((n) => -n)];
    chart("chart-changes",
      [{ label: "newly refused", color: "refused" }, { label: "newly passed", color: "good" }],
      [data.newlyRefused, data.newlyPassed], () => drawn);
  }
  document.documentElement.dataset.drawn = "yes";
})();
