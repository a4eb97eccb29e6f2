// The runs of a folder during training: loss, perplexity, gradient norm, learning rate, samples.

import { get } from "./api.js";
import { COLOURS, lines, short } from "./charts.js";
import { choice, h, problem } from "./dom.js";

export const title = "Training";
export const needsModel = false;

const EVERY_MS = 2000;
const MOST_AT_FIRST = 4;
const PLOTTED = new Set(["step", "valid"]);

// A figure is [its name in a report, its label, whether it is from validation].
const CHARTS = [
  { title: "Loss", figures: [["loss", "", false], ["valid_loss", "validation", true]] },
  { title: "Perplexity", figures: [["perplexity", "", false], ["valid_perplexity", "validation", true]], log: true },
  { title: "BLEU", figures: [["valid_bleu", "validation", true]] },
  { title: "Accuracy", figures: [["valid_accuracy", "validation", true], ["valid_macro_f1", "macro F1", true]] },
  { title: "Gradient norm", figures: [["gradient_norm", "", false]], log: true },
  { title: "Learning rate", figures: [["learning_rate", "", false]] },
];
const ALONG = { updates: (report) => report.step, tokens: (report) => report.tokens, minutes: (report) => report.seconds / 60 };

export async function render(root, { params, remember }) {
  const chosen = new Set(params.get("runs")?.split(",").filter(Boolean));
  let untouched = !params.has("runs");
  const known = new Map();
  const list = h("div", { class: "chips", role: "group", "aria-label": "Runs" });
  const charts = CHARTS.map((spec) => ({ spec, chart: lines(spec) }));
  const along = choice({ label: "Along", name: "along", options: Object.keys(ALONG).map((name) => [name, name]), value: params.get("along") ?? "updates", onchange: () => { keep(); draw(); } });
  const keep = () => remember({ runs: [...chosen].join(","), along: along.value === "updates" ? "" : along.value });
  const samples = h("section", { class: "card", "aria-label": "Samples", hidden: true });
  const status = h("div", { class: "small", role: "status", style: "margin:.6rem 0 0" });
  const trouble = h("div");
  root.append(
    h("h1", {}, "Training"),
    h("p", { class: "lead" }, "Curves of the runs in the folder, drawn while they are trained. Solid lines are training, dashed ones validation."),
    h("section", { class: "card" }, h("div", { class: "row between top" }, h("div", {}, list, status), along.element), trouble),
    h("div", { class: "columns pairs", style: "margin:1.25rem 0" }, charts.map(({ chart }) => chart.element)),
    samples,
  );

  async function look() {
    const { data } = await get("/v1/runs");
    if (!data.length) {
      status.textContent = "There are no runs to show. Start the server with --runs DIR, the folder with the runs.";
      samples.hidden = true;
      return;
    }
    if (untouched) data.slice(0, MOST_AT_FIRST).forEach((run) => chosen.add(run.name));
    untouched = false;
    for (const run of data) {
      const entry = known.get(run.name) ?? { reports: [], next: 0, sample: null };
      known.set(run.name, Object.assign(entry, run));
    }
    let changed = drawList(data);
    for (const run of data.filter((one) => chosen.has(one.name))) {
      const entry = known.get(run.name);
      if (entry.size < entry.next) Object.assign(entry, { reports: [], next: 0 });
      while (entry.next < entry.size) {
        const answer = await get(`/v1/runs/${encodeURIComponent(run.name)}?after=${entry.next}`);
        if (answer.next <= entry.next) break;
        if (answer.next < entry.next) entry.reports = [];
        entry.reports.push(...answer.reports);
        entry.next = answer.next;
        changed = true;
      }
    }
    if (changed) draw();
  }

  let drawnNames = "";
  function drawList(data) {
    const names = data.map((run) => run.name).join("\n");
    if (names === drawnNames) return false;
    drawnNames = names;
    list.replaceChildren(
      ...data.map((run, i) => {
        const entry = known.get(run.name);
        entry.colour ??= COLOURS[(known.size - 1 - i + COLOURS.length * 8) % COLOURS.length];
        const box = h("input", { type: "checkbox", onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); keep(); tick(); draw(); } });
        box.checked = chosen.has(run.name);
        return h("label", { class: "chip" }, box, h("span", { class: "swatch", style: `background:${entry.colour}` }), run.name, run.kind ? h("span", { class: "small" }, run.kind) : null);
      }),
    );
    return true;
  }

  function draw() {
    const runs = [...known.values()].filter((run) => chosen.has(run.name));
    for (const { spec, chart } of charts) {
      chart.update(
        runs.flatMap((run) => {
          const reports = run.reports.filter((report) => PLOTTED.has(report.kind));
          // A run with a validation perplexity also has one in training: exp of the loss.
          const raised = run.reports.some((report) => report.valid_perplexity);
          return spec.figures.map(([figure, note, dashed]) => ({
            name: note ? `${run.name} (${note})` : run.name,
            colour: run.colour,
            dashed,
            points: reports.map((report) => [ALONG[along.value](report), valueOf(figure, report, raised)]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)),
          }));
        }),
        along.value,
      );
    }
    status.replaceChildren(...runs.map((run) => h("div", {}, about(run))));
    drawSamples(runs);
  }

  function valueOf(figure, report, raised) {
    return raised && figure === "perplexity" && report.kind === "step" ? Math.exp(report.loss) : report[figure];
  }

  function about(run) {
    const last = run.reports.at(-1);
    if (!last) return run.name;
    const best = run.reports.map((r) => r.valid_perplexity).filter(Number.isFinite);
    const speed = run.reports.findLast((r) => r.tokens_per_second)?.tokens_per_second;
    const parts = [last.step ? `${run.name}: ${short(last.step)} updates` : run.name];
    if (best.length) parts.push(`best validation perplexity ${short(best.reduce((a, b) => Math.min(a, b)))}`);
    if (speed) parts.push(`${short(speed)} tokens a second`);
    parts.push(last.kind === "done" ? "done" : last.kind === "stopped" ? "stopped" : last.seconds_left ? `${short(Math.round(last.seconds_left))} s left` : "running");
    return parts.join(", ");
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
    const slider = h("input", { type: "range", min: "0", max: `${written.length - 1}`, "aria-label": "Which sample" });
    slider.value = atEnd ? `${written.length - 1}` : range.value;
    const show = () => {
      const one = written[Number(slider.value)];
      label.textContent = `${one.run.name}, after ${short(one.step)} updates`;
      text.textContent = one.text;
    };
    slider.addEventListener("input", show);
    show();
    samples.replaceChildren(h("h2", {}, "What it wrote"), h("div", { class: "row between" }, label), slider, text);
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
  return () => {
    left = true;
    clearTimeout(timer);
  };
}
