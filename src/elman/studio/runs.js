// A table of runs: their best figures, how far they are, and the settings in which they differ.

import { h } from "./dom.js";
import { short } from "./svg.js";

const FIGURES = [["perplexity", "perplexity", false], ["bits_per_byte", "bits per byte", false], ["bleu", "BLEU", true], ["f1", "F1", true], ["accuracy", "accuracy", true]];
const STATUS = { running: "running now", done: "done", stopped: "stopped", silent: "no report for a while" };
// Settings that say what a model is, how it was trained and on what.
const TELLING = /^(model|optimiser|schedule|training|objective|data|tokenizer\.(?!file))/;
const ALWAYS = new Set(["model.kind", "model.cell", "model.order"]);
const MOST_SETTINGS = 8;
// Perplexity compares only models that read the same tokens.
const comparable = (runs, name) => name !== "perplexity" || new Set(runs.filter((run) => run.best[name] !== undefined).map((run) => `${run.settings["tokenizer.kind"]} ${run.settings["data.valid"]}`)).size === 1;

// runs: the chosen ones, each with `colour`.
export function runTable(runs) {
  const figures = FIGURES.filter(([name]) => runs.some((run) => run.best[name] !== undefined));
  const differing = differences(runs);
  const best = Object.fromEntries(figures.map(([name, , higher]) => {
    const values = runs.map((run) => run.best[name]).filter(Number.isFinite);
    return [name, higher ? Math.max(...values) : Math.min(...values)];
  }));
  const head = h("tr", {}, h("th", {}, "run"), h("th", {}, "is"), figures.map(([, label]) => h("th", { class: "number", title: comparable(runs, figures[0][0]) ? "" : "These runs read different tokens: compare bits per byte" }, `best ${label}`)), differing.map((key) => h("th", {}, key.replace(/^model\./, ""))));
  const rows = runs.map((run) =>
    h(
      "tr",
      {},
      h("td", {}, h("span", { class: "swatch", style: `background:${run.colour}` }), ` ${run.name}`),
      h("td", { class: run.status === "running" ? "running" : "" }, STATUS[run.status] ?? run.status),
      figures.map(([name]) => h("td", { class: `number${run.best[name] === best[name] && runs.length > 1 && comparable(runs, name) ? " best" : ""}` }, short(run.best[name]))),
      differing.map((key) => h("td", {}, told(run.settings[key]))),
    ),
  );
  return h("div", { class: "scroll" }, h("table", { class: "plain run-table", id: "run-table" }, head, rows));
}

// The settings whose values are not the same in all runs, those of the model first.
export function differences(runs) {
  if (runs.length < 2) return [];
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].filter((key) => TELLING.test(key));
  // A setting that only one kind of model has says nothing about the others.
  const having = (key) => runs.filter((run) => run.settings[key] !== undefined);
  const differ = keys.filter((key) => (having(key).length > 1 || ALWAYS.has(key)) && new Set((ALWAYS.has(key) ? runs : having(key)).map((run) => JSON.stringify(run.settings[key]))).size > 1);
  const rank = (key) => (key === "model.kind" ? 0 : key.startsWith("model.") ? 1 : key.startsWith("optimiser.") ? 2 : key.startsWith("training.") ? 3 : 4);
  return differ.sort((a, b) => rank(a) - rank(b)).slice(0, MOST_SETTINGS);
}

const told = (value) => (value === undefined || value === null ? "–" : typeof value === "number" ? short(value) : typeof value === "object" ? JSON.stringify(value) : String(value));
