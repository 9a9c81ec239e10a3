// Markdown read into values and drawn into nodes; expected values are written by hand.

import assert from "node:assert/strict";
import { test } from "node:test";

import { parse, render } from "../../asyncpage/server/page/markdown.js";
import { safeAddress } from "../../asyncpage/server/page/markdown_inline.js";
import { FakeDocument, html } from "./fake_document.mjs";

const draw = (text) => render(parse(text), new FakeDocument()).map(html).join("");

const CASES = [
  ["plain text", "Hello.", "<p>Hello.</p>"],
  ["two paragraphs", "a\n\n\nb", "<p>a</p><p>b</p>"],
  ["a line break stays one", "a\nb", "<p>a<br>b</p>"],
  ["a hard break is no more than that", "a  \nb\\\nc", "<p>a<br>b<br>c</p>"],
  ["headings lie below the page's own", "# a\n### b ###\n###### c", "<h3>a</h3><h5>b</h5><h6>c</h6>"],
  ["seven marks are no heading", "####### a", "<p>####### a</p>"],
  ["a hash without a space is none", "#a", "<p>#a</p>"],
  ["emphasis", "*a* _b_ **c** __d__ ~~e~~", "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <del>e</del></p>"],
  ["both", "***a***", "<p><em><strong>a</strong></em></p>"],
  ["one inside the other", "**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["inside a word by stars alone", "a*b*c d_e_f", "<p>a<em>b</em>c d_e_f</p>"],
  ["marks around spaces are text", "2 * 3 * 4 _ 5", "<p>2 * 3 * 4 _ 5</p>"],
  ["marks without a partner are text", "*a **b", "<p>*a **b</p>"],
  ["marks that cross", "*a _b* c_", "<p><em>a _b</em> c_</p>"],
  ["escapes", "\\*a\\* \\# \\a", "<p>*a* # \\a</p>"],
  ["code in a line keeps its marks", "`*a*` ``b`c`` ` d `", "<p><code>*a*</code> <code>b`c</code> <code>d</code></p>"],
  ["a backtick without a partner is text", "`a", "<p>`a</p>"],
  ["a code block", "```python\nx = *1*\n\n<b>\n```\nafter", "<pre>x = *1*\n\n&lt;b&gt;</pre><p>after</p>"],
  ["a code block that is still written", "~~~\na\n```", "<pre>a\n```</pre>"],
  ["a list", "- a\n- b", "<ul><li>a</li><li>b</li></ul>"],
  ["a list that counts from elsewhere", "3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  ["lists inside", "- a\n  - b\n    1. c\n- d", "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>"],
  ["a loose list has paragraphs", "- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  ["an item of two paragraphs", "1. a\n\n   b\n2. c", "<ol><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>"],
  ["code inside a list", "- a\n  ```\n  x\n  ```", "<ul><li>a<pre>x</pre></li></ul>"],
  ["a list right behind a paragraph", "a:\n- b", "<p>a:</p><ul><li>b</li></ul>"],
  ["a year in a paragraph is no list", "in\n1984. it was", "<p>in<br>1984. it was</p>"],
  ["another mark begins another list", "- a\n* b", "<ul><li>a</li></ul><ul><li>b</li></ul>"],
  ["a quote", "> a\n> **b**\nc\n\nd", "<blockquote><p>a<br><strong>b</strong><br>c</p></blockquote><p>d</p>"],
  ["a quote inside", "> > a", "<blockquote><blockquote><p>a</p></blockquote></blockquote>"],
  ["rules", "---\n***\n_ _ _", "<hr><hr><hr>"],
  ["a link", '[a *b*](https://x.y/z "t")', link("https://x.y/z", "a <em>b</em>")],
  ["a link with parentheses", "[a](http://x.y/(b)c)", link("http://x.y/(b)c", "a")],
  ["a link in angle brackets", "[a](<http://x.y>)", link("http://x.y/", "a")],
  ["an address is a link", "see http://x.y/a_b_c.", `<p>see ${anchor("http://x.y/a_b_c", "http://x.y/a_b_c")}.</p>`],
  ["an address in parentheses", "(http://x.y)", `<p>(${anchor("http://x.y/", "http://x.y")})</p>`],
  ["an enclosed address", "<https://x.y>", link("https://x.y/", "https://x.y")],
  ["no link inside a link", "[a http://b.c](http://x.y)", link("http://x.y/", "a http://b.c")],
  ["an image is a link, nothing is loaded", "![a](http://x.y/p.png)", link("http://x.y/p.png", "a")],
  ["brackets that are none", "[a] [b](c) a[0](1)", "<p>[a] [b](c) a[0](1)</p>"],
  [
    "a table",
    "| a | *b* |\n|:--|--:|\n| `x\\|y` | 2 | 3 |\n| 4 |\nafter",
    '<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr>' +
      '<th class="align-left">a</th><th class="align-right"><em>b</em></th></tr></thead><tbody>' +
      '<tr><td class="align-left"><code>x|y</code></td><td class="align-right">2</td></tr>' +
      '<tr><td class="align-left">4</td><td class="align-right"></td></tr></tbody></table></div><p>after</p>',
  ],
  ["a bar alone is no table", "a | b\nc | d", "<p>a | b<br>c | d</p>"],
];

function anchor(href, inner) {
  return `<a href="${href}" rel="noopener noreferrer nofollow" target="_blank">${inner}</a>`;
}

function link(href, inner) {
  return `<p>${anchor(href, inner)}</p>`;
}

for (const [name, text, expected] of CASES) {
  test(name, () => assert.equal(draw(text), expected));
}

const ATTACKS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "[a](javascript:alert(1))",
  "[a](JaVaScRiPt:alert(1))",
  "[a](java\tscript:alert(1))",
  "[a](&#106;avascript:alert(1))",
  "[a](data:text/html,<script>alert(1)</script>)",
  "[a](vbscript:x) [b](file:///etc/passwd) [c](//evil.example) [d](/admin/reset_prefix_cache)",
  "<javascript:alert(1)>",
  "![a](javascript:alert(1))",
  '[a](http://x.y" onmouseover="alert(1))',
  '```"><script>alert(1)</script>\nx\n```',
  "| <b onclick=x> |\n|-|\n| <svg/onload=alert(1)> |",
  "[a]: javascript:alert(1)\n\n[a]",
];

test("whatever a model writes, only known elements with known attributes come of it", () => {
  const names = new Set("p h3 h4 h5 h6 pre hr blockquote ul ol li div table thead tbody tr th td code strong em del a br".split(" "));
  const attributes = new Set(["start", "class", "tabindex", "role", "aria-label", "href", "rel", "target"]);
  const pieces = [...ATTACKS, "**", "_", "[", "](http://a.b)", "`", "\n", "> ", "- ", "| ", "|-|\n", "# ", "~~", "word ", "1. "];
  let seed = 7;
  const draws = Array.from({ length: 400 }, () =>
    Array.from({ length: 12 }, () => pieces[(seed = (seed * 1103515245 + 12345) % 2147483648) % pieces.length]).join(""),
  );
  for (const text of [...ATTACKS, ...draws]) {
    const look = (node) => {
      if (typeof node === "string") return;
      assert.ok(names.has(node.name), `${node.name} of ${text}`);
      for (const [name, value] of Object.entries(node.attributes)) {
        assert.ok(attributes.has(name), `${name} of ${text}`);
        if (name === "href") assert.match(value, /^https?:\/\//);
      }
      node.children.forEach(look);
    };
    render(parse(text), new FakeDocument()).forEach(look);
  }
});

test("only absolute addresses of the web are followed", () => {
  assert.equal(safeAddress("https://a.b/c?d#e"), "https://a.b/c?d#e");
  for (const address of ["javascript:1", " https://a.b", "/a", "a.b", "//a.b", "ftp://a.b", "https://", "http://a b", `https://a.b/${"x".repeat(3000)}`]) {
    assert.equal(safeAddress(address), null, address);
  }
});

test("a text that grows changes only its last block", () => {
  const text = "# a\n\nb *c*\n\n- d\n- e\n\n```\nf\n```\n\ng";
  const whole = parse(text).map((block) => block.source);
  assert.deepEqual(whole, ["# a", "b *c*", "- d\n- e", "```\nf\n```", "g"]);
  for (let length = 1; length < text.length; length += 1) {
    const part = parse(text.slice(0, length)).map((block) => block.source);
    assert.deepEqual(part.slice(0, -1), whole.slice(0, part.length - 1), text.slice(0, length));
  }
});

test("no text takes long or goes too deep", () => {
  const texts = ["*", "[", "`a``", "> ", "- ", "*a _b ", "|a", "[a](", "a*", "*a ", "](<", "1. a\n\n", "```\n", "[a](http://b.c)", "~~a"];
  for (const text of texts) {
    const long = text.repeat(Math.ceil(20000 / text.length));
    render(parse(long), new FakeDocument());
  }
});
