// How fast an answer came, measured where it is read: the time to its first token and the rate of the others.

export class Meter {
  /** `now`: milliseconds. */
  constructor(now) {
    this.now = now;
    this.asked = now();
    this.first = null;
    this.last = null;
  }

  /** A piece of the answer has come. */
  came() {
    this.last = this.now();
    this.first ??= this.last;
  }

  /** What to say below the answer. `usage` is the server's, null when the answer was cut off before it was told. */
  note(usage, outcome) {
    const parts = [];
    if (usage) {
      parts.push(count(usage.completion_tokens, "token"));
      const seconds = ((this.last ?? 0) - (this.first ?? 0)) / 1000;
      // The first token marks the start, so the time is that of the others.
      if (usage.completion_tokens > 1 && seconds > 0) {
        parts.push(`${rounded((usage.completion_tokens - 1) / seconds)} tokens/s`);
      }
    }
    if (this.first !== null) parts.push(`first after ${((this.first - this.asked) / 1000).toFixed(2)} s`);
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      const prompt = `prompt of ${count(usage.prompt_tokens, "token")}`;
      parts.push(cached ? `${prompt}, ${cached} from the cache` : prompt);
    }
    if (outcome) parts.push(outcome);
    return parts.join(" · ");
  }
}

function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

function rounded(rate) {
  return rate >= 100 ? rate.toFixed(0) : rate.toFixed(1);
}
