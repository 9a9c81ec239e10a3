// As much of a document as drawing needs, for tests without a browser.

class FakeElement {
  constructor(name) {
    this.name = name;
    this.attributes = {};
    this.children = [];
  }

  set className(value) {
    this.attributes.class = value;
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  append(...children) {
    this.children.push(...children);
  }
}

export class FakeDocument {
  createElement(name) {
    return new FakeElement(name);
  }

  createTextNode(text) {
    return text;
  }
}

/** A node as HTML. */
export function html(node) {
  if (typeof node === "string") return node.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const attributes = Object.entries(node.attributes).map(([name, value]) => ` ${name}="${value}"`).join("");
  const inner = node.children.map(html).join("");
  return ["br", "hr"].includes(node.name) ? `<${node.name}>` : `<${node.name}${attributes}>${inner}</${node.name}>`;
}
