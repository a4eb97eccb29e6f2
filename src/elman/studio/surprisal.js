// The words of a text under one model or two: shaded by surprisal, with numbers, as bars, by line.

import { post } from "./api.js";
import { literal, loading, quoted } from "./code.js";
import { bits, choice, download, h, problem, tips } from "./dom.js";
import { barChart, savePng, saveSvg } from "./bars.js";
import { sourcesPanel } from "./sources.js";

export const title = "Surprisal";
export const ability = "score";
export const lead = "Surprisal is −log₂ P(word | what came before), in bits: the stronger a word is shaded, the less the model expected it. Each bit more means half as likely. Each line is read from its beginning.";
export const desk = {
  text: "Text to measure, line by line",
  rows: 4,
  placeholder: "Write or paste a text …",
  examples: [
    ["likely and unlikely", "the student opened her book .\nthe book opened her student ."],
    ["garden path", "the horse raced past the barn fell .\nthe horse that was raced past the barn fell ."],
    ["agreement", "the keys to the cabinet are lost .\nthe keys to the cabinet is lost ."],
  ],
};

const MOST_BITS = 16;

export async function render(root, { desk, models, params, remember }) {
  const names = models.map((m) => [m.id, m.id]);
  const second = choice({ label: "Compare with", name: "other", options: [["", "nothing"], ...names], value: params.get("other") ?? "", onchange: () => run() });
  const unit = choice({ label: "Unit", name: "unit", options: [["word", "word"], ["token", "token"]], value: params.get("unit") ?? "word", onchange: () => run() });
  const numbers = h("input", { type: "checkbox", id: "numbers", onchange: () => run() });
  numbers.checked = params.get("numbers") === "1";
  const results = h("div", { class: "columns pairs", style: "margin-top:1.25rem" });
  const chart = h("section", { class: "card", "aria-label": "Bar chart", hidden: true });
  const save = h("button", { id: "tsv", disabled: true, onclick: () => download("surprisal.tsv", table(found)) }, "Download TSV");
  const sources = sourcesPanel(models, () => ({ ...desk.ask, text: desk.text.replace(/\r\n?/g, "\n"), lines: true }));
  let found = [];
  let turn = 0;

  const request = (model) => ({ ...(model === desk.model ? desk.ask : { model, ...labelOf(models, model) }), text: desk.text, unit: unit.value });

  async function run() {
    const mine = ++turn;
    remember({ other: second.value, unit: unit.value === "word" ? "" : unit.value, numbers: numbers.checked ? "1" : "" });
    sources.refresh();
    if (!desk.text.trim()) {
      results.replaceChildren(h("p", { class: "empty" }, "Write or paste a text above."));
      chart.hidden = save.disabled = true;
      return;
    }
    if (!results.childElementCount) results.append(h("p", { class: "empty" }, "Reading …"));
    const asked = [desk.model, ...(second.value && second.value !== desk.model ? [second.value] : [])];
    const text = desk.text;
    try {
      const answers = await Promise.all(asked.map((model) => post("/v1/score", request(model))));
      if (mine !== turn) return;
      found = answers;
      save.disabled = false;
      results.replaceChildren(...answers.map((answer) => card(answer, text, numbers.checked)));
      if (answers.length === 2) results.append(difference(answers, text));
      drawChart(answers);
    } catch (error) {
      if (mine === turn) results.replaceChildren(problem(error));
    }
  }

  function drawChart(answers) {
    const svg = barChart(answers);
    chart.hidden = !svg;
    if (!svg) return;
    chart.replaceChildren(
      h("div", { class: "row between" }, h("h2", {}, "Surprisal, word by word, in bits"), h("div", { class: "row" }, h("button", { id: "svg", onclick: () => saveSvg(svg, "surprisal.svg") }, "SVG"), h("button", { id: "png", onclick: () => savePng(svg, "surprisal.png") }, "PNG"))),
      h("div", { class: "scroll" }, svg),
    );
  }

  root.append(h("section", { class: "card" }, h("div", { class: "row low" }, second.element, unit.element, h("label", { class: "chip" }, numbers, "numbers under words"), save)), results, chart, sources.element);
  await run();
  return {
    update: run,
    run,
    code: () => ({
      path: "/v1/score",
      body: request(desk.model),
      python: `${loading(desk.model)}for row in model${desk.label ? `.given(${literal(desk.label)})` : ""}.surprisal(${literal(desk.text)}, unit="${unit.value}"):\n    print(row.text, row.surprisal, row.unknown)`,
      command: `echo ${quoted(desk.text)} | elman score runs/${desk.model} --unit ${unit.value}`,
    }),
  };
}

export function labelOf(models, id) {
  const labels = models.find((one) => one.id === id)?.labels ?? [];
  return labels.length ? { label: labels[0] } : {};
}

function shade(value) {
  if (value === null) return "";
  return `background-color: rgba(var(--hot), ${(0.78 * Math.min(1, value / MOST_BITS)).toFixed(3)})`;
}

// The text with a span for each row; the end mark comes after its line, and after it `ending(line)`.
function shaded(text, rows, { styleOf, tipOf, under = () => null, ending = () => null }) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const prose = h("div", { class: "prose lines" });
  lines.forEach((line, i) => {
    const characters = [...line];
    const words = h("span", {});
    let at = 0;
    const here = rows.filter((candidate) => candidate.line === i + 1);
    for (const row of here) {
      if (row.start > at) words.append(characters.slice(at, row.start).join(""));
      const isEnd = row.start === row.end;
      const word = isEnd ? "⏎" : characters.slice(Math.max(at, row.start), row.end).join("") || row.text;
      const span = h("span", { class: `token${isEnd ? " end" : ""}${row.unknown ? " unknown" : ""}`, tabindex: "-1", style: styleOf(row) }, word);
      span.tip = tipOf(row, word);
      const number = under(row);
      words.append(number === null ? span : h("span", { class: "numbered" }, span, h("small", { class: "number" }, number)));
      at = Math.max(at, row.end);
    }
    if (at < characters.length) words.append(characters.slice(at).join(""));
    prose.append(h("p", { class: "line" }, words, here.length ? ending(here) : null));
  });
  const start = prose.querySelector(".token");
  if (start) start.tabIndex = 0;
  tips(prose, (token) => token.tip);
  return prose;
}

const sum = (rows) => rows.reduce((total, row) => total + (row.surprisal ?? 0), 0);
const perplexity = (total, tokens) => (tokens ? Number((2 ** (total / tokens)).toPrecision(4)).toLocaleString("en") : "–");

// Totals; where words are unknown, also of the known words alone.
function figures(answer) {
  const known = answer.rows.filter((row) => !row.unknown);
  const knownTokens = known.reduce((total, row) => total + (row.surprisal === null ? 0 : row.num_tokens), 0);
  const all = [[bits(answer.total), "bits in all"], [answer.num_tokens, "tokens"], [answer.perplexity === null ? "∞" : Number(answer.perplexity.toPrecision(4)).toLocaleString("en"), "perplexity per token"]];
  const knownTotal = answer.total_without_unknown ?? sum(known);
  const rest = [[bits(knownTotal), `bits of known ${answer.unit}s`], [knownTokens, "tokens"], [perplexity(knownTotal, knownTokens), "perplexity without unknown ones"]];
  const show = (entries) => h("div", { class: "figures" }, entries.map(([value, name]) => h("div", {}, h("b", {}, `${value}`), name)));
  return known.length < answer.rows.length ? h("div", { class: "totals" }, show(all), show(rest)) : show(all);
}

// How much of the text the model does not know, and what that does to the figures.
function banner(answer) {
  const words = answer.rows.filter((row) => row.start < row.end);
  const unknown = words.filter((row) => row.unknown);
  if (!unknown.length) return null;
  const some = [...new Set(unknown.map((row) => row.text))].slice(0, 6).join(", ");
  return h("p", { class: "warning unknown-banner", role: "note" }, h("b", {}, `${unknown.length} of ${words.length} ${answer.unit}s are unknown to this model`), ` (hatched: ${some}${unknown.length > 6 ? " …" : ""}). It reads each as <unk>, whose probability says nothing about the word, so the totals below mean little.`);
}

function card(answer, text, hasNumbers) {
  const tipOf = (row, word) => h("div", {}, h("b", {}, word), h("div", { class: "number" }, row.surprisal === null ? "no number" : `${bits(row.surprisal)} bits`), h("div", { class: "small" }, `P = ${row.surprisal === null ? "?" : (2 ** -row.surprisal).toPrecision(2)}${row.unknown ? " of <unk>: not in the vocabulary" : ""}${row.num_tokens > 1 ? ` · ${row.num_tokens} tokens` : ""}`));
  const severalLines = new Set(answer.rows.map((row) => row.line)).size > 1;
  return h(
    "section",
    { class: "card result" },
    h("div", { class: "row between" }, h("h2", {}, answer.model), h("div", { class: "scale" }, "0", h("i", { style: "background:linear-gradient(to right, transparent, rgba(var(--hot), .78))" }), `${MOST_BITS}+ bits`)),
    answer.reads_as ? h("p", { class: "small", id: "reads-as" }, `Read like the training text: ${answer.reads_as}.`) : null,
    banner(answer),
    shaded(text, answer.rows, {
      styleOf: (row) => shade(row.surprisal),
      tipOf,
      under: (row) => (hasNumbers ? (row.surprisal === null ? "–" : row.surprisal.toFixed(1)) : null),
      ending: (rows) => (severalLines ? h("span", { class: "line-total number", title: "Bits in this line" }, `Σ ${sum(rows).toFixed(1)}`) : null),
    }),
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
  const styleOf = (row) => {
    const value = change(row);
    return value === null ? "" : `background-color: rgba(var(${value > 0 ? "--hot" : "--cold"}), ${(0.75 * Math.min(1, Math.abs(value) / 8)).toFixed(3)})`;
  };
  const tipOf = (row, word) => h("div", {}, h("b", {}, word), h("div", { class: "number" }, `${one.model}: ${bits(row.surprisal)} bits`), h("div", { class: "number" }, `${other.model}: ${bits(theirs.get(key(row)).surprisal)} bits`), h("div", { class: "number" }, `difference: ${bits(change(row))}`));
  return h(
    "section",
    { class: "card result" },
    h("div", { class: "row between" }, h("h2", {}, "Difference"), h("div", { class: "scale wide" }, `${one.model} better`, h("i", { style: "background:linear-gradient(to right, rgba(var(--cold), .75), transparent, rgba(var(--hot), .75))" }), `${other.model} better`)),
    shaded(text, both, { styleOf, tipOf }),
    both.length < one.rows.length ? h("p", { class: "small" }, "Parts that the two models cut differently are left out.") : null,
  );
}

export function table(answers) {
  const clean = (value) => String(value ?? "").replace(/[\t\n\r]/g, " ");
  const head = ["model", "line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens"];
  const rows = answers.flatMap((answer) => answer.rows.map((row) => [answer.model, row.line, row.index, row.text, row.surprisal, Number(row.unknown), row.start, row.end, row.num_tokens].map(clean).join("\t")));
  return `${[head.join("\t"), ...rows].join("\n")}\n`;
}
