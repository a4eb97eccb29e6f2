// "View code": what a tab does, as a request, in Python, and on the command line.

import { h, say } from "./dom.js";

const WAYS = { curl: "curl", python: "Python", command: "Command line" };

// `current` returns what the tab shown now does: {path, body, python, command}.
export function codePanel(current) {
  let way = "curl";
  const text = h("pre", { class: "code", tabindex: "0" });
  const tabs = h("div", { class: "row", role: "group", "aria-label": "Language" });
  const copy = h("button", { type: "button", class: "quiet", onclick: () => navigator.clipboard?.writeText(text.textContent).then(() => say("Copied.")) }, "Copy");
  const element = h("details", { class: "card view-code", id: "code", ontoggle: refresh }, h("summary", {}, "View code"), h("div", { class: "row between" }, tabs, copy), text);

  function refresh() {
    const now = current();
    element.hidden = !now;
    if (!now || !element.open) return;
    tabs.replaceChildren(...Object.entries(WAYS).filter(([name]) => name === "curl" || now[name]).map(([name, label]) => h("button", { type: "button", "aria-pressed": `${name === way}`, onclick: () => { way = name; refresh(); } }, label)));
    text.textContent = way === "curl" || !now[way] ? curl(now) : now[way];
  }
  return { element, refresh };
}

function curl({ path, body }) {
  const address = `${location.origin}${path}`;
  if (!body) return `curl -s ${quoted(address)}`;
  return `curl -s ${address} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
}

// A word of the shell, and a string of Python.
export const quoted = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
export const literal = (text) => JSON.stringify(String(text));
export const loading = (model) => `import elman\n\nmodel = elman.load("runs/${model}")\n`;
