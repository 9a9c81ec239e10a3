// Asks for the server's API key where one is set, in either room.

import { setKey } from "./api.js";

/** The form in the page; `onKey` is called when there is a key to try. */
export class KeyForm {
  constructor(onKey) {
    this.form = document.getElementById("key-form");
    this.input = document.getElementById("key");
    this.reason = document.getElementById("key-reason");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      setKey(this.input.value);
      this.input.value = "";
      this.hide();
      onKey();
    });
  }

  get isShown() {
    return !this.form.hidden;
  }

  /** `error`: the refusal, which tells a missing key from a wrong one. */
  ask(error) {
    setKey("");
    this.reason.textContent = error.code === "invalid_api_key" ? "That key is not one of this server's." : "";
    this.form.hidden = false;
    this.input.focus();
  }

  hide() {
    this.form.hidden = true;
  }
}
