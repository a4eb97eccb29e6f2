// Translators, taggers and classifiers, if they are served.

import { post } from "./api.js";
import { literal, loading, quoted } from "./code.js";
import { h, percent, problem, tips } from "./dom.js";
import { heat } from "./heat.js";

const GOLDEN_ANGLE = 137.5;
const MOST_CLASSES = 12;

// `ask` is the route with more detail than `ability`; a model that lacks it is asked by `ability`.
function view({ name, title, ability, ask = ability, lead, text, examples, button, draw, python }) {
  return {
    title,
    ability,
    lead,
    desk: { text, placeholder: "Write or paste a text …", rows: 3, examples },
    async render(root, { desk }) {
      const output = h("section", { class: "card", hidden: true, "aria-live": "polite" });
      let turn = 0;
      const route = () => (desk.card.abilities.includes(ask) ? ask : ability);
      const body = () => ({ model: desk.model, text: desk.text });
      async function run() {
        const mine = ++turn;
        output.hidden = false;
        if (!desk.text.trim()) {
          output.replaceChildren(h("p", { class: "empty" }, "Write a text above."));
          return;
        }
        const asked = desk.text;
        try {
          const answer = await post(`/v1/${route()}`, body());
          if (mine === turn) output.replaceChildren(...draw(answer.result, asked).filter(Boolean));
        } catch (error) {
          if (mine === turn) output.replaceChildren(problem(error));
        }
      }
      const go = h("button", { class: "primary", id: `go-${name}`, onclick: run }, button);
      root.append(h("div", { class: "row", style: "margin:1.25rem 0" }, go, h("span", { class: "small keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"))), output);
      if (desk.text.trim()) await run();
      return {
        run,
        update: run,
        code: () => ({ path: `/v1/${route()}`, body: body(), python: loading(desk.model) + python(literal(desk.text)), command: `echo ${quoted(desk.text)} | elman ${ability} runs/${desk.model}` }),
      };
    },
  };
}

function alignment(result) {
  const readout = h("p", { class: "readout" }, "Each row is a word of the translation; darker squares are the words that it looked at.");
  const hasWeights = Boolean(result.weights?.length);
  return [
    h("p", { class: "prose" }, result.text),
    hasWeights ? heat({ values: result.weights, columns: result.source, rows: result.target, diverging: false, label: "Alignment of the translation with the text", onpoint: (j, i, value) => { readout.textContent = `${result.target[j]} ← ${result.source[i]}: ${percent(value)}`; } }) : null,
    hasWeights ? readout : null,
  ];
}

const hue = (labels, label) => `--hue:${Math.round(labels.indexOf(label) * GOLDEN_ANGLE) % 360}`;
const bars = (label, shares) =>
  h(
    "ol",
    { class: "bars", "aria-label": label },
    shares.map(([name, p]) => h("li", { class: "bar" }, h("span", { class: "word" }, name), h("span", { class: "track" }, h("span", { class: "fill", style: `width:${(100 * p).toFixed(2)}%` })), h("span", { class: "value" }, percent(p)))),
  );

// The words of an entity (B-, I- and so on) make one span; every other word has its own. The less sure
// the tagger is of a tag, the paler it is; the tip has the alternatives.
function tags(result) {
  const words = result.map((one) => (Array.isArray(one) ? { word: one[0], tag: one[1], probabilities: {} } : one));
  const groups = [];
  for (const one of words) {
    const [, place, label] = /^(?:([BIES])-)?(.*)$/.exec(one.tag);
    const sure = Math.max(0, ...Object.values(one.probabilities));
    const last = groups.at(-1);
    if ("IE".includes(place ?? "-") && last?.label === label) {
      last.words.push(one.word);
      last.sure = Math.min(last.sure, sure);
    } else groups.push({ words: [one.word], label, sure, probabilities: one.probabilities });
  }
  const labels = [...new Set(groups.map((group) => group.label))].filter((label) => label !== "O").sort();
  const hasShares = words.some((one) => Object.keys(one.probabilities).length);
  const prose = h(
    "p",
    { class: "prose tagged" },
    groups.map((group) => {
      const span = h("span", { class: "tag-word token", tabindex: "-1", style: group.label === "O" ? undefined : hue(labels, group.label) }, group.words.join(" "), group.label === "O" ? null : h("small", {}, group.label));
      if (hasShares && group.label !== "O") span.append(h("span", { class: "sure", title: percent(group.sure) }, h("i", { style: `width:${Math.round(100 * group.sure)}%` })));
      span.tip = hasShares ? h("div", {}, h("b", {}, group.words.join(" ")), bars("Probability of each tag", Object.entries(group.probabilities))) : null;
      return span;
    }),
  );
  const first = prose.querySelector(".token");
  if (first) first.tabIndex = 0;
  tips(prose, (token) => token.tip);
  return [prose, hasShares ? h("p", { class: "small" }, "The line under a tag is its probability; point at a word to see the alternatives.") : null];
}

function classes(result, text) {
  const shares = Object.entries(result.probabilities ?? { [result.label]: result.probability }).sort((x, y) => y[1] - x[1]);
  return [
    h("p", { class: "prose" }, result.label),
    bars("Probability of each class", shares.slice(0, MOST_CLASSES)),
    shares.length > MOST_CLASSES ? h("p", { class: "small" }, `and ${shares.length - MOST_CLASSES} that are less likely`) : null,
    ...reasons(result, text),
  ];
}

// The text, with each word shaded by what it does for the label.
function reasons({ label, words = [] }, text) {
  if (!words.length) return [];
  const most = Math.max(1e-9, ...words.map((one) => Math.abs(one.effect)));
  const characters = [...text];
  const prose = h("p", { class: "prose", id: "reasons" });
  let at = 0;
  for (const { start, end, effect } of words) {
    if (start > at) prose.append(characters.slice(at, start).join(""));
    const span = h("span", { class: "token", tabindex: "-1", style: `background-color:rgba(var(${effect > 0 ? "--cold" : "--hot"}), ${((0.75 * Math.abs(effect)) / most).toFixed(3)})` }, characters.slice(start, end).join(""));
    span.tip = h("div", {}, h("b", {}, characters.slice(start, end).join("")), h("div", { class: "number" }, `${effect > 0 ? "speaks for" : "speaks against"} ${label}: ${Math.abs(effect).toFixed(2)} bits`));
    prose.append(span);
    at = end;
  }
  prose.append(characters.slice(at).join(""));
  prose.querySelector(".token").tabIndex = 0;
  tips(prose, (token) => token.tip);
  return [
    h("h3", { style: "margin-top:1rem" }, `Words for and against “${label}”`),
    prose,
    h("div", { class: "scale" }, "against", h("i", { style: "background:linear-gradient(to right, rgba(var(--hot), .75), transparent, rgba(var(--cold), .75))" }), "for"),
    h("p", { class: "small", style: "margin-top:.4rem" }, "Each word is left out in turn; its shade is how many bits the log odds of the label lose without it. Words that matter only together can both look unimportant."),
  ];
}

export const views = {
  translate: view({ name: "translate", title: "Translate", ability: "translate", lead: "A sentence, its translation, and where the translator looked for each word.", text: "Text to translate", examples: [["a sentence", "a man in a red shirt is riding a bicycle ."], ["another", "two dogs are playing in the snow ."]], button: "Translate", draw: alignment, python: (text) => `print(model.translate(${text}))` }),
  tag: view({ name: "tag", title: "Tag", ability: "tag", ask: "tag/probabilities", lead: "Every word with its tag and the tag's probability.", text: "Sentence to tag", examples: [["a sentence", "The student opened her book ."], ["ambiguous", "Time flies like an arrow ."]], button: "Tag", draw: tags, python: (text) => `print(model.tag(${text}))\nprint(model.probabilities(${text}))` }),
  classify: view({ name: "classify", title: "Classify", ability: "classify", ask: "classify/words", lead: "The label of a text, its probability, and the words that mattered.", text: "Text to classify", examples: [["praise", "a warm , funny and clever film"], ["blame", "a long , dull and noisy film"], ["mixed", "the actors are good but the story is not"]], button: "Classify", draw: classes, python: (text) => `print(model.classify(${text}))\nprint(model.word_effects(${text}))` }),
};
