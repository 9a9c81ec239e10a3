// The steps of the engine, newest on the right: decode and prefill tokens stacked, a flag where rows had to make way.

import { fitted } from "./block_table.js";
import { niceCeiling } from "./chart_model.js";

export const DECODE = "#4fc0b5";
export const PREFILL = "#f2e6c9";
export const PREEMPTED = "#ff8f73";
const HEIGHT = 150;
const BAR = 5;
const LEFT = 40; // for the axis
const TOP = 14; // for the flags
const INK = "#b9ae93";

export class Timeline {
  constructor(canvas, caption, model) {
    this.canvas = canvas;
    this.caption = caption;
    this.model = model;
    new ResizeObserver(() => this.update()).observe(canvas.parentElement);
  }

  update() {
    const width = this.canvas.parentElement.clientWidth;
    const context = fitted(this.canvas, width, HEIGHT);
    const shown = this.model.steps.slice(-Math.max(1, Math.floor((width - LEFT) / BAR)));
    const most = niceCeiling(Math.max(10, ...shown.map((step) => step.prefill + step.decode)));
    const unit = (HEIGHT - TOP - 8) / most;
    this.drawAxis(context, width, most, unit);
    shown.forEach((step, index) => {
      const x = width - (shown.length - index) * BAR;
      const decode = step.decode * unit;
      const prefill = step.prefill * unit;
      context.fillStyle = DECODE;
      context.fillRect(x, HEIGHT - 4 - decode, BAR - 1, decode);
      context.fillStyle = PREFILL;
      context.fillRect(x, HEIGHT - 4 - decode - prefill, BAR - 1, prefill);
      if (step.preempted) this.drawFlag(context, x + BAR / 2, HEIGHT - 6 - decode - prefill);
    });
    this.caption.textContent = this.describe(shown);
  }

  drawAxis(context, width, most, unit) {
    context.font = '13px "EB Garamond", Georgia, serif';
    context.textAlign = "right";
    context.fillStyle = INK;
    context.strokeStyle = "rgba(217, 180, 91, 0.25)";
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(HEIGHT - 4 - share * most * unit) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillText(String(share * most), LEFT - 7, y + 4);
    }
  }

  drawFlag(context, x, y) {
    context.fillStyle = PREEMPTED;
    context.fillRect(x - 0.75, y - 11, 1.5, 11);
    context.beginPath();
    context.moveTo(x, y - 12);
    context.lineTo(x + 8, y - 9);
    context.lineTo(x, y - 6);
    context.fill();
  }

  describe(shown) {
    const last = shown.at(-1);
    if (!last) return "No step yet";
    const ms = last.ms >= 0.1 ? `, ${last.ms.toFixed(1)} ms` : "";
    return `Step ${last.number}: ${last.decode} decode and ${last.prefill} prefill tokens in ${last.rows} rows${ms}`;
  }
}
