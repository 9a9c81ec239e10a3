// The chat room: shows the conversation, sends it whole with each message, and writes the answer as it arrives.

import { ApiError, listModels, streamChat } from "./api.js";
import { copyText } from "./clipboard.js";
import { Conversation } from "./conversation.js";
import { button, make } from "./element.js";
import { explain } from "./failure_text.js";
import { KeyForm } from "./key_form.js";
import { AnswerView, questionView } from "./message_view.js";
import { Meter } from "./meter.js";
import { rhumbLines } from "./rhumb_lines.js";
import { keepSettings, keptSettings, toOptions } from "./sampling.js";

const element = (id) => document.getElementById(id);
const view = {
  messages: element("messages"),
  welcome: element("welcome"),
  model: element("model"),
  promptForm: element("prompt-form"),
  prompt: element("prompt"),
  send: element("send"),
  stop: element("stop"),
  status: element("status"),
  settings: element("settings"),
  settingsToggle: element("settings-toggle"),
};
const FIELDS = ["system", "temperature", "top-p", "max-tokens", "seed", "stop-strings"].map(element);
const NEAR_END = 120; // pixels: who reads further up is not pulled down

const storage = openStorage();
const conversation = new Conversation(storage);
const keyForm = new KeyForm(loadModels);
let running = null; // the AbortController of the answer that is being written

// --- the conversation on the page ------------------------------------------------------------------------------------

function drawAll() {
  for (const message of [...view.messages.querySelectorAll(".message")]) message.remove();
  view.welcome.hidden = conversation.messages.length > 0;
  conversation.messages.forEach(drawMessage);
}

function drawMessage(message, index) {
  if (message.role === "user") {
    view.messages.append(questionView(message, () => edit(index)));
    return;
  }
  const answer = new AnswerView(view.model.value);
  view.messages.append(answer.element);
  answer.finish(message, answerActions(message, index));
}

function answerActions(message, index) {
  const copy = button("Copy", async () => {
    view.status.textContent = (await copyText(message.content)) ? "The answer is copied." : "It could not be copied.";
  }, { class: "quiet" });
  const isLast = index === conversation.messages.length - 1;
  return isLast ? [copy, button("Regenerate", regenerate, { class: "quiet", id: "regenerate" })] : [copy];
}

function edit(index) {
  if (running) return;
  const [message] = conversation.cut(index);
  drawAll();
  view.prompt.value = message.content;
  fitPrompt();
  view.prompt.focus();
}

function regenerate() {
  const question = conversation.lastQuestion();
  const options = running || question < 0 ? null : readOptions();
  if (!options) return;
  conversation.cut(question + 1);
  drawAll();
  answer(options);
}

// --- asking ----------------------------------------------------------------------------------------------------------

function ask(text) {
  const options = readOptions();
  if (!options) return;
  view.prompt.value = "";
  fitPrompt();
  conversation.add({ role: "user", content: text });
  drawAll();
  answer(options);
}

/** The settings as request fields; null, and the field focused, when one of them is wrong. */
function readOptions() {
  clearErrors();
  try {
    return toOptions(fieldTexts());
  } catch (error) {
    showSettings(true);
    showError(error.message);
    element(error.field === "stop" ? "stop-strings" : error.field).focus();
    return null;
  }
}

async function answer(options) {
  const asked = conversation.messages.length;
  const isStill = () => conversation.messages.length === asked && running === controller; // "New chat" may come meanwhile
  const controller = new AbortController();
  setRunning(controller);
  view.status.textContent = "Waiting for the first token";
  const message = { role: "assistant", content: "" };
  const shown = new AnswerView(view.model.value);
  shown.element.classList.add("writing");
  view.messages.append(shown.element);
  shown.element.scrollIntoView({ block: "end" });
  const meter = new Meter(() => performance.now());
  const draw = everyFrame(() => {
    const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_END;
    shown.show(message);
    if (isAtEnd) shown.element.scrollIntoView({ block: "end" });
  });
  let usage = null;
  let outcome = "";
  let failure = null;
  try {
    const messages = conversation.toSend(element("system").value);
    const request = { model: view.model.value, messages, options, signal: controller.signal };
    for await (const piece of streamChat(request)) {
      if (piece.text || piece.reasoning || piece.call) {
        if (meter.first === null) view.status.textContent = "Writing; Escape stops";
        meter.came();
        take(message, piece);
        draw();
      }
      if (piece.finish === "length") outcome = "cut at the length limit";
      if (piece.usage) usage = piece.usage;
    }
  } catch (error) {
    if (error.name === "AbortError") outcome = "stopped";
    else failure = error;
  }
  draw.stop();
  if (!isStill()) {
    shown.element.remove();
    return;
  }
  setRunning(null);
  finish(message, shown, meter.note(usage, outcome), failure, usage !== null);
}

function take(message, piece) {
  if (piece.text) message.content += piece.text;
  if (piece.reasoning) message.reasoning = (message.reasoning ?? "") + piece.reasoning;
  if (piece.call) {
    message.calls ??= [];
    const call = (message.calls[piece.call.index] ??= { name: "", arguments: "" });
    call.name += piece.call.name ?? "";
    call.arguments += piece.call.arguments ?? "";
  }
}

function finish(message, shown, note, failure, isComplete) {
  if (message.content || message.reasoning || message.calls || isComplete) {
    message.note = note;
    shown.finish(message, answerActions(message, conversation.add(message)));
    view.status.textContent = failure ? "" : "The answer is complete";
  } else {
    // A question that got no answer goes back to be sent again.
    shown.element.remove();
    const question = conversation.lastQuestion();
    const [{ content }] = conversation.cut(question);
    drawAll();
    view.prompt.value ||= content;
    fitPrompt();
    view.status.textContent = failure ? "" : "Stopped before the first token";
  }
  if (failure) fail(failure);
  if (!keyForm.isShown) view.prompt.focus();
}

function setRunning(controller) {
  running = controller;
  view.send.hidden = controller !== null;
  view.stop.hidden = controller === null;
  view.messages.setAttribute("aria-busy", String(controller !== null));
}

/** Calls `draw` at most once a frame of the screen. */
function everyFrame(draw) {
  let frame = 0;
  const later = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  };
  later.stop = () => cancelAnimationFrame(frame);
  return later;
}

// --- what went wrong -------------------------------------------------------------------------------------------------

function fail(error) {
  if (error instanceof ApiError && error.status === 401) keyForm.ask(error);
  else showError(explain(error));
}

function showError(text) {
  clearErrors();
  view.messages.append(make("p", { class: "error", role: "alert" }, text));
  view.messages.lastChild.scrollIntoView({ block: "end" });
}

function clearErrors() {
  for (const error of view.messages.querySelectorAll(".error")) error.remove();
}

async function loadModels() {
  try {
    const names = await listModels();
    view.model.replaceChildren(...names.map((name) => new Option(name)));
    view.model.disabled = names.length < 2;
    keyForm.hide();
    clearErrors();
  } catch (error) {
    fail(error);
  }
}

// --- settings --------------------------------------------------------------------------------------------------------

function fieldTexts() {
  return Object.fromEntries(FIELDS.map((field) => [field.id === "stop-strings" ? "stop" : field.id, field.value]));
}

function showSettings(isShown) {
  view.settings.hidden = !isShown;
  view.settingsToggle.setAttribute("aria-expanded", String(isShown));
}

function fitPrompt() {
  view.prompt.style.height = "auto";
  const borders = view.prompt.offsetHeight - view.prompt.clientHeight;
  view.prompt.style.height = `${view.prompt.scrollHeight + borders}px`;
}

function openStorage() {
  try {
    return localStorage;
  } catch {
    return { getItem: () => null, setItem: () => {} }; // forbidden: nothing outlives the page
  }
}

// --- what people do --------------------------------------------------------------------------------------------------

view.promptForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = view.prompt.value.trim();
  if (text && !running) ask(text);
});
view.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    view.promptForm.requestSubmit();
  }
});
view.prompt.addEventListener("input", fitPrompt);
view.stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
view.settingsToggle.addEventListener("click", () => showSettings(view.settings.hidden));
for (const field of FIELDS) field.addEventListener("input", () => keepSettings(storage, fieldTexts()));
element("clear").addEventListener("click", () => {
  running?.abort();
  setRunning(null);
  conversation.clear();
  clearErrors();
  drawAll();
  view.status.textContent = "A new chat";
  view.prompt.focus();
});

element("sea").append(rhumbLines());
const kept = keptSettings(storage);
for (const field of FIELDS) field.value = kept[field.id === "stop-strings" ? "stop" : field.id] ?? "";
drawAll();
loadModels();
