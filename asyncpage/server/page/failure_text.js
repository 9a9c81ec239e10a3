// What went wrong, as a sentence for the page: what happened, and when to try again.

import { ApiError } from "./api.js";

/** The text for whatever `api.js` threw. */
export function explain(error) {
  if (!(error instanceof ApiError)) return "The server cannot be reached. Is it still running?";
  const again = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  if (error.status === 429) return `The server is busy: ${ended(error.message)}${again}`;
  if (error.status === 503) return `${sentence(error.message)}${again}`;
  return sentence(error.message);
}

function sentence(text) {
  return ended(text[0].toUpperCase() + text.slice(1));
}

function ended(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
