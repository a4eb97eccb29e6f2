// The runs of a folder during training: a table, curves with smoothing and log axes, samples.

import { get } from "./api.js";
import { choice, h, problem, slider } from "./dom.js";
import { lines } from "./lines.js";
import { runTable } from "./runs.js";
import { COLOURS, short } from "./svg.js";

export const title = "Training";
export const needsModel = false;
export const lead = "Runs of the folder, updated while they are trained. Solid lines are training, dashed lines validation, dotted lines n-gram models, which have one figure and no curve. The table lists the settings in which the runs differ.";

const EVERY_MS = 2000;
const MOST_AT_FIRST = 4;
const PLOTTED = new Set(["step", "valid"]);

// A figure is [its name in a report, its label, whether it is from validation]; `level` is the name
// of the figure of a run without a curve.
const CHARTS = [
  { title: "Loss", figures: [["loss", "", false], ["valid_loss", "validation", true]] },
  { title: "Perplexity", figures: [["perplexity", "", false], ["valid_perplexity", "validation", true]], level: "perplexity" },
  { title: "BLEU", figures: [["valid_bleu", "validation", true]] },
  { title: "Accuracy", figures: [["valid_accuracy", "validation", true], ["valid_macro_f1", "macro F1", true]] },
  { title: "Gradient norm", figures: [["gradient_norm", "", false]] },
  { title: "Learning rate", figures: [["learning_rate", "", false]], isNoisy: false },
];
const ALONG = { updates: (report) => report.step, tokens: (report) => report.tokens, minutes: (report) => report.seconds / 60 };
const LOG = { y: [false, true], x: [true, false], both: [true, true], none: [false, false] };

export async function render(root, { params, remember }) {
  const chosen = new Set(params.get("runs")?.split(",").filter(Boolean));
  let untouched = !params.has("runs");
  const known = new Map();
  const list = h("div", { class: "chips", role: "group", "aria-label": "Runs" });
  const charts = CHARTS.map((spec) => ({ spec, chart: lines(spec) }));
  const redraw = () => { keep(); draw(); };
  const along = choice({ label: "X axis", name: "along", options: Object.keys(ALONG).map((name) => [name, name]), value: params.get("along") ?? "updates", onchange: redraw });
  const log = choice({ label: "Logarithmic", name: "log", options: [["y", "perplexity and gradients"], ["both", "these and the x axis"], ["x", "the x axis"], ["none", "nothing"]], value: params.get("log") ?? "y", onchange: redraw });
  const smooth = slider({ label: "Smoothing of training curves", name: "smoothing", min: 0, max: 0.99, step: 0.01, value: 0, title: "Share of the curve so far in each point", onchange: redraw });
  if (params.has("smoothing")) smooth.value = Number(params.get("smoothing"));
  const keep = () => remember({ runs: [...chosen].join(","), along: along.value === "updates" ? "" : along.value, log: log.value === "y" ? "" : log.value, smoothing: smooth.value || "" });
  const table = h("section", { class: "card", "aria-label": "The runs", hidden: true });
  const samples = h("section", { class: "card", "aria-label": "Samples", hidden: true });
  const status = h("div", { class: "small", role: "status", style: "margin:.6rem 0 0" });
  const trouble = h("div");
  root.append(
    h("section", { class: "card" }, list, status, h("div", { class: "columns narrow sliders", style: "margin-top:.75rem" }, along.element, log.element, smooth.element), trouble),
    table,
    h("div", { class: "columns pairs", style: "margin:1.25rem 0" }, charts.map(({ chart }) => chart.element)),
    samples,
  );

  async function look() {
    const { data } = await get("/v1/runs");
    if (!data.length) {
      status.textContent = "There are no runs to show. Start the server with --runs DIR, the folder with the runs.";
      samples.hidden = table.hidden = true;
      return;
    }
    if (untouched) data.slice(0, MOST_AT_FIRST).forEach((run) => chosen.add(run.name));
    untouched = false;
    let changed = false;
    for (const run of data) {
      const entry = known.get(run.name) ?? { reports: [], next: 0, sample: null };
      changed ||= entry.status !== run.status;
      known.set(run.name, Object.assign(entry, run));
    }
    changed = drawList(data) || changed;
    for (const run of data.filter((one) => chosen.has(one.name))) {
      const entry = known.get(run.name);
      if (entry.size < entry.next) Object.assign(entry, { reports: [], next: 0 });
      while (entry.next < entry.size) {
        const answer = await get(`/v1/runs/${encodeURIComponent(run.name)}?after=${entry.next}`);
        if (answer.next <= entry.next) break;
        entry.reports.push(...answer.reports);
        entry.next = answer.next;
        changed = true;
      }
    }
    if (changed) draw();
  }

  let drawnNames = "";
  let used = 0;
  function drawList(data) {
    const names = data.map((run) => `${run.name} ${run.status}`).join("\n");
    if (names === drawnNames) return false;
    drawnNames = names;
    list.replaceChildren(
      ...data.map((run) => {
        const entry = known.get(run.name);
        if (chosen.has(run.name)) entry.colour ??= COLOURS[used++ % COLOURS.length];
        const box = h("input", { type: "checkbox", onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); drawnNames = ""; keep(); tick(); } });
        box.checked = chosen.has(run.name);
        return h("label", { class: "chip" }, box, h("span", { class: "swatch", style: `background:${entry.colour ?? "var(--line)"}` }), run.name, run.status === "running" ? h("span", { class: "running small" }, "running") : null);
      }),
    );
    return true;
  }

  function draw() {
    const runs = [...known.values()].filter((run) => chosen.has(run.name));
    const [xLog, yLog] = LOG[log.value] ?? LOG.y;
    for (const { spec, chart } of charts) {
      const isLog = yLog && ["Perplexity", "Gradient norm"].includes(spec.title);
      chart.update({ series: runs.flatMap((run) => curves(run, spec)), levels: levels(runs, spec), xName: along.value, xLog, yLog: isLog });
    }
    table.hidden = runs.length === 0;
    table.replaceChildren(h("h2", {}, "The runs"), runTable(runs));
    status.replaceChildren(...runs.map(about).filter(Boolean).map((line) => h("div", {}, line)));
    drawSamples(runs);
  }

  function curves(run, spec) {
    const reports = run.reports.filter((report) => PLOTTED.has(report.kind));
    // A run with a validation perplexity also has one in training: exp of the loss.
    const raised = run.reports.some((report) => report.valid_perplexity);
    return spec.figures.flatMap(([figure, note, dashed]) => {
      const points = reports.map((report) => [ALONG[along.value](report), raised && figure === "perplexity" && report.kind === "step" ? Math.exp(report.loss) : report[figure]]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
      const curve = { name: note ? `${run.name} (${note})` : run.name, colour: run.colour, dashed, points };
      if (dashed || !smooth.value || spec.isNoisy === false) return [curve];
      return [{ ...curve, faint: true }, { ...curve, points: smoothed(points, smooth.value) }];
    });
  }

  // Runs without a curve: models of counts have one figure.
  function levels(runs, spec) {
    if (!spec.level) return [];
    return runs.filter((run) => !run.reports.some((report) => PLOTTED.has(report.kind)) && Number.isFinite(run.best[spec.level])).map((run) => ({ name: run.name, colour: run.colour, value: run.best[spec.level] }));
  }

  // A line on how far a run is; empty for a model of counts.
  function about(run) {
    const last = run.reports.at(-1);
    // Of a finished run that of the whole, as the command prints it.
    const speed = last?.summary?.tokens_per_second ?? run.reports.findLast((r) => r.tokens_per_second)?.tokens_per_second;
    const parts = [];
    if (last?.step) parts.push(`${short(last.step)} updates`);
    if (speed) parts.push(`${short(speed)} tokens a second`);
    if (run.status === "running") parts.push(last?.seconds_left ? `${short(Math.round(last.seconds_left))} s left` : "running");
    return parts.length ? `${run.name}: ${parts.join(", ")}` : "";
  }

  function drawSamples(runs) {
    const written = runs.flatMap((run) => run.reports.filter((r) => r.sample).map((r) => ({ run, step: r.step, text: r.sample })));
    samples.hidden = written.length === 0;
    if (!written.length) return;
    written.sort((a, b) => a.step - b.step);
    const range = samples.querySelector("input");
    const atEnd = !range || Number(range.value) === Number(range.max);
    const text = h("div", { class: "sample" });
    const label = h("span", { class: "small number" });
    const which = h("input", { type: "range", min: "0", max: `${written.length - 1}`, "aria-label": "Sample" });
    which.value = atEnd ? `${written.length - 1}` : range.value;
    const show = () => {
      const one = written[Number(which.value)];
      label.textContent = `${one.run.name}, after ${short(one.step)} updates`;
      text.textContent = one.text;
    };
    which.addEventListener("input", show);
    show();
    samples.replaceChildren(h("h2", {}, "Samples during training"), h("div", { class: "row between" }, label), which, text);
  }

  let timer;
  let left = false;
  async function tick() {
    clearTimeout(timer);
    try {
      await look();
      trouble.replaceChildren();
    } catch (error) {
      trouble.replaceChildren(problem(error));
    }
    if (!left) timer = setTimeout(tick, EVERY_MS);
  }
  await tick();
  return {
    pause() { left = true; clearTimeout(timer); },
    resume() { left = false; tick(); },
    code: () => ({ path: `/v1/runs${chosen.size ? `/${encodeURIComponent([...chosen][0])}` : ""}`, python: `import json\n\nfor line in open("runs/${[...chosen][0] ?? "mine"}/metrics.jsonl"):\n    report = json.loads(line)\n    print(report.get("step"), report.get("loss"), report.get("valid_perplexity"))`, command: `elman info runs/${[...chosen][0] ?? "mine"}` }),
  };
}

// An exponential average without the bias of its start, as TensorBoard's.
export function smoothed(points, weight) {
  let last = 0;
  return points.map(([x, y], i) => {
    last = last * weight + (1 - weight) * y;
    return [x, last / (1 - weight ** (i + 1))];
  });
}
