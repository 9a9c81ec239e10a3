// The conversation: what was said, kept in this browser so that a reload does not lose it.
// INVARIANT: messages alternate as they were said; nothing of them leaves this browser but in a request to the server.

const KEPT = "asyncpage.conversation";
const MOST_KEPT = 2_000_000; // characters; browsers give a site about five million

/**
 * Messages `{role, content}`; an answer may have `reasoning`, `calls` [{name, arguments}] and a `note` about how it
 * came. Every change is kept at once.
 */
export class Conversation {
  constructor(storage) {
    this.storage = storage;
    this.messages = read(storage);
  }

  add(message) {
    this.messages.push(message);
    this.keep();
    return this.messages.length - 1;
  }

  /** Forget this message and all behind it. */
  cut(index) {
    const gone = this.messages.splice(index);
    this.keep();
    return gone;
  }

  clear() {
    this.cut(0);
  }

  /** The question that the last answer is to, or the one that waits for an answer; -1 when nothing was asked. */
  lastQuestion() {
    return this.messages.findLastIndex((message) => message.role === "user");
  }

  /** What a request sends: the system prompt, if any, and every message as the API wants it. */
  toSend(system) {
    const said = this.messages.filter(({ role, content }) => role === "user" || content);
    const sent = said.map(({ role, content }) => ({ role, content }));
    return system.trim() ? [{ role: "system", content: system }, ...sent] : sent;
  }

  keep() {
    let first = 0;
    let text = JSON.stringify(this.messages);
    while (text.length > MOST_KEPT && first < this.messages.length) {
      first += 2; // a question and its answer
      text = JSON.stringify(this.messages.slice(first));
    }
    try {
      this.storage.setItem(KEPT, text);
    } catch {
      // Storage is full or forbidden: the conversation lasts as long as the page.
    }
  }
}

function read(storage) {
  try {
    const kept = JSON.parse(storage.getItem(KEPT) ?? "[]");
    return Array.isArray(kept) ? kept.filter(isMessage) : [];
  } catch {
    return [];
  }
}

function isMessage(message) {
  return (message?.role === "user" || message?.role === "assistant") && typeof message.content === "string";
}
