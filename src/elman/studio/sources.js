// Where a text comes from: each token with the longest stretch of an indexed text behind it.
//
// A model that predicts from an index of its training text explains its own predictions. For any
// other model, an index that is served beside it shows what the text shares with the indexed one.

import { post } from "./api.js";
import { choice, h, percent, problem, tips } from "./dom.js";

const LONG = 8; // tokens of a stretch that has the strongest shade

// `ask` returns what to explain, {model, label, prompt, text, lines}, or null. The panel asks the
// server only while it is open.
export function sourcesPanel(models, ask) {
  const indexes = models.filter((one) => one.abilities.includes("find"));
  const index = choice({ label: "Search in the text of", name: "index", options: indexes.map((one) => [one.id, trainedOn(one)]), onchange: () => refresh() });
  const row = h("div", { class: "row low", style: "margin:.6rem 0" });
  const body = h("div", {});
  const element = h("details", { class: "card sources", id: "sources", ontoggle: () => refresh() }, h("summary", {}, "Where in the training text does it come from?"), row, body);
  let turn = 0;

  async function refresh() {
    if (!element.open) return;
    const mine = ++turn;
    const asked = ask();
    const own = indexes.find((one) => one.id === asked?.model);
    row.replaceChildren(...(own === undefined && indexes.length > 1 ? [index.element] : []));
    if (!indexes.length) return body.replaceChildren(howTo());
    if (!asked?.text.trim()) return body.replaceChildren(h("p", { class: "small" }, "There is no text to explain yet."));
    try {
      const found = await post("/v1/sources", { ...asked, index: own?.id ?? index.value });
      if (mine === turn) body.replaceChildren(...explained(found, asked, indexes));
    } catch (error) {
      if (mine === turn) body.replaceChildren(problem(error));
    }
  }
  return { element, refresh };
}

const trainedOn = (model) => `${model.id}${model.card?.trained_on?.length ? ` (${model.card.trained_on.join(", ")})` : ""}`;

function howTo() {
  return h("div", {}, h("p", { class: "small" }, "No served model has an index of a text. Make one of the training text, and serve it beside the model:"), h("pre", { class: "code" }, "elman index train.txt --out runs/indexed\nelman serve runs/mine runs/indexed"));
}

function explained(found, asked, indexes) {
  const name = trainedOn(indexes.find((one) => one.id === found.index));
  const lead = found.exact
    ? `The model ${found.model} predicts from its training text: it looks for the longest end of what came before, and for what followed it there. The longer the stretch of the text that ends at a token, the stronger the shade.`
    : `The longer the stretch of ${name} that ends at a token, the stronger the shade. The model ${asked.model} does not look this text up when it predicts.`;
  const prose = h("p", { class: "prose", id: "sourced" }, asked.prompt ? h("span", { class: "given" }, asked.prompt) : null);
  const characters = [...asked.text];
  let at = 0;
  let longest = null;
  for (const token of found.tokens) {
    if (token.start > at) prose.append(characters.slice(at, token.start).join(""));
    const text = characters.slice(Math.max(at, token.start), token.end).join("");
    at = Math.max(at, token.end);
    if (!text.trim()) {
      prose.append(text);
      continue;
    }
    const length = token.unknown ? 0 : stretch(token, found.exact);
    if (length > (longest ? stretch(longest, found.exact) : 0)) longest = token;
    const span = h("span", { class: `token${token.unknown ? " unknown" : ""}`, tabindex: "-1", style: length ? `background-color: rgba(var(--cold), ${(0.6 * Math.min(1, length / LONG)).toFixed(3)})` : "" }, text);
    span.tip = () => (token.unknown ? h("div", {}, "The vocabulary of the index does not have this token.") : h("div", {}, reason(token, found.exact), quote(token)));
    prose.append(span);
  }
  if (at < characters.length) prose.append(characters.slice(at).join(""));
  const first = prose.querySelector(".token");
  if (first) first.tabIndex = 0;
  tips(prose, (token) => token.tip());
  return [h("p", { class: "small" }, `${lead} Point at a token to see the place.`), prose, longest ? h("div", { id: "longest" }, h("h3", {}, "The longest stretch"), reason(longest, found.exact), quote(longest)) : h("p", { class: "small" }, "Nothing of it stands in that text.")];
}

// Tokens that the text has in this order, up to this one.
const stretch = (token, exact) => (exact ? (token.found ? token.seen + 1 : 0) : token.length);
const times = (count) => ({ 1: "once", 2: "twice" })[count] ?? `${count.toLocaleString("en")} times`;
const tokens = (number) => `${number} ${number === 1 ? "token" : "tokens"}`;

function reason(token, exact) {
  if (!exact) return h("div", {}, token.length ? `“${token.match.trim()}” (${tokens(token.length)}) stands there ${times(token.count)}.` : "This token is not in that text.");
  const rest = token.seen ? `the text has this token after ${tokens(token.seen)}` : "it is counted alone";
  if (!token.length) return h("div", {}, `No end of what came before is in the text; ${rest}.`);
  return h("div", {}, `“${token.match.trim()}” (${tokens(token.length)}) stands there ${times(token.count)}; this token ${token.share ? `follows in ${percent(token.share)} of them` : "never follows it"}. That share has the weight ${token.weight.toFixed(2)} in its probability; for the rest, ${rest}.`);
}

function quote(token) {
  if (!token.found) return null;
  const place = token.file ? `${token.file}, line ${token.line}: ` : "";
  return h("p", { class: "quote" }, h("span", { class: "small" }, place), `… ${token.before.trimStart()}`, h("mark", {}, token.found), `${token.after.trimEnd()} …`);
}
