// Inside a recurrent model: units and gates over a text, one unit in the text and in its cell, spans
// that units treat alike, and the words that a prediction depends on.

import { post } from "./api.js";
import { cellPicture } from "./cell.js";
import { literal, loading, quoted } from "./code.js";
import { bits, choice, h, problem, tips, visible } from "./dom.js";
import { heat } from "./heat.js";
import { spanFinder } from "./spans.js";

export const title = "Inside";
export const ability = "inside";
export const lead = "What a layer holds after every token. Click a unit to colour the text by it and to watch its cell compute; select words to find the units that mark them, and where else they do.";
export const desk = {
  text: "Text to read",
  rows: 2,
  examples: [
    ["agreement over a clause", "the tickets that the student bought were expensive , and the student lost them"],
    ["quotation", "the chairman said \" we are pleased \" and the company said \" no comment \""],
    ["two sentences", "the market fell . the shares of the company rose"],
  ],
};

const SIGNED = new Set(["h", "c", "g"]);

// The number of a layer, from 0 at the bottom, as in the command, Python and HTTP.
const place = (i, layers) => (layers === 1 ? "0, the only one" : i === 0 ? "0, the lowest" : i === layers - 1 ? `${i}, the highest` : `${i}`);

export async function render(root, { desk, models, params, remember }) {
  const layer = choice({ label: "Layer", name: "layer", options: [[params.get("layer") ?? "0", params.get("layer") ?? "0"]], value: params.get("layer") ?? "0", onchange: () => { unit = null; run(); } });
  const part = choice({ label: "Part", name: "part", options: [[params.get("part") ?? "h", "output h"]], value: params.get("part") ?? "h", onchange: () => run() });
  const units = choice({ label: "Units", name: "units", options: [["16", "16 that change most"], ["32", "32 that change most"], ["64", "64 that change most"]], value: params.get("units") ?? "32", onchange: () => run() });
  const picture = h("section", { class: "card", "aria-label": "Units over the text" });
  const coloured = h("section", { class: "card", "aria-label": "One unit in the text", hidden: true });
  const cell = h("section", { class: "card", "aria-label": "Inside the cell", hidden: true });
  const listening = h("section", { class: "card", "aria-label": "Gradients of the prediction", hidden: true });
  let target = params.has("target") ? Number(params.get("target")) : null;
  let unit = params.has("unit") ? Number(params.get("unit")) : null;
  let at = params.has("at") ? Number(params.get("at")) : null;
  let read = desk.text;
  let turn = 0;
  let answer = null;

  const finder = spanFinder({
    ask: (first, last, threshold) => post("/v1/inside/alike", { model: desk.model, text: desk.text, layer: Number(layer.value), part: part.value, first, last, threshold }),
    choose: (chosen) => { unit = chosen; showUnit(); },
    apart: () => apart(),
  });

  const save = () => remember({ layer: layer.value === "0" ? "" : layer.value, part: part.value === "h" ? "" : part.value, units: units.value === "32" ? "" : units.value, target, unit, at });
  // Tokens of a word model are separated by spaces; those of other models contain their spaces.
  const apart = () => Boolean(models.find((m) => m.id === desk.model)?.tokenizer?.match(/word|pretokenized/));
  const body = () => ({ model: desk.model, text: desk.text, layer: Number(layer.value), part: part.value, max_units: Number(units.value), ...(target === null ? {} : { target }) });

  async function run() {
    const mine = ++turn;
    if (read !== desk.text) [target, at, read] = [null, null, desk.text];
    save();
    if (!picture.childElementCount) picture.append(h("p", { class: "empty" }, "Reading …"));
    let found;
    try {
      found = await post("/v1/inside", body());
    } catch (error) {
      if (mine !== turn) return;
      if (error.status === 400 && (target !== null || layer.value !== "0" || part.value !== "h")) {
        // Another model or a shorter text may lack the layer, part or token: start again with defaults.
        target = unit = at = null;
        fill(layer, [["0", "0"]], "0");
        fill(part, [["h", "output h"]], "h");
        return void run();
      }
      picture.replaceChildren(problem(error));
      for (const section of [coloured, cell, listening]) section.hidden = true;
      return;
    }
    if (mine !== turn) return;
    answer = found;
    fill(layer, Array.from({ length: answer.layers }, (_, i) => [`${i}`, place(i, answer.layers)]), `${answer.layer}`);
    fill(part, answer.parts.map((p) => [p.part, p.name]), answer.part);
    unit ??= answer.units[0];
    showUnits();
    showListening();
    await showUnit();
  }

  function showUnits() {
    const readout = h("p", { class: "readout" }, "Point at a square, or move with the arrow keys; click a row, or press Enter, to follow that unit.");
    const tokens = spelled(answer.tokens);
    const map = heat({
      values: answer.values,
      columns: tokens,
      rows: answer.units.map(String),
      diverging: SIGNED.has(answer.part),
      chosen: answer.units.indexOf(unit),
      label: `Values of ${answer.units.length} units after each of ${tokens.length} tokens`,
      onpoint: (j, i, value) => { readout.textContent = `unit ${answer.units[j]} after “${tokens[i]}”: ${value.toFixed(3)}`; },
      onchoose: (j) => { unit = answer.units[j]; showUnit(); },
    });
    const name = answer.parts.find((p) => p.part === answer.part)?.name ?? answer.part;
    const scale = SIGNED.has(answer.part)
      ? h("div", { class: "scale" }, "−", h("i", { style: "background:linear-gradient(to right, rgb(var(--cold)), transparent, rgb(var(--hot)))" }), "+")
      : h("div", { class: "scale" }, "0 closed", h("i", { style: "background:linear-gradient(to right, transparent, rgb(var(--hot)))" }), "1 open");
    picture.replaceChildren(h("div", { class: "row between" }, h("h2", {}, `${name}, layer ${answer.layer}`), scale), map, readout);
  }

  // Colour the text by one unit, and draw its cell.
  async function showUnit() {
    const mine = turn;
    save();
    let found;
    try {
      found = await post("/v1/inside/unit", { model: desk.model, text: desk.text, layer: Number(layer.value), unit });
    } catch {
      unit = answer.units[0];
      return;
    }
    if (mine !== turn || found.unit !== unit) return;
    const values = found.steps[answer.part] ?? found.steps.h;
    coloured.hidden = cell.hidden = false;
    const name = answer.parts.find((p) => p.part === answer.part)?.name ?? answer.part;
    const text = finder.text({ tokens: answer.tokens, values, signed: SIGNED.has(answer.part), part: answer.part });
    coloured.replaceChildren(
      h("div", { class: "row between" }, h("h2", {}, `Unit ${unit} in the text: ${name}`), pickUnit(found.num_units)),
      h("p", { class: "small" }, "Warm is positive or open, cool is negative. Select words (drag, or click one and Shift-click another) to find the units that are on there, and the other places where they are on."),
      text,
      finder.element,
    );
    showCell(found);
  }

  function pickUnit(number) {
    return h("label", { class: "inline small" }, "unit ", h("input", { type: "number", id: "unit", min: "0", max: `${number - 1}`, value: `${unit}`, onchange: (event) => { unit = Math.max(0, Math.min(number - 1, Number(event.target.value) || 0)); showUnit(); } }));
  }

  function showCell(found) {
    const last = found.tokens.length - 1;
    at = Math.min(at ?? last, last);
    const drawing = h("div", {});
    const label = h("span", { class: "number", id: "cell-token" });
    const slider = h("input", { type: "range", id: "at", min: "0", max: `${last}`, value: `${at}`, "aria-label": "Token", oninput: () => { at = Number(slider.value); draw(); save(); } });
    const step = (by) => { at = Math.max(0, Math.min(last, at + by)); slider.value = `${at}`; draw(); save(); };
    function draw() {
      label.textContent = `after “${at === 0 ? "▸" : visible(found.tokens[at])}” (${at} of ${last})`;
      drawing.replaceChildren(cellPicture(found, at));
    }
    draw();
    cell.replaceChildren(h("h2", {}, `Inside the cell of unit ${found.unit}`), h("div", { class: "row tree-controls" }, h("button", { id: "back-one", "aria-label": "Previous token", onclick: () => step(-1) }, "◂"), h("button", { id: "on-one", "aria-label": "Next token", onclick: () => step(1) }, "▸"), slider, label), drawing);
  }

  function showListening() {
    const most = Math.max(1e-12, ...answer.gradient);
    const prose = h(
      "p",
      { class: "prose" },
      answer.tokens.map((token, i) => {
        const share = i < answer.gradient.length ? answer.gradient[i] / most : 0;
        const button = h("button", { class: "token", type: "button", "aria-pressed": `${i === answer.target}`, disabled: i === 0 && answer.tokens.length === 1, onclick: () => { if (i > 0) { target = i; run(); } } }, i === 0 ? "▸" : /^\s+$/.test(token) ? visible(token) : token);
        button.style.backgroundColor = `rgba(var(--hot), ${(0.85 * share).toFixed(3)})`;
        button.tip = h("div", {}, h("b", {}, visible(token)), h("div", { class: "number" }, i < answer.gradient.length ? `gradient ${answer.gradient[i].toPrecision(3)}` : i === answer.target ? "the predicted token" : "comes later"));
        return apart() ? [button, " "] : button;
      }),
    );
    tips(prose, (token) => token.tip);
    listening.hidden = false;
    listening.replaceChildren(
      h("h2", {}, "Gradients of the prediction"),
      h("p", { class: "small" }, `The gradient of log P(“${visible(answer.tokens[answer.target] ?? "")}”) with respect to each token before it: the stronger the shade, the more the prediction (${bits(answer.surprisal)} bits) would change with that token. Choose another token to ask about it.`),
      prose,
    );
  }

  root.append(h("section", { class: "card settings" }, h("div", { class: "row" }, layer.element, part.element, units.element)), picture, coloured, cell, listening);
  await run();
  return {
    update: () => { finder.clear(); return run(); },
    run,
    code: () => ({
      path: "/v1/inside",
      body: body(),
      python: `${loading(desk.model)}found = model.inside(${literal(desk.text)}, layer=${layer.value}, part="${part.value}"${target === null ? "" : `, target=${target}`})\nprint(found.values.shape, found.gradient)`,
      command: `elman inside runs/${desk.model} ${quoted(desk.text)} --layer ${layer.value} --part ${part.value}${target === null ? "" : ` --target ${target}`}`,
    }),
  };
}

// The boundary token begins every text; its sign is as narrow as a character.
const spelled = ([, ...tokens]) => ["▸", ...tokens.map(visible)];

function fill(control, options, value) {
  control.select.replaceChildren(...options.map(([key, text]) => h("option", { value: key }, text)));
  control.value = value;
}
