// One block from near: who holds it, what it is called, what it hangs on, and which tokens it holds.

import { colourOf } from "./block_table.js";
import { button, make } from "./element.js";

/** A block in a few words, for the line above the table. */
export function describeBlock(model, block, each) {
  if (each > 1) {
    const last = Math.min(block + each - 1, model.blocks);
    return `Blocks ${block} to ${last} in one cell; Enter or a click opens block ${block}`;
  }
  const references = model.references[block];
  if (!references) return `Block ${block}: ${model.named[block] ? "cached, free" : "blank"}`;
  const owner = model.ownerOf(block);
  const who = owner ? `held by request ${owner}` : "leaves when the steps in flight are back";
  return `Block ${block}: ${who}, ${references} reference${references === 1 ? "" : "s"}${model.named[block] ? "" : ", being written"}`;
}

/** The card's nodes. `onGo`: another block is to be opened; `onClose`: the card is to go. */
export function cardNodes(sight, about, onGo, onClose) {
  const close = button("Close", onClose, { class: "close" });
  const facts = make("dl", {});
  const fact = (name, ...children) => facts.append(make("dt", {}, name), make("dd", {}, ...children));
  fact("References", String(sight.references));
  fact("Held by", ...(sight.holders.length ? sight.holders.map(holder) : ["nobody"]));
  fact("Name", sight.name ? hash(sight.name) : sight.references ? "none yet: it is being written" : "none");
  if (sight.name) fact("Parent", sight.parent ? hash(sight.parent) : "none: a prompt begins here");
  fact("Chain", ...chain(sight, onGo));
  fact(`Tokens (${sight.token_count} of ${about.block_size})`, tokens(sight));
  return [make("h2", {}, `Block ${sight.block}`), close, facts];
}

function holder(one) {
  const dot = make("i", { class: "dot", "aria-hidden": "true" });
  dot.style.background = colourOf(one.request);
  const place = `request ${one.request}, its block ${one.index + 1}${one.group ? ` in layer group ${one.group}` : ""}`;
  return make("span", { class: "holder" }, dot, place, ...(one.id ? [make("code", {}, one.id)] : []));
}

function hash(hex) {
  return make("code", { title: hex }, `${hex.slice(0, 16)}…`);
}

function chain(sight, onGo) {
  const before = sight.chain.at(-1);
  if (before === undefined) return ["it is the first"];
  const count = `behind ${sight.chain.length} other${sight.chain.length === 1 ? "" : "s"}`;
  return before ? [`${count}, next to `, button(`block ${before}`, () => onGo(before), { class: "link" })] : [count];
}

function tokens(sight) {
  if (!sight.tokens) return make("span", { class: "quiet" }, "not shown here (see --chart-tokens)");
  if (!sight.tokens.length) return make("span", { class: "quiet" }, "known when the block is full");
  return make("span", { class: "tokens" }, ...sight.tokens.map(({ id, text }) => make("span", { title: `token ${id}` }, visible(text))));
}

/** What cannot be seen is shown by a sign. */
function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ /, "\u00a0") || "·";
}
