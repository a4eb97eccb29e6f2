// One unit of a recurrent cell, drawn with its equations and the numbers of one step.

import { h } from "./dom.js";
import { s } from "./svg.js";

const SIGNED = new Set(["g", "n", "h", "c", "x", "s"]);
const number = (value) => (value < 0 ? `−${Math.abs(value).toFixed(2)}` : value.toFixed(2));
const inBrackets = (value) => (value < 0 ? `(${number(value)})` : number(value));

// For each cell: the memory that runs along the top, what acts on it, and the equations with numbers.
// `v(letter)` is the value at this step, `before(letter)` that at the step before.
const CELLS = {
  lstm: {
    memory: "c",
    stages: [
      { sign: "×", gauges: [["f", "forget gate", "share of the memory that is kept"]] },
      { sign: "+", gauges: [["i", "input gate", "share of the new content that enters"], ["g", "new content", "what could be written, from −1 to 1"]], joined: "×" },
    ],
    outlet: { sign: "×", gauges: [["o", "output gate", "share of the memory that is shown"]], through: "tanh" },
    equations: (v, before) => [
      ["i, f, o = σ(W x + U h + b),  g = tanh(W x + U h + b)", `i = ${number(v("i"))}, f = ${number(v("f"))}, o = ${number(v("o"))}, g = ${number(v("g"))}`],
      ["c ← f · c + i · g", `${number(v("f"))} · ${inBrackets(before("c"))} + ${number(v("i"))} · ${inBrackets(v("g"))} = ${number(v("c"))}`],
      ["h = o · tanh(c)", `${number(v("o"))} · tanh(${number(v("c"))}) = ${number(v("h") ?? v("o") * Math.tanh(v("c")))}`],
    ],
    story: (v) => `${v("f") > 0.8 ? "The forget gate is open: the memory is kept." : v("f") < 0.2 ? "The forget gate is closed: the memory is erased." : "Part of the memory is kept."} ${v("i") > 0.5 ? (Math.abs(v("g")) > 0.3 ? `New content (${number(v("g"))}) is written.` : "The input gate is open, but there is little to write.") : "Little is written."} ${v("o") > 0.5 ? "The output gate is open: the memory is visible outside." : "The output gate is closed: the memory is hidden."}`,
  },
  gru: {
    memory: "h",
    stages: [
      { sign: "×", gauges: [["u", "update gate", "share that is replaced; 1 − u is kept"]], shown: (v) => 1 - v("u"), label: "1 − u" },
      { sign: "+", gauges: [["u", "update gate", "share that is replaced"], ["n", "new content", "what replaces it, from −1 to 1"]], joined: "×" },
    ],
    aside: ["r", "reset gate", "how much of the past the new content sees"],
    equations: (v, before) => [
      ["r, u = σ(W x + U h + b)", `r = ${number(v("r"))}, u = ${number(v("u"))}`],
      ["n = tanh(W x + U (r · h) + b)", `n = ${number(v("n"))}`],
      ["h ← (1 − u) · h + u · n", `${number(1 - v("u"))} · ${inBrackets(before("h"))} + ${number(v("u"))} · ${inBrackets(v("n"))} = ${number(v("h"))}`],
    ],
    story: (v) => `${v("u") > 0.8 ? "The update gate is open: the unit is renewed." : v("u") < 0.2 ? "The update gate is closed: the unit keeps its value." : "The unit is partly renewed."} ${v("r") < 0.2 ? "The reset gate is closed: the new content ignores the past." : ""}`,
  },
  rnn: {
    memory: "h",
    stages: [{ sign: "+", gauges: [["s", "from the past", "U h: from the previous state"], ["x", "from the input", "W x + b: from this token"]], replaces: true }],
    equations: (v) => [["h ← f(W x + U h + b)", `f(${number(v("x"))} + ${inBrackets(v("s"))}) = ${number(v("h"))}`]],
    story: (v) => `${Math.abs(v("x")) > Math.abs(v("s")) ? "This token contributes more than the previous state." : "The previous state contributes more than this token."} Every step overwrites the old value.`,
  },
};

// answer: of /v1/inside/unit; `at` is the step.
export function cellPicture(answer, at) {
  const spec = CELLS[answer.cell];
  const v = (letter) => answer.steps[letter]?.[at];
  const before = (letter) => (at > 0 ? answer.steps[letter][at - 1] : 0);
  const needed = spec?.stages.flatMap((stage) => stage.gauges.map(([letter]) => letter)) ?? [];
  if (!spec || needed.some((letter) => v(letter) === undefined)) {
    return h("p", { class: "small" }, `The gates of this cell (${answer.cell}) cannot be seen one by one; its state here is ${Object.keys(answer.steps).map((letter) => `${letter} = ${number(v(letter))}`).join(", ")}.`);
  }
  return h(
    "div",
    {},
    h("div", { class: "scroll cell-place" }, wide(spec, v, before), tall(spec, v, before)),
    h("p", { class: "story", id: "cell-story", "aria-live": "polite" }, spec.story(v)),
    h("div", { class: "scroll" }, h("table", { class: "plain equations" }, spec.equations(v, before).map(([equation, numbers]) => h("tr", {}, h("td", { class: "equation" }, equation), h("td", { class: "number" }, numbers))))),
  );
}

const picture = (form, spec, v, before, width, height) => s("svg", { class: `chart cell ${form}`, viewBox: `0 0 ${width} ${height}`, width, height, style: `width:${width}px`, role: "img", "aria-label": `A cell: ${spec.equations(v, before).map(([, numbers]) => numbers).join("; ")}` });

const output = (v) => v("h") ?? v("o") * Math.tanh(v("c"));

// The memory runs from left to right, with the gates as columns below it.
function wide(spec, v, before) {
  const line = 58;
  const svg = picture("wide", spec, v, before, 720, 225);
  const memory = spec.memory;
  const end = spec.outlet ? 510 : 560;
  svg.append(s("line", { class: "pipe", x1: 96, x2: end, y1: line, y2: line }));
  svg.append(value(50, line, `${memory} before`, before(memory)), value(end + 30, line, `${memory} now`, v(memory)));
  const places = spec.stages.length === 1 ? [300] : [165, 320];
  spec.stages.forEach((stage, k) => {
    const x = places[k];
    const spread = stage.gauges.length === 1 ? [0] : [-44, 44];
    stage.gauges.forEach(([letter, name, meaning], i) => {
      const shownValue = stage.shown ? stage.shown(v) : v(letter);
      svg.append(s("path", { class: "wire", d: `M${x + spread[i]} ${line + 54}L${x} ${line + 12}` }));
      svg.append(gauge(x + spread[i], line + 54, stage.label ?? letter, name, meaning, shownValue, SIGNED.has(letter)));
    });
    if (stage.joined) svg.append(knot(x, line + 34, stage.joined, 9));
    svg.append(knot(x, line, stage.sign, 13));
  });
  if (spec.aside) svg.append(gauge(490, line + 54, ...[spec.aside[0], spec.aside[1], spec.aside[2]], v(spec.aside[0]), false));
  if (spec.outlet) {
    const [[letter, name, meaning]] = spec.outlet.gauges;
    svg.append(s("path", { class: "pipe thin", d: `M${end + 30} ${line + 20}L${end + 30} ${line + 130}L${end + 104} ${line + 130}` }));
    svg.append(s("text", { x: end + 38, y: line + 48 }, spec.outlet.through));
    svg.append(gauge(end - 44, line + 54, letter, name, meaning, v(letter), false));
    svg.append(s("path", { class: "wire", d: `M${end - 30} ${line + 96}L${end + 18} ${line + 88}` }), knot(end + 30, line + 86, spec.outlet.sign, 13));
    svg.append(value(end + 142, line + 130, "h now", output(v)));
  }
  return svg;
}

// For a phone: the memory runs from top to bottom, with the gates as bars beside it, a row each.
function tall(spec, v, before) {
  const [row, line, joint, bars, half] = [46, 40, 69, 90, 17]; // half the height of a value's box
  const { memory, outlet, aside } = spec;
  const parts = [];
  let y = 2 + half;
  function act({ sign, gauges, joined, shown, label }) {
    const middle = y + (row * (gauges.length + 1)) / 2;
    gauges.forEach(([letter, name, meaning], k) => {
      const [from, bar] = [joined ? joint : line, y + row * (k + 1)];
      parts.push(s("path", { class: "wire", d: `M${line} ${middle}L${from} ${middle}L${bars} ${bar}` }));
      parts.push(lying(bars, bar, label ?? letter, name, meaning, shown ? shown(v) : v(letter), SIGNED.has(letter)));
    });
    if (joined) parts.push(knot(joint, middle, joined, 9));
    parts.push(knot(line, middle, sign, 13));
    y += row * gauges.length;
  }
  function flow(kind, stages, name, amount) {
    const from = y;
    stages.forEach(act);
    y += row;
    parts.unshift(s("line", { class: kind, x1: line, x2: line, y1: from + half, y2: y - half }));
    parts.push(value(line, y, name, amount, true));
  }
  parts.push(value(line, y, `${memory} before`, before(memory), true));
  flow("pipe", spec.stages, `${memory} now`, v(memory));
  if (outlet) {
    parts.push(s("text", { x: line + 9, y: y + half + 14 }, outlet.through));
    flow("pipe thin", [outlet], "h now", output(v));
  }
  if (aside) {
    y += row;
    parts.push(lying(bars, y, ...aside, v(aside[0]), false));
  }
  const svg = picture("tall", spec, v, before, 264, y + half + 2);
  svg.append(...parts);
  return svg;
}

const colour = (amount) => `rgba(var(${amount < 0 ? "--cold" : "--hot"}), ${(0.15 + 0.8 * Math.min(1, Math.abs(amount))).toFixed(3)})`;

function value(x, y, name, amount, beside = false) {
  const place = beside ? { x: x + 48, y: y + 5 } : { x, y: y - 24, "text-anchor": "middle" };
  return s("g", {}, s("rect", { class: "held", x: x - 38, y: y - 17, width: 76, height: 34, rx: 7, style: `fill:${colour(amount)}` }), s("text", { class: "amount", x, y: y + 5, "text-anchor": "middle" }, number(amount)), s("text", place, name));
}

function knot(x, y, sign, radius) {
  return s("g", {}, s("circle", { class: "knot", cx: x, cy: y, r: radius }), s("text", { class: "sign", x, y: y + radius * 0.45, "text-anchor": "middle" }, sign));
}

const [THICK, LONG] = [26, 74];

// A gate as a column that fills as it opens; signed content fills from the middle.
function gauge(x, y, letter, name, meaning, amount, signed) {
  const [start, part] = filled(amount, signed);
  return s("g", {}, s("title", {}, meaning), s("rect", { class: "gauge", x: x - THICK / 2, y, width: THICK, height: LONG, rx: 5 }), s("rect", { class: "level-fill", x: x - THICK / 2, y: y + LONG * (1 - start - part), width: THICK, height: LONG * part, rx: 3, style: `fill:${colour(amount)}` }), s("text", { class: "amount", x, y: y + LONG + 17, "text-anchor": "middle" }, `${letter} ${number(amount)}`), s("text", { x, y: y + LONG + 33, "text-anchor": "middle" }, name));
}

// The same as a bar that fills from the left, with its name beside it.
function lying(x, y, letter, name, meaning, amount, signed) {
  const [start, part] = filled(amount, signed);
  return s("g", {}, s("title", {}, meaning), s("rect", { class: "gauge", x, y: y - THICK / 2, width: LONG, height: THICK, rx: 5 }), s("rect", { class: "level-fill", x: x + LONG * start, y: y - THICK / 2, width: LONG * part, height: THICK, rx: 3, style: `fill:${colour(amount)}` }), s("text", { class: "amount", x: x + LONG + 8, y: y - 2 }, `${letter} ${number(amount)}`), s("text", { x: x + LONG + 8, y: y + 14 }, name));
}

// Where the filled part of a gauge begins, and its size, as shares of its length.
function filled(amount, signed) {
  const share = Math.max(-1, Math.min(1, amount));
  return signed ? [0.5 + Math.min(0, share) / 2, Math.abs(share) / 2] : [0, Math.max(0, share)];
}
