// The served models, a card each: what it is in plain words, its size, text, figures, and a sample.

import { h } from "./dom.js";
import { short } from "./svg.js";

export const title = "Models";
export const lead = "The models on this server: kind, size, training text and results.";
export const code = false;

const UNITS = { char: "characters", byte: "bytes", word: "words", pretokenized: "words, as the text separates them", bpe: "sub-words" };
const CELLS = { lstm: "LSTM", gru: "GRU", rnn: "simple RNN (Elman)", mingru: "minGRU", minlstm: "minLSTM", sru: "SRU", qrnn: "QRNN" };
const PLAIN = { window: "fixed-window network", infinigram: "n-grams of any length", snm: "counts of n-grams and skip-grams", maxent: "maximum-entropy model of n-grams" };
// Figures in the order of interest; a share is shown in per cent.
const FIGURES = { perplexity: "perplexity", bleu: "BLEU", cider: "CIDEr", f1: "F1", accuracy: "accuracy", bits_per_byte: "bits per byte" };
const SHARES = new Set(["f1", "accuracy", "balanced_accuracy", "macro_f1"]);
const DOES = { complete: ["playground", "continue a text"], score: ["surprisal", "measure surprisal"], next: ["next", "next word"], tree: ["decoding", "decode as a tree"], inside: ["inside", "look inside"], translate: ["translate", "translate"], tag: ["tag", "tag"], classify: ["classify", "classify"], embed: [null, "give vectors (/v1/embeddings)"] };

// The kind of a model in plain words.
export function plainKind({ kind, card: { settings, what } }) {
  if (kind === "ngram") return `${settings.order}-gram counts (${settings.smoothing})`;
  if (kind === "mixture") return "mixture of models";
  if (kind in PLAIN) return PLAIN[kind];
  const cell = CELLS[settings.cell];
  const network = cell ? `${cell}, ${settings.num_layers === 1 ? "1 layer" : `${settings.num_layers} layers`} of ${settings.hidden_size} units` : "";
  const isPlain = what === "a language model";
  return [isPlain ? "" : what.replace(/^an? /, ""), network || (isPlain ? kind : "")].filter(Boolean).join(": ");
}

// A word for the family of a language model, to choose one of each.
export const family = ({ kind, card }) => (kind === "recurrent" ? card.settings.cell ?? kind : kind);

export function figures({ card }) {
  return Object.entries(FIGURES).filter(([name]) => card.figures[name] !== undefined).map(([name, label]) => [label, SHARES.has(name) ? `${(100 * card.figures[name]).toFixed(1)} %` : short(card.figures[name])]);
}

// One line about a model.
export function summary(model) {
  const [figure] = figures(model);
  const parts = [plainKind(model), UNITS[model.tokenizer], model.card.trained_on.length ? `trained on ${model.card.trained_on.join(", ")}` : "", figure ? `${figure[0]} ${figure[1]}` : ""];
  return parts.filter(Boolean).join(" · ");
}

export function render(root, { models, desk }) {
  root.append(h("div", { class: "columns" }, models.map((model) => card(model, desk))));
}

function card(model, desk) {
  const { card: about, abilities } = model;
  const rows = [
    ["is a", plainKind(model)],
    ["reads", model.tokenizer ? `${UNITS[model.tokenizer] ?? model.tokenizer} (${(model.vocab_size ?? 0).toLocaleString("en")} in its vocabulary)` : null],
    ["size", about.parameters ? `${about.parameters.toLocaleString("en")} parameters` : null],
    ["trained on", about.trained_on.join(", ") || null],
    ...figures(model).map(([name, value]) => [name, `${value} on its validation text`]),
    ["labels", about.labels.length ? `${about.labels.slice(0, 8).join(", ")}${about.labels.length > 8 ? " …" : ""}` : null],
  ];
  const uses = abilities.map((ability) => DOES[ability]).filter(Boolean);
  return h(
    "section",
    { class: "card model-card" },
    h("h2", {}, model.id),
    h("table", { class: "plain" }, rows.filter(([, value]) => value).map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))),
    about.sample ? [h("h3", {}, "Sample"), h("div", { class: "sample short" }, about.sample)] : null,
    h("div", { class: "row", style: "margin-top:.75rem" }, uses.map(([tab, words]) => (tab ? h("a", { class: "button small-button", href: `#/${tab}`, onclick: () => { desk.model = model.id; } }, words) : h("span", { class: "small" }, words)))),
  );
}
