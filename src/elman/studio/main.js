// The shell: tabs, deep links, the desk that all tabs share, light and dark, presentation, the key.
//
// A view is a module with `title` and `render(root, context)`, which returns a handle of functions,
// all optional:
//   update()   the text, model or label on the desk has changed
//   run(), stop()   Ctrl Enter and Escape
//   code()     what "View code" shows
//   pause(), resume()   the tab is left, and entered again
// What a view shows stays as it is while other tabs are open. The address has the desk and the
// view's own settings, so that a link restores both.

import { get, onMissingKey } from "./api.js";
import { codePanel } from "./code.js";
import { Desk } from "./desk.js";
import { h, hideTip, problem } from "./dom.js";
import * as inside from "./inside.js";
import * as lab from "./lab.js";
import * as modelCards from "./models.js";
import * as next from "./next.js";
import * as playground from "./playground.js";
import * as surprisal from "./surprisal.js";
import * as tasks from "./tasks.js";
import * as training from "./training.js";
import * as tree from "./tree.js";

const VIEWS = { playground, next, surprisal, decoding: tree, inside, ...tasks.views, models: modelCards, training, lab };
// Names that links had before the text was shared.
const FORMER = { prompt: "text", prefix: "text" };
const SHARED = ["text", "model", "label"];
const root = document.getElementById("view");
const kept = new Map();
let models = [];
let shown = null;
let lastWritten = null;

const desk = new Desk(() => {
  const entry = kept.get(shown);
  entry?.handle?.update?.();
  entry?.write();
});
const code = codePanel(() => kept.get(shown)?.handle?.code?.());

onMissingKey(
  () =>
    new Promise((resolve) => {
      const dialog = document.getElementById("key");
      dialog.addEventListener("close", () => resolve(new FormData(dialog.querySelector("form")).get("key")), { once: true });
      dialog.showModal();
    }),
);

const able = (view) => (view.ability ? models.filter((model) => model.abilities.includes(view.ability)) : models);
const available = () => Object.entries(VIEWS).filter(([, view]) => view.needsModel === false || able(view).length);

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query);
  for (const [former, name] of Object.entries(FORMER)) {
    if (params.has(former) && !params.has(name)) params.set(name, params.get(former));
    params.delete(former);
  }
  return { name: path in VIEWS ? path : landing(), params };
}

// The first tab that a served model can use.
function landing() {
  return (available().find(([, view]) => view.needsModel !== false) ?? available()[0])[0];
}

function drawTabs(current) {
  const tabs = document.getElementById("tabs");
  tabs.replaceChildren(
    ...available().map(([name, view]) => h("a", { href: `#/${name}`, role: "tab", "aria-selected": `${name === current}`, tabindex: name === current ? "0" : "-1" }, view.title)),
  );
  tabs.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest", inline: "center" });
}

// Arrow keys move between tabs.
document.getElementById("tabs").addEventListener("keydown", (event) => {
  const all = [...event.currentTarget.children];
  const here = all.indexOf(event.target);
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  all.at(to % all.length).focus();
});

async function show() {
  const { name, params } = place();
  if (shown === name && params.toString() === lastWritten) return;
  hideTip();
  kept.get(shown)?.handle?.pause?.();
  shown = name;
  drawTabs(name);
  const view = VIEWS[name];
  document.title = `${view.title} · Elman studio`;
  if (view.needsModel !== false && !able(view).length) {
    root.replaceChildren(deadEnd(view));
    return;
  }
  for (const key of SHARED) if (params.has(key)) desk[key] = params.get(key);
  desk.show(view, able(view));
  const own = new URLSearchParams([...params].filter(([key]) => !SHARED.includes(key)));
  let entry = kept.get(name);
  const isNew = !entry || (own.size > 0 && own.toString() !== entry.own);
  if (isNew) entry = open(name, view, own);
  root.replaceChildren(entry.heading, ...(view.desk ? [desk.element] : []), entry.body, ...(view.code === false ? [] : [code.element]));
  code.element.open = false;
  if (!isNew) {
    if (entry.seen !== desk.state) entry.handle?.update?.();
    entry.handle?.resume?.();
    entry.write();
    return;
  }
  try {
    entry.handle = (await view.render(entry.body, entry.context)) ?? {};
  } catch (error) {
    entry.body.append(problem(error));
  }
  if (shown === name) entry.write();
  else entry.handle?.pause?.();
}

// Make a view's place on the page, and the context that it is given.
function open(name, view, own) {
  const entry = { own: own.toString(), seen: null, handle: null, body: h("div", { class: "view" }), heading: h("div", {}, h("h1", {}, view.title), h("p", { class: "lead" }, view.lead)) };
  let values = Object.fromEntries(own);
  entry.write = () => {
    entry.own = query(values);
    entry.seen = desk.state;
    if (shown !== name) return;
    lastWritten = query({ ...(view.desk ? desk.values() : {}), ...values });
    history.replaceState(null, "", `#/${name}${lastWritten ? `?${lastWritten}` : ""}`);
    code.refresh();
  };
  entry.context = {
    desk,
    models: able(view),
    params: own,
    remember(next) {
      values = next;
      entry.write();
    },
  };
  kept.set(name, entry);
  return entry;
}

// A link may name a tab that no served model can use.
function deadEnd(view) {
  const others = available().map(([name, other]) => h("a", { class: "button", href: `#/${name}` }, other.title));
  return h("div", { class: "empty" }, h("p", {}, `No served model can do this (${view.title}). Start the server with one: elman serve runs/mine`), h("p", {}, "These tabs work here:"), h("div", { class: "row", style: "justify-content:center" }, others));
}

function query(values) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== "" && value !== null && value !== undefined) params.set(key, value);
  }
  return params.toString();
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("theme"));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
applyTheme(localStorage.getItem("elman-theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => {
  if (!localStorage.getItem("elman-theme")) applyTheme(dark.matches ? "dark" : "light");
});
document.getElementById("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("elman-theme", theme);
  applyTheme(theme);
});

// Presentation: everything larger, settings and explanations out of sight.
function present(on) {
  document.documentElement.toggleAttribute("data-present", on);
  document.getElementById("present").setAttribute("aria-pressed", `${on}`);
  sessionStorage.setItem("elman-present", on ? "1" : "");
  dispatchEvent(new Event("theme"));
}
const presents = () => document.documentElement.hasAttribute("data-present");
document.getElementById("present").addEventListener("click", () => present(!presents()));
if (sessionStorage.getItem("elman-present")) present(true);

addEventListener("keydown", (event) => {
  const handle = kept.get(shown)?.handle;
  // Alt and a number change tabs: 1 is the first, 0 the tenth.
  const number = event.key === "0" ? 10 : Number(event.key);
  if (event.altKey && number >= 1 && available()[number - 1]) {
    event.preventDefault();
    location.hash = `#/${available()[number - 1][0]}`;
  } else if (event.altKey && event.key.toLowerCase() === "p") {
    event.preventDefault();
    present(!presents());
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    handle?.run?.();
  } else if (event.key === "Escape") handle?.stop?.();
});
addEventListener("hashchange", show);
addEventListener("scroll", hideTip, { passive: true });

try {
  models = (await get("/v1/models")).data;
  await show();
} catch (error) {
  root.replaceChildren(problem(error));
}
