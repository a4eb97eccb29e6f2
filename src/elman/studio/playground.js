// Continue a text: decoding options, tokens as they arrive, and the alternatives to each.

import { post, stream } from "./api.js";
import { literal, loading, quoted } from "./code.js";
import { field, h, percent, placeTip, problem, slider, tips, visible } from "./dom.js";
import { sourcesPanel } from "./sources.js";

export const title = "Playground";
export const ability = "complete";
export const lead = "The model continues your text one token at a time. The stronger a token is shaded, the less likely it was. Point at one to see the alternatives and which of them could be drawn.";
export const desk = { text: "Text to continue", placeholder: "Write the beginning of a text …", examples: [["students opened their", "students opened their"], ["the company said", "the company said"], ["once upon a time", "once upon a time"]] };

const SLIDERS = [
  ["temperature", "Temperature", 0, 2, 0.05, 0.8, "Below 1 sharpens, above 1 flattens, 0 always takes the likeliest"],
  ["max_tokens", "Maximum length", 1, 1000, 1, 120, "Limit on tokens"],
  ["top_p", "Top P", 0, 1, 0.01, 1, "Draw from the fewest likeliest tokens that together have this probability"],
  ["top_k", "Top K", 0, 200, 1, 0, "Draw from the k likeliest tokens only; 0 keeps all"],
  ["min_p", "Min P", 0, 1, 0.01, 0, "Drop tokens below this share of the likeliest"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, 0, "Subtracted for each time a token was generated"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, 0, "Subtracted once if a token was generated before"],
];
const DRAWING = ["temperature", "top_k", "top_p", "min_p"];
const PENALTIES = ["frequency_penalty", "presence_penalty"];
const FLAGS = { max_tokens: "--max-tokens", top_p: "--top-p", top_k: "--top-k", min_p: "--min-p", frequency_penalty: "--frequency-penalty", presence_penalty: "--presence-penalty", temperature: "--temperature", seed: "--seed" };
const NUM_ALTERNATIVES = 8;

export function render(root, { desk, models, params, remember }) {
  let controller = null;
  let continuation = "";
  let continued = null;
  const sources = sourcesPanel(models, () => continued && { ...continued, text: continuation });

  const save = () => remember({ stop: stop.value, seed: seed.value, ...changed() });
  const sliders = SLIDERS.map(([name, label, min, max, step, value, about]) => {
    const control = slider({ label, name, min, max, step, value, title: about, onchange: () => save() });
    if (params.has(name)) control.value = Number(params.get(name));
    return [name, value, control];
  });
  const changed = () => Object.fromEntries(sliders.filter(([, value, control]) => control.value !== value).map(([name, , control]) => [name, control.value]));
  const stop = field({ label: "Stop sequences, separated by |", name: "stop", value: params.get("stop") ?? "", placeholder: "\\n | THE END", onchange: () => save() });
  const seed = field({ label: "Seed (empty: different every time)", name: "seed", value: params.get("seed") ?? "", placeholder: "", onchange: () => save() });

  const output = h("p", { class: "prose", id: "output", "aria-live": "off" }, h("span", { class: "given" }, "The continuation appears here."));
  const status = h("span", { class: "small number", id: "status", role: "status" });
  const go = h("button", { class: "primary", id: "go", onclick: run }, "Continue");
  const halt = h("button", { id: "stop", disabled: true, onclick: () => controller?.abort() }, "Stop");
  const again = h("button", { id: "again", disabled: true, onclick: run }, "Regenerate");
  const keep = h("button", { id: "keep", disabled: true, onclick: accept }, "Append");
  const problems = h("div");

  function accept() {
    desk.text += continuation;
    save();
    run();
  }

  function body() {
    const settings = Object.fromEntries(sliders.map(([name, , control]) => [name, control.value]));
    const stops = stop.value.split("|").map((s) => s.trim().replace(/\\n/g, "\n").replace(/\\t/g, "\t")).filter(Boolean);
    return { ...desk.ask, prompt: desk.text, ...settings, ...(stops.length ? { stop: stops } : {}), ...(/^-?\d+$/.test(seed.value.trim()) ? { seed: Number(seed.value) } : {}) };
  }

  async function run() {
    controller?.abort();
    const mine = new AbortController();
    controller = mine;
    save();
    continuation = "";
    problems.replaceChildren();
    const asked = body();
    const { model, label, prompt } = asked;
    continued = { model, label, prompt };
    const caret = h("span", { class: "caret" });
    output.replaceChildren(h("span", { class: "given" }, asked.prompt), caret);
    halt.disabled = false;
    again.disabled = keep.disabled = true;
    const started = performance.now();
    let count = 0;
    let reason = "";
    try {
      for await (const piece of stream("/v1/completions", { ...asked, logprobs: NUM_ALTERNATIVES }, mine.signal)) {
        const [part] = piece.choices;
        if (!part) continue;
        caret.before(...spans(part, continuation, asked));
        continuation += part.text;
        count += part.logprobs?.tokens.length ?? 0;
        reason = part.finish_reason ?? reason;
        const seconds = (performance.now() - started) / 1000;
        status.textContent = `${count} tokens · ${(count / seconds).toFixed(0)} a second`;
      }
      status.textContent += { length: " · as long as allowed", stop: " · came to an end" }[reason] ?? "";
    } catch (error) {
      if (error.name === "AbortError") status.textContent += " · stopped";
      else problems.replaceChildren(problem(error));
    }
    if (controller !== mine) return;
    controller = null;
    caret.remove();
    const first = output.querySelector(".token");
    if (first) first.tabIndex = 0;
    halt.disabled = true;
    again.disabled = false;
    keep.disabled = continuation === "";
    sources.refresh();
  }

  root.append(
    h(
      "div",
      { class: "split" },
      h("div", {}, h("section", { class: "card", "aria-label": "Continuation" }, h("div", { class: "row", style: "margin-bottom:.75rem" }, go, halt, again, keep, h("span", { class: "small keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"))), output, h("div", { class: "row", style: "margin-top:.75rem" }, status), problems), sources.element),
      h("aside", { class: "card settings", "aria-label": "Settings" }, sliders.map(([, , control]) => control.element), stop.element, seed.element),
    ),
  );
  tips(output, alternatives);

  function code() {
    const { model, prompt, label, stop: stops, ...options } = body();
    const used = Object.entries(options).filter(([name, value]) => !(name in Object.fromEntries(SLIDERS.map((one) => [one[0], 0]))) || name === "max_tokens" || name === "temperature" || changed()[name] === value);
    const given = [literal(prompt), ...used.map(([name, value]) => `${name}=${value}`), ...(stops ? [`stop=${JSON.stringify(stops)}`] : [])].join(", ");
    return {
      path: "/v1/completions",
      body: { model, ...(label ? { label } : {}), prompt, ...Object.fromEntries(used), ...(stops ? { stop: stops } : {}) },
      python: `${loading(model)}print(model${label ? `.given(${literal(label)})` : ""}.generate(${given}))`,
      command: `elman generate runs/${model} ${quoted(prompt)}${label ? ` --label ${quoted(label)}` : ""} ${used.map(([name, value]) => `${FLAGS[name]} ${value}`).join(" ")}${(stops ?? []).map((one) => ` --stop ${quoted(one)}`).join("")}`,
    };
  }
  save();
  return { run, stop: () => controller?.abort(), code };
}

// Turn a piece of the stream into a span per token, with plain text between them.
function spans(part, before, asked) {
  const { tokens = [], token_logprobs: logprobs = [], top_logprobs: top = [], text_offset: offsets = [] } = part.logprobs ?? {};
  const nodes = [];
  let at = 0;
  tokens.forEach((token, i) => {
    const start = Math.max(at, offsets[i] - before.length);
    const end = part.text.startsWith(token, start) ? start + token.length : Math.max(start, (offsets[i + 1] ?? Infinity) - before.length);
    if (start > at) nodes.push(part.text.slice(at, start));
    const span = h("span", { class: "token", tabindex: "-1" }, part.text.slice(start, end));
    // What the tip needs; an element has a property `prefix` of its own.
    span.drawing = { alternatives: top?.[i] ?? {}, chosen: token, asked, prefix: asked.prompt + before + part.text.slice(0, at) };
    const p = Math.exp(logprobs[i]);
    span.style.backgroundColor = `rgba(var(--hot), ${(0.32 * (1 - p) ** 2).toFixed(3)})`;
    nodes.push(span);
    at = Math.min(end, part.text.length);
  });
  if (at < part.text.length) nodes.push(part.text.slice(at));
  return nodes;
}

// The model's own distribution, and the one that the options left to draw from.
function alternatives({ drawing: token }) {
  const own = Object.entries(token?.alternatives ?? {}).sort((a, b) => b[1] - a[1]);
  if (!own.length) return null;
  const content = h("div", {}, table(token, own.map(([text, logprob]) => [text, Math.exp(logprob)])));
  token.drawn ??= post("/v1/next", { model: token.asked.model, label: token.asked.label, prompt: token.prefix, k: 200, ...Object.fromEntries(DRAWING.map((name) => [name, token.asked[name]])) });
  token.drawn
    .then((answer) => {
      content.replaceChildren(drawnTable(token, own, answer));
      placeTip();
    })
    .catch(() => {}); // the model's own distribution stays
  return content;
}

function drawnTable(token, own, answer) {
  const drawn = new Map(answer.tokens.map((one) => [one.token, one.drawn]));
  const penalised = PENALTIES.some((name) => token.asked[name]);
  return h(
    "div",
    {},
    table(token, own.map(([text, logprob]) => [text, Math.exp(logprob), drawn.get(text)]), true),
    h("p", { class: "small", style: "margin:.4rem 0 0" }, `${answer.possible.toLocaleString("en")} ${answer.possible === 1 ? "token" : "tokens"} could be drawn${penalised ? "; penalties, which also count, are not in these figures" : ""}.`),
  );
}

function table(token, rows, hasDrawn = false) {
  const most = Math.max(...rows.map((row) => row[1]));
  return h(
    "table",
    {},
    h("tr", { class: "head" }, h("th", {}, "token"), h("th", {}), h("th", {}, "model"), hasDrawn ? h("th", {}, "drawn from") : null),
    rows.map(([text, p, drawn]) =>
      h(
        "tr",
        { class: `alternative${text === token.chosen ? " chosen" : ""}` },
        h("td", { class: "mono" }, visible(text)),
        h("td", {}, h("span", { class: "meter", style: `width:${((5 * p) / most).toFixed(2)}rem` })),
        h("td", { class: "number" }, percent(p)),
        hasDrawn ? h("td", { class: "number" }, drawn === undefined ? "" : drawn === 0 ? "–" : percent(drawn)) : null,
      ),
    ),
  );
}
