// The actors as ports and the ways between them: what passes each mailbox and each ring a second, and the most that
// waited at once. Drawn once, as SVG; only texts and classes change.

import { svg } from "./rhumb_lines.js";
import { bytes, figure } from "./soundings.js";

/** Actor, its name on the chart, and where it lies. `mailbox`: whose depth is shown. */
const PORTS = [
  ["frontend", "Front end", 90, 230],
  ["tokenizer", "Tokenizer", 320, 75],
  ["detokenizer", "Detokenizer", 320, 400],
  ["scheduler", "Scheduler", 550, 230],
  ["kv_manager", "KV manager", 550, 450],
  ["executor", "Executor", 790, 230],
];

/** From, to, what passes (counted in the mailbox of `to`), how much the way bends, and where its text stands. */
const WAYS = [
  ["frontend", "tokenizer", ["Tokenize", "Cancel"], -34, [150, 112]],
  ["tokenizer", "scheduler", ["Admit"], -34, [490, 118]],
  ["scheduler", "kv_manager", ["Reserve"], -34, [652, 352]],
  ["kv_manager", "scheduler", ["Granted"], -34, [465, 352]],
  ["scheduler", "executor", ["Step"], -34, [672, 158]],
  ["executor", "scheduler", ["StepDone"], -34, [672, 312]],
  ["scheduler", "detokenizer", ["StepTokens", "Expect"], -22, [400, 300]],
  ["detokenizer", "frontend", ["Texts"], -34, [150, 352]],
  ["scheduler", "frontend", ["Accepted", "Refused"], 0, [320, 216]],
];

/** Where blocks are kept in files, there is one more. */
const ARCHIVE = {
  port: ["archive", "Archive", 800, 450],
  ways: [
    ["kv_manager", "archive", ["Store", "Fetch"], -20, [675, 412]],
    ["archive", "kv_manager", ["Stored", "Fetched"], -20, [675, 490]],
  ],
};

const RING = [990, 230];
const RADIUS = 40;

export class Topology {
  constructor(place, model) {
    this.model = model;
    this.ways = [];
    this.rings = [];
    this.depths = new Map();
    const sheet = svg("svg", { viewBox: "0 0 1080 530", role: "img", "aria-label": "Actors and what passes between them" });
    sheet.append(svg("defs", {}, arrow()));
    this.sheet = sheet;
    for (const way of WAYS) this.drawWay(sheet, ...way);
    this.drawRing(sheet);
    for (const port of PORTS) this.drawPort(sheet, ...port);
    place.append(sheet);
  }

  update() {
    if (this.model.stats.archive && !this.depths.has("archive")) {
      for (const way of ARCHIVE.ways) this.drawWay(this.sheet, ...way);
      this.drawPort(this.sheet, ...ARCHIVE.port);
    }
    for (const { path, texts, box, kinds } of this.ways) {
      let sum = 0;
      kinds.forEach((kind, index) => {
        const rate = this.model.messageRate(box, kind);
        sum += rate;
        texts[index].textContent = `${kind} ${figure(rate)}`;
      });
      path.classList.toggle("moving", sum > 0);
    }
    for (const [actor, text] of this.depths) {
      const box = this.model.boxes[actor];
      text.textContent = box ? `deepest ${box.deepest}` : "";
      text.classList.toggle("deep", box !== undefined && box.waiting > 0);
    }
    for (const { path, text, kind, stat } of this.rings) {
      const rate = this.model.messageRate(...kind);
      const each = rate ? this.model.rate("executor", stat) / rate : 0;
      // The bytes of one step, with what was rarer: a steady one takes about a hundred.
      text.textContent = each ? `${bytes(each)} a step` : "ring";
      path.classList.toggle("moving", rate > 0);
    }
    this.device.textContent = (this.model.about?.device ?? "").split(" ")[0];
  }

  drawWay(sheet, from, to, kinds, bend, [x, y]) {
    const path = svg("path", { class: "way", d: curve(place(from), place(to), bend), "marker-end": "url(#arrow)" });
    const texts = kinds.map((_, index) => svg("text", { class: "cargo", x, y: y + 22 * index, "text-anchor": "middle" }));
    sheet.append(path, ...texts);
    this.ways.push({ path, texts, box: to, kinds });
  }

  /** The executor's process lies beyond two rings of shared memory: one down, one up. */
  drawRing(sheet) {
    const [x, y] = RING;
    const [near] = place("executor");
    const [left, right] = [near + RADIUS + 4, x - RADIUS - 8];
    for (const [sign, ends, kind, stat] of [
      [-1, [left, right], ["executor", "Step"], "link_bytes_down"],
      [1, [right, left], ["scheduler", "StepDone"], "link_bytes_up"],
    ]) {
      const line = `M${ends[0]} ${y + 10 * sign}L${ends[1]} ${y + 10 * sign}`;
      const path = svg("path", { class: "ring-way", d: line, "marker-end": "url(#arrow)" });
      const text = svg("text", { class: "cargo", x: (left + right) / 2, y: y + (sign < 0 ? -22 : 38), "text-anchor": "middle" });
      sheet.append(path, text);
      this.rings.push({ path, text, kind, stat });
    }
    this.device = svg("text", { class: "depth", x, y: y + 5, "text-anchor": "middle" });
    sheet.append(
      svg("circle", { class: "port far", cx: x, cy: y, r: RADIUS }),
      svg("circle", { class: "port inner far", cx: x, cy: y, r: RADIUS - 5 }),
      svg("text", { class: "name", x, y: y + RADIUS + 26, "text-anchor": "middle" }, "Its process"),
      this.device,
    );
  }

  drawPort(sheet, actor, name, x, y) {
    const depth = svg("text", { class: "depth", x, y: y + 5, "text-anchor": "middle" });
    sheet.append(
      svg("circle", { class: "port", cx: x, cy: y, r: RADIUS }),
      svg("circle", { class: "port inner", cx: x, cy: y, r: RADIUS - 5 }),
      svg("text", { class: "name", x, y: y + RADIUS + 26, "text-anchor": "middle" }, name),
      depth,
    );
    this.depths.set(actor, depth);
  }
}

function place(actor) {
  const [, , x, y] = [...PORTS, ARCHIVE.port].find(([name]) => name === actor);
  return [x, y];
}

/** A way between two ports, from rim to rim, bent to its left. */
function curve([ax, ay], [bx, by], bend) {
  const length = Math.hypot(bx - ax, by - ay);
  const [dx, dy] = [(bx - ax) / length, (by - ay) / length];
  const [mx, my] = [(ax + bx) / 2 + 2 * bend * -dy, (ay + by) / 2 + 2 * bend * dx];
  const rim = ([x, y], margin) => {
    const far = Math.hypot(mx - x, my - y);
    return [x + ((mx - x) / far) * margin, y + ((my - y) / far) * margin].map((number) => number.toFixed(1)).join(" ");
  };
  return `M${rim([ax, ay], RADIUS + 3)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${rim([bx, by], RADIUS + 9)}`;
}

function arrow() {
  return svg(
    "marker",
    { id: "arrow", viewBox: "0 0 10 10", refX: 7, refY: 5, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
    svg("path", { class: "arrow", d: "M0 1 10 5 0 9 3 5z" }),
  );
}
