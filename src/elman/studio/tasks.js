// Models that are not language models: translators, taggers, classifiers, where they are served.

import { post } from "./api.js";
import { COLOURS, heat } from "./charts.js";
import { choice, h, percent, problem } from "./dom.js";

function view({ name, title, ability, lead, example, button, draw }) {
  return {
    title,
    ability,
    render(root, { models, params, remember }) {
      const text = h("textarea", { id: "text", rows: "3", "aria-label": "Text", spellcheck: "false" });
      text.value = params.get("text") ?? example;
      const model = choice({ label: "Model", name: "model", options: models.map((m) => [m.id, m.id]), value: params.get("model") ?? models[0].id, onchange: save });
      const output = h("section", { class: "card", hidden: true, "aria-live": "polite" });
      function save() {
        remember({ text: text.value, model: model.value });
      }
      async function run() {
        save();
        output.hidden = false;
        try {
          const answer = await post(`/v1/${ability}`, { model: model.value, text: text.value });
          output.replaceChildren(...draw(answer.result));
        } catch (error) {
          output.replaceChildren(problem(error));
        }
      }
      text.addEventListener("input", save);
      text.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
      });
      root.append(h("h1", {}, title), h("p", { class: "lead" }, lead), h("section", { class: "card" }, text, h("div", { class: "row", style: "margin-top:.6rem" }, model.element, h("button", { class: "primary", id: `go-${name}`, onclick: run }, button))), output);
    },
  };
}

function alignment(result) {
  const readout = h("p", { class: "readout" }, "Each row is a word of the translation; darker squares are the words that it looked at.");
  return [
    h("p", { class: "prose" }, result.text),
    result.weights?.length
      ? heat({ values: result.weights, columns: result.source, rows: result.target, diverging: false, marginLeft: 110, label: "Alignment of the translation with the text", onpoint: (j, i, value) => { readout.textContent = `${result.target[j]} ← ${result.source[i]}: ${percent(value)}`; } })
      : null,
    result.weights?.length ? readout : null,
  ].filter(Boolean);
}

function spans(pairs) {
  const labels = [...new Set(pairs.map(([, tag]) => tag.replace(/^[BIES]-/, "")).filter((tag) => tag !== "O"))];
  return [
    h(
      "p",
      { class: "prose" },
      pairs.map(([word, tag]) => {
        const label = tag.replace(/^[BIES]-/, "");
        const colour = label === "O" ? "transparent" : COLOURS[labels.indexOf(label) % COLOURS.length];
        return h("span", { class: "tag-word", style: `background:color-mix(in srgb, ${colour} 22%, transparent)` }, word, h("small", {}, label === "O" ? " " : tag));
      }),
    ),
  ];
}

function classes(result) {
  const shares = Object.entries(result.probabilities ?? { [result.label]: result.probability }).sort((x, y) => y[1] - x[1]);
  return [
    h("p", { class: "prose" }, result.label),
    h(
      "ol",
      { class: "bars" },
      shares.slice(0, 20).map(([label, p]) => h("li", {}, h("button", { type: "button", disabled: true }, h("span", { class: "word" }, label), h("span", { class: "track" }, h("span", { class: "fill", style: `width:${(100 * p).toFixed(2)}%` })), h("span", { class: "value" }, percent(p))))),
    ),
  ];
}

export const views = {
  translate: view({ name: "translate", title: "Translate", ability: "translate", lead: "A sentence, its translation, and where the translator looked for each word.", example: "", button: "Translate", draw: alignment }),
  tag: view({ name: "tag", title: "Tag", ability: "tag", lead: "Every word with its tag.", example: "The student opened her book .", button: "Tag", draw: spans }),
  classify: view({ name: "classify", title: "Classify", ability: "classify", lead: "What a text is, and how sure the model is.", example: "", button: "Classify", draw: classes }),
};
