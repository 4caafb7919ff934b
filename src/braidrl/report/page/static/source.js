// Data of the page: from this file, or from the server that served it.

export const data = JSON.parse(document.getElementById("data").textContent);
export const live = data.opened === undefined;
export const pieces = new Map();

const rollouts = new Map();
const encoder = new TextEncoder();

export async function changes(cursor) {
  if (!live) return unpack("table");
  return ask(`/changes?since=${cursor.join(",")}`);
}

// True if the tokens of a rollout are available.
export const opens = (id) => live || id in data.opened;

// Returns a rollout with its tokens, or null if it is not in the page.
export async function rollout(id) {
  if (!rollouts.has(id)) {
    if (!opens(id)) return null;
    const found = await (live ? ask(`/rollouts/${id}`) : unpack(data.opened[id]));
    for (const [key, each] of Object.entries(found.rollouts)) rollouts.set(key, each);
    for (const [key, piece] of Object.entries(found.pieces)) {
      pieces.set(Number(key), typeof piece === "string" ? encoder.encode(piece) : Uint8Array.from(piece));
    }
  }
  return rollouts.get(id);
}

async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
