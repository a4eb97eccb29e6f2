// The API reference, made from /openapi.json.

import { h } from "./dom.js";

document.documentElement.dataset.theme = localStorage.getItem("elman-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

const spec = await (await fetch("/openapi.json")).json();
const named = (schema) => (schema?.$ref ? spec.components.schemas[schema.$ref.split("/").at(-1)] : schema);

function type(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(type).filter((t) => t !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${type(schema.items)}`;
  return schema.type ?? "anything";
}

function fields(schema) {
  const { properties = {}, required = [] } = named(schema) ?? {};
  return h(
    "table",
    { class: "plain" },
    Object.entries(properties).map(([name, about]) =>
      h("tr", {}, h("td", { class: "mono" }, name, required.includes(name) ? " *" : ""), h("td", { class: "small" }, type(about)), h("td", { class: "small" }, about.description ?? "", about.default !== undefined && about.default !== null && about.default !== "" ? ` Default: ${JSON.stringify(about.default)}.` : "")),
    ),
  );
}

document.getElementById("about").textContent = `${spec.info.title} ${spec.info.version}. ${spec.info.description} A star marks a required field.`;
const groups = {};
for (const [path, methods] of Object.entries(spec.paths)) {
  for (const [method, route] of Object.entries(methods)) (groups[route.tags?.[0] ?? "other"] ??= []).push([path, method, route]);
}
for (const [group, routes] of Object.entries(groups)) {
  document.getElementById("routes").append(
    h("h3", { style: "margin-top:1.5rem" }, group),
    ...routes.map(([path, method, route]) => {
      const body = route.requestBody?.content?.["application/json"]?.schema;
      const answer = route.responses["200"]?.content?.["application/json"]?.schema;
      return h(
        "details",
        { class: "card" },
        h("summary", {}, h("b", { class: "mono" }, `${method.toUpperCase()} ${path}`), " ", h("span", { class: "small" }, route.description ?? "")),
        body ? [h("h3", { style: "margin-top:.75rem" }, "Request"), fields(body)] : null,
        answer ? [h("h3", { style: "margin-top:.75rem" }, "Answer"), fields(answer)] : null,
      );
    }),
  );
}
