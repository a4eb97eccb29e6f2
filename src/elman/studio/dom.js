// What all views use: elements, controls, tips, notices.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Make the spaces and line ends of a token visible.
export function visible(token) {
  return token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "∅";
}

export function slider({ label, name, min, max, step, value, title, onchange }) {
  const id = `control-${name}`;
  const range = h("input", { type: "range", min: `${min}`, max: `${max}`, step: `${step}`, "aria-label": label, tabindex: "-1" });
  const number = h("input", { type: "number", id, min: `${min}`, max: `${max}`, step: "any" });
  const set = (text, from) => {
    if (from !== range) range.value = text;
    if (from !== number) number.value = text;
  };
  set(`${value}`);
  range.addEventListener("input", () => { set(range.value, range); onchange?.(); });
  number.addEventListener("input", () => { set(number.value, number); onchange?.(); });
  const element = h("div", { class: "slider", title }, h("label", { for: id }, label), range, number);
  return { element, get value() { return number.value === "" ? value : Number(number.value); }, set value(v) { set(`${v}`); } };
}

export function choice({ label, name, options, value, onchange }) {
  const id = `control-${name}`;
  const select = h("select", { id, onchange }, options.map(([key, text]) => h("option", { value: key }, text)));
  if (options.some(([key]) => key === value)) select.value = value;
  return { element: h("div", { class: "field" }, h("label", { for: id }, label), select), select, get value() { return select.value; }, set value(v) { select.value = v; } };
}

export function field({ label, name, value = "", placeholder = "", onchange }) {
  const id = `control-${name}`;
  const input = h("input", { id, type: "text", placeholder, autocomplete: "off", spellcheck: "false", oninput: onchange });
  input.value = value;
  return { element: h("div", { class: "field" }, h("label", { for: id }, label), input), input, get value() { return input.value; }, set value(v) { input.value = v; } };
}

// Show the tip beside an element that the pointer is over or that has the focus.

const tip = document.getElementById("tip");

let tipTarget = null;

export function showTip(target, content) {
  tip.replaceChildren(content);
  tip.hidden = false;
  tipTarget = target;
  placeTip();
}

// Place the tip anew, after its content has changed.
export function placeTip() {
  if (tip.hidden || !tipTarget) return;
  const target = tipTarget;
  tip.style.left = tip.style.top = "0";
  const box = target.getClientRects()[0] ?? target.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left + box.width / 2 - width / 2, innerWidth - width - 8));
  const below = box.bottom + 10 + height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 10 : Math.max(8, box.top - height - 10)}px`;
}

export function hideTip() {
  tip.hidden = true;
}

// Tips for the tokens within an element, by pointer, touch and arrow keys.
export function tips(container, contentOf) {
  const show = (event) => {
    const token = event.target.closest?.(".token");
    const content = token && contentOf(token);
    if (content) showTip(token, content);
  };
  container.addEventListener("pointerover", show);
  container.addEventListener("focusin", show);
  container.addEventListener("pointerout", hideTip);
  container.addEventListener("focusout", hideTip);
  container.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const here = event.target.closest?.(".token");
    if (event.key === "Escape") hideTip();
    if (!step || !here) return;
    const all = [...container.querySelectorAll(".token")];
    const next = all[all.indexOf(here) + step];
    if (!next) return;
    event.preventDefault();
    here.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

const notice = document.getElementById("notice");
let noticeTimer;

export function say(text) {
  notice.textContent = text;
  notice.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { notice.hidden = true; }, 4000);
}

export function problem(error) {
  return h("div", { class: "error", role: "alert" }, error.message || String(error));
}

export function download(name, text, type = "text/tab-separated-values") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export function debounce(milliseconds, work) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

export const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(1)} %` : p >= 0.00995 ? `${(100 * p).toFixed(2)} %` : p >= 1e-5 ? `${(100 * p).toPrecision(2)} %` : "< 0.001 %");
export const bits = (x) => (x === null || x === undefined ? "–" : x.toFixed(2));
