// The next-token distributions of several models side by side, cut by temperature, top-k and top-p.

import { post } from "./api.js";
import { literal, loading, quoted } from "./code.js";
import { debounce, h, percent, problem, slider, visible } from "./dom.js";
import { family, plainKind } from "./models.js";

export const title = "Next word";
export const ability = "next";
export const lead = "A language model is a distribution over what comes next. Pale bars are the model's probabilities; full bars are those after temperature and truncation. All models share one scale. Choose a word to append it.";
export const desk = { text: "Text so far", rows: 2, model: false, examples: [["students opened their", "students opened their"], ["the stock market", "the stock market"], ["he said he would", "he said he would"]] };

const MOST_FAMILIES = 4;
const SLIDERS = [
  ["temperature", "Temperature", 0, 2, 0.05, 1, "Below 1 sharpens the distribution, above 1 flattens it, 0 takes the likeliest"],
  ["top_k", "Top K", 0, 50, 1, 0, "Only the k likeliest stay; 0 keeps all"],
  ["top_p", "Top P", 0, 1, 0.01, 1, "The fewest likeliest that together have this probability stay"],
];
// What each family knows of the beginning.
const KNOWS = {
  ngram: ({ card }) => `sees only the last ${card.settings.order - 1} tokens`,
  window: ({ card }) => `sees only the last ${card.settings.window_size} tokens, but knows which words are alike`,
  rnn: () => "reads everything into one vector, which fades quickly",
  gru: () => "reads everything; two gates decide what to keep",
  lstm: () => "reads everything; its memory is kept or erased by gates",
  mixture: () => "an average of several models",
};

export async function render(root, { desk, models, params, remember }) {
  const chosen = new Set(params.has("models") ? params.get("models").split(",") : oneOfEach(models));
  const number = h("input", { type: "number", id: "k", min: "1", max: "50", value: params.get("k") ?? "10", style: "width:5rem;display:inline-block", "aria-label": "How many", onchange: () => run() });
  const cards = h("div", { class: "columns narrow", style: "margin-top:1.25rem" });
  const history = [];
  const back = h("button", { id: "back", disabled: true, onclick: undo }, "Undo");
  const redraw = debounce(40, () => run());
  const sliders = SLIDERS.map(([name, label, min, max, step, value, about]) => {
    const control = slider({ label, name, min, max, step, value, title: about, onchange: redraw });
    if (params.has(name)) control.value = Number(params.get(name));
    return [name, value, control];
  });
  let turn = 0;

  const chips = h(
    "div",
    { class: "chips", role: "group", "aria-label": "Models" },
    models.map((model) => {
      const box = h("input", { type: "checkbox", value: model.id, onchange: () => { if (box.checked) chosen.add(model.id); else chosen.delete(model.id); run(); } });
      box.checked = chosen.has(model.id);
      return h("label", { class: "chip" }, box, model.id);
    }),
  );

  function undo() {
    desk.text = history.pop() ?? desk.text;
    back.disabled = history.length === 0;
    run();
  }

  async function take(model, token) {
    const text = desk.text;
    history.push(text);
    back.disabled = false;
    // The server joins the pieces: it knows where this model's tokens need a space.
    const { tokens } = await post("/tokenize", { model, prompt: text });
    const { prompt: before } = await post("/detokenize", { model, tokens });
    const { prompt: after } = await post("/detokenize", { model, tokens: [...tokens, token.id] });
    desk.text = text + (after.startsWith(before) ? after.slice(before.length) : token.token);
    await run();
  }

  const k = () => Math.max(1, Math.min(50, Number(number.value) || 10));
  const options = () => Object.fromEntries(sliders.map(([name, , control]) => [name, control.value]));
  const changed = () => Object.fromEntries(sliders.filter(([, value, control]) => control.value !== value).map(([name, , control]) => [name, control.value]));
  const asked = () => models.filter((model) => chosen.has(model.id));
  // A model that takes a label is asked with the one on the desk, or its first.
  const request = (model) => ({ model: model.id, ...(model.labels.length ? { label: model.labels.includes(desk.label) ? desk.label : model.labels[0] } : {}), prompt: desk.text, k: k(), ...options() });

  async function run() {
    const mine = ++turn;
    remember({ models: [...chosen].join(","), k: k() === 10 ? "" : k(), ...changed() });
    if (!asked().length) {
      cards.replaceChildren(h("p", { class: "empty" }, "Choose a model above."));
      return;
    }
    const answers = await Promise.all(asked().map((model) => post("/v1/next", request(model)).catch((error) => ({ error }))));
    if (mine !== turn) return;
    // One scale for all: a bar of the same length is the same probability.
    const shown = answers.flatMap((answer) => answer.tokens ?? []);
    const most = Math.max(1e-9, ...shown.flatMap((token) => [token.probability, token.drawn]));
    cards.replaceChildren(...asked().map((model, i) => (answers[i].error ? h("section", { class: "card" }, h("h2", {}, model.id), problem(answers[i].error)) : card(model, answers[i], most))));
  }

  function card(model, answer, most) {
    const width = (p) => `width:${((100 * p) / most).toFixed(2)}%`;
    const isCut = Object.keys(changed()).length > 0;
    return h(
      "section",
      { class: "card result" },
      h("h2", {}, model.id),
      h("p", { class: "small" }, [plainKind(model), KNOWS[family(model)]?.(model)].filter(Boolean).join("; ")),
      h(
        "ol",
        { class: "bars", "aria-label": `What ${model.id} expects` },
        answer.tokens.map((token) =>
          h(
            "li",
            { class: token.drawn === 0 ? "cut" : "" },
            h(
              "button",
              { onclick: () => take(model.id, token), title: `Continue with “${visible(token.token)}”: ${percent(token.probability)} by the model${isCut ? `, ${token.drawn === 0 ? "cut" : percent(token.drawn)} after the options` : ""}` },
              h("span", { class: "word" }, visible(token.token)),
              h("span", { class: "track" }, h("span", { class: "fill own", style: width(token.probability) }), h("span", { class: "fill", style: width(token.drawn) })),
              h("span", { class: "value" }, token.drawn === 0 ? "cut" : percent(token.drawn)),
            ),
          ),
        ),
      ),
      h("p", { class: "small number", style: "margin:.5rem .35rem 0" }, isCut ? `${answer.possible.toLocaleString("en")} ${answer.possible === 1 ? "token" : "tokens"} can be drawn` : `all others: ${percent(answer.rest)}`),
    );
  }

  root.append(
    h("section", { class: "card" }, chips, h("div", { class: "columns narrow sliders", style: "margin-top:.75rem" }, sliders.map(([, , control]) => control.element)), h("div", { class: "row" }, h("span", { class: "small" }, "show"), number, back)),
    cards,
  );
  await run();
  return {
    update: run,
    run,
    code() {
      const [first] = asked();
      if (!first) return null;
      const body = { ...request(first), ...changed() };
      for (const [name, value] of sliders) if (!(name in changed()) && body[name] === value) delete body[name];
      return { path: "/v1/next", body, python: `${loading(first.id)}for word, probability in model.next(${literal(desk.text)}, k=${k()}):\n    print(word, probability)`, command: `elman next runs/${first.id} ${quoted(desk.text)} -k ${k()}` };
    },
  };
}

// The first model of each family.
function oneOfEach(models) {
  const order = ["ngram", "window", "rnn", "lstm", "gru"];
  const first = new Map();
  for (const model of models) if (!model.labels.length && !first.has(family(model))) first.set(family(model), model.id);
  const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  if (!first.size) return models.slice(0, 1).map((model) => model.id);
  return [...first].sort((a, b) => rank(a[0]) - rank(b[0])).slice(0, MOST_FAMILIES).map(([, id]) => id);
}
