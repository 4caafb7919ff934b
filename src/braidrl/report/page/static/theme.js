// Light or dark theme: the system's until the reader chooses one.

const KEY = "braid-theme";
const changed = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
export const onTheme = (listener) => changed.add(listener);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function toggle() {
  choose(dark() ? "light" : "dark");
  try {
    localStorage.setItem(KEY, dark() ? "dark" : "light");
  } catch {
    // Pages opened from a file may have no storage.
  }
}

function choose(theme) {
  document.documentElement.dataset.theme = theme;
  for (const listener of changed) listener();
}

export function start() {
  system.addEventListener("change", () => changed.forEach((listener) => listener()));
  try {
    const kept = localStorage.getItem(KEY);
    if (kept) choose(kept);
  } catch {
    // As above.
  }
}
