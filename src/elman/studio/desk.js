// The desk: one text, one model, and the label of a model that takes one, shared by all tabs.
//
// A view says in `desk` what it reads: {text: its label, placeholder, rows, model: whether one model
// is chosen, examples: texts to try}.

import { debounce, h } from "./dom.js";
import { summary } from "./models.js";

const WAIT_MS = 300;

export class Desk {
  #able = [];
  #wanted = "";
  #labels = new Map();

  constructor(onchange) {
    this.touched = false;
    const now = () => { this.touched = true; onchange(); };
    const soon = debounce(WAIT_MS, now);
    this.box = h("textarea", { id: "text", spellcheck: "false", oninput: () => { this.touched = true; soon(); } });
    this.select = h("select", { id: "control-model", onchange: () => { this.#wanted = this.select.value; this.#drawModel(); now(); } });
    this.labelSelect = h("select", { id: "control-label", onchange: () => { this.#labels.set(this.model, this.labelSelect.value); now(); } });
    this.boxLabel = h("label", { for: "text" });
    this.examples = h("div", { class: "examples" });
    this.modelField = h("div", { class: "field" }, h("label", { for: "control-model" }, "Model"), this.select);
    this.labelField = h("div", { class: "field", hidden: true }, h("label", { for: "control-label" }, "Given the label"), this.labelSelect);
    this.about = h("p", { class: "small", id: "about-model" });
    this.modelRow = h("div", { class: "desk-model" }, h("div", { class: "row low" }, this.modelField, this.labelField, this.about));
    this.element = h("section", { class: "card desk", "aria-label": "Text and model" }, this.boxLabel, this.box, this.examples, this.modelRow);
    this.onchange = now;
  }

  get text() { return this.box.value; }
  set text(text) { this.box.value = text; this.touched = true; }

  // The chosen model, or the first that can do what the tab does.
  get model() { return this.card?.id ?? ""; }
  set model(id) { this.#wanted = id; this.#drawModel(); }
  get card() { return this.#able.find((one) => one.id === this.#wanted) ?? this.#able[0]; }

  get label() { return this.card?.labels?.length ? this.#labels.get(this.model) ?? this.card.labels[0] : undefined; }
  set label(label) { this.waiting = label; this.#drawModel(); }

  // What a request says about the model.
  get ask() { return this.label === undefined ? { model: this.model } : { model: this.model, label: this.label }; }

  get state() { return JSON.stringify([this.text, this.model, this.label]); }

  values() { return { text: this.text, model: this.model, label: this.label }; }

  show(view, able) {
    this.#able = able;
    if (!view.desk) return;
    const { text, placeholder = "", rows = 3, model = true, examples = [] } = view.desk;
    this.boxLabel.textContent = text;
    this.box.placeholder = placeholder;
    this.box.rows = rows;
    if (!this.touched && !this.text) this.box.value = examples[0]?.[1] ?? "";
    this.modelRow.hidden = !model;
    this.select.replaceChildren(...able.map((one) => h("option", { value: one.id }, one.id)));
    this.examples.replaceChildren(...(examples.length > 1 ? [h("span", { class: "small" }, "Try:"), ...examples.map(([name, example]) => h("button", { type: "button", class: "link", onclick: () => { this.text = example; this.onchange(); } }, name))] : []));
    this.#drawModel(model);
  }

  #drawModel(hasModel = !this.modelRow.hidden) {
    const card = this.card;
    if (!card) return;
    if (this.waiting && card.labels?.includes(this.waiting)) this.#labels.set(card.id, this.waiting);
    this.select.value = card.id;
    this.about.textContent = summary(card);
    this.labelField.hidden = !hasModel || !card.labels?.length;
    this.labelSelect.replaceChildren(...(card.labels ?? []).map((label) => h("option", { value: label }, label)));
    if (this.label !== undefined) this.labelSelect.value = this.label;
  }
}
