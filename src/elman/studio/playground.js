// Continue a text: decoding options, tokens as they arrive, and the alternatives to each.

import { stream } from "./api.js";
import { choice, field, h, percent, problem, slider, tips, visible } from "./dom.js";

export const title = "Playground";
export const ability = "complete";

const SLIDERS = [
  ["temperature", "Temperature", 0, 2, 0.05, 0.8, "Below 1 sharpens, above 1 flattens, 0 always takes the likeliest"],
  ["max_tokens", "Maximum length", 1, 1000, 1, 120, "Tokens at most"],
  ["top_p", "Top P", 0, 1, 0.01, 1, "Draw from the fewest likeliest tokens that together have this probability"],
  ["top_k", "Top K", 0, 200, 1, 0, "Draw from the k likeliest tokens only; 0 keeps all"],
  ["min_p", "Min P", 0, 1, 0.01, 0, "Drop tokens below this share of the likeliest"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, 0, "Subtracted for each time a token was generated"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, 0, "Subtracted once if a token was generated before"],
];
const NUM_ALTERNATIVES = 8;

export function render(root, { models, params, remember }) {
  let controller = null;
  let continuation = "";

  const prompt = h("textarea", { id: "prompt", rows: "4", "aria-label": "Text to continue", placeholder: "Write the beginning of a text …", spellcheck: "false" });
  prompt.value = params.get("prompt") ?? "";
  const save = () => remember({ model: model.value, prompt: prompt.value, stop: stop.value, seed: seed.value, ...changed() });
  prompt.addEventListener("input", save);

  const model = choice({ label: "Model", name: "model", options: models.map((m) => [m.id, `${m.id} · ${m.kind}`]), value: params.get("model") ?? models[0].id, onchange: save });
  const sliders = SLIDERS.map(([name, label, min, max, step, value, about]) => {
    const control = slider({ label, name, min, max, step, value, title: about, onchange: save });
    if (params.has(name)) control.value = Number(params.get(name));
    return [name, value, control];
  });
  const changed = () => Object.fromEntries(sliders.filter(([, value, control]) => control.value !== value).map(([name, , control]) => [name, control.value]));
  const stop = field({ label: "Stop sequences, separated by |", name: "stop", value: params.get("stop") ?? "", placeholder: "\\n | THE END", onchange: save });
  const seed = field({ label: "Seed (empty: different every time)", name: "seed", value: params.get("seed") ?? "", placeholder: "", onchange: save });

  const output = h("p", { class: "prose", id: "output", "aria-live": "off" });
  const status = h("span", { class: "small number", id: "status", role: "status" });
  const go = h("button", { class: "primary", id: "go", onclick: () => run(prompt.value) }, "Continue");
  const halt = h("button", { id: "stop", disabled: true, onclick: () => controller?.abort() }, "Stop");
  const again = h("button", { id: "again", disabled: true, onclick: () => run(prompt.value) }, "Regenerate");
  const keep = h("button", { id: "keep", disabled: true, onclick: accept }, "Keep, and go on");
  const problems = h("div");

  function accept() {
    prompt.value += continuation;
    save();
    run(prompt.value);
  }

  async function run(text) {
    controller?.abort();
    const mine = new AbortController();
    controller = mine;
    save();
    continuation = "";
    problems.replaceChildren();
    const caret = h("span", { class: "caret" });
    output.replaceChildren(h("span", { class: "given" }, text), caret);
    halt.disabled = false;
    again.disabled = keep.disabled = true;
    const started = performance.now();
    let count = 0;
    let reason = "";
    const stops = stop.value.split("|").map((s) => s.trim().replace(/\\n/g, "\n").replace(/\\t/g, "\t")).filter(Boolean);
    const settings = Object.fromEntries(sliders.map(([name, , control]) => [name, control.value]));
    const body = { model: model.value, prompt: text, ...settings, logprobs: NUM_ALTERNATIVES };
    if (stops.length) body.stop = stops;
    if (/^-?\d+$/.test(seed.value.trim())) body.seed = Number(seed.value);
    try {
      for await (const piece of stream("/v1/completions", body, mine.signal)) {
        const [part] = piece.choices;
        if (!part) continue;
        caret.before(...spans(part, continuation.length));
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
  }

  root.append(
    h("h1", {}, "Playground"),
    h("p", { class: "lead" }, "Give a beginning; the model continues it, one token after another. Point at a token to see what it was drawn from."),
    h(
      "div",
      { class: "split" },
      h(
        "div",
        {},
        h("section", { class: "card" }, prompt, h("div", { class: "row", style: "margin-top:.75rem" }, go, halt, again, keep, h("span", { class: "small keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")))),
        h("section", { class: "card", "aria-label": "Continuation" }, output, h("div", { class: "row", style: "margin-top:.75rem" }, status), problems),
      ),
      h("aside", { class: "card", "aria-label": "Settings" }, model.element, sliders.map(([, , control]) => control.element), stop.element, seed.element),
    ),
  );
  output.append(h("span", { class: "given" }, "The continuation appears here."));
  tips(output, (token) => alternatives(token));
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run(prompt.value);
    } else if (event.key === "Escape" && controller) controller.abort();
  };
  root.addEventListener("keydown", keys);
  save();
  return () => {
    controller?.abort();
    root.removeEventListener("keydown", keys);
  };
}

// Turn a piece of the stream into a span per token, with plain text between them.
function spans(part, said) {
  const { tokens = [], token_logprobs: logprobs = [], top_logprobs: top = [], text_offset: offsets = [] } = part.logprobs ?? {};
  const nodes = [];
  let at = 0;
  tokens.forEach((token, i) => {
    const start = Math.max(at, offsets[i] - said);
    const end = part.text.startsWith(token, start) ? start + token.length : Math.max(start, (offsets[i + 1] ?? Infinity) - said);
    if (start > at) nodes.push(part.text.slice(at, start));
    const span = h("span", { class: "token", tabindex: "-1" }, part.text.slice(start, end));
    span.alternatives = top?.[i] ?? {};
    span.chosen = token;
    const p = Math.exp(logprobs[i]);
    span.style.backgroundColor = `rgba(var(--hot), ${(0.32 * (1 - p) ** 2).toFixed(3)})`;
    nodes.push(span);
    at = Math.min(end, part.text.length);
  });
  if (at < part.text.length) nodes.push(part.text.slice(at));
  return nodes;
}

function alternatives(token) {
  const rows = Object.entries(token.alternatives ?? {}).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return null;
  const most = Math.exp(rows[0][1]);
  return h(
    "table",
    {},
    rows.map(([text, logprob]) => {
      const p = Math.exp(logprob);
      return h(
        "tr",
        { class: text === token.chosen ? "chosen" : "" },
        h("td", { class: "mono" }, visible(text)),
        h("td", {}, h("span", { class: "meter", style: `width:${((6 * p) / most).toFixed(2)}rem` })),
        h("td", { class: "number" }, percent(p)),
      );
    }),
  );
}
