// What the chart room knows of the engine: the pictures of the feed, put together. Pure: no page, no clock.
// INVARIANT: after a whole picture and every change in order, the columns are those the engine had.

export const STATES = ["blank", "cached", "leaving", "written", "held", "shared"];
const [BLANK, CACHED, LEAVING, WRITTEN, HELD, SHARED] = STATES.keys();
const MOST_STEPS = 512;
const RATE_SPAN_S = 3;

export class ChartModel {
  constructor() {
    this.about = null;
    this.state = "";
    this.owners = new Int32Array(0);
    this.references = new Uint8Array(0);
    this.named = new Uint8Array(0);
    this.requests = new Map(); // by row
    this.evicted = []; // blocks that the last picture shows given up to hold something else
    this.steps = [];
    this.boxes = {};
    this.stats = {};
    this.history = []; // [seconds, stats, messages passed by "box kind"] of the last pictures
  }

  /** Take in a picture. */
  apply(frame) {
    this.evicted = [];
    if (frame.kind === "whole") {
      this.about = frame.about;
      this.steps = [];
      this.history = [];
    }
    if (frame.blocks) this.applyBlocks(frame.blocks);
    if (frame.rows) this.requests = new Map(frame.rows);
    this.state = frame.state;
    this.boxes = frame.boxes;
    this.stats = frame.stats;
    this.steps = [...this.steps, ...(frame.steps ?? []).map(toStep)].slice(-MOST_STEPS);
    const passed = {};
    for (const [box, { passed: kinds }] of Object.entries(frame.boxes)) {
      for (const [kind, count] of Object.entries(kinds)) passed[`${box} ${kind}`] = count;
    }
    this.history.push([frame.at, frame.stats, passed]);
    while (this.history.length > 2 && frame.at - this.history[1][0] >= RATE_SPAN_S) this.history.shift();
  }

  applyBlocks(blocks) {
    const owners = new Int32Array(decoded(blocks.owners));
    const references = new Uint8Array(decoded(blocks.references));
    const named = new Uint8Array(decoded(blocks.named));
    if (!blocks.at) {
      Object.assign(this, { owners, references, named });
      return;
    }
    new Int32Array(decoded(blocks.at)).forEach((block, index) => {
      if (this.named[block] && !this.references[block] && !named[index]) this.evicted.push(block);
      this.owners[block] = owners[index];
      this.references[block] = references[index];
      this.named[block] = named[index];
    });
  }

  /** Blocks are numbered from 1 to this. */
  get blocks() {
    return Math.max(0, this.owners.length - 1);
  }

  /** The index in STATES of a block. Written: held by one row and not yet full; held: full, so that it has a name. */
  stateOf(block) {
    const references = this.references[block];
    if (!references) return this.named[block] ? CACHED : BLANK;
    if (references > 1) return SHARED;
    if (this.owners[block] < 0) return LEAVING;
    return this.named[block] ? HELD : WRITTEN;
  }

  /** The request of a row that holds the block, 0 for none. */
  ownerOf(block) {
    return this.requests.get(this.owners[block]) ?? 0;
  }

  /** How many blocks are in each state, by STATES. */
  counts() {
    const counts = new Array(STATES.length).fill(0);
    for (let block = 1; block <= this.blocks; block += 1) counts[this.stateOf(block)] += 1;
    return counts;
  }

  /**
   * What to show for blocks `first` .. `last`: the state most of them are in, the one that says more where two are as
   * many, a block that is in it, and its share of them.
   */
  summary(first, last) {
    const counts = new Array(STATES.length).fill(0);
    const examples = [];
    for (let block = first; block <= last; block += 1) {
      const state = this.stateOf(block);
      counts[state] += 1;
      examples[state] ??= block;
    }
    let state = 0;
    for (let other = 1; other < counts.length; other += 1) if (counts[other] && counts[other] >= counts[state]) state = other;
    return { state, block: examples[state], share: counts[state] / (last - first + 1) };
  }

  /** A number of the actors' stats now. */
  stat(actor, name) {
    return this.stats[actor]?.[name] ?? 0;
  }

  /** How much a number of the stats has grown a second, over the last pictures. */
  rate(actor, name) {
    return this.growth(([, stats]) => stats[actor]?.[name] ?? 0);
  }

  /** Messages of a kind that passed a mailbox a second. */
  messageRate(box, kind) {
    return this.growth(([, , passed]) => passed[`${box} ${kind}`] ?? 0);
  }

  growth(valueOf) {
    const first = this.history[0];
    const last = this.history.at(-1);
    if (!first || last[0] <= first[0]) return 0;
    return Math.max(0, valueOf(last) - valueOf(first)) / (last[0] - first[0]);
  }

  /** The share of the prompts' tokens that were found in the cache, null before the first prompt. */
  hitRate() {
    const asked = this.stat("scheduler", "prompt_tokens");
    return asked ? this.stat("scheduler", "cached_tokens") / asked : null;
  }
}

function toStep([number, at, rows, prefill, decode, preempted, ms]) {
  return { number, at, rows, prefill, decode, preempted, ms };
}

/** The bytes of a base64 text. */
function decoded(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer;
}

/** How to lay `blocks` cells out in `width` x `height` pixels: cell size, columns, and blocks a cell where all are too many. */
export function layOut(blocks, width, height, { least = 5, most = 22 } = {}) {
  for (let each = 1; ; each *= 2) {
    const cells = Math.ceil(blocks / each);
    let size = Math.min(most, Math.max(1, Math.floor(Math.sqrt((width * height) / Math.max(1, cells)))));
    while (size > 1 && Math.ceil(cells / Math.max(1, Math.floor(width / size))) * size > height) size -= 1;
    const columns = Math.max(1, Math.floor(width / size));
    if (size >= least || each >= blocks) return { size, columns, each, cells, rows: Math.ceil(cells / columns) };
  }
}

/** The least round number that is not less than `value`: the end of an axis. */
export function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((nice) => nice >= value);
}
