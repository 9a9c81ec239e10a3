// Makes elements: `make("p", {class: "x", "aria-label": "y"}, child, ...)`. Children that are text stay text.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

export function button(label, onClick, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", onClick);
  return element;
}
