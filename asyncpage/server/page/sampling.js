// The settings of a chat: read from the form, checked, and kept in this browser. An empty field is the server's default.

const KEPT = "asyncpage.settings";

/** Field, what the API calls it, how its text becomes a value, and what a value must be. */
const FIELDS = [
  ["temperature", "temperature", Number, (value) => value >= 0 && value <= 2, "a number from 0 to 2"],
  ["top-p", "top_p", Number, (value) => value > 0 && value <= 1, "a number above 0, up to 1"],
  ["max-tokens", "max_tokens", Number, (value) => Number.isInteger(value) && value >= 1, "a whole number from 1"],
  ["seed", "seed", Number, (value) => Number.isSafeInteger(value), "a whole number"],
  ["stop", "stop", (text) => text.split("\n").filter(Boolean), (list) => list.length <= 4, "at most four lines"],
];

/** The request's fields for these texts by form field. Throws RangeError that names the field and what it takes. */
export function toOptions(texts) {
  const options = {};
  for (const [field, name, read, isValid, wanted] of FIELDS) {
    const text = texts[field] ?? "";
    if (!text.trim()) continue;
    const value = read(text);
    if (!isValid(value)) throw Object.assign(new RangeError(`${name} takes ${wanted}.`), { field });
    options[name] = value;
  }
  return options;
}

export function keepSettings(storage, texts) {
  try {
    storage.setItem(KEPT, JSON.stringify(texts));
  } catch {
    // Storage is full or forbidden: the settings last as long as the page.
  }
}

export function keptSettings(storage) {
  try {
    const kept = JSON.parse(storage.getItem(KEPT) ?? "{}");
    return Object.fromEntries(Object.entries(kept ?? {}).filter(([, text]) => typeof text === "string"));
  } catch {
    return {};
  }
}
