// A message on the page: a question as it was typed, an answer as markdown that grows while it is written.
// INVARIANT: whatever a model writes ends in text nodes; see markdown.js.

import { copyText } from "./clipboard.js";
import { button, make } from "./element.js";
import { parse, render } from "./markdown.js";

/** A question. `onEdit` puts it back to be changed. */
export function questionView(message, onEdit) {
  return make(
    "article",
    { class: "message user", "aria-label": "You" },
    make("div", { class: "said" }, message.content),
    make("footer", {}, make("span", { class: "actions" }, button("Edit", onEdit, { class: "quiet" }))),
  );
}

/** An answer, whole or growing: `show` draws what there is of it, `finish` adds what is known at its end. */
export class AnswerView {
  constructor(model) {
    this.model = model;
    this.body = make("div", { class: "said" });
    this.footer = make("footer");
    this.element = make("article", { class: "message assistant", "aria-label": "Model" }, this.body);
    this.drawn = []; // the blocks that `body` shows, one child each
    this.reasoning = null;
    this.calls = [];
  }

  /** Draw the message as it is now. Blocks that have not changed stay as they are, with what is selected in them. */
  show(message) {
    if (message.reasoning) this.showReasoning(message.reasoning);
    const blocks = parse(message.content);
    let same = 0;
    while (same < blocks.length && this.drawn[same]?.source === blocks[same].source) same += 1;
    while (this.body.childNodes.length > same) this.body.lastChild.remove();
    this.body.append(...render(blocks.slice(same), document, codeBlock));
    this.drawn = blocks;
    this.showCalls(message.calls ?? []);
  }

  finish(message, actions) {
    this.element.classList.remove("writing");
    this.show(message);
    this.footer.replaceChildren(
      make("span", { class: "note" }, message.note ?? ""),
      make("span", { class: "actions" }, ...actions),
    );
    this.element.append(this.footer);
  }

  showReasoning(text) {
    if (!this.reasoning) {
      this.reasoning = make("div", { class: "thoughts" });
      this.element.prepend(make("details", { class: "reasoning" }, make("summary", {}, "Reasoning"), this.reasoning));
    }
    this.reasoning.textContent = text;
  }

  showCalls(calls) {
    calls.forEach((call, index) => {
      if (!this.calls[index]) {
        const name = make("span", { class: "call-name" });
        const text = make("pre", { tabindex: "0" });
        this.calls[index] = { name, text };
        const label = make("p", { class: "call-label" }, "Calls the tool ", name);
        this.element.append(make("section", { class: "call", "aria-label": "Tool call" }, label, text));
      }
      this.calls[index].name.textContent = call.name;
      this.calls[index].text.textContent = call.arguments;
    });
  }
}

/** A code block with a button that copies it. */
function codeBlock(block) {
  const copy = button("Copy", async () => {
    copy.textContent = (await copyText(block.text)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  copy.setAttribute("aria-label", block.language ? `Copy the ${block.language} code` : "Copy the code");
  return make(
    "figure",
    { class: "code" },
    make("figcaption", {}, make("span", {}, block.language || "code"), copy),
    make("pre", { tabindex: "0" }, make("code", {}, block.text)),
  );
}
