"use strict";
// Draws the charts of the page from the data in it.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const times = data.requests.map((_, i) => data.start + i * data.width);
  const count = new Intl.NumberFormat("en-US");
  const compact = new Intl.NumberFormat("en-US", { notation: "compact" });
  const utc = (t) => new Date(t * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const styles = () => getComputedStyle(document.documentElement);
  const color = (name) => styles().getPropertyValue("--" + name).trim();

  // A point at the end, so that the last step is as wide as the others.
  const xs = times.concat([data.start + times.length * data.width]);
  const steps = uPlot.paths.stepped({ align: 1 });
  const bars = uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: 0 });
  const closed = (values, bar) => values.concat([bar ? null : values[values.length - 1]]);

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

  // chart draws values; shown is what the legend tells of them. They differ where one bar stands behind another.
  function chart(id, series, values, shown) {
    const at = document.getElementById(id);
    let plot = null;
    const draw = () => {
      if (plot) plot.destroy();
      const axis = () => ({
        stroke: color("soft"), font: "12px system-ui, sans-serif",
        grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 },
      });
      plot = new uPlot({
        width: at.clientWidth, height: 260,
        tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "UTC"),
        // A value is that of the time from its place to the next one.
        cursor: { y: false, points: { show: false }, dataIdx: (u, si, i, x) => Math.min(u.data[0][i] > x ? Math.max(i - 1, 0) : i, times.length - 1) },
        scales: { y: { range: (u, min, max) => [Math.min(min, 0) * 1.05, Math.max(max, 1) * 1.05] } },
        axes: [
          Object.assign(axis(), { values: clock }),
          Object.assign(axis(), { size: 62, values: (u, ticks) => ticks.map((v) => (v % 1 ? "" : compact.format(Math.abs(v)))) }),
        ],
        series: [{ label: "time", value: (u, v) => (v == null ? "" : utc(v)) }].concat(series.map((s, i) => ({
          label: s.label, stroke: () => color(s.color), fill: s.bar ? () => color(s.color) : undefined,
          width: s.bar ? 0 : 1.75, paths: s.bar ? bars : steps, points: { show: false },
          value: (u, v, si, di) => (di == null || shown[i][di] == null ? "" : count.format(shown[i][di])),
        }))),
      }, [xs].concat(values.map((v, i) => closed(v, series[i].bar))), at);
    };
    draw();
    let wide = at.clientWidth;
    new ResizeObserver(() => {
      if (at.clientWidth !== wide) {
        wide = at.clientWidth;
        plot.setSize({ width: wide, height: 260 });
      }
    }).observe(at);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  const allowed = data.requests.map((n, i) => n - data.refused[i]);
  chart("chart-requests",
    [{ label: "allowed", color: "allowed", bar: true }, { label: "refused", color: "refused", bar: true }],
    [data.requests, data.refused], [allowed, data.refused]);
  if (data.newlyRefused) {
    chart("chart-changes",
      [{ label: "newly refused", color: "refused", bar: true }, { label: "newly passed", color: "good", bar: true }],
      [data.newlyRefused, data.newlyPassed.map((n) => -n)], [data.newlyRefused, data.newlyPassed]);
  }
  if (data.rules.length) {
    chart("chart-rules",
      data.rules.map((r, i) => ({ label: r.name, color: "c" + (i + 1) })),
      data.rules.map((r) => r.refused), data.rules.map((r) => r.refused));
  } else {
    document.getElementById("rules-over-time").remove();
  }
  document.documentElement.dataset.drawn = "yes";
})();
