// The words of a text, shaded by their surprisal under one model or two.

import { post } from "./api.js";
import { bits, choice, debounce, download, h, problem, tips } from "./dom.js";

export const title = "Surprisal";
export const ability = "score";

const EXAMPLE = "The student opened her book.\nThe book opened her student.";
const MOST_BITS = 16;

export function render(root, { models, params, remember }) {
  const text = h("textarea", { id: "text", rows: "4", "aria-label": "Text to measure", spellcheck: "false" });
  text.value = params.get("text") ?? EXAMPLE;
  const names = models.map((m) => [m.id, `${m.id} · ${m.kind}`]);
  const first = choice({ label: "Model", name: "model", options: names, value: params.get("model") ?? models[0].id, onchange: run });
  const second = choice({ label: "Compare with", name: "other", options: [["", "nothing"], ...names], value: params.get("other") ?? "", onchange: run });
  const unit = choice({ label: "Each", name: "unit", options: [["word", "word"], ["token", "token"]], value: params.get("unit") ?? "word", onchange: run });
  const results = h("div", { class: "columns", style: "margin-top:1.25rem" });
  const save = h("button", { id: "tsv", disabled: true, onclick: () => download("surprisal.tsv", table(found)) }, "Download TSV");
  let found = [];
  let turn = 0;

  async function run() {
    const mine = ++turn;
    remember({ text: text.value, model: first.value, other: second.value, unit: unit.value });
    if (!text.value.trim()) {
      results.replaceChildren(h("p", { class: "empty" }, "Write or paste a text above."));
      save.disabled = true;
      return;
    }
    if (!results.childElementCount) results.append(h("p", { class: "empty" }, "Reading …"));
    const asked = [first.value, ...(second.value && second.value !== first.value ? [second.value] : [])];
    try {
      const answers = await Promise.all(asked.map((model) => post("/v1/score", { model, text: text.value, unit: unit.value })));
      if (mine !== turn) return;
      found = answers;
      save.disabled = false;
      results.replaceChildren(...answers.map((answer) => card(answer, text.value)));
      if (answers.length === 2) results.append(difference(answers, text.value));
    } catch (error) {
      if (mine === turn) results.replaceChildren(problem(error));
    }
  }

  text.addEventListener("input", debounce(350, run));
  root.append(
    h("h1", {}, "Surprisal"),
    h("p", { class: "lead" }, "Surprisal is −log₂ P(word | what came before), in bits: the stronger a word is shaded, the less the model saw it coming."),
    h("section", { class: "card" }, text, h("div", { class: "row between", style: "margin-top:.5rem" }, h("div", { class: "row" }, first.element, second.element, unit.element), save)),
    results,
  );
  return run();
}

function shade(value) {
  if (value === null) return "";
  return `background-color: rgba(var(--hot), ${(0.78 * Math.min(1, value / MOST_BITS)).toFixed(3)})`;
}

// The text with a span for each row; the end mark comes after its line.
function shaded(text, rows, styleOf, tipOf) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const prose = h("p", { class: "prose" });
  lines.forEach((line, i) => {
    const characters = [...line];
    let at = 0;
    for (const row of rows.filter((candidate) => candidate.line === i + 1)) {
      if (row.start > at) prose.append(characters.slice(at, row.start).join(""));
      const isEnd = row.start === row.end;
      const word = isEnd ? "⏎" : characters.slice(Math.max(at, row.start), row.end).join("") || row.text;
      const span = h("span", { class: isEnd ? "token end" : "token", tabindex: "-1", style: styleOf(row) }, word);
      span.tip = tipOf(row, word);
      prose.append(span);
      at = Math.max(at, row.end);
    }
    if (at < characters.length) prose.append(characters.slice(at).join(""));
    if (i < lines.length - 1) prose.append("\n");
  });
  const start = prose.querySelector(".token");
  if (start) start.tabIndex = 0;
  tips(prose, (token) => token.tip);
  return prose;
}

function figures(answer) {
  const entries = [[bits(answer.total), "bits in all"], [answer.num_tokens, "tokens"], [answer.perplexity === null ? "∞" : Number(answer.perplexity.toPrecision(4)).toLocaleString("en"), "perplexity per token"]];
  return h("div", { class: "figures" }, entries.map(([value, name]) => h("div", {}, h("b", {}, `${value}`), name)));
}

function card(answer, text) {
  const tip = (row, word) => h("div", {}, h("b", {}, word), h("div", { class: "number" }, row.surprisal === null ? "no number" : `${bits(row.surprisal)} bits`), h("div", { class: "small" }, `P = ${row.surprisal === null ? "?" : (2 ** -row.surprisal).toPrecision(2)}${row.unknown ? " · not in the vocabulary" : ""}${row.num_tokens > 1 ? ` · ${row.num_tokens} tokens` : ""}`));
  return h(
    "section",
    { class: "card result" },
    h("div", { class: "row between" }, h("h2", {}, answer.model), h("div", { class: "scale" }, "0", h("i", { style: "background:linear-gradient(to right, transparent, rgba(var(--hot), .78))" }), `${MOST_BITS}+ bits`)),
    shaded(text, answer.rows, (row) => shade(row.surprisal), tip),
    figures(answer),
  );
}

function difference([one, other], text) {
  const key = (row) => `${row.line}:${row.start}:${row.end}`;
  const theirs = new Map(other.rows.map((row) => [key(row), row]));
  const both = one.rows.filter((row) => theirs.has(key(row)));
  const change = (row) => {
    const a = row.surprisal;
    const b = theirs.get(key(row)).surprisal;
    return a === null || b === null ? null : a - b;
  };
  const style = (row) => {
    const value = change(row);
    return value === null ? "" : `background-color: rgba(var(${value > 0 ? "--hot" : "--cold"}), ${(0.75 * Math.min(1, Math.abs(value) / 8)).toFixed(3)})`;
  };
  const tip = (row, word) => h("div", {}, h("b", {}, word), h("div", { class: "number" }, `${one.model}: ${bits(row.surprisal)} bits`), h("div", { class: "number" }, `${other.model}: ${bits(theirs.get(key(row)).surprisal)} bits`), h("div", { class: "number" }, `difference: ${bits(change(row))}`));
  return h(
    "section",
    { class: "card result" },
    h("div", { class: "row between" }, h("h2", {}, "Difference"), h("div", { class: "scale wide" }, `${one.model} better`, h("i", { style: "background:linear-gradient(to right, rgba(var(--cold), .75), transparent, rgba(var(--hot), .75))" }), `${other.model} better`)),
    shaded(text, both, style, tip),
    both.length < one.rows.length ? h("p", { class: "small" }, "Parts that the two models cut differently are left out.") : null,
  );
}

export function table(answers) {
  const clean = (value) => String(value ?? "").replace(/[\t\n\r]/g, " ");
  const head = ["model", "line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens"];
  const rows = answers.flatMap((answer) => answer.rows.map((row) => [answer.model, row.line, row.index, row.text, row.surprisal, Number(row.unknown), row.start, row.end, row.num_tokens].map(clean).join("\t")));
  return `${[head.join("\t"), ...rows].join("\n")}\n`;
}
