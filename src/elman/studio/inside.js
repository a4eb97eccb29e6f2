// Inside a recurrent model: units and gates as a heat map, and the words that a prediction depends on.

import { post } from "./api.js";
import { heat } from "./charts.js";
import { bits, choice, debounce, h, problem, tips, visible } from "./dom.js";

export const title = "Inside";
export const ability = "inside";

const SIGNED = new Set(["h", "c", "g"]);

export function render(root, { models, params, remember }) {
  const text = h("textarea", { id: "text", rows: "2", "aria-label": "Text to read", spellcheck: "false", style: "min-height:4.5rem" });
  text.value = params.get("text") ?? "The tickets that the student bought were expensive";
  const model = choice({ label: "Model", name: "model", options: models.map((m) => [m.id, m.id]), value: params.get("model") ?? models[0].id, onchange: () => run() });
  const layer = choice({ label: "Layer", name: "layer", options: [[params.get("layer") ?? "0", "1"]], value: params.get("layer") ?? "0", onchange: () => run() });
  const part = choice({ label: "Part", name: "part", options: [[params.get("part") ?? "h", "output h"]], value: params.get("part") ?? "h", onchange: () => run() });
  const units = choice({ label: "Units", name: "units", options: [["16", "16 that change most"], ["32", "32"], ["64", "64"]], value: params.get("units") ?? "32", onchange: () => run() });
  const picture = h("section", { class: "card" });
  const listening = h("section", { class: "card", hidden: true });
  let target = params.has("target") ? Number(params.get("target")) : null;
  let turn = 0;

  async function run() {
    const mine = ++turn;
    remember({ text: text.value, model: model.value, layer: layer.value === "0" ? "" : layer.value, part: part.value === "h" ? "" : part.value, units: units.value === "32" ? "" : units.value, target });
    const body = { model: model.value, text: text.value, layer: Number(layer.value), part: part.value, max_units: Number(units.value) };
    if (target !== null) body.target = target;
    if (!picture.childElementCount) picture.append(h("p", { class: "empty" }, "Reading …"));
    let answer;
    try {
      answer = await post("/v1/inside", body);
    } catch (error) {
      if (mine !== turn) return;
      if (target !== null || layer.value !== "0" || part.value !== "h") {
        // Another model or a shorter text may lack the layer, part or token: start again with defaults.
        target = null;
        layer.value = "0";
        part.value = "h";
        if (error.status === 400) return void run();
      }
      picture.replaceChildren(problem(error));
      listening.hidden = true;
      return;
    }
    if (mine !== turn) return;
    fill(layer, Array.from({ length: answer.layers }, (_, i) => [`${i}`, `${i + 1} of ${answer.layers}`]), `${answer.layer}`);
    fill(part, answer.parts.map((p) => [p.part, p.name]), answer.part);
    showUnits(answer);
    showListening(answer);
  }

  function showUnits(answer) {
    const readout = h("p", { class: "readout" }, "Point at a square, or move with the arrow keys.");
    const tokens = answer.tokens.map(visible);
    const map = heat({
      values: answer.values,
      columns: tokens,
      rows: answer.units.map(String),
      diverging: SIGNED.has(answer.part),
      label: `Values of ${answer.units.length} units after each of ${tokens.length} tokens`,
      onpoint: (j, i, value) => { readout.textContent = `unit ${answer.units[j]} after “${tokens[i]}”: ${value.toFixed(3)}`; },
    });
    const name = answer.parts.find((p) => p.part === answer.part)?.name ?? answer.part;
    const scale = SIGNED.has(answer.part)
      ? h("div", { class: "scale" }, "−", h("i", { style: "background:linear-gradient(to right, rgb(var(--cold)), transparent, rgb(var(--hot)))" }), "+")
      : h("div", { class: "scale" }, "0 closed", h("i", { style: "background:linear-gradient(to right, transparent, rgb(var(--hot)))" }), "1 open");
    picture.replaceChildren(h("div", { class: "row between" }, h("h2", {}, `${name}, layer ${answer.layer + 1}`), scale), map, readout);
  }

  function showListening(answer) {
    const most = Math.max(1e-12, ...answer.gradient);
    const prose = h(
      "p",
      { class: "prose" },
      answer.tokens.map((token, i) => {
        const share = i < answer.gradient.length ? answer.gradient[i] / most : 0;
        const button = h("button", { class: "token", type: "button", "aria-pressed": `${i === answer.target}`, disabled: i === 0 && answer.tokens.length === 1, onclick: () => { if (i > 0) { target = i; run(); } } }, i === 0 ? "▸" : /^\s+$/.test(token) ? visible(token) : token);
        button.style.backgroundColor = `rgba(var(--hot), ${(0.85 * share).toFixed(3)})`;
        button.tip = h("div", {}, h("b", {}, visible(token)), h("div", { class: "number" }, i < answer.gradient.length ? `gradient ${answer.gradient[i].toPrecision(3)}` : i === answer.target ? "the predicted token" : "comes later"));
        // Tokens of a word model are separated by spaces; those of other models contain their spaces.
        const apart = models.find((m) => m.id === answer.model)?.tokenizer?.match(/word|pretokenized/);
        return apart ? [button, " "] : button;
      }),
    );
    tips(prose, (token) => token.tip);
    listening.hidden = false;
    listening.replaceChildren(
      h("h2", {}, "What the prediction listens to"),
      h("p", { class: "small" }, `The gradient of log P(“${visible(answer.tokens[answer.target] ?? "")}”) with respect to each word before it: the stronger the shade, the more the prediction (${bits(answer.surprisal)} bits) would change with that word. Choose another word to ask about it.`),
      prose,
    );
  }

  text.addEventListener("input", debounce(400, () => { target = null; run(); }));
  root.append(
    h("h1", {}, "Inside"),
    h("p", { class: "lead" }, "What a layer holds after every token, and how far back a prediction reaches."),
    h("section", { class: "card" }, text, h("div", { class: "row", style: "margin-top:.5rem" }, model.element, layer.element, part.element, units.element)),
    picture,
    listening,
  );
  return run();
}

function fill(control, options, value) {
  control.select.replaceChildren(...options.map(([key, text]) => h("option", { value: key }, text)));
  control.value = value;
}
