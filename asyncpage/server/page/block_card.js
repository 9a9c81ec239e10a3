// One block from near: who holds it, what it is called, what it hangs on, and which tokens it holds.

import { colourOf } from "./block_table.js";
import { button, make } from "./element.js";

const MOST_HOLDERS = 4;

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
  return `Block ${block}: ${who}, ${references} reference${references === 1 ? "" : "s"}${model.named[block] ? "" : ", not full yet"}`;
}

/** The card's nodes. `onGo`: another block is to be opened; `onClose`: the card is to go. */
export function cardNodes(sight, about, onGo, onClose) {
  const close = button("Close", onClose, { class: "close" });
  const facts = make("dl", {});
  const fact = (name, ...children) => facts.append(make("dt", {}, name), make("dd", {}, ...children));
  fact("References", String(sight.references));
  fact("Held by", ...holders(sight.holders));
  fact("Name", sight.name ? hash(sight.name) : sight.references ? "none yet: it is not full" : "none");
  if (sight.name) fact("Parent", sight.parent ? hash(sight.parent) : "none: a prompt begins here");
  fact("Chain", ...chain(sight, onGo));
  fact(`Tokens (${sight.token_count} of ${about.block_size})`, tokens(sight));
  return [make("h2", {}, `Block ${sight.block}`), close, facts];
}

function holders(all) {
  if (!all.length) return ["nobody"];
  const shown = all.slice(0, MOST_HOLDERS).map(holder);
  const others = all.length - shown.length;
  return others ? [...shown, make("span", { class: "quiet" }, `and ${others} other${others === 1 ? "" : "s"}`)] : shown;
}

function holder(one) {
  const dot = make("i", { class: "dot", "aria-hidden": "true" });
  dot.style.background = colourOf(one.request);
  const place = `request ${one.request}, its block ${one.index + 1}${one.group ? ` in layer group ${one.group}` : ""}`;
  return make("span", { class: "holder" }, dot, place, ...(one.id ? [make("code", { title: one.id }, short(one.id))] : []));
}

function short(id) {
  return id.length > 20 ? `${id.slice(0, 19)}…` : id;
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
