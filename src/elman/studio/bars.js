// The surprisal of words as a bar chart, one bar a model, that can be saved as SVG or PNG.

import { download, h } from "./dom.js";
import { COLOURS, crossHair, s, short, ticks } from "./svg.js";

const MOST_BARS = 400;

// Words of both models are joined by their place; null if there is nothing to draw.
export function barChart(answers) {
  const key = (row) => `${row.line}:${row.start}:${row.end}`;
  const words = answers[0].rows.filter((row) => row.surprisal !== null).slice(0, MOST_BARS);
  if (!words.length) return null;
  const values = answers.map((answer) => new Map(answer.rows.map((row) => [key(row), row])));
  const step = Math.max(22 + 12 * answers.length, 30);
  const [left, right, top, bottom] = [40, 8, 14 + 16 * (answers.length > 1), 74];
  const width = left + right + step * words.length;
  const height = 230 + top;
  const most = Math.max(1, ...values.flatMap((found) => words.map((row) => found.get(key(row))?.surprisal ?? 0)));
  const py = (value) => height - bottom - (value / most) * (height - top - bottom);
  const svg = s("svg", { class: "chart bar-chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", style: `width:${width}px`, "aria-label": `Surprisal of ${words.length} words` }, hatching());
  for (const value of ticks(0, most, 4)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }), s("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  if (answers.length > 1) answers.forEach((answer, k) => svg.append(s("rect", { x: left + 130 * k, y: 4, width: 10, height: 10, fill: COLOURS[k] }), s("text", { x: left + 130 * k + 15, y: 13 }, answer.model)));
  const bar = (step - 8) / answers.length;
  words.forEach((row, i) => {
    const x = left + step * i + 4;
    if (i && words[i - 1].line !== row.line) svg.append(s("line", { class: "cross", x1: x - 4, x2: x - 4, y1: top, y2: height - bottom }));
    values.forEach((found, k) => {
      const one = found.get(key(row));
      if (one?.surprisal === undefined || one.surprisal === null) return;
      const place = { x: x + bar * k, y: py(one.surprisal), width: bar - 1, height: Math.max(1, height - bottom - py(one.surprisal)) };
      svg.append(s("rect", { ...place, fill: COLOURS[k], class: "bar" }));
      if (one.unknown) svg.append(s("rect", { ...place, fill: "url(#hatching)" }));
    });
    const word = row.start === row.end ? "⏎" : row.text.trim();
    svg.append(s("text", { transform: `translate(${x + step / 2 - 6} ${height - bottom + 12}) rotate(38)` }, word.length > 11 ? `${word.slice(0, 10)}…` : word));
  });
  const tip = (row) => h("div", {}, h("b", {}, row.text), answers.map((answer, k) => h("div", { class: "number" }, `${answer.model}: ${values[k].get(key(row))?.surprisal?.toFixed(2) ?? "–"} bits${values[k].get(key(row))?.unknown ? ", unknown" : ""}`)));
  crossHair(svg, { width, top, bottom: height - bottom, stops: words.map((row, i) => ({ x: left + step * (i + 0.5), tip: () => tip(row) })) });
  return svg;
}

function hatching() {
  return s("defs", {}, s("pattern", { id: "hatching", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 3, height: 6, fill: "#ffffff", opacity: 0.55 })));
}

// A copy with the colours that the style sheet gives, so that the file needs none.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const sources = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(sources[i]);
    for (const name of ["fill", "stroke", "stroke-dasharray", "font-family", "font-size"]) {
      if (!element.getAttribute("fill")?.startsWith("url") || name !== "fill") element.setAttribute(name, style.getPropertyValue(name));
    }
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = s("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.documentElement).getPropertyValue("--card").trim() });
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(svg, name) {
  download(name, standalone(svg), "image/svg+xml");
}

export async function savePng(svg, name) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
  await picture.decode();
  const canvas = h("canvas", {});
  canvas.width = 2 * picture.width;
  canvas.height = 2 * picture.height;
  const g = canvas.getContext("2d");
  g.scale(2, 2);
  g.drawImage(picture, 0, 0);
  canvas.toBlob((blob) => download(name, blob, "image/png"));
}
