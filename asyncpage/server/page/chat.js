// The chat page: shows a conversation, sends it whole with each message, and writes the answer as it arrives.
// The conversation and the key live in this tab's session storage, so a reload keeps them and closing forgets them.

import { ApiError, listModels, streamChat } from "./api.js";

const element = (id) => document.getElementById(id);
const view = {
  messages: element("messages"),
  model: element("model"),
  prompt: element("prompt"),
  send: element("send"),
  stop: element("stop"),
  status: element("status"),
  keyForm: element("key-form"),
  key: element("key"),
};

let conversation = JSON.parse(sessionStorage.getItem("conversation") ?? "[]");
let running = null; // the AbortController of the answer that is being written

function show(role, text) {
  element("welcome").hidden = true;
  const message = document.createElement("article");
  message.className = `message ${role}`;
  message.setAttribute("aria-label", role === "user" ? "You" : role === "error" ? "Error" : "Model");
  message.textContent = text;
  view.messages.append(message);
  message.scrollIntoView({ block: "end" });
  return message;
}

function note(message, text) {
  const line = document.createElement("footer");
  line.textContent = text;
  message.append(line);
}

function keep() {
  sessionStorage.setItem("conversation", JSON.stringify(conversation));
}

function setRunning(controller) {
  running = controller;
  view.send.hidden = controller !== null;
  view.stop.hidden = controller === null;
  view.messages.setAttribute("aria-busy", String(controller !== null));
}

async function answer(question) {
  const mine = conversation; // "New chat" may replace it meanwhile
  const controller = new AbortController();
  setRunning(controller);
  view.status.textContent = "Waiting for the first token";
  const message = show("assistant", "");
  const text = document.createTextNode("");
  message.append(text);
  message.classList.add("writing");
  const asked = performance.now();
  let began = 0;
  let usage = null;
  let outcome = "";
  let failure = null;
  try {
    const key = sessionStorage.getItem("key");
    for await (const piece of streamChat({ model: view.model.value, messages: mine, key, signal: controller.signal })) {
      if (piece.text) {
        if (!began) view.status.textContent = "Writing";
        began ||= performance.now();
        const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
        text.appendData(piece.text);
        if (atEnd) message.scrollIntoView({ block: "end" });
      }
      if (piece.finish === "length") outcome = "cut at the length limit";
      if (piece.usage) usage = piece.usage;
    }
  } catch (error) {
    if (error.name === "AbortError") outcome = "stopped";
    else failure = error;
  }
  message.classList.remove("writing");
  view.status.textContent = "";
  if (text.data || usage) {
    mine.push({ role: "assistant", content: text.data });
    note(message, [began ? speed(usage, asked, began) : "nothing to say", outcome].filter(Boolean).join(" · "));
  } else {
    // A question that got no answer is no part of the conversation: it goes back to be sent again.
    const { content } = mine.pop();
    view.prompt.value ||= content;
    message.remove();
    question.remove();
  }
  if (mine === conversation) {
    if (failure) fail(failure);
    keep();
  }
  setRunning(null);
  if (view.keyForm.hidden) view.prompt.focus();
}

function speed(usage, asked, began) {
  const first = `first after ${((began - asked) / 1000).toFixed(2)} s`;
  if (!usage) return first;
  const seconds = (performance.now() - began) / 1000;
  const tokens = usage.completion_tokens;
  // The first token marks the start, so the time is that of the others.
  const rate = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tok/s · ` : "";
  return `${tokens} tokens · ${rate}${first}`;
}

function fail(error) {
  if (error instanceof ApiError && error.status === 401) askForKey();
  else show("error", error instanceof ApiError ? error.message : "The server cannot be reached.");
}

function askForKey() {
  sessionStorage.removeItem("key");
  view.keyForm.hidden = false;
  view.key.focus();
}

async function loadModels() {
  try {
    const names = await listModels(sessionStorage.getItem("key"));
    view.model.replaceChildren(...names.map((name) => new Option(name)));
    view.model.disabled = names.length < 2;
    view.keyForm.hidden = true;
  } catch (error) {
    fail(error);
  }
}

element("prompt-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = view.prompt.value.trim();
  if (!text || running) return;
  view.prompt.value = "";
  view.prompt.style.height = "";
  for (const error of view.messages.querySelectorAll(".error")) error.remove();
  conversation.push({ role: "user", content: text });
  answer(show("user", text));
});

view.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("prompt-form").requestSubmit();
  }
});

view.prompt.addEventListener("input", () => {
  view.prompt.style.height = "auto";
  view.prompt.style.height = `${view.prompt.scrollHeight}px`;
});

view.stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

element("clear").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  keep();
  for (const message of view.messages.querySelectorAll(".message")) message.remove();
  element("welcome").hidden = false;
  view.prompt.focus();
});

view.keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", view.key.value);
  view.key.value = "";
  loadModels();
});

for (const { role, content } of conversation) show(role, content);
loadModels();
