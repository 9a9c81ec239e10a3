// What the chart room makes of the feed's pictures; expected values are counted by hand.

import assert from "node:assert/strict";
import { test } from "node:test";

import { betterOf } from "../../asyncpage/server/page/comparison.js";
import { ChartModel, layOut, niceCeiling, STATES } from "../../asyncpage/server/page/chart_model.js";

const base64 = (column) => Buffer.from(column.buffer).toString("base64");
const columns = (owners, references, named) => ({
  owners: base64(Int32Array.from(owners)),
  references: base64(Uint8Array.from(references)),
  named: base64(Uint8Array.from(named)),
});
const moving = (at, passed = {}, stats = {}) => ({
  at,
  state: "ready",
  boxes: { scheduler: { waiting: 1, deepest: 3, capacity: 9, passed } },
  stats,
});

/** Blocks 1 to 6: blank, cached, leaving, written by row 0, held by row 1, shared. */
function whole() {
  return {
    kind: "whole",
    about: { model: "m", block_size: 4 },
    blocks: { total: 7, ...columns([-1, -1, -1, -1, 0, 1, 1], [0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 0, 0, 1, 1]) },
    rows: [[0, 17], [1, 2 ** 48 + 5]],
    steps: [[1, 0.5, 2, 30, 1, 0, 12.5]],
    ...moving(10),
  };
}

function seen() {
  const model = new ChartModel();
  model.apply(whole());
  return model;
}

test("each block is in the state that its columns say", () => {
  const model = seen();
  assert.equal(model.blocks, 6);
  const states = [1, 2, 3, 4, 5, 6].map((block) => STATES[model.stateOf(block)]);
  assert.deepEqual(states, ["blank", "cached", "leaving", "written", "held", "shared"]);
  assert.deepEqual(model.counts(), [1, 1, 1, 1, 1, 1]);
  assert.deepEqual([4, 5, 1].map((block) => model.ownerOf(block)), [17, 2 ** 48 + 5, 0]);
});

test("a change alters the blocks that it names and no other", () => {
  const model = seen();
  model.apply({ kind: "change", blocks: { at: base64(Int32Array.of(1, 5)), ...columns([0, -1], [1, 0], [0, 1]) }, rows: [[0, 17]], ...moving(11) });
  const states = [1, 2, 3, 4, 5, 6].map((block) => STATES[model.stateOf(block)]);
  assert.deepEqual(states, ["written", "cached", "leaving", "written", "cached", "shared"]);
  assert.equal(model.ownerOf(6), 0, "row 1 is empty now");
  assert.equal(model.about.model, "m");
});

test("a cached block that loses its name was evicted; one that is shared again was not", () => {
  const model = seen();
  const change = (at, ...values) => ({ kind: "change", blocks: { at: base64(Int32Array.from(at)), ...columns(...values) }, ...moving(11) });
  model.apply(change([2], [0], [1], [1]));
  assert.deepEqual(model.evicted, []);
  model.apply(change([2], [-1], [0], [1]));
  model.apply(change([2, 4], [1, -1], [1, 0], [0, 0]));
  assert.deepEqual(model.evicted, [2]);
  model.apply({ kind: "change", ...moving(12) });
  assert.deepEqual(model.evicted, []);
});

test("a pool of another size is a new table", () => {
  const model = seen();
  model.apply({ kind: "change", blocks: { total: 3, ...columns([-1, 0, -1], [0, 1, 0], [0, 1, 0]) }, ...moving(11) });
  assert.equal(model.blocks, 2);
  assert.equal(STATES[model.stateOf(1)], "held");
});

test("steps are kept in order, the last 512", () => {
  const model = seen();
  assert.deepEqual(model.steps, [{ number: 1, at: 0.5, rows: 2, prefill: 30, decode: 1, preempted: 0, ms: 12.5 }]);
  const steps = Array.from({ length: 600 }, (_, index) => [index + 2, index, 1, 0, 1, 0, 1]);
  model.apply({ kind: "change", steps, ...moving(11) });
  assert.equal(model.steps.length, 512);
  assert.deepEqual([model.steps[0].number, model.steps.at(-1).number], [90, 601]);
  model.apply(whole());
  assert.equal(model.steps.length, 1, "a new feed begins anew");
});

test("rates are growth over the time between pictures", () => {
  const model = seen();
  const stats = (tokens) => ({ scheduler: { generated_tokens: tokens, prompt_tokens: 40, cached_tokens: 30 } });
  assert.equal(model.rate("scheduler", "generated_tokens"), 0, "one picture tells none");
  model.apply({ kind: "change", ...moving(10.5, { StepDone: 10 }, stats(100)) });
  model.apply({ kind: "change", ...moving(12, { StepDone: 50 }, stats(300)) });
  assert.equal(model.rate("scheduler", "generated_tokens"), 150);
  assert.equal(model.messageRate("scheduler", "StepDone"), 25);
  assert.equal(model.messageRate("nobody", "StepDone"), 0);
  assert.equal(model.hitRate(), 0.75);
  model.apply({ kind: "change", ...moving(15, { StepDone: 50 }, stats(300)) });
  assert.equal(model.messageRate("scheduler", "StepDone"), 0, "of the last three seconds");
});

test("a count that began anew is no negative rate", () => {
  const model = seen();
  model.apply({ kind: "change", ...moving(11, { Step: 9 }) });
  model.apply({ kind: "change", ...moving(12, { Step: 1 }) });
  assert.equal(model.messageRate("scheduler", "Step"), 0.5);
  model.apply({ kind: "change", ...moving(13.5, { Step: 0 }) });
  assert.equal(model.messageRate("scheduler", "Step"), 0);
});

test("several blocks in a cell show what most of them are, the more telling state of two", () => {
  const model = seen();
  assert.deepEqual(model.summary(1, 2), { state: STATES.indexOf("cached"), block: 2, share: 0.5 });
  assert.deepEqual(model.summary(1, 6), { state: STATES.indexOf("shared"), block: 6, share: 1 / 6 });
  model.apply({ kind: "change", blocks: { at: base64(Int32Array.of(2)), ...columns([-1], [0], [0]) }, ...moving(11) });
  assert.deepEqual(model.summary(1, 3), { state: STATES.indexOf("blank"), block: 1, share: 2 / 3 });
});

test("before the first prompt there is no hit rate", () => {
  assert.equal(seen().hitRate(), null);
});

test("cells fill the room, none is larger than wanted, and too many blocks share them", () => {
  assert.deepEqual(layOut(6, 100, 100), { size: 22, columns: 4, each: 1, cells: 6, rows: 2 });
  for (const [blocks, width, height] of [[364, 900, 460], [1200, 320, 300], [100_000, 940, 460], [1_000_000, 320, 200], [1, 50, 50], [0, 50, 50]]) {
    const found = layOut(blocks, width, height);
    assert.ok(found.columns * found.size <= Math.max(width, found.size), `${blocks} fit the width`);
    assert.ok(found.rows * found.size <= height || blocks === 0, `${blocks} fit the height`);
    assert.equal(found.cells, Math.ceil(blocks / found.each));
    if (found.each > 1) assert.ok(layOut(blocks, width, height, { least: 1 }).size < 5, "no more share a cell than must");
  }
  assert.equal(layOut(100_000, 940, 460).each, 8);
});

test("an axis ends at a round number", () => {
  assert.deepEqual([0, 1, 7, 10, 101, 512, 8001].map(niceCeiling), [1, 1, 8, 10, 150, 600, 10000]);
});

test("the better index is the one that reuses more, or costs less; some figures are neither", () => {
  assert.equal(betterOf("tokens_reused", [5, 4]), 0);
  assert.equal(betterOf("us_a_lookup", [5, 4]), 1);
  assert.equal(betterOf("us_a_lookup", [4, 4]), -1);
  assert.equal(betterOf("lookups", [5, 4]), -1);
  assert.equal(betterOf("us_a_lookup", ["a", "b"]), -1);
});
