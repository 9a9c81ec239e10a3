// The sea itself: rhumb lines from a wheel of sixteen winds, as portolan charts have them, and the compass rose they
// come from. Drawn once, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WINDS = 16;

/** An SVG element with these attributes and children. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, String(value));
  element.append(...children);
  return element;
}

/** The lines over a whole sheet; the rose of the wheel's east sits where the title's is. */
export function rhumbLines() {
  const sheet = svg("svg", { class: "rhumbs", viewBox: "0 0 1600 1000", preserveAspectRatio: "xMidYMin slice" });
  const centre = [800, 520];
  const nodes = Array.from({ length: WINDS }, (_, wind) => onCircle(centre, 640, wind));
  const lines = { major: "", half: "", quarter: "" };
  for (const [place, node] of [centre, ...nodes].entries()) {
    for (let wind = 0; wind < 2 * WINDS; wind += 1) {
      if (place && wind % 2) continue;
      const end = onCircle(node, 2400, wind / 2);
      const kind = wind % 4 === 0 ? "major" : wind % 2 === 0 ? "half" : "quarter";
      lines[kind] += `M${point(node)}L${point(end)}`;
    }
  }
  for (const [kind, path] of Object.entries(lines)) sheet.append(svg("path", { class: kind, d: path }));
  sheet.append(svg("circle", { class: "wheel", cx: centre[0], cy: centre[1], r: 640 }));
  return sheet;
}

/** A compass rose of 32 points, north up. */
export function compassRose() {
  const rose = svg("svg", { class: "rose", viewBox: "-120 -120 240 240" });
  for (const radius of [104, 100, 62]) rose.append(svg("circle", { class: "ring", r: radius }));
  for (let degree = 0; degree < 360; degree += 5) {
    const [from, to] = [100, degree % 15 ? 102 : 104].map((radius) => onCircle([0, 0], radius, degree / 22.5));
    rose.append(svg("path", { class: "tick", d: `M${point(from)}L${point(to)}` }));
  }
  const layers = [
    [32, 60, 4, "quarter"],
    [16, 76, 6, "half"],
    [8, 88, 9, "ordinal"],
    [4, 99, 13, "cardinal"],
  ];
  for (const [points, length, width, kind] of layers) {
    for (let index = 0; index < points; index += 1) {
      const wind = (index * WINDS) / points;
      if (kind !== "cardinal" && wind % ((2 * WINDS) / points) === 0) continue; // a longer one lies there
      const tip = onCircle([0, 0], length, wind);
      const side = WINDS / points / 2;
      for (const [half, turn] of [["near", side], ["far", -side]]) {
        const shoulder = onCircle([0, 0], width + 6, wind + Math.sign(turn) * Math.min(2, Math.abs(turn) + 0.6));
        rose.append(svg("path", { class: `${kind} ${half}`, d: `M0 0L${point(tip)}L${point(shoulder)}z` }));
      }
    }
  }
  rose.append(svg("circle", { class: "hub", r: 7 }));
  // North has its lily.
  rose.append(svg("path", { class: "lily", d: "M0-119c5 6 5 10 1 14 6-4 11-2 12 3-4-2-7-1-9 3h-8c-2-4-5-5-9-3 1-5 6-7 12-3-4-4-4-8 1-14z" }));
  return rose;
}

/** The point at a wind (of sixteen, north is 0, clockwise) on a circle. */
function onCircle([x, y], radius, wind) {
  const angle = (wind / WINDS) * 2 * Math.PI;
  return [x + radius * Math.sin(angle), y - radius * Math.cos(angle)];
}

function point([x, y]) {
  return `${x.toFixed(2)} ${y.toFixed(2)}`;
}
