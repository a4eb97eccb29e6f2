// Decoding as a tree: the beams of a search grow and die step by step, with sampled paths beside.

import { post } from "./api.js";
import { literal, loading, quoted } from "./code.js";
import { h, percent, problem, showTip, hideTip, slider, visible } from "./dom.js";
import { COLOURS, s } from "./svg.js";

export const title = "Decoding";
export const ability = "tree";
export const lead = "How a text is chosen. Beam search keeps the best few beginnings, extends each by one token at a time, and drops the others. Sampling draws one token after another. Step through it and compare the totals: the likeliest text does not always begin with the likeliest word.";
export const desk = { text: "Text to continue or to translate", rows: 2, examples: [["students opened their", "students opened their"], ["the company said", "the company said"], ["a translator’s sentence", "a man in a red shirt is riding a bicycle ."]] };

const SLIDERS = [
  ["beam_size", "Beams", 2, 8, 1, 3, "How many beginnings are kept"],
  ["max_tokens", "Steps", 2, 24, 1, 8, "Limit on tokens"],
  ["length_penalty", "Length penalty", 0, 2, 0.1, 0.6, "0 favours short texts"],
  ["samples", "Sampled paths", 0, 6, 1, 2, "Drawn beside the search"],
  ["temperature", "Temperature of samples", 0, 2, 0.05, 1, "Below 1 sharpens"],
];
const STEP_MS = 700;
const [COLUMN, ROW] = [118, 34];

export async function render(root, { desk, params, remember }) {
  const sliders = SLIDERS.map(([name, label, min, max, step, value, about]) => {
    const control = slider({ label, name, min, max, step, value, title: about, onchange: () => run() });
    if (params.has(name)) control.value = Number(params.get(name));
    return [name, value, control];
  });
  const options = () => Object.fromEntries(sliders.map(([name, , control]) => [name, control.value]));
  const changed = () => Object.fromEntries(sliders.filter(([, value, control]) => control.value !== value).map(([name, , control]) => [name, control.value]));
  const body = () => ({ ...desk.ask, text: desk.text, ...options(), seed: 1 });
  const picture = h("div", { class: "scroll tree" });
  const story = h("p", { class: "story", id: "story", "aria-live": "polite" });
  const results = h("div", { style: "margin-top:1.25rem" });
  const at = h("input", { type: "range", min: "0", value: "0", id: "step", "aria-label": "Step of the search", oninput: () => { halt(); draw(); } });
  const play = h("button", { id: "play", class: "primary", onclick: () => (timer ? halt() : start()) }, "Play");
  let tree = null;
  let timer = null;
  let turn = 0;

  async function run() {
    const mine = ++turn;
    halt();
    remember(changed());
    try {
      const found = await post("/v1/tree", body());
      if (mine !== turn) return;
      tree = arranged(found);
      at.max = `${tree.steps}`;
      at.value = `${tree.steps}`;
      draw();
    } catch (error) {
      if (mine !== turn) return;
      tree = null;
      picture.replaceChildren(problem(error));
      results.replaceChildren();
      story.textContent = "";
    }
  }

  function start() {
    if (!tree) return;
    if (Number(at.value) >= tree.steps) at.value = "0";
    play.textContent = "Pause";
    draw();
    timer = setInterval(() => {
      at.value = `${Number(at.value) + 1}`;
      draw();
      if (Number(at.value) >= tree.steps) halt();
    }, STEP_MS);
  }

  function halt() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function draw() {
    const step = Number(at.value);
    picture.replaceChildren(drawing(tree, step));
    story.textContent = told(tree, step);
    results.replaceChildren(step >= tree.steps ? outcome(tree) : "");
  }

  root.append(
    h("section", { class: "card settings" }, h("div", { class: "columns narrow sliders" }, sliders.map(([, , control]) => control.element))),
    h("section", { class: "card", "aria-label": "The tree" }, h("div", { class: "row tree-controls" }, play, at), story, picture),
    results,
  );
  await run();
  return {
    update: run,
    run: start,
    stop: halt,
    pause: halt,
    code() {
      const { model, text, beam_size: beams, max_tokens: steps, length_penalty: penalty } = body();
      const isLm = desk.card.abilities.includes("complete");
      return {
        path: "/v1/tree",
        body: body(),
        python: `${loading(model)}tree, tokenizer = model.beam_tree(${literal(text)}, options={"beam_size": ${beams}, "max_tokens": ${steps}, "length_penalty": ${penalty}})\nfor node in tree.nodes:\n    print(node.step, tokenizer.token(node.token), node.total)`,
        command: isLm ? `elman generate runs/${model} ${quoted(text)} --beam ${beams} --length-penalty ${penalty} --max-tokens ${steps} --num-samples ${beams}` : `echo ${quoted(text)} | elman translate runs/${model} --beam ${beams} --length-penalty ${penalty}`,
      };
    },
  };
}

// Give every node a row and the step at which it died: its last step if no child was kept.
function arranged({ nodes, best, samples, model }) {
  const all = nodes.map((node, i) => ({ ...node, i, children: [] }));
  const roots = [];
  for (const node of all) (node.parent === null ? roots : all[node.parent].children).push(node);
  let rows = 0;
  const settle = (node) => {
    node.children.forEach(settle);
    node.row = node.children.length ? (node.children[0].row + node.children.at(-1).row) / 2 : rows++;
    node.until = node.ends || node.score !== null ? Infinity : Math.max(node.step, ...node.children.map((child) => child.until));
  };
  roots.forEach(settle);
  const winner = best[0];
  for (let i = winner; i !== null && i !== undefined; i = all[i].parent) all[i].wins = true;
  const searched = Math.max(0, ...all.map((node) => node.step));
  const steps = Math.max(searched, ...samples.map((path) => path.tokens.length));
  return { nodes: all, rows, best, samples, searched, steps, model };
}

// After the search has ended, the beams of its last step stay.
const alive = (node, step, tree) => node.until >= Math.min(step, tree.searched);

function drawing(tree, step) {
  const [left, top] = [16, 30];
  const sampleTop = top + ROW * tree.rows + (tree.samples.length ? 34 : 0);
  const width = left + COLUMN * tree.steps + 110;
  const height = sampleTop + ROW * tree.samples.length + 12;
  const svg = s("svg", { class: "chart tree-picture", viewBox: `0 0 ${width} ${height}`, width, height, style: `width:${width}px`, role: "img", "aria-label": `A beam search of ${tree.steps} steps and ${tree.samples.length} sampled paths` });
  const px = (node) => left + COLUMN * (node.step - 1);
  const py = (node) => top + ROW * (node.row + 0.5);
  svg.append(s("text", { x: left, y: 16, class: "tree-heading" }, "Beam search"));
  const shown = tree.nodes.filter((node) => node.step <= step);
  for (const node of shown.filter((one) => one.parent !== null)) {
    const from = tree.nodes[node.parent];
    const [x0, y0, x1, y1] = [px(from) + 92, py(from), px(node), py(node)];
    svg.append(s("path", { class: `branch ${state(node, step, tree)}`, d: `M${x0} ${y0}C${x0 + 16} ${y0} ${x1 - 16} ${y1} ${x1} ${y1}` }));
  }
  for (const node of shown) svg.append(box(px(node), py(node), node.token, state(node, step, tree), about(node), node.ends));
  if (tree.samples.length) svg.append(s("text", { x: left, y: sampleTop - 10, class: "tree-heading" }, "Sampled"));
  tree.samples.forEach((path, k) => {
    let total = 0;
    const y = sampleTop + ROW * (k + 0.5);
    path.tokens.slice(0, step).forEach((token, i) => {
      total += path.logprobs[i];
      const here = total;
      const x = left + COLUMN * i;
      if (i) svg.append(s("path", { class: "branch sampled", d: `M${x - COLUMN + 92} ${y}L${x} ${y}`, stroke: COLOURS[1] }));
      svg.append(box(x, y, token, "sampled", () => h("div", {}, h("b", {}, visible(token)), h("div", { class: "number" }, `P = ${percent(Math.exp(path.logprobs[i]))} when it was drawn`), h("div", { class: "number" }, `log P so far: ${here.toFixed(2)}`)), false));
    });
  });
  return svg;
}

function state(node, step, tree) {
  if (node.wins && step >= tree.steps) return "wins";
  if (node.ends || node.score !== null) return "ended";
  return alive(node, step, tree) ? "alive" : "dead";
}

function box(x, y, token, kind, tip, ends) {
  const text = visible(token);
  const group = s("g", { class: `node ${kind}`, tabindex: "0", role: "img", "aria-label": `${text}, ${kind}` }, s("rect", { x, y: y - 12, width: 92, height: 24, rx: 6 }), s("text", { x: x + 46, y: y + 5, "text-anchor": "middle" }, `${text.length > 11 ? `${text.slice(0, 10)}…` : text}${ends ? " ■" : ""}`));
  for (const name of ["pointerenter", "focus"]) group.addEventListener(name, () => showTip(group, tip()));
  for (const name of ["pointerleave", "blur"]) group.addEventListener(name, hideTip);
  return group;
}

const about = (node) => () =>
  h("div", {}, h("b", {}, visible(node.token)), h("div", { class: "number" }, `P = ${percent(Math.exp(node.logprob))} after what came before`), h("div", { class: "number" }, `log P of the whole: ${node.total.toFixed(2)}`), node.score === null ? null : h("div", { class: "number" }, `score with the length penalty: ${node.score.toFixed(2)}`));

// What happened at a step, in a sentence.
function told(tree, step) {
  if (step === 0) return "Nothing is written yet. Press Play, or move the slider.";
  const kept = tree.nodes.filter((node) => node.step === step && !node.ends);
  const ended = tree.nodes.filter((node) => node.step === step && node.ends);
  const died = tree.nodes.filter((node) => node.step === step - 1 && !node.ends && node.score === null && node.until < step);
  if (!kept.length && !ended.length) return `Step ${step}: the search has ended.`;
  const best = kept.reduce((a, b) => (a && a.total > b.total ? a : b), null);
  const parts = [`Step ${step}: ${kept.length} beginnings are kept`];
  if (died.length) parts.push(`${died.length} ${died.length === 1 ? "dies" : "die"}`);
  if (ended.length) parts.push(`${ended.length} ${ended.length === 1 ? "comes" : "come"} to an end`);
  if (best) parts.push(`the best so far has log P ${best.total.toFixed(2)}`);
  return `${parts.join("; ")}.`;
}

function outcome(tree) {
  const path = (i) => { const tokens = []; for (let k = i; k !== null; k = tree.nodes[k].parent) tokens.unshift(tree.nodes[k].token); return tokens; };
  const rows = [
    ...tree.best.map((i) => ["beam search", path(i), tree.nodes[i].total]),
    ...tree.samples.map((sample) => ["sampled", sample.tokens, sample.logprobs.reduce((a, b) => a + b, 0)]),
  ];
  return h("section", { class: "card", "aria-label": "Texts" }, h("h2", {}, "Texts"), h("div", { class: "scroll" }, h("table", { class: "plain" }, h("tr", {}, ["found by", "text", "log P", "per token"].map((name) => h("th", {}, name))), rows.map(([way, tokens, total]) => h("tr", {}, h("td", { class: "way" }, way), h("td", { class: "written" }, tokens.map(visible).join(" ")), h("td", { class: "number" }, total.toFixed(2)), h("td", { class: "number" }, (total / tokens.length).toFixed(2)))))));
}
