// Charts drawn by hand: lines as SVG, heat maps on a canvas.

import { h, hideTip, showTip } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
export const COLOURS = ["#0f766e", "#c2410c", "#6d28d9", "#0369a1", "#a16207", "#be185d", "#4d7c0f", "#475569"];

function s(tag, props, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((candidate) => candidate >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

// 1, 2 and 5 times powers of ten; over more than two decades only the powers.
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const times of high - low > 2 ? [1] : [1, 2, 5]) {
      const value = times * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(Number(value.toPrecision(12)));
    }
  }
  return found.length > 1 ? found : ticks(10 ** low, 10 ** high, 3);
}

// Every n-th value, so that at most `most` are left.
const sparse = (values, most) => values.filter((_, i) => i % Math.ceil(values.length / most) === 0);

export function short(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(1).replace(".0e", "e");
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return `${Number(value.toPrecision(4))}`;
}

// series: [{name, colour, dashed, points: [[x, y], ...]}]. Redrawn when its width changes.
export function lines({ title, log = false }) {
  let series = [];
  let xName = "";
  const holder = h("div", {});
  const figure = h("section", { class: "card", "aria-label": title, hidden: true }, h("h2", {}, title), holder);
  const draw = () => {
    const width = Math.max(260, holder.clientWidth || 480);
    holder.replaceChildren(drawn(width, Math.min(260, 150 + width / 5), series.filter((one) => one.points.length), log, xName));
  };
  new ResizeObserver(draw).observe(holder);
  return {
    element: figure,
    update(next, name) {
      series = next;
      xName = name;
      figure.hidden = !series.some((one) => one.points.length);
      draw();
    },
  };
}

function drawn(width, height, series, log, xName) {
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0", "aria-label": `${series.map((one) => one.name).join(", ")} over ${xName}` });
  const points = series.flatMap((one) => one.points).filter(([, y]) => Number.isFinite(y) && (!log || y > 0));
  if (!points.length) return svg;
  const [left, right, top, bottom] = [46, 12, 10, 26];
  const f = log ? Math.log10 : (y) => y;
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => f(y));
  const x0 = Math.min(...xs);
  const x1 = Math.max(...xs, x0 + 1);
  let y0 = Math.min(...ys);
  let y1 = Math.max(...ys);
  const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
  y0 -= room;
  y1 += room;
  const px = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((f(y) - y0) / (y1 - y0)) * (height - top - bottom);
  const marks = log ? logTicks(y0, y1) : ticks(y0, y1, 4);
  for (const value of marks) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }));
    svg.append(s("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(x0, x1, Math.max(2, Math.floor(width / 80)))) svg.append(s("text", { x: px(value), y: height - 8, "text-anchor": "middle" }, short(value)));
  for (const one of series) {
    const path = one.points.filter(([, y]) => Number.isFinite(y) && (!log || y > 0)).map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    if (path) svg.append(s("path", { d: path, fill: "none", stroke: one.colour, "stroke-width": one.dashed ? 2.2 : 1.8, "stroke-dasharray": one.dashed ? "5 4" : "none", "stroke-linejoin": "round", "stroke-linecap": "round" }));
    if (one.points.length === 1) svg.append(s("circle", { cx: px(one.points[0][0]), cy: py(one.points[0][1]), r: 3, fill: one.colour }));
  }
  const cross = s("line", { class: "cross", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cross);
  const stops = [...new Set(xs)].sort((a, b) => a - b);
  let here = -1;
  const nearest = (values, x, of = (value) => value) => values.reduce((best, one) => (Math.abs(of(one) - x) < Math.abs(of(best) - x) ? one : best));
  // Show the values of all lines at x in the tip.
  function point(at) {
    here = stops.indexOf(at);
    cross.setAttribute("x1", px(at));
    cross.setAttribute("x2", px(at));
    cross.setAttribute("visibility", "visible");
    const rows = series.map((one) => h("tr", {}, h("td", {}, h("span", { class: "swatch", style: `background:${one.colour}` })), h("td", {}, one.name), h("td", { class: "number" }, short(nearest(one.points, at, ([x]) => x)[1]))));
    showTip(cross, h("div", {}, h("b", { class: "number" }, `${short(at)} ${xName}`), h("table", {}, rows)));
  }
  function leave() {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    point(nearest(stops, x0 + (((event.clientX - box.left) * (width / box.width) - left) / (width - left - right)) * (x1 - x0)));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    point(stops[Math.max(0, Math.min(stops.length - 1, here + step))]);
  });
  for (const name of ["pointerleave", "blur"]) svg.addEventListener(name, leave);
  return svg;
}

// A heat map with labelled columns. values[row][column]; diverging ones run from -most to most.
export function heat({ values, columns, rows, diverging, onpoint, label }) {
  const marginLeft = Math.min(120, 20 + 7 * Math.max(...rows.map((row) => row.length)));
  const room = Math.min(innerWidth, 1248) - marginLeft - (innerWidth < 640 ? 84 : 130);
  const cellWidth = Math.max(14, Math.min(80, room / columns.length));
  const cellHeight = Math.max(7, Math.min(18, 520 / values.length));
  const top = 74;
  const width = marginLeft + cellWidth * columns.length + 30;
  const height = top + cellHeight * values.length + 4;
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label, style: `width:${width}px;height:${height}px` });
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const most = Math.max(1e-9, ...values.flat().map(Math.abs));
  let cursor = null;

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = `12px ${colour("--sans")}`;
    g.fillStyle = colour("--soft");
    columns.forEach((column, i) => {
      g.save();
      g.translate(marginLeft + cellWidth * (i + 0.5) + 3, top - 8);
      g.rotate(-Math.PI / 3.2);
      g.fillText(column.length > 11 ? `${column.slice(0, 10)}…` : column, 0, 0);
      g.restore();
    });
    values.forEach((row, j) => {
      if (cellHeight >= 11 || j % Math.ceil(11 / cellHeight) === 0) {
        g.fillStyle = colour("--soft");
        g.textAlign = "right";
        g.fillText(rows[j], marginLeft - 6, top + cellHeight * (j + 0.5) + 4);
        g.textAlign = "left";
      }
      row.forEach((value, i) => {
        const size = Math.min(1, Math.abs(value) / most);
        g.fillStyle = `rgba(${colour(diverging && value < 0 ? "--cold" : "--hot")}, ${(0.04 + 0.93 * size).toFixed(3)})`;
        g.fillRect(marginLeft + cellWidth * i, top + cellHeight * j, cellWidth - 1, cellHeight - 1);
      });
    });
    if (cursor) {
      g.strokeStyle = colour("--ink");
      g.lineWidth = 1.5;
      g.strokeRect(marginLeft + cellWidth * cursor[1] - 1, top + cellHeight * cursor[0] - 1, cellWidth + 1, cellHeight + 1);
    }
  }

  function point(j, i) {
    if (j < 0 || i < 0 || j >= values.length || i >= columns.length) return;
    cursor = [j, i];
    draw();
    onpoint(j, i, values[j][i]);
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    point(Math.floor((event.clientY - box.top - top) / cellHeight), Math.floor((event.clientX - box.left - marginLeft) / cellWidth));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [j, i] = cursor ?? [0, -1];
    point(j + step[0], i + step[1]);
  });
  addEventListener("theme", draw);
  draw();
  return h("div", { class: "scroll" }, canvas);
}

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
      const names = [...spec.series.map((one, i) => [one.name, one.is_reference ? "var(--soft)" : COLOURS[i % COLOURS.length]]), ...Object.keys(spec.levels).map((name) => [name, "var(--soft)"])];
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
    const colour = one.is_reference ? "var(--soft)" : COLOURS[i % COLOURS.length];
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
  return svg;
}
