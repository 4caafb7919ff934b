// Config view: the resolved config of every process, the run record and package versions.

import { h } from "braid/dom.js";
import { data } from "braid/source.js";

export function render(root) {
  const files = Object.entries(data.facts.config);
  const found = h("div", { class: "configs" });
  const search = h("input", { type: "search", placeholder: "lines containing ... ( / )", "aria-label": "search the configuration", oninput: draw });
  function draw() {
    const wanted = search.value.toLowerCase();
    found.replaceChildren(...files.map(([name, text]) => {
      const lines = wanted ? matching(text, wanted) : text;
      return h("details", { open: name === "rl.toml" || files.length === 1 || Boolean(wanted && lines) }, h("summary", {}, name), h("pre", {}, lines));
    }));
  }
  draw();
  const none = files.length ? null : h("p", { class: "note" }, "This run folder has no resolved config.");
  root.replaceChildren(...[h("div", { class: "heading" }, h("h1", {}, "Configuration", h("small", {}, ` ${data.facts.folder} · Braid ${data.facts.braidrl}`))), none, search, found].filter(Boolean));
}

// Lines that contain the text, each below the header of its TOML table.
function matching(text, wanted) {
  let table = "";
  let shown = "";
  const found = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("[")) table = line;
    if (!line.toLowerCase().includes(wanted)) continue;
    if (shown !== table && line !== table) found.push(table);
    shown = table;
    found.push(line);
  }
  return found.join("\n");
}
