// The inside of a paragraph: emphasis, code, links and line breaks, read into plain values.
// INVARIANT: every character of the text is in the result, but for marks that are understood; a link's address is
// absolute and http or https.

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE_ADDRESS = /^https?:\/\/[^\s<>"'`\\^{|}]+/i;
const MOST_ADDRESS = 2048;
const MOST_OPEN = 32; // marks and brackets that wait for their partner: more are text, so that no text is slow or deep
const SPACE = /\s/;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const NAMES = { 1: "em", 2: "strong" };

/** The inline nodes of a text. */
export function parseInline(text) {
  return new Reader(text).read();
}

/** The address if it is one that a link may lead to, else null. */
export function safeAddress(address) {
  if (address.length > MOST_ADDRESS || !/^https?:\/\//i.test(address)) return null;
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.nodes = []; // finished nodes, and marks {mark, count, canOpen, canClose} that may yet become emphasis
    this.brackets = []; // places in `nodes` where a link's label may begin
    this.unclosed = new Set(); // lengths of runs of backticks that nothing closes
    this.plain = "";
  }

  read() {
    const { text } = this;
    while (this.at < text.length) {
      const char = text[this.at];
      const isRead =
        (char === "\\" && this.escape()) ||
        (char === "\n" && this.lineBreak()) ||
        (char === "`" && this.code()) ||
        ((char === "*" || char === "_" || char === "~") && this.mark(char)) ||
        (char === "[" && this.openBracket(1)) ||
        (char === "!" && text[this.at + 1] === "[" && this.openBracket(2)) ||
        (char === "]" && this.closeBracket()) ||
        (char === "<" && this.enclosedAddress()) ||
        ((char === "h" || char === "H") && this.bareAddress());
      if (!isRead) {
        this.plain += char;
        this.at += 1;
      }
    }
    this.flush();
    return joined(emphasised(this.nodes));
  }

  flush() {
    if (this.plain) this.nodes.push({ type: "text", text: this.plain });
    this.plain = "";
  }

  put(node, length) {
    this.flush();
    this.nodes.push(node);
    this.at += length;
    return true;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.put({ type: "break" }, 2);
    if (next === undefined || !ESCAPABLE.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  lineBreak() {
    this.plain = this.plain.trimEnd();
    return this.put({ type: "break" }, 1);
  }

  code() {
    const run = /^`+/.exec(this.text.slice(this.at, this.at + 100))[0];
    if (!this.unclosed.has(run.length)) {
      const begin = this.at + run.length;
      let end = begin;
      for (;;) {
        end = this.text.indexOf(run, end);
        if (end < 0) break;
        let after = end + run.length;
        while (this.text[after] === "`") after += 1;
        if (after === end + run.length) {
          let inner = this.text.slice(begin, end).replace(/\n/g, " ");
          if (/^ .*[^ ].* $/.test(inner)) inner = inner.slice(1, -1);
          return this.put({ type: "code", text: inner }, end + run.length - this.at);
        }
        end = after;
      }
      this.unclosed.add(run.length);
    }
    this.plain += run;
    this.at += run.length;
    return true;
  }

  mark(char) {
    const { text } = this;
    let end = this.at;
    while (text[end] === char) end += 1;
    const count = end - this.at;
    if (char === "~" && count !== 2) {
      this.plain += text.slice(this.at, end);
      this.at = end;
      return true;
    }
    const before = text[this.at - 1] ?? " ";
    const after = text[end] ?? " ";
    const opens = !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
    const closes = !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
    const isWord = char === "_"; // inside a word it is a letter
    return this.put(
      {
        mark: char,
        count,
        canOpen: opens && (!isWord || !closes || PUNCTUATION.test(before)),
        canClose: closes && (!isWord || !opens || PUNCTUATION.test(after)),
      },
      count,
    );
  }

  openBracket(length) {
    this.put({ type: "text", text: this.text.slice(this.at, this.at + length) }, length);
    if (this.brackets.length < MOST_OPEN) this.brackets.push(this.nodes.length - 1);
    return true;
  }

  /** `](address "title")` ends a link; an image becomes a link too, since nothing is loaded. */
  closeBracket() {
    const open = this.brackets.pop();
    if (open === undefined) return false;
    const rest = this.text.slice(this.at + 1, this.at + 1 + MOST_ADDRESS + 200);
    const target = /^\(\s*(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/.exec(rest);
    const href = target && safeAddress(target[1] ?? target[2]);
    if (!href) return false;
    this.flush();
    const children = joined(emphasised(this.nodes.splice(open).slice(1))).map(withoutLinks).flat();
    this.brackets = this.brackets.filter((place) => place < open);
    return this.put({ type: "link", href, children: children.length ? children : [{ type: "text", text: href }] }, 1 + target[0].length);
  }

  enclosedAddress() {
    const found = /^<(https?:\/\/[^\s<>]*)>/i.exec(this.text.slice(this.at, this.at + MOST_ADDRESS));
    const href = found && safeAddress(found[1]);
    return href ? this.put({ type: "link", href, children: [{ type: "text", text: found[1] }] }, found[0].length) : false;
  }

  bareAddress() {
    if (/[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? " ")) return false;
    const found = BARE_ADDRESS.exec(this.text.slice(this.at, this.at + MOST_ADDRESS));
    if (!found) return false;
    let address = found[0].replace(/[.,:;!?*_~\]]+$/, "");
    while (address.endsWith(")") && address.split("(").length < address.split(")").length) address = address.slice(0, -1);
    const href = safeAddress(address);
    return href ? this.put({ type: "link", href, children: [{ type: "text", text: address }] }, address.length) : false;
  }
}

/** No link is inside another. */
function withoutLinks(node) {
  if (node.type === "link") return node.children;
  return node.children ? [{ ...node, children: node.children.map(withoutLinks).flat() }] : [node];
}

/** Marks become emphasis where two of a kind meet around something; the others are text. */
function emphasised(nodes) {
  const done = [];
  const openers = []; // places in `done`
  for (const node of nodes) {
    if (!node.mark) {
      done.push(node);
      continue;
    }
    let { count } = node;
    while (node.canClose && count) {
      let place = openers.length - 1;
      while (place >= 0 && done[openers[place]].mark !== node.mark) place -= 1;
      if (place < 0) break;
      openers.length = place + 1; // marks in between found no partner
      const opener = done[openers[place]];
      const used = node.mark === "~" ? 2 : Math.min(2, count, opener.count);
      const children = joined(done.splice(openers[place] + 1));
      opener.count -= used;
      count -= used;
      if (!opener.count) {
        done.pop();
        openers.pop();
      }
      done.push({ type: node.mark === "~" ? "del" : NAMES[used], children });
    }
    if (count) {
      done.push({ ...node, count });
      if (node.canOpen && openers.length < MOST_OPEN) openers.push(done.length - 1);
    }
  }
  return done;
}

/** Marks that are left are text, and texts side by side are one. */
function joined(nodes) {
  const found = [];
  for (const node of nodes) {
    const plain = node.mark ? { type: "text", text: node.mark.repeat(node.count) } : node;
    const last = found.at(-1);
    if (plain.type === "text" && last?.type === "text") found[found.length - 1] = { type: "text", text: last.text + plain.text };
    else found.push(plain);
  }
  return found;
}
