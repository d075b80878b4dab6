// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// JSON schemas of the server's document: what a $ref stands for, an example of a value, and a schema in few words.
// Nothing here touches the page.

// Schemas within schemas, and elements of lists, that an example or an outline has.
const DEPTH_MAX = 8;
const ELEMENTS_MAX = 16;

/** The object that `{"$ref": "#/a/b"}` stands for in a document; any other object is returned as it is. */
export function resolve(document, object) {
  if (typeof object?.$ref !== "string") {
    return object;
  }
  const names = object.$ref.replace(/^#\//, "").split("/");
  return names.reduce((found, name) => found?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], document);
}

/** A value that fits a schema. */
export function exampleOf(document, schema, depth = 0) {
  const found = resolve(document, schema);
  if (found === undefined || found === true || depth > DEPTH_MAX) {
    return null;
  }
  for (const given of ["example", "const", "default"]) {
    if (found[given] !== undefined) {
      return found[given];
    }
  }
  if (found.enum) {
    return found.enum[0];
  }
  const choices = found.anyOf ?? found.oneOf;
  if (choices && !found.properties && !found.items) {
    return exampleOf(document, choices[0], depth + 1);
  }
  const type = Array.isArray(found.type) ? found.type[0] : found.type ?? (found.properties ? "object" : found.items ? "array" : "null");
  switch (type) {
    case "object": {
      const required = found.required ?? [];
      const members = Object.entries(found.properties ?? {}).filter(([name]) => required.includes(name));
      return Object.fromEntries(members.map(([name, member]) => [name, exampleOf(document, member, depth + 1)]));
    }
    case "array": {
      const count = Math.min(ELEMENTS_MAX, found.minItems ?? (found.prefixItems ? found.prefixItems.length : 1));
      return Array.from({ length: count }, (_, at) => exampleOf(document, found.prefixItems?.[at] ?? found.items, depth + 1));
    }
    case "string":
      return "";
    case "integer":
    case "number":
      return Math.max(0, found.minimum ?? 0);
    case "boolean":
      return false;
    default:
      return null;
  }
}

/** The lines of an outline of a schema: [{depth, name, type, isRequired, description}]. */
export function outline(document, schema, name = "", isRequired = true, depth = 0, seen = []) {
  const found = resolve(document, schema);
  if (found === undefined || found === true || depth > DEPTH_MAX || seen.includes(found)) {
    return [];
  }
  const lines = [{ depth, name, type: typeOf(document, found), isRequired, description: found.description ?? "" }];
  const inner = [...seen, found];
  const element = resolve(document, found.items);
  const members = found.properties ?? element?.properties ?? {};
  const required = (found.properties ? found : element)?.required ?? [];
  for (const [member, each] of Object.entries(members)) {
    lines.push(...outline(document, each, member, required.includes(member), depth + 1, inner));
  }
  const choices = found.anyOf ?? found.oneOf ?? (found.properties ? [] : element?.anyOf) ?? [];
  for (const choice of choices.filter((each) => resolve(document, each)?.properties)) {
    lines.push(...outline(document, choice, resolve(document, choice).title ?? "or", false, depth + 1, inner));
  }
  return lines;
}

function typeOf(document, schema, depth = 0) {
  if (schema.const !== undefined) {
    return JSON.stringify(schema.const);
  }
  if (schema.enum) {
    return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  }
  if (schema.type === "array" || schema.items) {
    const element = resolve(document, schema.items);
    return element && depth < DEPTH_MAX && element !== true ? `[${typeOf(document, element, depth + 1)}]` : "[]";
  }
  const choices = schema.anyOf ?? schema.oneOf;
  if (!schema.type && choices) {
    return [...new Set(choices.map((each) => typeOf(document, resolve(document, each), depth + 1)))].join(" | ");
  }
  return schema.properties ? "object" : [schema.type ?? "any"].flat().join(" | ");
}
