// The chart room: follows the engine's feed and draws it. Everything shown comes from `ChartModel`.

import { ApiError, lookAtBlock, watchEngine } from "./api.js";
import { cardNodes, describeBlock } from "./block_card.js";
import { BlockTable } from "./block_table.js";
import { ChartModel } from "./chart_model.js";
import { comparisonNodes } from "./comparison.js";
import { explain } from "./failure_text.js";
import { KeyForm } from "./key_form.js";
import { compassRose, rhumbLines } from "./rhumb_lines.js";
import { Soundings, whole } from "./soundings.js";
import { Timeline } from "./timeline.js";
import { Topology } from "./topology.js";

const AGAIN_MS = [500, 1000, 2000, 5000]; // between tries to reach the engine
const element = (id) => document.getElementById(id);

const model = new ChartModel();
const table = new BlockTable(element("table"), model, { onChoose: choose, onOpen: open });
const soundings = new Soundings(element("soundings"), element("legend"), model);
const timeline = new Timeline(element("steps"), element("steps-caption"), model);
const topology = new Topology(element("topology"), model);
const keyForm = new KeyForm(follow);
let opened = 0; // the block whose card is shown

element("sea").append(rhumbLines());
document.querySelector(".title").prepend(compassRose());

// --- the feed --------------------------------------------------------------------------------------------------------

let feed = null; // the AbortController of the feed that is followed
let tries = 0;

async function follow() {
  feed?.abort();
  const controller = new AbortController();
  feed = controller;
  try {
    for await (const frame of watchEngine(controller.signal)) {
      tries = 0;
      take(frame);
    }
    if (feed === controller) say("The server has ended the feed", "ended");
  } catch (error) {
    if (feed !== controller || error.name === "AbortError") return;
    if (error instanceof ApiError && error.status === 401) {
      keyForm.ask(error);
      say("The server asks for its key", "ended");
      return;
    }
    say(explain(error), "ended");
  }
  if (feed === controller && !document.hidden) {
    setTimeout(() => feed === controller && follow(), AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]);
    tries += 1;
  }
}

function take(frame) {
  model.apply(frame);
  if (frame.kind === "whole") drawAbout(model.about);
  say(model.state === "ready" ? "Live" : `The engine is ${model.state}`, model.state);
  table.update();
  soundings.update();
  timeline.update();
  topology.update();
}

function drawAbout(about) {
  const groups = about.groups.length > 1 ? ` in ${about.groups.length} layer groups` : "";
  element("about").textContent =
    `${about.model} on ${about.device}, attention by ${about.attention_backend}; ` +
    `${whole(model.blocks)} blocks of ${about.block_size} tokens${groups}`;
  element("comparison").replaceChildren(...comparisonNodes(about.comparison));
}

function say(text, state) {
  const status = element("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

// --- a block from near -----------------------------------------------------------------------------------------------

function choose(block, each) {
  element("table-caption").textContent = describeBlock(model, block, each);
}

async function open(block) {
  opened = block;
  try {
    const sight = await lookAtBlock(block);
    if (opened !== block) return; // another was opened meanwhile
    element("card").replaceChildren(...cardNodes(sight, model.about, open, close));
    element("card").hidden = false;
    table.show(block, [...sight.chain, block]);
  } catch (error) {
    element("table-caption").textContent = explain(error);
  }
}

function close() {
  opened = 0;
  element("card").hidden = true;
  table.show(table.chosen, []);
  element("table").focus();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && opened) close();
});
// A page that nobody sees is not drawn for: the engine rests when the last one leaves.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    feed?.abort();
    feed = null;
  } else if (!keyForm.isShown) follow();
});

follow();
