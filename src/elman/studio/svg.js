// What the charts share: SVG elements, ticks, short numbers, and a cross-hair for pointer and keys.

import { hideTip, showTip } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
export const COLOURS = ["#0f766e", "#c2410c", "#6d28d9", "#0369a1", "#a16207", "#be185d", "#4d7c0f", "#475569"];

export function s(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((candidate) => candidate >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

// 1, 2 and 5 times powers of ten; over more than two decades only the powers, and within less than
// one decade even steps where those three would leave fewer than three marks.
export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const times of high - low > 2 ? [1] : [1, 2, 5]) {
      const value = times * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(Number(value.toPrecision(12)));
    }
  }
  return found.length > 2 ? found : ticks(10 ** low, 10 ** high, 5);
}

// Every n-th value, so that at most `most` are left.
export const sparse = (values, most) => values.filter((_, i) => i % Math.ceil(values.length / most) === 0);

export function short(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(1).replace(".0e", "e");
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return `${Number(value.toPrecision(4))}`;
}

// Let the pointer and the arrow keys visit the stops of a chart. stops: [{x, tip()}], x in the
// drawing's own units and in order; `top` and `bottom` are the ends of the line.
export function crossHair(svg, { stops, width, top, bottom }) {
  if (!stops.length) return;
  svg.setAttribute("tabindex", "0");
  const cross = s("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  svg.append(cross);
  let here = -1;
  function visit(index) {
    here = Math.max(0, Math.min(stops.length - 1, index));
    const { x, tip } = stops[here];
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    showTip(cross, tip());
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * (width / box.width);
    visit(stops.reduce((best, stop, i) => (Math.abs(stop.x - at) < Math.abs(stops[best].x - at) ? i : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: stops.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    visit(to);
  });
  for (const name of ["pointerleave", "blur"]) {
    svg.addEventListener(name, () => {
      cross.setAttribute("visibility", "hidden");
      hideTip();
    });
  }
}
