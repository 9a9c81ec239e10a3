// Tree against chain, where a comparison was run: every figure of both indexes, the better one marked.

import { make } from "./element.js";

/** Figures of which more is better; of the others less is, or neither. */
const MORE = new Set(["tokens_reused"]);
const LESS = new Set([
  "tokens_lost_to_alignment", "us_a_lookup", "us_a_1000_prompt_tokens", "us_a_block", "us_an_operation",
  "structure_operations", "bytes_a_cached_token", "blocks_computed_twice",
]); // prettier-ignore

/** Nodes that show a comparison, or say how one is made. */
export function comparisonNodes(comparison) {
  if (!comparison) {
    return [
      make("p", { class: "caption" }, "No comparison was given. Make one, and start with it:"),
      make("pre", { tabindex: "0" }, "asyncpage simulate chat --compare-index --json > index.json\nasyncpage serve --index-comparison index.json"),
    ];
  }
  return [
    make("p", { class: "caption" }, `From one trace, ${comparison.trace}: the better of the two is marked.`),
    make("div", { class: "dimensions" }, ...Object.entries(comparison.dimensions).map(table)),
  ];
}

function table([dimension, figures]) {
  const head = ["", "Chain", "Tree"].map((kind) => make("th", { scope: "col" }, kind));
  const rows = Object.entries(figures).map(([name, values]) => row(name, values));
  return make(
    "table",
    {},
    make("caption", {}, dimension[0].toUpperCase() + dimension.slice(1)),
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows),
  );
}

function row(name, values) {
  const better = betterOf(name, values);
  const cells = values.map((value, index) =>
    make("td", index === better ? { class: "better", "aria-label": `${shown(value)}, the better` } : {}, shown(value)),
  );
  return make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")), ...cells);
}

/** 0 or 1, or -1 where neither is. */
export function betterOf(name, [chain, tree]) {
  if (typeof chain !== "number" || chain === tree) return -1;
  if (MORE.has(name)) return chain > tree ? 0 : 1;
  if (LESS.has(name)) return chain < tree ? 0 : 1;
  return -1;
}

function shown(value) {
  if (typeof value === "string") return value;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(2);
}
