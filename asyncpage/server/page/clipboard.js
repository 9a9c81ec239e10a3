// Copies text. Browsers have a clipboard on pages that came safely (https, or this machine); elsewhere the old way is
// tried, which copies what is selected.

/** Whether the text is in the clipboard now. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}
