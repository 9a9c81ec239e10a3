// The block table: a cell a block on a canvas, coloured by who holds it. One that is evicted fades.
// Pointing or the arrow keys choose a cell, a click or Enter opens its block; a pool with more blocks than cells have
// room for shows several blocks a cell.

import { layOut, STATES } from "./chart_model.js";

/** Colours of requests; none is near the gold that shared blocks have. */
export const OWNERS = [
  "#43b9ad", "#6ea9de", "#c9705f", "#8fc07a", "#b58bcb", "#3f8f9e",
  "#d98ea1", "#8096d8", "#a9c2a5", "#b0664a", "#63c6dc", "#9287b8",
]; // prettier-ignore
export const COLOURS = { blank: "#f2e6c9", cached: "#b9a878", leaving: "#64758c", shared: "#edc25a" };
const FADE_MS = 1600;

/** The colour of a request, the same as long as it lives. */
export function colourOf(request) {
  return OWNERS[request % OWNERS.length];
}

export class BlockTable {
  /** `onChoose`: a block is pointed at; `onOpen`: it is to be looked at from near. */
  constructor(canvas, model, { onChoose, onOpen }) {
    this.canvas = canvas;
    this.model = model;
    this.onChoose = onChoose;
    this.onOpen = onOpen;
    this.chosen = 1;
    this.chain = []; // blocks to draw a line through
    this.fading = new Map(); // since when, by block
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = 0;
    this.layout = { size: 1, columns: 1, each: 1, cells: 0, rows: 0 };
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("click", (event) => {
      this.point(event);
      this.onOpen(this.chosen, this.layout.each);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.redraw());
    canvas.addEventListener("blur", () => this.redraw());
  }

  /** The model has taken in a picture. */
  update() {
    const now = performance.now();
    for (const block of this.model.evicted) this.fading.set(block, now);
    this.redraw();
  }

  show(block, chain) {
    this.chosen = block;
    this.chain = chain;
    this.redraw();
  }

  redraw() {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      this.draw(now);
    });
  }

  // --- choosing ---

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { size, columns, each, cells } = this.layout;
    const column = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * columns + column;
    if (column < columns && cell >= 0 && cell < cells) this.choose(cell * each + 1);
  }

  key(event) {
    const { columns, each } = this.layout;
    const steps = { ArrowLeft: -each, ArrowRight: each, ArrowUp: -columns * each, ArrowDown: columns * each };
    if (event.key in steps) {
      const next = this.chosen + steps[event.key];
      if (next >= 1 && next <= this.model.blocks) this.choose(next);
    } else if (event.key === "Home") this.choose(1);
    else if (event.key === "End") this.choose(this.model.blocks);
    else if (event.key === "Enter" || event.key === " ") this.onOpen(this.chosen, each);
    else return;
    event.preventDefault();
  }

  choose(block) {
    if (block !== this.chosen) {
      this.chosen = block;
      this.redraw();
    }
    this.onChoose(block, this.layout.each);
  }

  // --- drawing ---

  draw(now) {
    const { canvas, model } = this;
    const width = canvas.parentElement.clientWidth;
    const height = Math.max(200, Math.min(0.55 * innerHeight, 560));
    this.layout = layOut(model.blocks, width, height);
    const { size, columns, each, cells, rows } = this.layout;
    const context = fitted(canvas, width, Math.max(1, rows) * size);
    const gap = size >= 5 ? 1 : 0;
    for (let cell = 0; cell < cells; cell += 1) {
      const first = cell * each + 1;
      const last = Math.min(first + each - 1, model.blocks);
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      this.drawCell(context, x, y, size - gap, first, last, now);
    }
    this.drawChain(context);
    if (document.activeElement === canvas) this.outline(context, this.chosen, "#fff7e2");
    for (const [block, since] of this.fading) if (now - since >= FADE_MS) this.fading.delete(block);
    if (this.fading.size) this.redraw();
  }

  drawCell(context, x, y, size, first, last, now) {
    const { model } = this;
    const seen = first === last ? { state: model.stateOf(first), block: first, share: 1 } : model.summary(first, last);
    const state = STATES[seen.state];
    context.globalAlpha = 0.35 + 0.65 * seen.share;
    if (state === "blank") {
      context.globalAlpha *= 0.09;
      context.fillStyle = COLOURS.blank;
      context.fillRect(x, y, size, size);
    } else if (state === "written") {
      // Not full yet: a frame, lightly filled.
      context.fillStyle = colourOf(model.ownerOf(seen.block));
      context.fillRect(x, y, size, size);
      if (size >= 6) {
        context.globalAlpha = 0.55;
        context.fillStyle = "#0c1e36";
        context.fillRect(x + 2, y + 2, size - 4, size - 4);
      }
    } else if (state === "cached") {
      context.globalAlpha *= 0.36;
      context.fillStyle = COLOURS.cached;
      context.fillRect(x, y, size, size);
    } else {
      context.fillStyle = COLOURS[state] ?? colourOf(model.ownerOf(seen.block));
      context.fillRect(x, y, size, size);
      if (state === "shared" && size >= 9) this.drawDiamond(context, x, y, size);
      if (state === "leaving" && size >= 6) this.drawStroke(context, x, y, size);
    }
    context.globalAlpha = 1;
    const since = this.fading.get(first);
    if (since !== undefined) this.drawFading(context, x, y, size, (now - since) / FADE_MS);
  }

  /** What was evicted: its old colour goes; where nothing may move, a cross says it. */
  drawFading(context, x, y, size, gone) {
    if (this.isStill.matches) {
      this.drawStroke(context, x, y, size);
      return;
    }
    context.globalAlpha = Math.max(0, 1 - gone);
    context.fillStyle = "#fbf3dd";
    context.fillRect(x, y, size, size);
    context.globalAlpha = 1;
  }

  drawDiamond(context, x, y, size) {
    const half = size / 2;
    const reach = size / 4;
    context.fillStyle = "#7a5410";
    context.beginPath();
    context.moveTo(x + half, y + half - reach);
    context.lineTo(x + half + reach, y + half);
    context.lineTo(x + half, y + half + reach);
    context.lineTo(x + half - reach, y + half);
    context.fill();
  }

  drawStroke(context, x, y, size) {
    context.strokeStyle = "#0c1e36";
    context.lineWidth = 1.2;
    context.beginPath();
    context.moveTo(x, y + size);
    context.lineTo(x + size, y);
    context.stroke();
  }

  /** A line from the beginning of the prompt through the blocks before the one that is open. */
  drawChain(context) {
    if (!this.chain.length) return;
    const places = this.chain.filter((block) => block > 0 && block <= this.model.blocks).map((block) => this.middle(block));
    context.lineJoin = "round";
    for (const [colour, width] of [["#0c1e36", 4.5], ["#fff7e2", 1.8]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      for (const [x, y] of places) context.lineTo(x, y);
      context.stroke();
    }
    this.outline(context, this.chain.at(-1), "#fff7e2");
  }

  outline(context, block, colour) {
    const [x, y] = this.middle(block);
    const half = this.layout.size / 2 + 1.5;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(x - half, y - half, 2 * half, 2 * half);
  }

  middle(block) {
    const { size, columns, each } = this.layout;
    const cell = Math.floor((block - 1) / each);
    return [(cell % columns) * size + size / 2 - 0.5, Math.floor(cell / columns) * size + size / 2 - 0.5];
  }
}

/** The context of a canvas of this size in CSS pixels, cleared, sharp on any screen. */
export function fitted(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}
