// A text coloured by one unit, in which a span can be selected to find units and places alike.

import { h, problem, tips, visible } from "./dom.js";

// ask(first, last, threshold) asks the server; choose(unit) follows another unit; apart() says
// whether tokens are separated by spaces.
export function spanFinder({ ask, choose, apart }) {
  const heading = h("h3", {});
  const level = h("label", { class: "inline small", for: "threshold" });
  const body = h("div", {});
  const threshold = h("input", { type: "range", id: "threshold", min: "0", max: "0.9", step: "0.05", value: "0.3", "aria-label": "From which value a unit is on", oninput: () => { if (span) find(); } });
  const element = h("div", { class: "alike", hidden: true }, heading, h("div", { class: "row" }, level, threshold, h("button", { class: "quiet", onclick: clear }, "Clear")), body);
  let span = null;
  let tokens = [];
  let answer = null;
  let turn = 0;

  // The text; `values` are the chosen unit's.
  function text({ tokens: words, values, signed, part }) {
    const most = Math.max(1e-9, ...values.map(Math.abs));
    tokens = words.map((token, i) => {
      const value = values[i];
      const share = signed ? value / most : value;
      const one = h("button", { class: "token", type: "button", "data-at": `${i}` }, i === 0 ? "▸" : /^\s+$/.test(token) ? visible(token) : token);
      one.style.backgroundColor = `rgba(var(${value < 0 ? "--cold" : "--hot"}), ${(0.8 * Math.min(1, Math.abs(share))).toFixed(3)})`;
      one.tip = h("div", {}, h("b", {}, visible(token)), h("div", { class: "number" }, `${part} = ${value.toFixed(3)}`));
      return one;
    });
    const prose = h("p", { class: "prose unit-text" }, tokens.map((one) => (apart() ? [one, " "] : one)));
    prose.addEventListener("click", (event) => {
      const here = place(event);
      if (here < 1 || dragged) return;
      select(event.shiftKey && span ? [Math.min(span[0], here), Math.max(span[1], here)] : [here, here]);
    });
    let from = null;
    let dragged = false;
    prose.addEventListener("pointerdown", (event) => { from = event.shiftKey ? null : place(event); dragged = false; });
    prose.addEventListener("pointerover", (event) => {
      const here = place(event);
      if (from === null || from < 1 || here < 1 || event.buttons !== 1 || here === from) return;
      dragged = true;
      span = [Math.min(from, here), Math.max(from, here)];
      mark();
    });
    prose.addEventListener("pointerup", () => { if (dragged) find(); from = null; });
    tips(prose, (token) => token.tip);
    mark();
    return prose;
  }

  const place = (event) => Number(event.target.closest?.(".token")?.dataset.at ?? -1);

  function select(next) {
    span = next;
    mark();
    find();
  }

  function mark() {
    const near = new Set((answer?.places ?? []).flatMap(({ first, last }) => Array.from({ length: last - first + 1 }, (_, k) => first + k)));
    tokens.forEach((one, i) => {
      one.classList.toggle("selected", Boolean(span) && i >= span[0] && i <= span[1]);
      one.classList.toggle("alike-place", near.has(i));
    });
  }

  async function find() {
    const mine = ++turn;
    try {
      const found = await ask(span[0], span[1], Number(threshold.value));
      if (mine !== turn) return;
      answer = found;
      draw();
    } catch (error) {
      if (mine === turn) body.replaceChildren(problem(error));
    }
    mark();
  }

  function draw() {
    const words = answer.tokens.slice(span[0], span[1] + 1).map(visible).join(apart() ? " " : "");
    element.hidden = false;
    level.textContent = `A unit is on from ${Number(threshold.value).toFixed(2)}`;
    if (!answer.units.length) {
      heading.textContent = `“${words}”`;
      body.replaceChildren(h("p", { class: "small" }, "No unit is on throughout this span and less often elsewhere. Lower the threshold, or select fewer words."));
      return;
    }
    heading.textContent = `On throughout “${words}”, and less often elsewhere`;
    const unitOf = (one) => h("button", { class: "chip", type: "button", onclick: () => choose(one.unit) }, `unit ${one.unit} ${one.sign > 0 ? "+" : "−"}`, h("span", { class: "small number" }, one.contrast.toFixed(2)));
    const around = ({ first, last }) => h("li", {}, h("span", { class: "small" }, `${answer.tokens.slice(Math.max(1, first - 3), first).map(visible).join(apart() ? " " : "")} `), h("b", {}, answer.tokens.slice(first, last + 1).map(visible).join(apart() ? " " : "")), h("span", { class: "small" }, ` ${answer.tokens.slice(last + 1, last + 4).map(visible).join(apart() ? " " : "")}`));
    body.replaceChildren(
      h("div", { class: "chips", id: "alike-units" }, answer.units.map(unitOf)),
      h("h3", { style: "margin-top:.75rem" }, answer.places.length ? "Other places where at least half of them are on" : "They are on together nowhere else in this text."),
      h("ul", { class: "places", id: "alike-places" }, answer.places.map((one) => { const item = around(one); item.append(h("span", { class: "small number" }, ` ${Math.round(100 * one.share)} %`)); return item; })),
    );
  }

  function clear() {
    turn += 1;
    span = answer = null;
    element.hidden = true;
    mark();
  }

  return { element, text, clear };
}
