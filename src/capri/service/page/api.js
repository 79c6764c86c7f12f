"use strict";
/* The interface for a reader, from /v1/openapi.json. */

const at = (id) => document.getElementById(id);

/** A schema in a few words. */
function said(schema, all, depth = 0) {
  if (!schema) return "anything";
  if (schema.$ref) {
    const found = all[schema.$ref.split("/").pop()];
    if (depth > 1 || !found.properties) return schema.$ref.split("/").pop();
    const needed = new Set(found.required || []);
    const lines = Object.entries(found.properties).map(([name, each]) => `  ${name}${needed.has(name) ? "" : "?"}: ${said(each, all, depth + 1)}`);
    return `{\n${lines.join("\n")}\n}`;
  }
  if (schema.anyOf) return schema.anyOf.map((each) => said(each, all, depth + 1)).join(" | ");
  if (schema.type === "array") return `[ ${said(schema.items, all, depth)} ]`;
  return schema.type || "anything";
}

/** A text with its words between backticks as code. */
function words(text) {
  return text.split("`").map((part, n) => (n % 2 ? make("code", {}, part) : part));
}

async function go() {
  const told = await (await fetch("/v1/openapi.json", { credentials: "omit" })).json();
  const all = told.components.schemas;
  at("about").append(...words(told.info.description));
  for (const [path, item] of Object.entries(told.paths)) for (const [method, each] of Object.entries(item)) {
    const body = each.requestBody && each.requestBody.content["application/json"].schema;
    const answer = each.responses["200"].content["application/json"];
    at("list").append(make("section", { class: "card endpoint" },
      make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`), each.summary),
      make("p", { class: "soft" }, words(each.description || "No key is needed.")),
      make("div", { class: "bodies" },
        body ? make("pre", { tabindex: "0" }, said(body, all)) : null,
        answer ? make("pre", { tabindex: "0" }, `→ ${said(answer.schema, all)}`) : null)));
  }
}
go();
