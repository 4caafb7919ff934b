// Elements from data, and numbers as text. Text is only ever set as text: what a model wrote is never markup.

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Every digit: what stands here reads back as the number in the file.
export const exact = (value) => (value === null || value === undefined ? "" : String(value));

// A few digits, for a glance.
export function brief(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return value.toExponential(1);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export const signed = (value) => (value > 0 ? "+" : "") + brief(value);
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
