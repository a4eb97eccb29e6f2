// Translators, taggers and classifiers, if they are served.

import { post } from "./api.js";
import { heat } from "./charts.js";
import { choice, h, percent, problem } from "./dom.js";

const GOLDEN_ANGLE = 137.5;
const MOST_CLASSES = 12;

function view({ name, title, ability, lead, example, button, draw }) {
  return {
    title,
    ability,
    render(root, { models, params, remember }) {
      const text = h("textarea", { id: "text", rows: "3", "aria-label": "Text", placeholder: "Write or paste a text …", spellcheck: "false" });
      text.value = params.get("text") ?? example;
      const model = choice({ label: "Model", name: "model", options: models.map((m) => [m.id, `${m.id} · ${m.kind}`]), value: params.get("model") ?? models[0].id, onchange: save });
      const output = h("section", { class: "card", hidden: true, "aria-live": "polite" });
      function save() {
        remember({ text: text.value, model: model.value });
      }
      async function run() {
        save();
        output.hidden = false;
        if (!text.value.trim()) {
          output.replaceChildren(h("p", { class: "empty" }, "Write a text above."));
          return;
        }
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
      const go = h("button", { class: "primary", id: `go-${name}`, onclick: run }, button);
      root.append(h("h1", {}, title), h("p", { class: "lead" }, lead), h("section", { class: "card" }, text, h("div", { class: "row low", style: "margin-top:.6rem" }, model.element, go, h("span", { class: "small keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")))), output);
      return params.has("text") ? run().then(() => null) : null;
    },
  };
}

function alignment(result) {
  const readout = h("p", { class: "readout" }, "Each row is a word of the translation; darker squares are the words that it looked at.");
  return [
    h("p", { class: "prose" }, result.text),
    result.weights?.length
      ? heat({ values: result.weights, columns: result.source, rows: result.target, diverging: false, label: "Alignment of the translation with the text", onpoint: (j, i, value) => { readout.textContent = `${result.target[j]} ← ${result.source[i]}: ${percent(value)}`; } })
      : null,
    result.weights?.length ? readout : null,
  ].filter(Boolean);
}

// The words of an entity (B-, I- and so on) make one span; every other word has its own.
function spans(pairs) {
  const groups = [];
  for (const [word, tag] of pairs) {
    const [, place, label] = /^(?:([BIES])-)?(.*)$/.exec(tag);
    const last = groups.at(-1);
    if ("IE".includes(place ?? "-") && last?.label === label) last.words.push(word);
    else groups.push({ words: [word], label });
  }
  const labels = [...new Set(groups.map((group) => group.label))].filter((label) => label !== "O").sort();
  return [
    h(
      "p",
      { class: "prose tagged" },
      groups.map(({ words, label }) =>
        label === "O"
          ? h("span", { class: "tag-word" }, words.join(" "))
          : h("span", { class: "tag-word", style: `--hue:${Math.round(labels.indexOf(label) * GOLDEN_ANGLE) % 360}` }, words.join(" "), h("small", {}, label)),
      ),
    ),
  ];
}

function classes(result) {
  const shares = Object.entries(result.probabilities ?? { [result.label]: result.probability }).sort((x, y) => y[1] - x[1]);
  return [
    h("p", { class: "prose" }, result.label),
    h(
      "ol",
      { class: "bars", "aria-label": "How likely each class is" },
      shares.slice(0, MOST_CLASSES).map(([label, p]) => h("li", { class: "bar" }, h("span", { class: "word" }, label), h("span", { class: "track" }, h("span", { class: "fill", style: `width:${(100 * p).toFixed(2)}%` })), h("span", { class: "value" }, percent(p)))),
    ),
    shares.length > MOST_CLASSES ? h("p", { class: "small" }, `and ${shares.length - MOST_CLASSES} that are less likely`) : null,
  ].filter(Boolean);
}

export const views = {
  translate: view({ name: "translate", title: "Translate", ability: "translate", lead: "A sentence, its translation, and where the translator looked for each word.", example: "", button: "Translate", draw: alignment }),
  tag: view({ name: "tag", title: "Tag", ability: "tag", lead: "Every word with its tag.", example: "The student opened her book .", button: "Tag", draw: spans }),
  classify: view({ name: "classify", title: "Classify", ability: "classify", lead: "What a text is, and how sure the model is.", example: "", button: "Classify", draw: classes }),
};
