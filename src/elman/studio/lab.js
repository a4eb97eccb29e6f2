// The lab: choose a claim, commit to a prediction, run its experiment here, turn the knob.

import { get, stream } from "./api.js";
import { quoted } from "./code.js";
import { choice, h, problem, say, slider } from "./dom.js";
import { panel } from "./panel.js";
import { short } from "./svg.js";

export const title = "Lab";
export const needsModel = false;
export const lead = "Claims about recurrent networks, tested by training models on this machine. Predict the verdict, run the experiment, then change the knob to break the claim.";

const VERDICTS = ["holds", "does not hold here", "cannot tell"];
const MARKS = { holds: "✓", "does not hold here": "✗", "cannot tell": "?" };

export async function render(root, { params, remember }) {
  const { data: claims } = await get("/v1/lab");
  if (!claims.length) {
    root.append(h("p", { class: "empty" }, "This server runs no experiments. Start it with --lab: elman serve --lab"));
    return;
  }
  let claim = claims.find((one) => one.id === params.get("claim")) ?? claims[0];
  let predicted = null;
  let abort = null;
  const past = [];

  const pick = choice({ label: "Claim", name: "claim", options: claims.map((one) => [one.id, `${one.id}: ${one.title}`]), value: claim.id, onchange: () => choose() });
  const seeds = slider({ label: "Seeds", name: "seeds", min: 2, max: 10, step: 1, value: Number(params.get("seeds") ?? 5), onchange: () => keep() });
  const statement = h("section", { class: "card" });
  const knobPlace = h("div", {});
  const bet = h("fieldset", { class: "bet" });
  const start = h("button", { class: "primary", type: "button", id: "run", onclick: () => (abort ? abort.abort() : run()) }, "Run it");
  const status = h("span", { class: "small", role: "status", "aria-live": "polite" });
  const outcome = h("section", { class: "card", hidden: true, "aria-label": "Verdict" });
  const figures = h("div", { class: "columns pairs", style: "margin:1.25rem 0" });
  const history = h("section", { class: "card", hidden: true });
  const details = h("section", { class: "card" });
  let knob = null;
  let charts = [];

  const keep = () => remember({ claim: claim.id, knob: knob && String(knob.value) !== String(claim.knob.default) ? knob.value : "", seeds: seeds.value === 5 ? "" : seeds.value });

  function choose() {
    claim = claims.find((one) => one.id === pick.value);
    predicted = null;
    past.length = 0;
    abort?.abort();
    abort = null;
    start.textContent = "Run it";
    drawClaim();
    keep();
  }

  function drawClaim() {
    statement.replaceChildren(h("blockquote", { class: "claim" }, claim.claim), h("p", { class: "small" }, claim.sources.join(" · ")));
    const { name, meaning, values } = claim.knob;
    const value = params.get("claim") === claim.id && params.has("knob") ? params.get("knob") : claim.knob.default;
    knob = choice({ label: `Knob: ${name} (${meaning})`, name: "knob", options: values.map((one) => [String(one), `${one}${one === claim.knob.default ? " (as claimed)" : one === claim.knob.broken ? " (try this to break it)" : ""}`]), value: String(value), onchange: turn });
    knobPlace.replaceChildren(knob.element);
    drawBet();
    outcome.hidden = true;
    history.hidden = true;
    figures.replaceChildren();
    charts = [];
    status.textContent = `about ${duration(claim.seconds)} for 5 seeds`;
    const about = h(
      "div",
      {},
      h("h2", {}, "The design"),
      h("p", {}, claim.design),
      questionTable(claim.questions.map((one) => ({ question: one.name, unit: one.unit, rule: one.rule, prediction: one.prediction }))),
      h("h2", { style: "margin-top:1rem" }, "What breaks it"),
      h("p", {}, claim.breaks),
      claim.limits ? [h("h2", {}, "What it does not say"), h("p", {}, claim.limits)] : null,
      h("h2", {}, "The equation in the code"),
      claim.code.map((one) => h("details", {}, h("summary", { class: "mono" }, `${one.file}, line ${one.line}`), h("pre", { class: "code" }, one.text))),
      h("h2", { style: "margin-top:1rem" }, "Further reading"),
      h("ul", {}, claim.reading.map((one) => h("li", {}, one))),
    );
    details.replaceChildren(about);
  }

  // Another knob is another experiment: ask for the prediction anew.
  function turn() {
    predicted = null;
    drawBet();
    keep();
  }

  function drawBet() {
    const options = VERDICTS.map((verdict) => {
      const box = h("input", { type: "radio", name: "bet", value: verdict, onchange: () => { predicted = verdict; start.disabled = false; } });
      box.checked = predicted === verdict;
      return h("label", { class: "chip" }, box, `${MARKS[verdict]} ${verdict}`);
    });
    bet.replaceChildren(h("legend", {}, "Your prediction"), h("div", { class: "chips" }, options));
    start.disabled = predicted === null;
  }

  async function run() {
    const mine = { claim: claim.id, knob: knob.value, predicted };
    const mineToStop = new AbortController();
    abort = mineToStop;
    start.textContent = "Stop";
    outcome.hidden = true;
    let last = null;
    try {
      status.textContent = "starting …";
      for await (const event of stream(`/v1/lab/${claim.id}`, { knob: knobValue(), seeds: seeds.value, size: params.get("size") ?? "small" }, mineToStop.signal)) {
        last = event;
        status.textContent = `${event.seeds} of ${seeds.value} seeds, ${event.rows} rows`;
        if (event.figure) drawFigure(event.figure);
        if (event.findings) drawOutcome(event, mine, Boolean(event.result));
      }
      if (last?.result) {
        past.push({ ...mine, verdict: last.verdict, findings: last.findings });
        drawHistory();
        claim.verdict = last.verdict;
      }
      status.textContent = last?.result ? `done in ${duration(last.result.seconds)}` : "no result";
    } catch (error) {
      if (abort !== mineToStop) return; // another claim was chosen
      if (error.name === "AbortError") status.textContent = "stopped";
      else {
        status.textContent = "no result";
        outcome.hidden = false;
        outcome.replaceChildren(problem(error));
      }
    } finally {
      if (abort === mineToStop) {
        abort = null;
        start.textContent = "Run it again";
      }
    }
  }

  const knobValue = () => (typeof claim.knob.default === "number" ? Number(knob.value) : knob.value);

  function drawFigure(figure) {
    if (charts.length !== figure.panels.length) {
      charts = figure.panels.map(() => panel());
      figures.replaceChildren(...charts.map((chart) => chart.element), h("p", { class: "small", style: "grid-column:1/-1" }, figure.caption));
    }
    figure.panels.forEach((one, i) => charts[i].update(one));
  }

  function drawOutcome(event, mine, finished) {
    outcome.hidden = false;
    const right = finished && mine.predicted ? (mine.predicted === event.verdict ? "You predicted this." : `You predicted: ${mine.predicted}.`) : "";
    outcome.replaceChildren(
      h("p", { class: `verdict ${event.verdict.replaceAll(" ", "-")}`, id: "verdict" }, `${MARKS[event.verdict]} ${event.verdict}`, h("span", { class: "small" }, finished ? ` ${right}` : " so far")),
      questionTable(event.findings),
    );
  }

  function drawHistory() {
    history.hidden = past.length < 2;
    history.replaceChildren(
      h("h2", {}, "Results by knob value"),
      h("div", { class: "scroll" }, h("table", { class: "plain" }, h("tr", {}, h("th", {}, claim.knob.name), h("th", {}, "verdict"), claim.questions.map((one) => h("th", {}, one.name)), h("th", {}, "your prediction")), past.map((one) => h("tr", {}, h("td", { class: "number" }, String(one.knob)), h("td", {}, one.verdict), one.findings.map((f) => h("td", { class: "number" }, `${short(f.mean)} (${short(f.low)} to ${short(f.high)})`)), h("td", {}, one.predicted))))),
    );
  }

  root.append(
    h("section", { class: "card" }, pick.element, h("div", { class: "columns narrow" }, knobPlace, seeds.element)),
    statement,
    h("section", { class: "card" }, bet, h("div", { class: "row", style: "margin-top:.75rem" }, start, status)),
    outcome,
    figures,
    history,
    details,
  );
  drawClaim();
  if (claims.length > 1 && !params.has("claim")) say("Choose a claim, predict its verdict, and run it.");
  return {
    run: () => { if (!start.disabled && !abort) run(); },
    stop: () => abort?.abort(),
    code: () => ({ path: `/v1/lab/${claim.id}`, body: { knob: knobValue(), seeds: seeds.value }, python: `import elman.lab\n\nif __name__ == "__main__":  # seeds run in processes of their own\n    print(elman.lab.run_claim("${claim.id}", knob=${JSON.stringify(knobValue())}, seeds=${seeds.value}).verdict)`, command: `elman lab run ${claim.id} --seeds ${seeds.value}${String(knob.value) === String(claim.knob.default) ? "" : ` --knob ${quoted(knob.value)}`}` }),
  };
}

function questionTable(findings) {
  const known = findings.some((one) => one.effects);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "plain" },
      h("tr", {}, ["question", "predicted", known ? "effect" : null, known ? "95 % interval" : null, "rule", known ? "verdict" : null].filter(Boolean).map((name) => h("th", {}, name))),
      findings.map((one) =>
        h("tr", {}, h("td", {}, one.question), h("td", { class: "number" }, short(one.prediction)), known ? [h("td", { class: "number" }, `${short(one.mean)} ${one.unit}`), h("td", { class: "number" }, `${short(one.low)} to ${short(one.high)}`)] : null, h("td", {}, one.rule), known ? h("td", {}, one.verdict) : null),
      ),
    ),
  );
}

const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);
