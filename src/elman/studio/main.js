// The shell: tabs, deep links, light and dark, the key. A view is a module with `title` and
// `render(root, context)`; its state lives in the address, so that a link restores the view.

import { get, onMissingKey } from "./api.js";
import { h, hideTip, problem } from "./dom.js";
import * as inside from "./inside.js";
import * as lab from "./lab.js";
import * as next from "./next.js";
import * as playground from "./playground.js";
import * as surprisal from "./surprisal.js";
import * as tasks from "./tasks.js";
import * as training from "./training.js";

const VIEWS = { playground, surprisal, next, inside, training, ...tasks.views, lab };
const root = document.getElementById("view");
let models = [];
let shown = null;
let leave = null;

onMissingKey(
  () =>
    new Promise((resolve) => {
      const dialog = document.getElementById("key");
      dialog.addEventListener("close", () => resolve(new FormData(dialog.querySelector("form")).get("key")), { once: true });
      dialog.showModal();
    }),
);

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: path in VIEWS ? path : "playground", params: new URLSearchParams(query) };
}

function available() {
  return Object.entries(VIEWS).filter(([, view]) => !view.ability || models.some((model) => model.abilities.includes(view.ability)));
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
  leave?.();
  leave = null;
  shown = name;
  drawTabs(name);
  const view = VIEWS[name];
  document.title = `${view.title} · Elman studio`;
  root.replaceChildren();
  const context = {
    models: view.ability ? models.filter((model) => model.abilities.includes(view.ability)) : models,
    params,
    remember: (values) => {
      if (shown === name) remember(name, values);
    },
  };
  if (view.needsModel !== false && context.models.length === 0) {
    root.append(h("p", { class: "empty" }, "No served model can do this. Start the server with one: elman serve runs/mine"));
    return;
  }
  try {
    leave = (await view.render(root, context)) ?? null;
  } catch (error) {
    root.append(problem(error));
  }
}

let lastWritten = "";

// Put the view's state into the address, without empty values.
function remember(name, values) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== "" && value !== null && value !== undefined) params.set(key, value);
  }
  lastWritten = params.toString();
  history.replaceState(null, "", `#/${name}${lastWritten ? `?${lastWritten}` : ""}`);
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

// The number keys change tabs, with Alt: 1 is the first.
addEventListener("keydown", (event) => {
  const number = Number(event.key);
  if (event.altKey && number >= 1 && available()[number - 1]) {
    event.preventDefault();
    location.hash = `#/${available()[number - 1][0]}`;
  }
});
addEventListener("hashchange", show);
addEventListener("scroll", hideTip, { passive: true });

try {
  models = (await get("/v1/models")).data;
  await show();
} catch (error) {
  root.replaceChildren(problem(error));
}
