// The numbers of this moment: a list of names and figures, and the legend of the block table with its counts.

import { colourOf, COLOURS, OWNERS } from "./block_table.js";
import { STATES } from "./chart_model.js";
import { make } from "./element.js";

/** Name, what it says, and how to read it from the model. */
const SOUNDINGS = [
  ["Running", "requests that have a row", (model) => whole(model.stat("scheduler", "running"))],
  ["Waiting", "requests in the queue", (model) => whole(model.stat("scheduler", "waiting"))],
  ["Hit rate", "prompt tokens found in the cache", (model) => percent(model.hitRate())],
  ["Pool in use", "blocks that somebody holds", (model) => percent(inUse(model))],
  ["Tokens a second", "generated", (model) => figure(model.rate("scheduler", "generated_tokens"))],
  ["Steps a second", "of the executor", (model) => figure(model.rate("scheduler", "steps"))],
  ["Preemptions", "since the start", (model) => whole(model.stat("scheduler", "preemptions"))],
  ["Evictions", "blocks given up", (model) => whole(model.stat("kv_manager", "blocks_evicted"))],
];

const MEANINGS = {
  held: "held by one request (a colour each)",
  written: "not full yet",
  shared: "shared",
  cached: "cached, free",
  leaving: "leaves with a step",
  blank: "blank",
};

export class Soundings {
  constructor(list, legend, model) {
    this.model = model;
    this.figures = SOUNDINGS.map(([name, meaning]) => {
      const figure = make("dd", {}, "–");
      list.append(make("div", { title: meaning }, make("dt", {}, name), figure));
      return figure;
    });
    this.counts = Object.fromEntries(
      Object.entries(MEANINGS).map(([state, meaning]) => {
        const count = make("b", {}, "–");
        legend.append(make("span", { class: "key" }, swatch(state), count, ` ${meaning}`));
        return [state, count];
      }),
    );
  }

  update() {
    SOUNDINGS.forEach(([, , read], index) => (this.figures[index].textContent = read(this.model)));
    this.model.counts().forEach((count, state) => (this.counts[STATES[state]].textContent = whole(count)));
  }
}

/** What a block of a state looks like in the table; those that are held show several requests' colours. */
function swatch(state) {
  const element = make("i", { class: `swatch ${state}`, "aria-hidden": "true" });
  if (state === "held") element.style.background = `linear-gradient(90deg, ${OWNERS.slice(0, 3).map((colour, index) => `${colour} ${index * 33}% ${index * 33 + 33}%`).join(", ")})`;
  else if (state === "written") element.style.borderColor = colourOf(0);
  else element.style.background = COLOURS[state];
  return element;
}

function inUse(model) {
  const total = model.stat("kv_manager", "blocks_total");
  return total ? model.stat("kv_manager", "blocks_referenced") / total : null;
}

function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;
}

export function whole(number) {
  return Math.round(number).toLocaleString("en");
}

export function bytes(number) {
  return number >= 1024 ? `${(number / 1024).toFixed(1)} KiB` : `${Math.round(number)} B`;
}

export function figure(number) {
  return number >= 100 ? whole(number) : number.toFixed(number && number < 10 ? 1 : 0);
}
