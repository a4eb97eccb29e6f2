// A chart of curves over updates, tokens or minutes.

import { h } from "./dom.js";
import { crossHair, logTicks, s, short, ticks } from "./svg.js";

// series: [{name, colour, dashed, faint, points: [[x, y], ...]}]; levels: [{name, colour, value}] are
// horizontal lines. Redrawn when its width changes.
export function lines({ title }) {
  let shown = { series: [], levels: [], xName: "", xLog: false, yLog: false };
  const holder = h("div", {});
  const figure = h("section", { class: "card", "aria-label": title, hidden: true }, h("h2", {}, title), holder);
  const draw = () => {
    const width = Math.max(260, holder.clientWidth || 480);
    holder.replaceChildren(drawn(width, Math.min(300, 150 + width / 4), shown));
  };
  new ResizeObserver(draw).observe(holder);
  return {
    element: figure,
    update(next) {
      shown = { levels: [], ...next, series: next.series.filter((one) => one.points.length) };
      figure.hidden = !shown.series.length && !shown.levels.length;
      draw();
    },
  };
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function drawn(width, height, { series, levels, xName, xLog, yLog }) {
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${[...series, ...levels].map((one) => one.name).join(", ")} over ${xName}` });
  const sane = ([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!yLog || y > 0) && (!xLog || x > 0);
  const usable = series.map((one) => ({ ...one, points: one.points.filter(sane) })).filter((one) => one.points.length);
  const flat = levels.filter(({ value }) => Number.isFinite(value) && (!yLog || value > 0));
  const points = usable.flatMap((one) => one.points);
  if (!points.length && !flat.length) return svg;
  const [left, right, top, bottom] = [50, 12, 10, 26];
  const [fx, fy] = [xLog, yLog].map((log) => (log ? Math.log10 : (value) => value));
  const xs = points.length ? points.map(([x]) => x) : [1, 2];
  const ys = [...points.map(([, y]) => y), ...flat.map(({ value }) => value)].map(fy);
  const x0 = fx(least(xs));
  const x1 = Math.max(fx(most(xs)), x0 + (xLog ? 0.1 : 1));
  const room = (most(ys) - least(ys)) * 0.06 || Math.abs(most(ys)) * 0.05 || 1;
  const [y0, y1] = [least(ys) - room, most(ys) + room];
  const px = (x) => left + ((fx(x) - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((fy(y) - y0) / (y1 - y0)) * (height - top - bottom);
  for (const value of yLog ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }));
    svg.append(s("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of xLog ? logTicks(x0, x1) : ticks(x0, x1, Math.max(2, Math.floor(width / 80)))) {
    const atEdge = px(value) > width - 2 * right; // centred, half of the number would be cut off
    svg.append(s("text", { x: atEdge ? width : px(value), y: height - 8, "text-anchor": atEdge ? "end" : "middle" }, short(value)));
  }
  for (const { name, colour, value } of flat) {
    svg.append(s("line", { class: "level", x1: left, x2: width - right, y1: py(value), y2: py(value), stroke: colour, "stroke-width": 1.6, "stroke-dasharray": "2 4" }));
    svg.append(s("text", { x: width - right, y: py(value) - 4, "text-anchor": "end" }, `${name} ${short(value)}`));
  }
  for (const one of usable) {
    const path = one.points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    svg.append(s("path", { d: path, fill: "none", stroke: one.colour, opacity: one.faint ? 0.25 : 1, "stroke-width": one.dashed ? 2.2 : 1.8, "stroke-dasharray": one.dashed ? "5 4" : "none", "stroke-linejoin": "round", "stroke-linecap": "round" }));
    if (one.points.length === 1) svg.append(s("circle", { cx: px(one.points[0][0]), cy: py(one.points[0][1]), r: 3, fill: one.colour }));
  }
  const named = usable.filter((one) => !one.faint);
  const places = [...new Set(named.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  crossHair(svg, { width, top, bottom: height - bottom, stops: places.map((x) => ({ x: px(x), tip: () => values(named, flat, x, xName) })) });
  return svg;
}

// The last report of each curve at or before x; an earlier one comes with its own x.
function values(series, levels, x, xName) {
  const rows = series.map((one) => {
    const last = one.points.findLast(([at]) => at <= x);
    const when = last && last[0] !== x ? `at ${short(last[0])}` : "";
    return h("tr", {}, h("td", {}, h("span", { class: "swatch", style: `background:${one.colour}` })), h("td", {}, one.name), h("td", { class: "number" }, last ? short(last[1]) : "–"), when ? h("td", { class: "small" }, when) : null);
  });
  const flat = levels.map((one) => h("tr", {}, h("td", {}, h("span", { class: "swatch", style: `background:${one.colour}` })), h("td", {}, one.name), h("td", { class: "number" }, short(one.value))));
  return h("div", {}, h("b", { class: "number" }, `${short(x)} ${xName}`), h("table", {}, rows, flat));
}
