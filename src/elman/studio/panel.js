// A panel of a figure of the lab, with the values at the pointer or by arrow keys.

import { h } from "./dom.js";
import { COLOURS, crossHair, logTicks, s, short, sparse, ticks } from "./svg.js";

// A panel of a figure of the lab: lines or points with intervals, or bars; {title, x_label, y_label,
// series: [{name, x, y, low, high, is_reference}], kind, x_log, y_log, levels}. Redrawn when its width changes.
export function panel() {
  let spec = null;
  const holder = h("div", {});
  const heading = h("h2", {});
  const legend = h("div", { class: "legend small" });
  const figure = h("section", { class: "card" }, heading, holder, legend);
  const draw = () => {
    if (!spec) return;
    const width = Math.max(260, holder.clientWidth || 420);
    holder.replaceChildren(drawnPanel(width, Math.min(320, 180 + width / 5), spec));
  };
  new ResizeObserver(draw).observe(holder);
  return {
    element: figure,
    update(next) {
      spec = next;
      heading.textContent = spec.title || spec.y_label;
      const names = [...spec.series.map((one, i) => [one.name, colourOf(one, i)]), ...Object.keys(spec.levels).map((name) => [name, "var(--soft)"])];
      legend.replaceChildren(...(names.length > 1 ? names.map(([name, colour]) => h("span", {}, h("span", { class: "swatch", style: `background:${colour}` }), ` ${name} `)) : []));
      draw();
    },
  };
}

function drawnPanel(width, height, spec) {
  const label = `${spec.title}: ${spec.y_label} over ${spec.x_label}; ${spec.series.map((one) => one.name).join(", ")}`;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  const bars = spec.kind === "bars";
  const groups = [...new Set(spec.series.flatMap((one) => one.x.filter((x) => bars || typeof x === "string")))];
  const named = bars || groups.length > 0;
  const sane = (y) => Number.isFinite(y) && (!spec.y_log || y > 0);
  const fx = named ? (x) => groups.indexOf(x) : spec.x_log ? Math.log10 : (x) => x;
  const fy = spec.y_log ? Math.log10 : (y) => y;
  const all = spec.series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]).concat(Object.values(spec.levels)).filter(sane).map(fy);
  if (!all.length) return svg;
  const xs = named ? [-0.5, groups.length - 0.5] : spec.series.flatMap((one) => one.x).map(fx).filter(Number.isFinite);
  const x0 = Math.min(...xs);
  const x1 = Math.max(...xs, x0 + 1e-9);
  let y0 = Math.min(...all, ...(bars && !spec.y_log ? [0] : []));
  let y1 = Math.max(...all, ...(bars && !spec.y_log ? [0] : []));
  const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
  if (!(bars && y0 === 0)) y0 -= room;
  y1 += room;
  const [left, right, top, bottom] = [54, 14, 26, 44];
  const px = (x) => left + ((fx(x) - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((fy(y) - y0) / (y1 - y0)) * (height - top - bottom);
  for (const value of spec.y_log ? sparse(logTicks(y0, y1), 6) : ticks(y0, y1, 4)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }));
    svg.append(s("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const places = [...new Set(spec.series.flatMap((one) => one.x))];
  const marks = named ? groups : spec.x_log ? (places.length <= 8 ? places : sparse(logTicks(x0, x1), 8)) : ticks(x0, x1, Math.max(2, Math.floor(width / 90)));
  for (const value of marks) svg.append(s("text", { x: px(value), y: height - bottom + 16, "text-anchor": "middle" }, named ? String(value) : short(value)));
  svg.append(s("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, spec.x_label));
  svg.append(s("text", { x: 4, y: 12 }, spec.y_label));
  const step = (width - left - right) / Math.max(1, groups.length);
  const barWidth = (0.8 * step) / spec.series.length;
  const clamp = (y) => Math.max(top, Math.min(height - bottom, y));
  spec.series.forEach((one, i) => {
    const colour = colourOf(one, i);
    const shift = bars ? (i - (spec.series.length - 1) / 2) * barWidth : 0;
    const points = one.x.map((x, k) => ({ x: px(x) + shift, y: one.y[k], low: one.low?.[k], high: one.high?.[k] })).filter((p) => Number.isFinite(p.x) && sane(p.y));
    if (bars) {
      const base = clamp(py(spec.y_log ? 10 ** y0 : 0));
      for (const p of points) svg.append(s("rect", { x: p.x - barWidth / 2, width: Math.max(1, barWidth - 1), y: Math.min(base, py(p.y)), height: Math.abs(base - py(p.y)), fill: colour }));
    } else if (spec.kind === "lines" || one.is_reference) {
      const band = points.filter((p) => sane(p.low) && sane(p.high));
      if (band.length > 1) svg.append(s("path", { d: `M${band.map((p) => `${p.x.toFixed(1)} ${clamp(py(p.high)).toFixed(1)}`).join("L")}L${[...band].reverse().map((p) => `${p.x.toFixed(1)} ${clamp(py(p.low)).toFixed(1)}`).join("L")}Z`, fill: colour, opacity: 0.18 }));
      svg.append(s("path", { d: points.map((p, k) => `${k ? "L" : "M"}${p.x.toFixed(1)} ${py(p.y).toFixed(1)}`).join(""), fill: "none", stroke: colour, "stroke-width": one.is_reference ? 1.2 : 1.8, "stroke-dasharray": one.is_reference ? "5 4" : "none", "stroke-linejoin": "round" }));
    }
    for (const p of points) {
      if ((bars || spec.kind === "points") && !one.is_reference && sane(p.low) && sane(p.high) && p.high > p.low) svg.append(s("line", { x1: p.x, x2: p.x, y1: clamp(py(p.low)), y2: clamp(py(p.high)), stroke: bars ? "var(--ink)" : colour, "stroke-width": 1.4 }));
      if (!bars && !one.is_reference && points.length <= 30) svg.append(s("circle", { cx: p.x, cy: py(p.y), r: 3, fill: colour }, s("title", {}, `${one.name}: ${short(p.y)}`)));
    }
  });
  for (const [name, level] of Object.entries(spec.levels)) {
    if (!sane(level)) continue;
    svg.append(s("line", { x1: left, x2: width - right, y1: py(level), y2: py(level), stroke: "var(--soft)", "stroke-dasharray": "5 4" }, s("title", {}, name)));
  }
  const stops = new Map();
  for (const one of spec.series) {
    one.x.forEach((x, k) => {
      if (Number.isFinite(px(x)) && sane(one.y[k])) stops.set(x, [...(stops.get(x) ?? []), [one, k]]);
    });
  }
  const inOrder = [...stops].map(([x, found]) => ({ x: px(x), tip: () => values(spec, x, found) })).sort((a, b) => a.x - b.x);
  crossHair(svg, { width, top, bottom: height - bottom, stops: inOrder });
  return svg;
}

// The values at one place of the x axis, with their intervals.
function values(spec, x, found) {
  const rows = found.map(([one, k]) => {
    const interval = one.low && one.high && one.high[k] > one.low[k] ? `${short(one.low[k])} to ${short(one.high[k])}` : "";
    return h("tr", {}, h("td", {}, h("span", { class: "swatch", style: `background:${colourOf(one, spec.series.indexOf(one))}` })), h("td", {}, one.name), h("td", { class: "number" }, short(one.y[k])), h("td", { class: "number small" }, interval));
  });
  return h("div", {}, h("b", { class: "number" }, `${typeof x === "number" ? short(x) : x} ${spec.x_label}`), h("table", {}, rows));
}

const colourOf = (one, i) => (one.is_reference ? "var(--soft)" : COLOURS[i % COLOURS.length]);
