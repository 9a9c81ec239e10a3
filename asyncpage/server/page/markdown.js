// Markdown as models write it, read into plain values: `parse` makes blocks, `render` makes DOM nodes of them.
// Blocks: paragraph, heading, code, list, quote, table, rule. Inline: text, code, strong, em, del, link, break.
// INVARIANT: text only ever becomes text nodes. There is no HTML in the output, links lead to http and https alone,
// nothing is loaded, and the work grows with the length of the text, whatever is in it.

import { parseInline } from "./markdown_inline.js";

const MOST_DEPTH = 12; // quotes and lists inside one another; what is deeper is a paragraph

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*?)[ \t]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** The blocks of a text. Each has its `source`, so that a growing text is drawn anew only where it grew. */
export function parse(text) {
  return blocksOf(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    blocks.push(block);
    at = next;
  }
  return blocks;
}

/** The block that begins at this line, and the line behind it. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, children: parseInline(heading[2] ?? "") }, at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < MOST_DEPTH) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line)) return list(lines, at, depth);
  }
  if (beginsTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function fenced(lines, at, fence) {
  const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
  const indent = /^ */.exec(lines[at])[0].length;
  const code = [];
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) {
    code.push(lines[end].replace(new RegExp(`^ {0,${indent}}`), ""));
    end += 1;
  }
  const isClosed = end < lines.length;
  return [{ type: "code", language: fence[2].split(/\s/)[0], text: code.join("\n"), isClosed }, end + (isClosed ? 1 : 0)];
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !interrupts(lines, end, depth))) {
    inner.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  return [{ type: "quote", children: blocksOf(inner, depth + 1) }, end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first[2]);
  const mark = first[2].at(-1);
  const base = first[1].length;
  const items = [];
  let isLoose = false;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length > base + 3 || item[1].length < base || item[2].at(-1) !== mark || RULE.test(lines[end])) break;
    const inner = [item[3] ?? ""];
    const width = item[1].length + item[2].length + 1;
    end += 1;
    while (end < lines.length) {
      const line = lines[end];
      const indent = /^ */.exec(line)[0].length;
      if (!line.trim()) {
        const next = lines.slice(end + 1, end + 3).find((after) => after.trim());
        if (next === undefined || (/^ */.exec(next)[0].length < width && !isSibling(next, base, mark))) break;
        if (isSibling(next, base, mark)) {
          isLoose = true;
          end += 1;
          break;
        }
        inner.push("");
      } else if (indent >= width || (indent > base && ITEM.test(line))) {
        inner.push(line.slice(Math.min(indent, width)));
      } else if (ITEM.test(line) || interrupts(lines, end, depth)) {
        break;
      } else {
        inner.push(line.trimStart());
      }
      end += 1;
    }
    isLoose ||= inner.includes("");
    items.push(blocksOf(inner, depth + 1));
  }
  return [{ type: "list", isOrdered, start: isOrdered ? parseInt(first[2], 10) : 1, isLoose, items }, end];
}

function isSibling(line, base, mark) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length >= base && item[1].length <= base + 1 && item[2].at(-1) === mark;
}

function beginsTable(lines, at) {
  const next = lines[at + 1];
  return (
    next !== undefined &&
    lines[at].includes("|") &&
    next.includes("-") &&
    DIVIDER.test(next) &&
    cells(lines[at]).length === cells(next).length
  );
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((cell) =>
    cell.startsWith(":") ? (cell.endsWith(":") ? "center" : "left") : cell.endsWith(":") ? "right" : "",
  );
  const row = (line) => align.map((_, column) => parseInline(cells(line)[column] ?? ""));
  const header = row(lines[at]);
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) {
    rows.push(row(lines[end]));
    end += 1;
  }
  return [{ type: "table", align, header, rows }, end];
}

/** The cells of a table's line; a bar behind a backslash does not divide. */
function cells(line) {
  const found = [""];
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] === "\\" && inner[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (inner[at] === "|") {
      found.push("");
    } else {
      found[found.length - 1] += inner[at];
    }
  }
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return [{ type: "paragraph", children: parseInline(text) }, end];
}

/** Whether a line begins something else than more of a paragraph. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || beginsTable(lines, at)) return true;
  if (depth >= MOST_DEPTH) return false;
  const item = ITEM.exec(line);
  return QUOTE.test(line) || (item !== null && item[3] !== undefined && (!/\d/.test(item[2]) || item[2].length === 2));
}

/** DOM nodes of blocks. `codeBlock`: makes the element of a block of code, for whoever wants buttons on it. */
export function render(blocks, document, codeBlock = plainCode) {
  return blocks.map((block) => blockNode(block, document, codeBlock));
}

function blockNode(block, document, codeBlock) {
  const make = (name, children = []) => {
    const element = document.createElement(name);
    element.append(...children);
    return element;
  };
  switch (block.type) {
    case "heading":
      // The page has a heading above: the model's begin below it.
      return make(`h${Math.min(6, block.level + 2)}`, inlineNodes(block.children, document));
    case "code":
      return codeBlock(block, document);
    case "rule":
      return make("hr");
    case "quote":
      return make("blockquote", render(block.children, document, codeBlock));
    case "list": {
      const element = make(
        block.isOrdered ? "ol" : "ul",
        block.items.map((item) => make("li", itemNodes(item, block.isLoose, document, codeBlock))),
      );
      if (block.isOrdered && block.start !== 1) element.setAttribute("start", String(block.start));
      return element;
    }
    case "table":
      return tableNode(block, document, make);
    default:
      return make("p", inlineNodes(block.children, document));
  }
}

/** In a tight list an item's own text is no paragraph. */
function itemNodes(item, isLoose, document, codeBlock) {
  return item.flatMap((block) =>
    !isLoose && block.type === "paragraph"
      ? inlineNodes(block.children, document)
      : [blockNode(block, document, codeBlock)],
  );
}

function tableNode(block, document, make) {
  const row = (name, columns) =>
    make("tr", columns.map((children, column) => {
      const cell = make(name, inlineNodes(children, document));
      if (block.align[column]) cell.className = `align-${block.align[column]}`;
      return cell;
    }));
  const element = make("div", [
    make("table", [make("thead", [row("th", block.header)]), make("tbody", block.rows.map((columns) => row("td", columns)))]),
  ]);
  element.className = "table";
  element.setAttribute("tabindex", "0"); // a wide one scrolls, also by keys
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", "Table");
  return element;
}

function plainCode(block, document) {
  const pre = document.createElement("pre");
  pre.append(block.text);
  return pre;
}

function inlineNodes(children, document) {
  return children.map((child) => {
    if (child.type === "text") return document.createTextNode(child.text);
    if (child.type === "break") return document.createElement("br");
    const element = document.createElement({ link: "a" }[child.type] ?? child.type);
    if (child.type === "code") {
      element.append(child.text);
      return element;
    }
    if (child.type === "link") {
      element.setAttribute("href", child.href);
      element.setAttribute("rel", "noopener noreferrer nofollow");
      element.setAttribute("target", "_blank");
    }
    element.append(...inlineNodes(child.children, document));
    return element;
  });
}
