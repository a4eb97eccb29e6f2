// The next-token distributions of several models side by side; a click continues the text.

import { post } from "./api.js";
import { debounce, h, percent, problem, visible } from "./dom.js";

export const title = "Next word";
export const ability = "next";

const MOST_MODELS_AT_FIRST = 3;

export function render(root, { models, params, remember }) {
  const prefix = h("textarea", { id: "prefix", rows: "2", "aria-label": "The beginning", spellcheck: "false", style: "min-height:4rem" });
  prefix.value = params.get("prefix") ?? "students opened their";
  const chosen = new Set(params.has("models") ? params.get("models").split(",") : models.slice(0, MOST_MODELS_AT_FIRST).map((m) => m.id));
  const number = h("input", { type: "number", id: "k", min: "1", max: "50", value: params.get("k") ?? "10", style: "width:5rem;display:inline-block", "aria-label": "How many", onchange: () => run() });
  const cards = h("div", { class: "columns narrow", style: "margin-top:1.25rem" });
  const history = [];
  const back = h("button", { id: "back", disabled: true, onclick: undo }, "Undo");
  let turn = 0;

  const chips = h(
    "div",
    { class: "chips", role: "group", "aria-label": "Models" },
    models.map((model) => {
      const box = h("input", { type: "checkbox", value: model.id, onchange: () => { if (box.checked) chosen.add(model.id); else chosen.delete(model.id); run(); } });
      box.checked = chosen.has(model.id);
      return h("label", { class: "chip" }, box, `${model.id} · ${model.kind}`);
    }),
  );

  function undo() {
    prefix.value = history.pop() ?? prefix.value;
    back.disabled = history.length === 0;
    run();
  }

  async function take(model, token) {
    history.push(prefix.value);
    back.disabled = false;
    // The server joins the pieces: it knows where this model's tokens need a space.
    const { tokens } = await post("/tokenize", { model, prompt: prefix.value });
    const { prompt: before } = await post("/detokenize", { model, tokens });
    const { prompt: after } = await post("/detokenize", { model, tokens: [...tokens, token.id] });
    prefix.value += after.startsWith(before) ? after.slice(before.length) : token.token;
    await run();
  }

  async function run() {
    const mine = ++turn;
    const k = Math.max(1, Math.min(50, Number(number.value) || 10));
    remember({ prefix: prefix.value, models: [...chosen].join(","), k: k === 10 ? "" : k });
    const asked = models.filter((model) => chosen.has(model.id));
    if (!asked.length) {
      cards.replaceChildren(h("p", { class: "empty" }, "Choose a model above."));
      return;
    }
    const made = await Promise.all(
      asked.map(async (model) => {
        try {
          return card(model, await post("/v1/next", { model: model.id, prompt: prefix.value, k }));
        } catch (error) {
          return h("section", { class: "card" }, h("h2", {}, model.id), problem(error));
        }
      }),
    );
    if (mine === turn) cards.replaceChildren(...made);
  }

  function card(model, answer) {
    const most = answer.tokens[0]?.probability || 1;
    return h(
      "section",
      { class: "card result" },
      h("div", { class: "row between" }, h("h2", {}, model.id), h("span", { class: "small" }, `${model.kind} · ${model.tokenizer}`)),
      h(
        "ol",
        { class: "bars", "aria-label": `What ${model.id} expects` },
        answer.tokens.map((token) =>
          h(
            "li",
            {},
            h(
              "button",
              { onclick: () => take(model.id, token), title: `Continue with “${visible(token.token)}”` },
              h("span", { class: "word" }, visible(token.token)),
              h("span", { class: "track" }, h("span", { class: "fill", style: `width:${((100 * token.probability) / most).toFixed(2)}%` })),
              h("span", { class: "value" }, percent(token.probability)),
            ),
          ),
        ),
      ),
      h("p", { class: "small number", style: "margin:.5rem .35rem 0" }, `all others: ${percent(answer.rest)}`),
    );
  }

  prefix.addEventListener("input", debounce(250, run));
  root.append(
    h("h1", {}, "Next word"),
    h("p", { class: "lead" }, "A language model is a distribution over what comes next. Here is that distribution; choose one of its words to go on."),
    h("section", { class: "card" }, prefix, h("div", { class: "row between", style: "margin-top:.6rem" }, chips, h("div", { class: "row" }, h("span", { class: "small" }, "show"), number, back))),
    cards,
  );
  return run().then(() => null);
}
